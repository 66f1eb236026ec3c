"""Runs of jobs whose usage is known at any time, and the samples that exporters would return.

The CPU usage of a run falls from three quarters of its CPUs to a quarter, its memory grows, and the
utilization of its GPUs and its power fall: figures of another time than displayed differ widely.
"""

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, Protocol

from tests.batchjob_stats_db.tsdb import line

GIB, MIB = 1 << 30, 1 << 20
INTERVAL = 30  # seconds between scrapes
RATE_SECONDS = 4 * INTERVAL  # range of rates in Grafana
LINGER_SECONDS = 300
CHANGE_SECONDS = 1800  # active seconds after which rates fall
NODES = ("n001", "n002")
CPUS, MEMORY_BYTES, GPUS = 8, 16 * GIB, 2  # of both nodes
CPU_RATES = {"n001": (3.2, 0.8), "n002": (2.8, 1.2)}  # CPUs in use before and after the change
MEMORY_GROWTH = {"n001": 5 * GIB, "n002": 3 * GIB}  # bytes in the first hour, beside the first GiB
GPU_UTILIZATION = (0.9, 0.1)
RECENT_SECONDS = 1800  # over which dashboards average the utilization of GPUs
WRITTEN_BYTES_PER_SECOND = 8 * MIB  # on each node
WATTS = {"n001": (310.0, 120.0), "n002": (270.0, 90.0)}  # before and after the change
POWER_SHARES = {("host", "active"): 0.6, ("host", "idle"): 0.1, ("gpu", "active"): 0.3}


class Usage(NamedTuple):
    """What a run has used until a time, on all its nodes.

    None: not available; NaN: not known.
    """

    cpu_seconds: float
    memory_bytes: float
    gpu_ratio: float | None
    written_bytes: float | None
    elapsed: float
    cpus_in_use: float | None = None  # as a rate over a few scrapes
    written_per_second: float | None = None  # the same
    gpus_in_use: float | None = None  # currently
    cpus: int = CPUS
    memory: int = MEMORY_BYTES
    energy_joules: float | None = None
    power_watts: float | None = None  # as a rate over a few scrapes
    recent_gpu_ratio: float | None = None  # mean over the last half hour

    @property
    def present_gpu_ratio(self) -> float | None:
        """Current mean of its GPUs."""
        return None if self.gpus_in_use is None else self.gpus_in_use / GPUS

    @property
    def cpu_efficiency(self) -> float:
        """Used part of its CPUs."""
        return self.cpu_seconds / (self.cpus * self.elapsed)

    @property
    def memory_efficiency(self) -> float:
        """Used part of its memory."""
        return self.memory_bytes / self.memory


class KnownRun(Protocol):
    """A run whose usage is known at any time; times in epoch seconds."""

    @property
    def jobid(self) -> str: ...
    @property
    def user(self) -> str: ...
    @property
    def submit(self) -> int: ...
    @property
    def start(self) -> int: ...
    @property
    def end(self) -> int: ...
    @property
    def interval(self) -> int:
        """Seconds between scrapes."""
        ...

    @property
    def accounting_error(self) -> float:
        """Relative error of the scheduler's own figures."""
        ...

    @property
    def counting_errors(self) -> Mapping[str, float]:
        """Absolute errors of the true usage, by figure."""
        ...

    def suspended_seconds(self, at: float) -> float:
        """Seconds that it was suspended until a time."""
        ...

    def active_seconds(self, at: float) -> float:
        """Seconds that it ran until a time, as schedulers count them."""
        ...

    def max_delay(self, at: float) -> float:
        """Seconds by which figures may be behind while the job runs."""
        ...

    def usage_at(self, at: float, *, as_measured: bool = False) -> Usage:
        """The true usage; `as_measured`: without what was not measured."""
        ...


class ScriptedRun(NamedTuple):
    """One simulated run of a job."""

    jobid: str
    user: str
    submit: int
    start: int
    end: int
    suspended: tuple[int, int] = (0, 0)
    lost_samples: tuple[str, int] = ("", 0)  # a node, and the time after which its samples are lost
    sample_gap: tuple[int, int] = (0, 0)  # start and end of a time without samples
    has_accounting: bool = False  # whether the scheduler has the usage of ended jobs
    linger_seconds: int = LINGER_SECONDS  # another run of its id takes over its series
    end_delay_seconds: int = 0  # after its end, until the scheduler knows it
    interval: int = INTERVAL
    accounting_error: float = 0.0
    counting_errors: Mapping[str, float] = MappingProxyType({})

    def suspended_seconds(self, at: float) -> float:
        """Seconds that it was suspended until a time."""
        begin, end = self.suspended
        return max(0, min(at, end) - begin) if begin else 0

    def is_suspended(self, at: float) -> bool:
        """Whether it is suspended at a time."""
        begin, end = self.suspended
        return begin <= at < end

    def active_seconds(self, at: float) -> float:
        """Seconds that it ran until a time, as schedulers count them."""
        return max(0.0, min(at, self.end) - self.start - self.suspended_seconds(min(at, self.end)))

    def max_delay(self, at: float) -> float:
        """See KnownRun."""
        del at
        return self.interval + 1

    def measured_until(self, node: str, at: float) -> float:
        """The time until which the node was measured."""
        lost_node, since = self.lost_samples
        return min(at, since) if node == lost_node else at

    def usage_at(self, at: float, *, as_measured: bool = False) -> Usage:
        """The true usage; `as_measured`: without what was not measured."""
        active = {
            node: self.active_seconds(self.measured_until(node, at) if as_measured else at)
            for node in NODES
        }
        longest = max(active.values())
        if not longest:
            return Usage(0.0, 0.0, 0.0, 0.0, 0.0)
        before = {node: self.active_seconds(at - RATE_SECONDS) for node in NODES}
        return Usage(
            sum(cpu_seconds(node, active[node]) for node in NODES),
            sum(memory_bytes(node, active[node]) for node in NODES),
            _gpu_utilization(self, at, active, as_measured),
            sum(WRITTEN_BYTES_PER_SECOND * active[node] for node in NODES),
            self.active_seconds(at),
            sum(cpu_seconds(n, active[n]) - cpu_seconds(n, before[n]) for n in NODES)
            / RATE_SECONDS,
            sum(WRITTEN_BYTES_PER_SECOND * (active[n] - before[n]) for n in NODES) / RATE_SECONDS,
            sum(
                0.0 if self.is_suspended(at) else GPU_UTILIZATION[active[n] > CHANGE_SECONDS]
                for n in NODES
            ),
            energy_joules=sum(energy_joules(n, active[n]) for n in NODES),
            power_watts=sum(
                energy_joules(n, active[n]) - energy_joules(n, before[n]) for n in NODES
            )
            / RATE_SECONDS,
            recent_gpu_ratio=_recent_gpu_utilization(self, at),
        )


