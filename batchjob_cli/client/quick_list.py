"""Lists of this machine's jobs in a tenth of a second, if nothing has to be written first.

Runs that have not been recorded yet are read from their files and added in the same form. Anything
beyond that (`rows` returns None) is left to local_jobs.py, which updates the database and reports
problems with it.
"""

import sqlite3
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from batchjob.judgements import MORE_CPU, exceeds_cpus
from batchjob.local_runs.accounting import LocalRunsOptions, Runs
from batchjob.local_runs.directory import LOCAL, RUNS
from batchjob.local_runs.record import TOMBSTONE
from batchjob.runtime.subprocesses import SchedulerError
from batchjob.schedulers.accounting import UnfinishedJob
from batchjob.schedulers.records import JobRecord, without_growing_values
from batchjob_stats_db.queries import job_list
from batchjob_stats_db.queries.job_list import EQUAL_FILTERS, ListedRows, StatementText
from batchjob_stats_db.samples import SETTLE_SECONDS
from batchjob_stats_server.api.row_keys import keys_of, value_getter
from batchjob_stats_server.api.windows import COMPUTED_KEYS

_OTHER_PARAMETERS = {"state", "state_word", "running", "started_from", "started_before", "limit"}
_MAX_ROWS = 1000
_MAX_FILES = 200  # with more, it is worth recording them first
_RENAMED = {"user": "username", "group": "groupname"}
_LIVE = "end_time IS NULL AND state IN ('PENDING', 'RUNNING', 'SUSPENDED')"


def rows(
    data: Path, parameters: Mapping[str, Any], limit: int
) -> Sequence[Mapping[str, Any]] | None:
    """Rows with the keys of the API's list of jobs; None if that is not enough."""
    if limit > _MAX_ROWS or not parameters.keys() <= EQUAL_FILTERS.keys() | _OTHER_PARAMETERS:
        return None
    statement = job_list.statement()
    path = data / "jobs.db"
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as db:
            if not _is_current(db, statement):
                return None
            unrecorded = _find_unrecorded(db, data / RUNS)
            if unrecorded is None:
                return None
            recorded_rows = job_list.list_jobs(db, statement, parameters, limit)
            unrecorded_rows = _list_unrecorded(db, statement, unrecorded, parameters, limit)
    except (sqlite3.Error, OSError, SchedulerError):
        return None  # the writer, which runs next, reports what is wrong
    return _merge_sorted(recorded_rows, unrecorded_rows, limit)


def _is_current(db: sqlite3.Connection, statement: StatementText) -> bool:
    """Whether the statement matches the tables, and no run is due to be measured."""
    (revision,) = db.execute("SELECT version_num FROM alembic_version").fetchone()
    due = "SELECT 1 FROM job WHERE cluster = ? AND usage_due_time <= ? LIMIT 1"
    return revision == statement.revision and not db.execute(due, (LOCAL, time.time())).fetchone()


def _find_unrecorded(db: sqlite3.Connection, runs: Path) -> Sequence[JobRecord] | None:
    """Runs that are not in the database; None if recorded ones have changed.

    None as well if the samples of a run are complete: its measurements are recorded with it.
    """
    state = "SELECT watermark FROM poll_state WHERE cluster = ? AND source = ?"
    watermark = db.execute(state, (LOCAL, Runs.name)).fetchone()
    if watermark is None or next(runs.glob(f"*{TOMBSTONE}"), None):
        return None
    query = f"SELECT jobid, submit_time, run, start_time FROM job WHERE cluster = ? AND {_LIVE}"  # noqa: S608 (no user input)
    unfinished = {jobid: UnfinishedJob(*more) for jobid, *more in db.execute(query, (LOCAL,))}
    unrecorded: list[JobRecord] = []
    for batch in Runs(LOCAL, LocalRunsOptions(str(runs))).read(watermark[0], unfinished):
        if batch.vanished or batch.quarantined:
            return None
        unrecorded += batch.jobs
    if len(unrecorded) > _MAX_FILES:
        return None
    new: list[JobRecord] = []
    known_query = "SELECT state, end_time FROM job WHERE cluster = ? AND jobid = ?"
    for record in unrecorded:
        found = db.execute(known_query, (LOCAL, record.jobid)).fetchone()
        if found is None and _is_measurable(record):
            return None
        if found is None:
            new.append(record)
        elif found != (record.state.value, record.end_time):
            return None
    return new


def _is_measurable(record: JobRecord) -> bool:
    start, end = record.start_time, record.end_time
    return start is not None and end is not None and end + SETTLE_SECONDS <= time.time()


def _caveat(record: JobRecord) -> str:
    """The caveat that the database would store with the record."""
    start, end, cpus = record.start_time, record.end_time, record.allocated_cpus
    if start is None or end is None or not cpus:
        return ""
    parts = (record.user_cpu_seconds or 0) + (record.system_cpu_seconds or 0)
    used = parts if record.cpu_seconds is None else record.cpu_seconds
    return MORE_CPU if exceeds_cpus(used, cpus, end - start) else ""


def _list_unrecorded(
    db: sqlite3.Connection, statement: StatementText, unrecorded: Sequence[JobRecord],
    parameters: Mapping[str, Any], limit: int,
) -> ListedRows:  # fmt: skip
    """The rows of runs that are not in the database, with the numbers they would have."""
    (last,) = db.execute("SELECT coalesce(max(id), 0) FROM job").fetchone()
    with closing(job_list.copy_of_tables(db)) as memory:
        known = {row[1] for row in memory.execute("PRAGMA table_info(job)")}
        for number, record in enumerate(unrecorded, last + 1):
            record_values = {
                _RENAMED.get(key, key): value
                for key, value in without_growing_values(record)._asdict().items()
            }
            row = {key: value for key, value in record_values.items() if key in known}
            own_values = {"id": number, "state": record.state.value, "doubt": _caveat(record)}
            job_list.insert(memory, "job", [row | own_values | {"update_time": int(time.time())}])
        return job_list.list_jobs(memory, statement, parameters, limit)


def _merge_sorted(one: ListedRows, other: ListedRows, limit: int) -> Sequence[Mapping[str, Any]]:
    keys = (
        *(key for name in one.names for key in keys_of(name)),
        *(key for key, _ in COMPUTED_KEYS),
    )
    take_keys = value_getter(one.names, keys, COMPUTED_KEYS)
    found = sorted((*one.rows, *other.rows), key=_sort_key)[:limit]
    return [dict(zip(keys, take_keys(tuple(row.values())), strict=True)) for row in found]


def _sort_key(row: Mapping[str, Any]) -> tuple[int, float, int]:
    """The sort key: waiting jobs, started ones, then the others; the newest first."""
    if row["start_time"] is not None:
        return 1, -row["start_time"], -row["id"]
    if row["end_time"] is None and row["state"] == "PENDING":
        return 0, -row["submit_time"], -row["id"]
    return 2, 0, -row["id"]
