"""Query what has run on this machine from Python, from the files of the runs alone.

for run in batchjob.history(tool="blast", since=time.time() - 86400):
    print(run.name, run.status, run.duration_seconds)
"""

import contextlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from batchjob.local_runs import record as run_files
from batchjob.local_runs.directory import RUNS, data_directory
from batchjob.local_runs.record import Run, RunFileError
from batchjob.runtime.times import format_time
from batchjob.schedulers.states import JobState

_SUFFIX = ".json"
_MAX_LISTED = 10  # maximum number of candidates named in an error


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
    required = {
        "name": name, "tool": tool, "user": user, "status": status, "record_id": record_id,
        "workflow": workflow,
    }  # fmt: skip
    matches = [
        run
        for run in all_runs(data_directory(data))
        if all(value is None or getattr(run, field) == value for field, value in required.items())
        and (since is None or _start_time(run) >= since)
        and (until is None or _start_time(run) < until)
    ]
    matches.sort(key=lambda run: (_start_time(run), run.jobid), reverse=True)
    return matches[:limit]


def job(text: str, data: str = "", user: str | None = None) -> Run:
    """The run with this id, name, record id, or id prefix.

    Of several attempts of one task, the last one. `user`: only runs of this user. Raises
    UnknownRun, or SeveralRuns if several runs match that are not attempts of one task.
    """
    directory = data_directory(data) / RUNS
    ids = _list_ids(directory)
    if text in ids:
        matches = list(_read_runs(directory, [text]))
    else:
        # Full names take precedence over prefixes: many short names are also a prefix of a UUID.
        matches = [
            run for run in _read_runs(directory, ids) if text and text in (run.name, run.record_id)
        ]
        if not matches:
            matches = list(
                _read_runs(directory, [each for each in ids if text and each.startswith(text)])
            )
    matches = [run for run in matches if user in (None, run.user)]
    if {run.record_id for run in matches} == {text}:  # attempts of one task: take the last
        matches = [max(matches, key=lambda run: (run.restarts or 0, _start_time(run)))]
    if len(matches) == 1:
        return matches[0]
    if not matches:
        raise UnknownRun(f"no run has the id or name {text!r} in {directory}")
    matches.sort(key=_start_time, reverse=True)
    told = [f"{run.jobid} ({run.status}, {format_time(_start_time(run))})" for run in matches]
    shown = ", ".join(told[:_MAX_LISTED])
    more = f" and {len(matches) - _MAX_LISTED} more" if len(matches) > _MAX_LISTED else ""
    raise SeveralRuns(f"{text!r} matches {len(matches)} runs: {shown}{more}")


class Stats(NamedTuple):
    """Totals over a group of runs, over those whose value is known."""

    key: str
    runs: int
    ended: int
    succeeded: int
    failed: int  # in one of `batchjob.judgements.FAILED_STATES`
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
        (_group_stats(key, group) for key, group in groups.items()), key=lambda s: (-s.runs, s.key)
    )


def _group_stats(key: str, runs: list[Run]) -> Stats:
    # Settings load argparse and YAML, which a program that only tracks its work does not need.
    from batchjob.judgements import FAILED_STATES

    ended = [run for run in runs if not run.state.is_live]
    succeeded = sum(run.state == JobState.COMPLETED for run in ended)
    failed = sum(run.state in FAILED_STATES for run in ended)
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
    yield from _read_runs(directory, _list_ids(directory))


def runs_with_ids(data: Path, ids: Iterable[str]) -> Iterator[Run]:
    return _read_runs(data / RUNS, ids)


def changed_runs(data: Path, since: float) -> list[Run]:
    """The readable runs whose files were written after an epoch time; raises OSError."""
    directory = data / RUNS
    changed = []
    for jobid in _list_ids(directory):
        with contextlib.suppress(FileNotFoundError):  # just deleted
            if (directory / f"{jobid}{_SUFFIX}").lstat().st_mtime >= since:
                changed.append(jobid)
    return list(_read_runs(directory, changed))


def _list_ids(directory: Path) -> list[str]:
    try:
        names = os.listdir(directory)
    except FileNotFoundError:  # no run has been recorded yet
        return []
    return [
        name.removesuffix(_SUFFIX)
        for name in names
        if name.endswith(_SUFFIX) and not name.startswith(".")
    ]


def _read_runs(directory: Path, ids: Iterable[str]) -> Iterator[Run]:
    node = os.uname().nodename
    for jobid in ids:
        try:
            document = run_files.read(directory / f"{jobid}{_SUFFIX}")
            run = run_files.decode_run(document)
        except (OSError, RunFileError):  # another user's file, just deleted, or damaged
            continue
        if run.state.is_live and run.node == node and not run_files.is_supervisor_alive(document):
            run = run._replace(state=JobState.VANISHED, state_word="")
        yield run


def _start_time(run: Run) -> float:
    return run.start_time or run.submit_time
