"""Exports job records as JSON lines, CSV or Parquet, and imports JSON lines.

A line is a job record with the field names of `records.py`, including its nodes and steps, together
with its usage, GPUs and emissions. A row of CSV or Parquet is a job with its usage: it has the
columns of the tables `job` and `job_usage`, the latter prefixed with `usage_`.
"""

import csv
import json
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import IO, Any, NoReturn

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine

from batchjob.runtime.formatting import escape_formula
from batchjob.runtime.json_reader import parse_json
from batchjob.schedulers.accounting import Batch
from batchjob.schedulers.json_record import decode
from batchjob.schedulers.records import JobKey, JobRecord, NodeShare
from batchjob_stats_db.database import gate, schema
from batchjob_stats_db.database.engine import DatabaseError
from batchjob_stats_db.database.record_rows import UsagePolicy
from batchjob_stats_db.database.store import Store
from batchjob_stats_db.database.upsert import chunks, write_or_quarantine
from batchjob_stats_db.days import days_of
from batchjob_stats_db.measure.rollup import mark_days

_JOBS_PER_BATCH = 2000
_RENAMED = {"username": "user", "groupname": "group"}
_RELATED_TABLES = {
    "nodes": schema.job_node,
    "steps": schema.job_step,
    "reallocations": schema.job_reallocation,
    "gpus": schema.job_gpu,
    "node_usage": schema.job_node_usage,
    "emissions": schema.job_emissions,
    "usage": schema.job_usage,
}
_EXCLUDED = {"id", "job_id", "update_time", "caveats", "usage_due_time"}
_SOURCE = "import"


class TransferError(Exception):
    """A line cannot be read; the text gives its number."""


def _raise_damaged(value: object) -> NoReturn:
    raise DatabaseError(
        f"the database is damaged: expected text or a number, found {type(value).__name__}; "
        "run `batchjob_stats_db check`, and restore a backup"
    )


_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), default=_raise_damaged)


def export_json(db: Connection, out: IO[str], cluster: str | None = None, since: int = 0) -> int:
    """Write jobs submitted since then as JSON lines; returns how many. Raises DatabaseError."""
    count = 0
    for batch in _row_batches(db, sa.select(schema.job), cluster, since):
        rows = [row._mapping for row in batch]
        ids = [row["id"] for row in rows]
        related = {name: _rows_by_job(db, table, ids) for name, table in _RELATED_TABLES.items()}
        for row in rows:
            line = {_RENAMED.get(k, k): v for k, v in row.items() if k not in _EXCLUDED}
            for name, found in related.items():
                if row["id"] in found:
                    line[name] = found[row["id"]]
            out.write(_ENCODER.encode(line) + "\n")
            count += 1
    return count


def _row_batches(
    db: Connection, query: sa.Select[Any], cluster: str | None, since: int
) -> Iterator[Sequence[sa.Row[Any]]]:
    """Batches of rows of jobs submitted since then; the first column is `id`."""
    job = schema.job.c
    query = query.where(job.id > sa.bindparam("last"), job.submit_time >= since)
    if cluster is not None:
        query = query.where(job.cluster == cluster)
    query = query.order_by(job.id).limit(_JOBS_PER_BATCH)
    last = 0
    while found := db.execute(query, {"last": last}).all():
        last = found[-1][0]
        yield found


def _table_columns() -> dict[str, sa.Column[Any]]:
    return {
        _RENAMED.get(each.name, each.name): each
        for each in schema.job.columns
        if each.name not in _EXCLUDED
    } | {f"usage_{each.name}": each for each in schema.job_usage.columns if each.name != "job_id"}


def export_csv(
    db: Connection, out: IO[str], cluster: str | None = None, since: int = 0, *,
    escapes: bool = True,
) -> int:  # fmt: skip
    """Write jobs submitted since then, with a header; returns how many.

    `escapes`: texts that a spreadsheet would take for formulas are escaped.
    """
    columns = _table_columns()
    are_texts = [escapes and isinstance(column.type, sa.Text) for column in columns.values()]
    writer = csv.writer(out)
    writer.writerow(columns)
    query = sa.select(schema.job.c.id, *columns.values())
    query = query.select_from(schema.job.outerjoin(schema.job_usage))
    count = 0
    for rows in _row_batches(db, query, cluster, since):
        writer.writerows(
            [
                escape_formula(value) if is_text and value else value
                for is_text, value in zip(are_texts, tuple(row)[1:], strict=True)
            ]
            for row in rows
        )
        count += len(rows)
    return count


def export_parquet(db: Connection, target: Path, cluster: str | None = None, since: int = 0) -> int:
    """Write the same as a Parquet file; returns how many jobs.

    Times are timestamps in UTC, ids are text, and other columns have the database's types.
    Raises ModuleNotFoundError if duckdb is not installed, and OSError.
    """
    import duckdb  # from the extra `analysis`

    types = {name: _duckdb_type(column) for name, column in _table_columns().items()}
    with tempfile.NamedTemporaryFile("w", suffix=".csv", dir=target.parent, newline="") as file:
        count = export_csv(db, file, cluster, since, escapes=False)
        file.flush()
        with duckdb.connect() as engine:
            table = engine.read_csv(file.name, header=True, columns=types, quotechar='"')
            times = [f"to_timestamp({name}) AS {name}" for name in types if name.endswith("_time")]
            table = table.project(f"* REPLACE ({', '.join(times)})")
            table.write_parquet(str(target), compression="zstd")
    return count


