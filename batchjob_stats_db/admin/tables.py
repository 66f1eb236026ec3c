"""Jobs as a table for analysis, one row per job with its usage, as CSV or Parquet.

The columns are those of the tables `job` and `job_usage`, the latter prefixed with `usage_`.
"""

import csv
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from batchjob.runtime.formatting import escape_formula
from batchjob_stats_db.database import schema

_ROWS_PER_BATCH = 5000
_RENAMED = {"username": "user", "groupname": "group"}
_EXCLUDED = {"job_id", "update_time", "doubt", "usage_due_time"}


class ExportColumn(NamedTuple):
    """A column of the table."""

    name: str
    column: sa.Column[Any]


def _export_columns() -> list[ExportColumn]:
    job = [
        ExportColumn(_RENAMED.get(each.name, each.name), each)
        for each in schema.job.columns
        if each.name not in _EXCLUDED | {"id"}
    ]
    usage = [
        ExportColumn(f"usage_{each.name}", each)
        for each in schema.job_usage.columns
        if each.name != "job_id"
    ]
    return job + usage


def export_csv(db: Connection, out: IO[str], cluster: str | None = None, since: int = 0) -> int:
    """Write jobs submitted since then, with a header; returns how many.

    Texts that a spreadsheet would take for formulas are escaped.
    """
    columns = _export_columns()
    text_columns = [n for n, each in enumerate(columns) if isinstance(each.column.type, sa.Text)]
    return _write_csv(columns, _row_batches(db, columns, cluster, since), out, text_columns)


def _write_csv(
    columns: Sequence[ExportColumn],
    batches: Iterator[Sequence[Sequence[Any]]],
    out: IO[str],
    text_columns: Sequence[int] = (),
) -> int:
    """Write CSV; `text_columns`: indexes of columns whose cells might be formulas."""
    writer = csv.writer(out)
    writer.writerow([each.name for each in columns])
    count = 0
    for rows in batches:
        lines = [list(row[1:]) for row in rows]
        for line in lines:
            for index in text_columns:
                if line[index]:
                    line[index] = escape_formula(line[index])
        writer.writerows(lines)
        count += len(lines)
    return count


def _row_batches(
    db: Connection, columns: Sequence[ExportColumn], cluster: str | None, since: int
) -> Iterator[Sequence[Sequence[Any]]]:
    """Batches of rows, each with the job's `id` and the columns."""
    job = schema.job.c
    query = (
        sa.select(job.id, *(each.column for each in columns))
        .select_from(schema.job.outerjoin(schema.job_usage))
        .where(job.id > sa.bindparam("last"), job.submit_time >= since)
        .order_by(job.id)
        .limit(_ROWS_PER_BATCH)
    )
    if cluster is not None:
        query = query.where(job.cluster == cluster)
    last = 0
    while found := db.execute(query, {"last": last}).all():
        last = found[-1][0]
        yield found


def export_parquet(db: Connection, target: Path, cluster: str | None = None, since: int = 0) -> int:
    """Write the same as a Parquet file, with the database's types; returns how many jobs.

    Raises ModuleNotFoundError if duckdb is not installed, and OSError.
    """
    import duckdb  # from the extra `analysis`

    types = {each.name: _duckdb_type(each.column) for each in _export_columns()}
    with tempfile.NamedTemporaryFile("w", suffix=".csv", dir=target.parent, newline="") as file:
        columns = _export_columns()
        count = _write_csv(columns, _row_batches(db, columns, cluster, since), file)
        file.flush()
        with duckdb.connect() as engine:
            table = engine.read_csv(file.name, header=True, columns=types, quotechar='"')
            table.write_parquet(str(target), compression="zstd")
    return count


def _duckdb_type(column: sa.Column[Any]) -> str:
    if isinstance(column.type, sa.Text):
        return "VARCHAR"
    return "BIGINT" if isinstance(column.type, sa.Integer) else "DOUBLE"
