"""The result of a run, for people."""

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from batchjob.local_runs.record import Run
from batchjob.quantities.reading import DeviceIO
from batchjob.runtime.formatting import lasting, share, size
from batchjob.runtime.times import time_in_words
from batchjob.schedulers.states import JobState


class RunOutcome(NamedTuple):
    """An ended run, with what its record has no field for."""

    run: Run
    wall_seconds: float
    # IO that reached devices, from the cgroup's counters.
    devices: Mapping[str, DeviceIO] | None = None
    throttled_seconds: float | None = None


def report(outcome: RunOutcome) -> str:
    """A few lines, without those of unknown values."""
    rows = [(name, text) for name, text in _rows(outcome) if text]
    width = max(len(name) for name, _ in rows)
    lines = [f"  {name:<{width}}  {text}" for name, text in rows]
    return "\n".join([f"batchjob: {_headline(outcome.run)}", *lines, ""])


def begun(run: Run, start_at: float | None = None) -> str:
    """One line about a run in the background: its state, start and limits."""
    limits = [
        f"{run.allocated_cpus:g} CPUs" if run.allocated_cpus else "",
        f"on {run.cpu_list}" if run.cpu_list else "",
        f"{size(run.allocated_memory_bytes)} memory" if run.allocated_memory_bytes else "",
        f"{size(run.io_limit_bytes_per_second)}/s IO" if run.io_limit_bytes_per_second else "",
        lasting(run.time_limit_seconds) if run.time_limit_seconds else "",
    ]
    at = start_at if run.start_time is None else run.start_time
    words = [f"{run.name or 'run'} is {run.status}"]
    words += [f"start {time_in_words(at)}"] if at is not None else []
    words += [run.reason] if run.start_time is None and run.reason else []
    words.append(f"limits: {', '.join(filter(None, limits)) or 'none'}")
    return "; ".join(words)


def _headline(run: Run) -> str:
    name = f"{run.name} " if run.name else ""
    return f"{name}{run.jobid} {_ENDS.get(run.state, run.state.lower())}{_exit(run)}"


_ENDS = {
    JobState.COMPLETED: "completed",
    JobState.OUT_OF_MEMORY: "ran out of memory",
    JobState.TIMEOUT: "ended at its time limit",
}


def _exit(run: Run) -> str:
    if run.exit_signal:
        return f", signal {run.exit_signal}"
    return "" if run.exit_code is None else f", exit status {run.exit_code}"


def _rows(outcome: RunOutcome) -> Iterator[tuple[str, str]]:
    run = outcome.run
    yield "wall time", _of_limit(outcome.wall_seconds, run.time_limit_seconds, lasting)
    yield "CPU time", _cpu(outcome)
    yield "peak memory", _of_limit(run.peak_memory_bytes, run.allocated_memory_bytes, size)
    if run.read_bytes is not None and run.written_bytes is not None:
        yield "storage", _moved(run.read_bytes, run.written_bytes)
    if outcome.devices:
        read = sum(each.read_bytes for each in outcome.devices.values())
        written = sum(each.written_bytes for each in outcome.devices.values())
        if (read, written) != (run.read_bytes, run.written_bytes):
            yield "disks", f"{_moved(read, written)} by the end"
    if outcome.throttled_seconds:
        yield "throttled", f"{lasting(outcome.throttled_seconds)} by the CPU limit"


def _moved(read: float, written: float) -> str:
    return f"{size(read)} read, {size(written)} written"


def _cpu(outcome: RunOutcome) -> str:
    user, system = outcome.run.user_cpu_seconds, outcome.run.system_cpu_seconds
    if user is None or system is None:
        return ""
    text = f"{lasting(user + system)} (user {lasting(user)}, system {lasting(system)})"
    if not outcome.wall_seconds:
        return text
    busy = (user + system) / outcome.wall_seconds
    if cpus := outcome.run.allocated_cpus:
        return f"{text}, {share(busy / cpus)} of {cpus:g} CPU{'s' if cpus != 1 else ''}"
    return f"{text}, {busy:.2f} CPUs busy"


def _of_limit(value: float | None, limit: float | None, shown: Callable[[float], str]) -> str:
    if value is None:
        return ""
    return f"{shown(value)}, {share(value / limit)} of {shown(limit)}" if limit else shown(value)
