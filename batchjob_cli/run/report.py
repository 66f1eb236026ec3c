"""What a run came to, for people."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from batchjob.runs import Run
from batchjob.states import JobState

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


class Outcome(NamedTuple):
    """A run that has ended, and what its record has no place for."""

    run: Run
    wall_seconds: float
    cpus: float | None = None  # the limit
    read_bytes: float | None = None
    written_bytes: float | None = None
    throttled_seconds: float | None = None
    measured_by: str = ""  # "cgroup", "processes"


def report(outcome: Outcome) -> str:
    """A few lines, without those about which nothing is known."""
    rows = [(name, text) for name, text in _rows(outcome) if text]
    width = max(len(name) for name, _ in rows)
    lines = [f"  {name:<{width}}  {text}" for name, text in rows]
    return "\n".join([f"batchjob: {_headline(outcome.run)}", *lines, ""])


def _headline(run: Run) -> str:
    name = f"{run.name} " if run.name else ""
    return f"{name}{run.jobid} {_ENDS.get(run.state, run.state.lower())}{_exit(run)}"


_ENDS = {
    JobState.COMPLETED: "completed",
    JobState.OUT_OF_MEMORY: "ended for want of memory",
    JobState.TIMEOUT: "ended at its time limit",
}


def _exit(run: Run) -> str:
    if run.exit_signal:
        return f", signal {run.exit_signal}"
    return "" if run.exit_code is None else f", exit status {run.exit_code}"


def _rows(outcome: Outcome) -> Iterator[tuple[str, str]]:
    run = outcome.run
    yield "wall time", _of_limit(outcome.wall_seconds, run.time_limit_seconds, duration)
    yield "CPU time", _cpu(outcome)
    yield "peak memory", _of_limit(run.peak_memory_bytes, run.allocated_memory_bytes, size)
    if outcome.read_bytes is not None and outcome.written_bytes is not None:
        yield "storage", f"{size(outcome.read_bytes)} read, {size(outcome.written_bytes)} written"
    if outcome.throttled_seconds:
        yield "throttled", f"{duration(outcome.throttled_seconds)} by the CPU limit"


def _cpu(outcome: Outcome) -> str:
    user, system = outcome.run.user_cpu_seconds, outcome.run.system_cpu_seconds
    if user is None or system is None:
        return ""
    text = f"{duration(user + system)} (user {duration(user)}, system {duration(system)})"
    if not outcome.wall_seconds:
        return text
    busy = (user + system) / outcome.wall_seconds
    if outcome.cpus:
        return f"{text}, {busy / outcome.cpus:.0%} of {outcome.cpus:g} CPUs"
    return f"{text}, {busy:.2f} CPUs busy"


def _of_limit(value: float | None, limit: float | None, shown: Callable[[float], str]) -> str:
    if value is None:
        return ""
    return f"{shown(value)}, {value / limit:.0%} of {shown(limit)}" if limit else shown(value)


def duration(seconds: float) -> str:
    """`0.35 s`, `12.3 s`, `5m12s`, `2h05m`, `3d04h`."""
    if seconds < 60:
        return f"{seconds:.2f} s" if seconds < 10 else f"{seconds:.1f} s"
    whole = round(seconds)
    for large, letter, small, below in ((86400, "d", 3600, "h"), (3600, "h", 60, "m")):
        if whole >= large:
            return f"{whole // large}{letter}{whole % large // small:02}{below}"
    return f"{whole // 60}m{whole % 60:02}s"


def size(count: float) -> str:
    """`512 B`, `1.5 GiB`."""
    power = 0
    while count >= 1024 and power < len(_UNITS) - 1:
        count, power = count / 1024, power + 1
    return f"{count:.0f} B" if power == 0 else f"{count:.1f} {_UNITS[power]}"
