"""The columns of a table of jobs: the default ones, and those selected by name."""

import time
from collections.abc import Mapping, Sequence
from datetime import tzinfo
from typing import Any

from batchjob.runtime.formatting import digits, energy, run_time, share, size
from batchjob.runtime.settings import SettingsError, nearest
from batchjob.runtime.times import time_in_words
from batchjob.schedulers.states import JobState
from batchjob_cli.client.table import TableColumn

_SHORT = 8  # characters of a UUID, enough for every command
_UUID = 36
_RED, _GREEN, _YELLOW, _BLUE, _DIM = "31", "32", "33", "34", "2"


def _known(key: str, form: Any) -> Any:
    return lambda row: "-" if row.get(key) is None else form(row[key])


def _took(row: Mapping[str, Any]) -> str:
    if row.get("elapsed_seconds") is not None:
        return run_time(row["elapsed_seconds"])
    if row.get("start_time") is None or row["state"] == JobState.VANISHED:
        return "-"  # not started, or its end is unknown
    return run_time(max(0.0, time.time() - row["start_time"] / 1000))


def _state_of(row: Mapping[str, Any]) -> str:
    """The state; a run that was stopped is distinguished from one cancelled before its start."""
    stopped = row.get("state_word") == "stopped"
    return "stopped" if stopped else str(row["state"]).lower()


def _colour(row: Mapping[str, Any]) -> str:
    state = row["state"]
    if state in (JobState.RUNNING, JobState.SUSPENDED):
        return _BLUE
    known = {JobState.COMPLETED: _GREEN, JobState.PENDING: _YELLOW, JobState.CANCELLED: _DIM}
    return known.get(state, _RED)


def _short(jobids: Sequence[str]) -> Mapping[str, str]:
    """Each id cut to a unique prefix; only UUIDs are cut."""
    long = sorted({each for each in jobids if len(each) == _UUID})
    length = _SHORT
    while len({each[:length] for each in long}) < len(long):
        length += 1
    return {each: each[:length] for each in long}


def _name(row: Mapping[str, Any]) -> str:
    """Its name; for a run without a name, its command."""
    return (row.get("name") or row.get("submit_line") or "-")[:24]


DEFAULT_KEYS = (
    "jobid", "name", "submit_line", "user", "state", "state_word", "reason", "start_time",
    "elapsed_seconds", "allocated_cpus", "cpu_efficiency", "memory_used_bytes", "exit_code",
    "tool", "cpu_used_seconds", "error", "cluster",
)  # fmt: skip
"""Keys of the API's rows that `default_columns` shows."""

_OF_SEVERAL_CLUSTERS = (
    TableColumn("CLUSTER", lambda row: row.get("cluster") or "-", elastic=True, gives_way=1),
)
_OF_TRACKED_WORK = (
    TableColumn("TOOL", lambda row: row.get("tool") or "-", elastic=True, gives_way=3),
    TableColumn("CPU TIME", _known("cpu_used_seconds", run_time), right=True, gives_way=3),
    TableColumn("ERROR", lambda row: (row.get("error") or "-")[:40], elastic=True, gives_way=2),
)


def default_columns(
    rows: Sequence[Mapping[str, Any]], zone: tzinfo | None, *, short: bool
) -> tuple[TableColumn, ...]:
    """The columns, with times in a zone; None: local time. `short`: cut ids of local runs."""
    ids = _short([row["jobid"] for row in rows]) if short else {}
    at = _known("start_time", lambda at: time_in_words(at / 1000, zone))

    def started(row: Mapping[str, Any]) -> str:
        waits = row["state"] == JobState.PENDING and row.get("reason")
        return f"({row['reason']})" if waits else str(at(row))

    return (
        TableColumn("JOB", lambda row: ids.get(row["jobid"], row["jobid"])),
        TableColumn("NAME", _name, elastic=True),
        TableColumn("USER", lambda row: row.get("user") or "-", elastic=True, gives_way=2),
        *(_OF_SEVERAL_CLUSTERS if len({row.get("cluster") for row in rows}) > 1 else ()),
        TableColumn("STATE", _state_of, colour=_colour),
        TableColumn("STARTED", started, gives_way=4),
        TableColumn("TIME", _took, right=True),
        TableColumn("CPUS", _known("allocated_cpus", digits), right=True, gives_way=3),
        TableColumn("CPU EFF.", _known("cpu_efficiency", share), right=True, gives_way=1),
        TableColumn("PEAK MEMORY", _known("memory_used_bytes", size), right=True, gives_way=1),
        TableColumn("EXIT", _known("exit_code", str), right=True, gives_way=5),
        *(_OF_TRACKED_WORK if any(row.get("tool") for row in rows) else ()),
    )


def columns_named(
    names: Sequence[str], rows: Sequence[Mapping[str, Any]], zone: tzinfo | None
) -> tuple[TableColumn, ...]:
    """Columns by the keys of the API's rows; raises SettingsError for an unknown key."""
    if rows:
        for name in names:
            if name not in rows[0]:
                told = nearest(name, rows[0]) or "; `batchjob jobs --format=json` shows all keys"
                raise SettingsError(f"--columns: unknown key {name!r}{told}")
    return tuple(_column(name, zone) for name in names)


def _column(name: str, zone: tzinfo | None) -> TableColumn:
    if name == "state":
        return TableColumn("STATE", _state_of, colour=_colour)
    title = name.removeprefix("usage_")
    for ending, form in _FORMS.items():
        if title.endswith(ending):
            shown = title.removesuffix(ending) or title
            return TableColumn(shown.replace("_", " ").upper(), _known(name, form), right=True)
    if title.endswith("_time"):
        words = _known(name, lambda at: time_in_words(at / 1000, zone))
        return TableColumn(title.replace("_", " ").upper(), words)
    return TableColumn(title.replace("_", " ").upper(), _known(name, _told))


def _told(value: Any) -> str:
    return digits(value) if isinstance(value, float) else str(value)


_FORMS = {
    "_bytes": size,
    "_seconds": run_time,
    "_joules": energy,
    "_ratio": share,
    "_efficiency": share,
}