def _integral(seconds: float, before: float, after: float) -> float:
    return before * min(seconds, CHANGE_SECONDS) + after * max(0.0, seconds - CHANGE_SECONDS)


def cpu_seconds(node: str, seconds: float) -> float:
    """CPU time on a node after some active seconds."""
    return _integral(seconds, *CPU_RATES[node])


def energy_joules(node: str, seconds: float) -> float:
    """Energy of a node after some active seconds."""
    return _integral(seconds, *WATTS[node])


def _recent_gpu_utilization(run: ScriptedRun, at: float) -> float:
    """Mean utilisation of the allocated GPUs over the recent time."""
    begin = max(run.start, at - RECENT_SECONDS)
    busy_seconds = _integral(run.active_seconds(at), *GPU_UTILIZATION) - _integral(
        run.active_seconds(begin), *GPU_UTILIZATION
    )
    return busy_seconds / max(1.0, at - begin)


def _gpu_utilization(
    run: ScriptedRun, at: float, active: dict[str, float], as_measured: bool
) -> float:
    """Mean utilisation of the GPUs while allocated, suspended or not."""
    allocated_seconds = [
        min(run.measured_until(node, at) if as_measured else at, run.end) - run.start
        for node in NODES
    ]
    busy_seconds = [_integral(active[node], *GPU_UTILIZATION) for node in NODES]
    begin, end = (min(at, moment) for moment in run.sample_gap)
    if as_measured and end > begin:
        allocated_seconds = [seconds - (end - begin) for seconds in allocated_seconds]
        unmeasured = _integral(run.active_seconds(end), *GPU_UTILIZATION) - _integral(
            run.active_seconds(begin), *GPU_UTILIZATION
        )
        busy_seconds = [seconds - unmeasured for seconds in busy_seconds]
    return sum(busy_seconds) / sum(allocated_seconds)


def memory_bytes(node: str, seconds: float) -> float:
    """Memory on a node after some active seconds."""
    return GIB + MEMORY_GROWTH[node] * seconds / 3600


def samples(run: ScriptedRun, with_late_samples: bool = True) -> list[str]:
    """The samples of its nodes' exporters: each 30 s, and the last values while they linger.

    `with_late_samples`: including those that are lost at first.
    """
    complete_run = run._replace(lost_samples=("", 0)) if with_late_samples else run
    return [text for node in NODES for text in _node_samples(complete_run, node)]


def info_samples(lines: Sequence[str]) -> Iterator[str]:
    """The samples about jobs and nodes that dashboards query besides these."""
    for each in lines:
        head, _, at = each.rsplit(" ", 2)
        name, _, text = head.partition("{")
        if name == "batchjob_job_cpu_seconds_total" and 'mode="user"' in text:
            labels = text.replace(',mode="user"', "")
            yield f"batchjob_job_info{{{labels} 1 {at}"
            node = text.partition(",manager=")[0]
            yield f"batchjob_node_cpus{{{node}}} {CPUS // 2} {at}"


def _node_samples(run: ScriptedRun, node: str) -> list[str]:
    first = run.start + (7 if node == "n001" else 19)
    last = run.end + run.linger_seconds
    if node == run.lost_samples[0]:
        last = run.lost_samples[1]
    labels = {
        "cluster": "c1", "instance": f"{node}:10910", "jobid": run.jobid, "user": run.user
    }  # fmt: skip
    lines: list[str] = []
    begin, end = run.sample_gap
    for at in (at for at in range(first, last, INTERVAL) if not begin < at < end):
        seconds = run.active_seconds(at)
        cpu = cpu_seconds(node, seconds)
        peak = int(memory_bytes(node, seconds))

        def add(metric: str, value: float, at: int = at, **more: str) -> None:
            lines.append(line(metric, value, at, **labels, **more))

        add("cpu_seconds_total", round(0.9 * cpu, 3), mode="user")
        add("cpu_seconds_total", round(0.1 * cpu, 3), mode="system")
        add("memory_peak_bytes", peak)
        add("process_io_written_bytes_total", int(WRITTEN_BYTES_PER_SECOND * seconds))
        for (component, kind), share in POWER_SHARES.items():
            energy = round(share * energy_joules(node, seconds), 1)
            add("energy_joules_total", energy, component=component, kind=kind)
        if at >= run.end:
            add("end_time_seconds", run.end)
            continue
        add("memory_current_bytes", peak)
        utilization = 0.0 if run.is_suspended(at) else GPU_UTILIZATION[seconds > CHANGE_SECONDS]
        add("gpu_utilization_ratio", utilization, gpu="0", uuid=f"GPU-{node}", gpu_instance="")
    return lines
