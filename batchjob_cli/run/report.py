"""What a run came to, for people."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from batchjob.readable import lasting, share, size
from batchjob.runs import Run
from batchjob.states import JobState


class Outcome(NamedTuple):
    """A run that has ended, and what its record has no place for."""

    run: Run
    wall_seconds: float
    cpus: float | None = None  # the limit
    read_bytes: float | None = None
    written_bytes: float | None = None
    throttled_seconds: float | None = None


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
    yield "wall time", _of_limit(outcome.wall_seconds, run.time_limit_seconds, lasting)
    yield "CPU time", _cpu(outcome)
    yield "peak memory", _of_limit(run.peak_memory_bytes, run.allocated_memory_bytes, size)
    if outcome.read_bytes is not None and outcome.written_bytes is not None:
        yield "storage", f"{size(outcome.read_bytes)} read, {size(outcome.written_bytes)} written"
    if outcome.throttled_seconds:
        yield "throttled", f"{lasting(outcome.throttled_seconds)} by the CPU limit"


def _cpu(outcome: Outcome) -> str:
    user, system = outcome.run.user_cpu_seconds, outcome.run.system_cpu_seconds
    if user is None or system is None:
        return ""
    text = f"{lasting(user + system)} (user {lasting(user)}, system {lasting(system)})"
    if not outcome.wall_seconds:
        return text
    busy = (user + system) / outcome.wall_seconds
    if outcome.cpus:
        return f"{text}, {share(busy / outcome.cpus)} of {outcome.cpus:g} CPUs"
    return f"{text}, {busy:.2f} CPUs busy"


def _of_limit(value: float | None, limit: float | None, shown: Callable[[float], str]) -> str:
    if value is None:
        return ""
    return f"{shown(value)}, {share(value / limit)} of {shown(limit)}" if limit else shown(value)
