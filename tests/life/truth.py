"""Jobs whose use is known at every moment, and the samples that exporters would store of them.

A run's CPU use falls from three quarters of what it has to a quarter, its memory grows, its GPUs do
much at first and little later: whatever is shown for another moment than it says is off by far.
"""

from typing import NamedTuple

from tests.batchjob_stats_db.tsdb import line

GIB, MIB = 1 << 30, 1 << 20
INTERVAL = 30  # seconds between scrapes
LINGER = 300
TURN = 1800  # seconds after which a run does less
NODES = ("n001", "n002")
CPUS, MEMORY, GPUS = 8, 16 * GIB, 2  # of both nodes
RATES = {"n001": (3.2, 0.8), "n002": (2.8, 1.2)}  # CPUs in use before and after the turn
GROWTH = {"n001": 5 * GIB, "n002": 3 * GIB}  # bytes in the first hour, beside the first GiB
BUSY = (0.9, 0.1)
WRITTEN = 8 * MIB  # a second, on each node


class Run(NamedTuple):
    """One run of a job; times in epoch seconds."""

    jobid: str
    user: str
    submit: int
    start: int
    end: int
    suspended: tuple[int, int] = (0, 0)
    lost: tuple[str, int] = ("", 0)  # a node, and from when on its samples did not come
    accounted: bool = False  # whether the scheduler says what an ended job used
    lingers: int = LINGER  # seconds; another run of its id takes its series over

    def paused(self, at: float) -> float:
        """Seconds that it was suspended by a moment."""
        begin, end = self.suspended
        return max(0, min(at, end) - begin) if begin else 0

    def active(self, at: float) -> float:
        """Seconds that it ran by a moment, as schedulers count them."""
        return max(0.0, min(at, self.end) - self.start - self.paused(min(at, self.end)))

    def seen(self, node: str, at: float) -> float:
        """Until when the node was measured."""
        lost, since = self.lost
        return min(at, since) if node == lost else at


class Use(NamedTuple):
    """What a run used by a moment, on all its nodes."""

    cpu_seconds: float
    memory_bytes: float
    gpu_ratio: float
    written_bytes: float
    elapsed: float

    @property
    def cpu_efficiency(self) -> float:
        """Of its CPUs."""
        return self.cpu_seconds / (CPUS * self.elapsed)

    @property
    def memory_efficiency(self) -> float:
        """Of its memory."""
        return self.memory_bytes / MEMORY


def _split(seconds: float, before: float, after: float) -> float:
    return before * min(seconds, TURN) + after * max(0.0, seconds - TURN)


def used(run: Run, at: float, *, as_seen: bool = False) -> Use:
    """The truth; `as_seen`: of what came to be measured."""
    active = {node: run.active(run.seen(node, at) if as_seen else at) for node in NODES}
    whole = max(active.values())
    if not whole:
        return Use(0.0, 0.0, 0.0, 0.0, 0.0)
    return Use(
        sum(_split(active[node], *RATES[node]) for node in NODES),
        sum(_memory(node, active[node]) for node in NODES),
        _busy(run, at, active, as_seen),
        sum(WRITTEN * active[node] for node in NODES),
        run.active(at),
    )


def _busy(run: Run, at: float, active: dict[str, float], as_seen: bool) -> float:
    """Mean of the time for which GPUs were held, suspended or not."""
    held = (min(run.seen(node, at) if as_seen else at, run.end) - run.start for node in NODES)
    return sum(_split(active[node], *BUSY) for node in NODES) / sum(held)


def _memory(node: str, seconds: float) -> float:
    return GIB + GROWTH[node] * seconds / 3600


def samples(run: Run, late: bool = True) -> list[str]:
    """What the exporters of its nodes store: each 30 s, and the last values while they linger.

    `late`: whether that is there which did not come at first.
    """
    found = run._replace(lost=("", 0)) if late else run
    return [text for node in NODES for text in _of_node(found, node)]


def _of_node(run: Run, node: str) -> list[str]:
    first = run.start + (7 if node == "n001" else 19)
    last = run.end + run.lingers
    if node == run.lost[0]:
        last = run.lost[1]
    labels = {
        "cluster": "c1", "instance": f"{node}:10910", "jobid": run.jobid, "user": run.user
    }  # fmt: skip
    found: list[str] = []
    for at in range(first, last, INTERVAL):
        seconds = run.active(at)
        cpu = _split(seconds, *RATES[node])
        peak = int(_memory(node, seconds))

        def add(metric: str, value: float, at: int = at, **more: str) -> None:
            found.append(line(metric, value, at, **labels, **more))

        add("cpu_seconds_total", round(0.9 * cpu, 3), mode="user")
        add("cpu_seconds_total", round(0.1 * cpu, 3), mode="system")
        add("memory_peak_bytes", peak)
        add("process_io_written_bytes_total", int(WRITTEN * seconds))
        if at >= run.end:
            add("end_time_seconds", run.end)
            continue
        add("memory_current_bytes", peak)
        stopped = run.suspended[0] <= at < run.suspended[1]
        busy = 0.0 if stopped else BUSY[seconds > TURN]
        add("gpu_utilization_ratio", busy, gpu="0", uuid=f"GPU-{node}", gpu_instance="")
    return found
