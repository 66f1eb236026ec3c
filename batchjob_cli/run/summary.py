"""A run in words: its start and its result."""

from collections.abc import Callable, Iterator, Mapping

from batchjob.local_runs.record import Run
from batchjob.quantities.reading import DeviceIO
from batchjob.runtime.formatting import format_count, format_duration, share, size
from batchjob.runtime.times import format_time
from batchjob.schedulers.states import JobState


def format_report(
    run: Run, devices: Mapping[str, DeviceIO] | None = None, throttled_seconds: float | None = None
) -> str:
    """A few lines about an ended run; unknown values are left out.

    `devices`: IO that reached them, from the cgroup's counters.
    """
    rows = [(name, text) for name, text in _rows(run, devices, throttled_seconds) if text]
    width = max(len(name) for name, _ in rows)
    lines = [f"  {name:<{width}}  {text}" for name, text in rows]
    return "\n".join([f"batchjob: {_headline(run)}", *lines, ""])


def describe_start(run: Run, start_at: float | None = None) -> str:
    """One line about a run in the background: its state, start and limits."""
    limits = [
        format_count(run.allocated_cpus, "CPU") if run.allocated_cpus else "",
        f"on {run.cpu_list}" if run.cpu_list else "",
        f"{format_count(run.allocated_gpus, 'GPU')}: {run.gpu_list}" if run.allocated_gpus else "",
        f"{size(run.allocated_memory_bytes)} memory" if run.allocated_memory_bytes else "",
        f"{size(run.io_limit_bytes_per_second)}/s IO" if run.io_limit_bytes_per_second else "",
        format_duration(run.time_limit_seconds) if run.time_limit_seconds else "",
    ]
    at = start_at if run.start_time is None else run.start_time
    words = [f"{run.name or 'run'} is {run.status}"]
    words += [f"start {format_time(at)}"] if at is not None else []
    words += [run.reason] if run.start_time is None and run.reason else []
    words.append(f"limits: {', '.join(filter(None, limits)) or 'none'}")
    return "; ".join(words)


def _headline(run: Run) -> str:
    name = f"{run.name} " if run.name else ""
    return f"{name}{run.jobid} {_END_PHRASES.get(run.state, run.state.lower())}{_format_exit(run)}"


_END_PHRASES = {
    JobState.COMPLETED: "completed",
    JobState.OUT_OF_MEMORY: "ran out of memory",
    JobState.TIMEOUT: "ended at its time limit",
}


def _format_exit(run: Run) -> str:
    if run.exit_signal:
        return f", signal {run.exit_signal}"
    return "" if run.exit_code is None else f", exit status {run.exit_code}"


def _rows(
    run: Run, devices: Mapping[str, DeviceIO] | None, throttled_seconds: float | None
) -> Iterator[tuple[str, str]]:
    yield "wall time", _format_with_limit(run.wall_seconds, run.time_limit_seconds, format_duration)
    yield "CPU time", _format_cpu_time(run)
    yield "peak memory", _format_with_limit(run.peak_memory_bytes, run.allocated_memory_bytes, size)
    if run.read_bytes is not None and run.written_bytes is not None:
        yield "storage", _format_io(run.read_bytes, run.written_bytes)
    if devices:
        read = sum(each.read_bytes for each in devices.values())
        written = sum(each.written_bytes for each in devices.values())
        if (read, written) != (run.read_bytes, run.written_bytes):
            yield "disks", f"{_format_io(read, written)}, as it reached the disk"
    if throttled_seconds:
        yield "throttled", f"{format_duration(throttled_seconds)} by the CPU limit"


def _format_io(read: float, written: float) -> str:
    return f"{size(read)} read, {size(written)} written"


def _format_cpu_time(run: Run) -> str:
    user, system = run.user_cpu_seconds, run.system_cpu_seconds
    if user is None or system is None:
        return ""
    parts = f"user {format_duration(user)}, system {format_duration(system)}"
    text = f"{format_duration(user + system)} ({parts})"
    if not run.wall_seconds:
        return text
    busy = (user + system) / run.wall_seconds
    if cpus := run.allocated_cpus:
        return f"{text}, {share(busy / cpus)} of {format_count(cpus, 'CPU')}"
    return f"{text}, {busy:.2f} CPUs busy"


def _format_with_limit(
    value: float | None, limit: float | None, format_value: Callable[[float], str]
) -> str:
    if value is None:
        return ""
    if not limit:
        return format_value(value)
    return f"{format_value(value)}, {share(value / limit)} of {format_value(limit)}"
