"""Jobs whose use is known at every moment, and the samples that exporters would store of them.

A run's CPU use falls from three quarters of what it has to a quarter, its memory grows, its GPUs do
much at first and little later, and its power falls: whatever is shown for another moment than it
says is off by far.
"""

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, Protocol

from tests.batchjob_stats_db.tsdb import line

GIB, MIB = 1 << 30, 1 << 20
INTERVAL = 30  # seconds between scrapes
RATE_SECONDS = 4 * INTERVAL  # over which Grafana asks for rates
LINGER = 300
TURN = 1800  # seconds after which a run does less
NODES = ("n001", "n002")
CPUS, MEMORY, GPUS = 8, 16 * GIB, 2  # of both nodes
RATES = {"n001": (3.2, 0.8), "n002": (2.8, 1.2)}  # CPUs in use before and after the turn
GROWTH = {"n001": 5 * GIB, "n002": 3 * GIB}  # bytes in the first hour, beside the first GiB
BUSY = (0.9, 0.1)
RECENT = 1800  # seconds over which dashboards average the use of GPUs
WRITTEN = 8 * MIB  # a second, on each node
WATTS = {"n001": (310.0, 120.0), "n002": (270.0, 90.0)}  # before and after the turn
SHARES = {("host", "active"): 0.6, ("host", "idle"): 0.1, ("gpu", "active"): 0.3}  # of the power


class Use(NamedTuple):
    """What a run used by a moment, on all its nodes.

    None: it has no such thing; NaN: it is not known.
    """

    cpu_seconds: float
    memory_bytes: float
    gpu_ratio: float | None
    written_bytes: float | None
    elapsed: float
    cpus_in_use: float | None = None  # as a rate over a few scrapes
    written_per_second: float | None = None  # the same
    gpus_in_use: float | None = None  # at the moment
    cpus: int = CPUS
    memory: int = MEMORY
    energy_joules: float | None = None
    power_watts: float | None = None  # as a rate over a few scrapes
    recent_gpu_ratio: float | None = None  # mean of the last half hour

    @property
    def present_gpu_ratio(self) -> float | None:
        """Mean of its GPUs at the moment."""
        return None if self.gpus_in_use is None else self.gpus_in_use / GPUS

    @property
    def cpu_efficiency(self) -> float:
        """Of its CPUs."""
        return self.cpu_seconds / (self.cpus * self.elapsed)

    @property
    def memory_efficiency(self) -> float:
        """Of its memory."""
        return self.memory_bytes / self.memory


class Subject(Protocol):
    """A run whose use is known at every moment; times in epoch seconds."""

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
        """By which part the scheduler's own figures may be off."""
        ...

    @property
    def counting_errors(self) -> Mapping[str, float]:
        """By how much the truth itself may be off, by the figure's name."""
        ...

    def paused(self, at: float) -> float:
        """Seconds that it was suspended by a moment."""
        ...

    def active(self, at: float) -> float:
        """Seconds that it ran by a moment, as schedulers count them."""
        ...

    def late(self, at: float) -> float:
        """Seconds by which what is shown of a moment may be behind it while the job runs."""
        ...

    def used(self, at: float, *, as_seen: bool = False) -> Use:
        """The truth; `as_seen`: of what came to be measured."""
        ...


class Run(NamedTuple):
    """One simulated run of a job."""

    jobid: str
    user: str
    submit: int
    start: int
    end: int
    suspended: tuple[int, int] = (0, 0)
    lost: tuple[str, int] = ("", 0)  # a node, and from when on its samples did not come
    silent: tuple[int, int] = (0, 0)  # when no samples came from anywhere
    accounted: bool = False  # whether the scheduler says what an ended job used
    lingers: int = LINGER  # seconds; another run of its id takes its series over
    told_late: int = 0  # seconds after its end until the scheduler knows of it
    interval: int = INTERVAL
    accounting_error: float = 0.0
    counting_errors: Mapping[str, float] = MappingProxyType({})

    def paused(self, at: float) -> float:
        """Seconds that it was suspended by a moment."""
        begin, end = self.suspended
        return max(0, min(at, end) - begin) if begin else 0

    def stopped(self, at: float) -> bool:
        """Whether it is suspended."""
        begin, end = self.suspended
        return begin <= at < end

    def active(self, at: float) -> float:
        """Seconds that it ran by a moment, as schedulers count them."""
        return max(0.0, min(at, self.end) - self.start - self.paused(min(at, self.end)))

    def late(self, at: float) -> float:
        """See Subject."""
        del at
        return self.interval + 1

    def seen(self, node: str, at: float) -> float:
        """Until when the node was measured."""
        lost, since = self.lost
        return min(at, since) if node == lost else at

    def used(self, at: float, *, as_seen: bool = False) -> Use:
        """The truth; `as_seen`: of what came to be measured."""
        active = {node: self.active(self.seen(node, at) if as_seen else at) for node in NODES}
        whole = max(active.values())
        if not whole:
            return Use(0.0, 0.0, 0.0, 0.0, 0.0)
        before = {node: self.active(at - RATE_SECONDS) for node in NODES}
        return Use(
            sum(cpu_seconds(node, active[node]) for node in NODES),
            sum(memory_bytes(node, active[node]) for node in NODES),
            _busy(self, at, active, as_seen),
            sum(WRITTEN * active[node] for node in NODES),
            self.active(at),
            sum(cpu_seconds(n, active[n]) - cpu_seconds(n, before[n]) for n in NODES)
            / RATE_SECONDS,
            sum(WRITTEN * (active[n] - before[n]) for n in NODES) / RATE_SECONDS,
            sum(0.0 if self.stopped(at) else BUSY[active[n] > TURN] for n in NODES),
            energy_joules=sum(joules(n, active[n]) for n in NODES),
            power_watts=sum(joules(n, active[n]) - joules(n, before[n]) for n in NODES)
            / RATE_SECONDS,
            recent_gpu_ratio=_recently_busy(self, at),
        )


