"""Query what has run on this machine from Python, from the files of the runs alone.

for run in batchjob.history(tool="blast", since=time.time() - 86400):
    print(run.name, run.status, run.duration_seconds)
"""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from batchjob.local_runs import record as run_files
from batchjob.local_runs.directory import RUNS, data_directory
from batchjob.local_runs.record import Run, RunFileError
from batchjob.schedulers.states import JobState

_SUFFIX = ".json"
_NOT_FAILED = (JobState.COMPLETED, JobState.CANCELLED, JobState.REQUEUED)
_SHOWN = 10  # maximum number of candidates named in an error


class UnknownRun(LookupError):
    """No run has this id or name."""


class SeveralRuns(UnknownRun):
    """Several runs match this name or id prefix; the message lists them."""


def history(
    *,
    name: str | None = None,
    tool: str | None = None,
    user: str | None = None,
    status: str | None = None,
    record_id: str | None = None,
    workflow: str | None = None,
    since: float | None = None,
    until: float | None = None,
    limit: int | None = None,
    data: str = "",
) -> list[Run]:
    """Runs and tracked work, newest first.

    `record_id` is the id given to `track`, or the id in another system, such as Celery's task id.
    `status` is one of `running`, `success`, `failed`, `timeout`, `error`, `cancelled`, ...; `since`
    and `until` are epoch seconds and refer to the start; `data` is the data directory (default:
    $BATCHJOB_DATA or ~/.local/state/batchjob). Raises OSError if it cannot be read.
    """
    wanted = {
        "name": name, "tool": tool, "user": user, "status": status, "record_id": record_id,
        "workflow": workflow,
    }  # fmt: skip
    chosen = [
        run
        for run in all_runs(data_directory(data))
        if all(value is None or getattr(run, field) == value for field, value in wanted.items())
        and (since is None or _begun(run) >= since)
        and (until is None or _begun(run) < until)
    ]
    chosen.sort(key=lambda run: (_begun(run), run.jobid), reverse=True)
    return chosen[:limit]


def job(text: str, data: str = "", user: str | None = None) -> Run:
    """The run with this id, name, record id, or id prefix.

    Of several attempts of one task, the last one. `user`: only runs of this user. Raises
    UnknownRun, or SeveralRuns if several runs match that are not attempts of one task.
    """
    directory = data_directory(data) / RUNS
    ids = _ids(directory)
    if text in ids:
        found = list(_read(directory, [text]))
    else:
        # Full names take precedence over prefixes: many short names are also a prefix of a UUID.
        found = [run for run in _read(directory, ids) if text and text in (run.name, run.record_id)]
        if not found:
            found = list(_read(directory, [each for each in ids if text and each.startswith(text)]))
    found = [run for run in found if user in (None, run.user)]
    if {run.record_id for run in found} == {text}:  # attempts of one task: take the last
        found = [max(found, key=lambda run: (run.restarts or 0, _begun(run)))]
    if len(found) == 1:
        return found[0]
    if not found:
        raise UnknownRun(f"no run has the id or name {text!r} in {directory}")
    found.sort(key=_begun, reverse=True)
    shown = ", ".join(f"{run.jobid} ({run.name or run.status})" for run in found[:_SHOWN])
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    raise SeveralRuns(f"{text!r} matches {len(found)} runs: {shown}{more}")


class Stats(NamedTuple):
    """Totals over a group of runs, over those whose value is known."""

    key: str
    runs: int
    ended: int
    succeeded: int
    failed: int  # ended, but neither succeeded nor was cancelled or requeued
    success_ratio: float | None  # of the runs that have ended
    duration_seconds: float
    mean_duration_seconds: float | None
    cpu_seconds: float
    mean_cpu_seconds: float | None
    peak_memory_bytes: int | None  # of the run with the highest peak


def stats(by: str = "name", runs: Iterable[Run] | None = None, data: str = "") -> list[Stats]:
    """Totals by `name`, `tool`, `user` or `status`, most runs first; `all`: one total.

    `runs`: the runs to count, for example from history(); default: all.
    """
    if by not in ("name", "tool", "user", "status", "all"):
        raise ValueError(f"expected one of name, tool, user, status, all, got {by!r}")
    groups: dict[str, list[Run]] = {}
    for run in all_runs(data_directory(data)) if runs is None else runs:
        groups.setdefault("all" if by == "all" else getattr(run, by), []).append(run)
    return sorted(
        (_sums(key, group) for key, group in groups.items()), key=lambda s: (-s.runs, s.key)
    )


def _sums(key: str, runs: list[Run]) -> Stats:
    ended = [run for run in runs if not run.state.live]
    succeeded = sum(run.state == JobState.COMPLETED for run in ended)
    failed = sum(run.state not in _NOT_FAILED for run in ended)
    durations = [run.duration_seconds for run in ended if run.duration_seconds is not None]
    cpu = [run.cpu_seconds for run in ended if run.cpu_seconds is not None]
    return Stats(
        key,
        len(runs),
        len(ended),
        succeeded,
        failed,
        succeeded / len(ended) if ended else None,
        sum(durations),
        sum(durations) / len(durations) if durations else None,
        sum(cpu),
        sum(cpu) / len(cpu) if cpu else None,
        max((run.peak_memory_bytes for run in ended if run.peak_memory_bytes), default=None),
    )


def all_runs(data: Path) -> Iterator[Run]:
    """All readable runs; raises OSError."""
    directory = data / RUNS
    yield from _read(directory, _ids(directory))


def _ids(directory: Path) -> list[str]:
    try:
        names = os.listdir(directory)
    except FileNotFoundError:  # no run has been recorded yet
        return []
    return [
        name.removesuffix(_SUFFIX)
        for name in names
        if name.endswith(_SUFFIX) and not name.startswith(".")
    ]


def _read(directory: Path, ids: Iterable[str]) -> Iterator[Run]:
    node = os.uname().nodename
    for jobid in ids:
        try:
            document = run_files.read(directory / f"{jobid}{_SUFFIX}")
            run = run_files.decoded(document)
        except (OSError, RunFileError):  # another user's file, just deleted, or damaged
            continue
        if run.state.live and run.node == node and not run_files.alive(document):
            run = run._replace(state=JobState.VANISHED, state_word="")
        yield run


def _begun(run: Run) -> float:
    return run.start_time or run.submit_time
