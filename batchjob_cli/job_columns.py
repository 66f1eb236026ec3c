"""The columns of a table of jobs: the default ones, and those selected by name."""

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import tzinfo
from typing import Any

from batchjob.judgements import AT_LEAST, RUNNING_STATES
from batchjob.runtime.formatting import (
    digits,
    energy,
    format_exit_code,
    format_run_time,
    share,
    size,
)
from batchjob.runtime.settings import SettingsError, suggest_nearest
from batchjob.runtime.times import format_time
from batchjob.schedulers.states import JobState
from batchjob_cli.client.table import TableColumn, cell

_SHORT_ID_LENGTH = 8  # characters of a UUID, enough for every command
_UUID_LENGTH = 36
_RED, _GREEN, _YELLOW, _BLUE, _DIM = "31", "32", "33", "34", "2"


def _run_time(row: Mapping[str, Any]) -> str:
    if row.get("elapsed_seconds") is not None:
        return format_run_time(row["elapsed_seconds"])
    if row.get("start_time") is None or row["state"] == JobState.VANISHED:
        return "-"  # not started, or its end is unknown
    return format_run_time(max(0.0, time.time() - row["start_time"] / 1000))


def _state_text(row: Mapping[str, Any]) -> str:
    """The state; a run that was stopped is distinguished from one cancelled before its start."""
    if row.get("array_states"):
        return str(row["array_states"]).lower()
    stopped = row.get("state_word") == "stopped"
    return "stopped" if stopped else str(row["state"]).lower()


def _colour(row: Mapping[str, Any]) -> str:
    state = row["state"]
    if state in RUNNING_STATES:
        return _BLUE
    known = {JobState.COMPLETED: _GREEN, JobState.PENDING: _YELLOW, JobState.CANCELLED: _DIM}
    return known.get(state, _RED)


def _shorten_ids(jobids: Sequence[str]) -> Mapping[str, str]:
    """Shorten each UUID to a unique prefix; other ids remain as they are."""
    long = sorted({each for each in jobids if len(each) == _UUID_LENGTH})
    length = _SHORT_ID_LENGTH
    while len({each[:length] for each in long}) < len(long):
        length += 1
    return {each: each[:length] for each in long}


def _name(row: Mapping[str, Any]) -> str:
    """Its name; for a run without a name, its command."""
    return (row.get("name") or row.get("submit_line") or "-")[:24]


def _cpu_efficiency(row: Mapping[str, Any]) -> str:
    ratio = row.get("cpu_efficiency")
    bound = f"{AT_LEAST} " if row.get("cpu_basis") == AT_LEAST else ""
    return "-" if ratio is None else f"{bound}{share(ratio)}"


def _cpus(row: Mapping[str, Any]) -> str:
    text = str(cell("allocated_cpus", digits)(row))
    return f"{text} at last" if row.get("resized_cpu_seconds") else text


def _exit_code(row: Mapping[str, Any]) -> str:
    return format_exit_code(row.get("exit_code"), row.get("exit_code_or_128_more")) or "-"


DEFAULT_KEYS = (
    "jobid", "name", "submit_line", "user", "state", "state_word", "reason", "start_time",
    "elapsed_seconds", "allocated_cpus", "resized_cpu_seconds", "cpu_efficiency",
    "memory_used_bytes", "exit_code", "exit_code_or_128_more", "tool", "cpu_used_seconds",
    "cpu_basis", "error", "cluster", "array_states",
)  # fmt: skip
"""Keys of the API's rows that `default_columns` shows."""

_COLUMNS_OF_SEVERAL_CLUSTERS = (
    TableColumn("CLUSTER", lambda row: row.get("cluster") or "-", elastic=True, drop_order=1),
)
_COLUMNS_OF_TRACKED_WORK = (
    TableColumn("TOOL", lambda row: row.get("tool") or "-", elastic=True, drop_order=3),
    TableColumn("CPU TIME", cell("cpu_used_seconds", format_run_time), right=True, drop_order=3),
    TableColumn("ERROR", lambda row: (row.get("error") or "-")[:40], elastic=True, drop_order=2),
)


def default_columns(
    rows: Sequence[Mapping[str, Any]], zone: tzinfo | None, *, short: bool
) -> tuple[TableColumn, ...]:
    """The columns, with times in a zone; None: local time. `short`: cut ids of local runs."""
    ids = _shorten_ids([row["jobid"] for row in rows]) if short else {}
    at = cell("start_time", lambda at: format_time(at / 1000, zone))

    def job(row: Mapping[str, Any]) -> str:
        jobid: str = ids.get(row["jobid"], row["jobid"])
        return f"{jobid}[]" if row.get("array_states") else jobid

    def started(row: Mapping[str, Any]) -> str:
        waits = row["state"] == JobState.PENDING and row.get("reason")
        return f"({row['reason']})" if waits else str(at(row))

    return (
        TableColumn("JOB", job),
        TableColumn("NAME", _name, elastic=True),
        TableColumn("USER", lambda row: row.get("user") or "-", elastic=True, drop_order=2),
        *(_COLUMNS_OF_SEVERAL_CLUSTERS if len({row.get("cluster") for row in rows}) > 1 else ()),
        TableColumn("STATE", _state_text, colour=_colour, elastic=True),
        TableColumn("STARTED", started, drop_order=4),
        TableColumn("TIME", _run_time, right=True),
        TableColumn("CPUS", _cpus, right=True, drop_order=3),
        TableColumn("CPU EFF.", _cpu_efficiency, right=True, drop_order=1),
        TableColumn("PEAK MEMORY", cell("memory_used_bytes", size), right=True, drop_order=1),
        TableColumn("EXIT", _exit_code, right=True, drop_order=5),
        *(_COLUMNS_OF_TRACKED_WORK if any(row.get("tool") for row in rows) else ()),
    )


def columns_named(
    names: Sequence[str], rows: Sequence[Mapping[str, Any]], zone: tzinfo | None
) -> tuple[TableColumn, ...]:
    """Columns by the keys of the API's rows; raises SettingsError for an unknown key."""
    if rows:
        for name in names:
            if name not in rows[0]:
                told = (
                    suggest_nearest(name, rows[0])
                    or "; `batchjob jobs --format=json` shows all keys"
                )
                raise SettingsError(f"--columns: unknown key {name!r}{told}")
    return tuple(_column(name, zone) for name in names)


def _column(name: str, zone: tzinfo | None) -> TableColumn:
    if name == "state":
        return TableColumn("STATE", _state_text, colour=_colour, elastic=True)
    title = name.removeprefix("usage_")
    for ending, format_value in _FORMATTERS.items():
        if title.endswith(ending):
            shown = title.removesuffix(ending) or title
            return TableColumn(
                shown.replace("_", " ").upper(), cell(name, format_value), right=True
            )
    if title.endswith("_time"):
        words = cell(name, lambda at: format_time(at / 1000, zone))
        return TableColumn(title.replace("_", " ").upper(), words, elastic=True)
    return TableColumn(title.replace("_", " ").upper(), cell(name, _format_value), elastic=True)


def _format_value(value: Any) -> str:
    return digits(value) if isinstance(value, float) else str(value)


_FORMATTERS: Mapping[str, Callable[[Any], str]] = {
    "_bytes": size,
    "_seconds": format_run_time,
    "_joules": energy,
    "_ratio": share,
    "_efficiency": share,
}