def _split(seconds: float, before: float, after: float) -> float:
    return before * min(seconds, TURN) + after * max(0.0, seconds - TURN)


def cpu_seconds(node: str, seconds: float) -> float:
    """Of a node that ran so long."""
    return _split(seconds, *RATES[node])


def joules(node: str, seconds: float) -> float:
    """Of a node that ran so long."""
    return _split(seconds, *WATTS[node])


def _recently_busy(run: Run, at: float) -> float:
    """Mean of GPUs over the last time for which they were held."""
    begin = max(run.start, at - RECENT)
    busy = _split(run.active(at), *BUSY) - _split(run.active(begin), *BUSY)
    return busy / max(1.0, at - begin)


def _busy(run: Run, at: float, active: dict[str, float], as_seen: bool) -> float:
    """Mean of the time for which GPUs were held, suspended or not."""
    held = [min(run.seen(node, at) if as_seen else at, run.end) - run.start for node in NODES]
    busy = [_split(active[node], *BUSY) for node in NODES]
    begin, end = (min(at, moment) for moment in run.silent)
    if as_seen and end > begin:
        held = [seconds - (end - begin) for seconds in held]
        unseen = _split(run.active(end), *BUSY) - _split(run.active(begin), *BUSY)
        busy = [seconds - unseen for seconds in busy]
    return sum(busy) / sum(held)


def memory_bytes(node: str, seconds: float) -> float:
    """Of a node that ran so long."""
    return GIB + GROWTH[node] * seconds / 3600


def samples(run: Run, late: bool = True) -> list[str]:
    """What the exporters of its nodes store: each 30 s, and the last values while they linger.

    `late`: whether that is there which did not come at first.
    """
    found = run._replace(lost=("", 0)) if late else run
    return [text for node in NODES for text in _of_node(found, node)]


def infos(lines: Sequence[str]) -> Iterator[str]:
    """What tells dashboards of the jobs beside these samples."""
    for each in lines:
        head, _, at = each.rsplit(" ", 2)
        name, _, text = head.partition("{")
        if name == "batchjob_job_cpu_seconds_total" and 'mode="user"' in text:
            own = text.replace(',mode="user"', "")
            yield f"batchjob_job_info{{{own} 1 {at}"
            node = text.partition(",manager=")[0]
            yield f"batchjob_node_cpus{{{node}}} {CPUS // 2} {at}"


def _of_node(run: Run, node: str) -> list[str]:
    first = run.start + (7 if node == "n001" else 19)
    last = run.end + run.lingers
    if node == run.lost[0]:
        last = run.lost[1]
    labels = {
        "cluster": "c1", "instance": f"{node}:10910", "jobid": run.jobid, "user": run.user
    }  # fmt: skip
    found: list[str] = []
    begin, end = run.silent
    for at in (at for at in range(first, last, INTERVAL) if not begin < at < end):
        seconds = run.active(at)
        cpu = cpu_seconds(node, seconds)
        peak = int(memory_bytes(node, seconds))

        def add(metric: str, value: float, at: int = at, **more: str) -> None:
            found.append(line(metric, value, at, **labels, **more))

        add("cpu_seconds_total", round(0.9 * cpu, 3), mode="user")
        add("cpu_seconds_total", round(0.1 * cpu, 3), mode="system")
        add("memory_peak_bytes", peak)
        add("process_io_written_bytes_total", int(WRITTEN * seconds))
        for (component, kind), share in SHARES.items():
            energy = round(share * joules(node, seconds), 1)
            add("energy_joules_total", energy, component=component, kind=kind)
        if at >= run.end:
            add("end_time_seconds", run.end)
            continue
        add("memory_current_bytes", peak)
        busy = 0.0 if run.stopped(at) else BUSY[seconds > TURN]
        add("gpu_utilization_ratio", busy, gpu="0", uuid=f"GPU-{node}", gpu_instance="")
    return found