def _duckdb_type(column: sa.Column[Any]) -> str:
    if isinstance(column.type, sa.Text):
        return "VARCHAR"
    return "BIGINT" if isinstance(column.type, sa.Integer) else "DOUBLE"


def _rows_by_job(
    db: Connection, table: sa.Table, ids: Sequence[int]
) -> dict[int, list[dict[str, Any]]]:
    keep = {"job_node": set(NodeShare._fields)}.get(table.name)
    found: dict[int, list[dict[str, Any]]] = {}
    for part in chunks(ids):
        for row in db.execute(sa.select(table).where(table.c.job_id.in_(part))).mappings():
            line = {
                name: value
                for name, value in row.items()
                if name != "job_id" and (keep is None or name in keep)
            }
            found.setdefault(row["job_id"], []).append(line)
    return found


def import_json(
    engine: Engine,
    lines: Iterable[str],
    now: int,
    on_progress: Callable[[int], None] = lambda _: None,
) -> int:
    """Write exported jobs, each once; returns how many. Raises TransferError naming the line.

    `on_progress` is called with the number of jobs after each batch.
    """
    numbered = enumerate(lines, 1)
    stores: dict[str, Store] = {}
    count = 0
    while numbered_lines := list(islice(numbered, _JOBS_PER_BATCH)):
        read = [_parse_line(number, line) for number, line in numbered_lines if line.strip()]
        by_cluster: dict[str, list[tuple[JobRecord, dict[str, Any]]]] = {}
        for record, measurements in read:
            by_cluster.setdefault(record.cluster, []).append((record, measurements))
        for cluster, jobs in by_cluster.items():
            # Imported jobs come with their usage and must not be measured.
            policy = UsagePolicy(horizon_seconds=0)
            store = stores.setdefault(cluster, Store(engine, cluster, policy))
            records = {record.key: record for record, _ in jobs}
            ids = store.write(Batch(tuple(records.values()), (), "", now), _SOURCE).ids
            with store.transaction() as db:
                _write_measurements(db, store.cluster, jobs, ids, now)
        count += len(read)
        on_progress(count)
    return count


def _parse_line(number: int, line: str) -> tuple[JobRecord, dict[str, Any]]:
    try:
        given = parse_json(line)
    except ValueError as error:
        raise TransferError(f"line {number}: not JSON: {error}") from error
    try:
        if not isinstance(given, dict):
            raise ValueError("expected a JSON object")
        measurements = {name: given.pop(name, []) for name in ("usage", "gpus", "emissions")}
        for name, rows in measurements.items():
            _check_rows(name, rows)
        names = [given.pop(name, None) for name in ("cluster", "source")]
        if not all(isinstance(name, str) and name for name in names):
            raise ValueError("cluster and source: expected the names that export wrote")
        record, problems = decode(given, *names)
        if problems:
            raise ValueError("; ".join(problems))
        return record, measurements
    except ValueError as error:
        raise TransferError(f"line {number}: {error}") from error


def _check_rows(name: str, rows: Any) -> None:
    """Raise ValueError unless these are rows of the table of usage, GPUs or emissions."""
    columns = {each.name: each for each in _RELATED_TABLES[name].columns if each.name != "job_id"}
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ValueError(f"{name}: expected a list of objects, got {rows!r}")
    for row in rows:
        for key, column in columns.items():
            value = row.get(key)
            if value is None and not column.nullable:
                raise ValueError(
                    f"{name}: the key {key} is missing; expected a line that export wrote"
                )
            if not isinstance(value, (str, int, float, type(None))):
                raise ValueError(f"{name}: {key}: expected a text or number, got {value!r}")


def _possible(column: str, value: Any) -> Any:
    """A measured value; None for a number that breaks a rule of the gate."""
    is_number = isinstance(value, int | float) and not column.endswith("_time")
    return None if is_number and gate.broken_rule(column, value) else value


def _write_measurements(
    db: Connection,
    cluster: str,
    jobs: Sequence[tuple[JobRecord, dict[str, Any]]],
    ids: Mapping[JobKey, int],
    now: int,
) -> None:
    days: set[int] = set()
    for name in ("usage", "gpus", "emissions"):
        table = _RELATED_TABLES[name]
        columns = [column.name for column in table.columns]
        assert columns[0] == "job_id"
        rows = [
            (ids[record.key], *(_possible(column, each.get(column)) for column in columns[1:]))
            for record, measurements in jobs
            if record.key in ids
            for each in measurements[name]
        ]
        write_or_quarantine(db, cluster, table, rows, now)
    for record, measurements in jobs:
        if measurements["usage"] and record.end_time is not None:
            days.update(days_of(record.start_time, record.end_time))
    mark_days(db, cluster, days)
