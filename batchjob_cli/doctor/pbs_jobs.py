"""Jobs that PBS' cgroups hook killed, on the server: their records call them finished.

When the hook cleans up after a failure, it can remove the cgroups of other jobs of its node. Those
jobs end at once with exit status 0, and the hook has measured nothing of them.
"""

from collections.abc import Iterator

from batchjob.runtime.values import size_bytes
from batchjob.schedulers.fields import FieldReader, RowError, clock_duration, epoch
from batchjob.schedulers.pbs.accounting.log_line import parse_line
from batchjob.schedulers.pbs.cluster import accounting_directory
from batchjob_cli.doctor.finding import Checks, ExaminedNode, Finding

_TAIL_BYTES = 1 << 22  # of the newest log
_TOGETHER_SECONDS, _TOGETHER_JOBS = 10, 4
_MIN_WALLTIME = 3.0  # seconds; the hook reads nothing of a shorter job


def _check_killed_jobs(node: ExaminedNode) -> Finding | None:
    """Whether many jobs of one node ended within seconds without memory and CPU time."""
    del node
    try:
        log = max(path for path in accounting_directory().iterdir() if path.name.isdigit())
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _TAIL_BYTES))
            lines = file.read(_TAIL_BYTES).decode("utf-8", "replace").splitlines()
    except (OSError, ValueError):
        return None  # not the server, or not readable
    ends: dict[str, list[int]] = {}
    for host, end in _unmeasured_ends(lines):
        ends.setdefault(host, []).append(end)
    killed = sorted(host for host, times in ends.items() if _are_together(sorted(times)))
    if not killed:
        return Finding("ok", f"no jobs that ended together unmeasured in {log}")
    return Finding(
        "warning",
        f"on {', '.join(killed)}, {_TOGETHER_JOBS} jobs or more ended within {_TOGETHER_SECONDS} s "
        f"with exit status 0, no memory and no CPU time ({log})",
        "look for failures of the hook pbs_cgroups in these nodes' mom_logs: it may have removed "
        "the cgroups of running jobs; see docs/schedulers/pbs.md",
    )


def _unmeasured_ends(lines: list[str]) -> Iterator[tuple[str, int]]:
    """The first host and the end of each job that ran but used nothing."""
    for text in lines:
        try:
            line = parse_line(text, None, 0)
        except RowError:
            continue
        end = line.row.get("end", epoch)
        if line.record_type == "E" and end and _used_nothing(line.row):
            yield line.row.text("exec_host").partition("/")[0], end


def _used_nothing(row: FieldReader) -> bool:
    used = "resources_used."
    return (
        row.values.get("Exit_status") == "0"
        and row.get(f"{used}mem", size_bytes) == 0
        and row.get(f"{used}cput", clock_duration) == 0
        and (row.get(f"{used}walltime", clock_duration) or 0) >= _MIN_WALLTIME
    )


def _are_together(times: list[int]) -> bool:
    pairs = zip(times, times[_TOGETHER_JOBS - 1 :], strict=False)
    return any(last - first <= _TOGETHER_SECONDS for first, last in pairs)


CHECKS: Checks = {"jobs killed by PBS' hook": _check_killed_jobs}
