"""Rows of jobs with other usages than the database has, for tests that need no database."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from batchjob_stats_db.database import schema
from batchjob_stats_db.queries.efficiency import COVERAGE, DERIVED


def replace_usage(row: Mapping[Any, Any], usage: Mapping[str, Any]) -> dict[Any, Any]:
    """A row of `columns()` with another usage; see `replace_usages`."""
    with_id = {**row, "id": row.get("id") or 0}
    return replace_usages([with_id], {with_id["id"]: usage})[0]


def replace_usages(
    rows: Sequence[Mapping[Any, Any]], usages: Mapping[int, Mapping[str, Any]]
) -> list[dict[Any, Any]]:
    """Rows of `columns()` with the given usages and the figures derived from them.

    `usages` has the known columns of `job_usage` for each row, by its id.
    """
    job_keys = [column.name for column in schema.job.columns]
    usage_keys = [column.name for column in schema.job_usage.columns]
    result = [
        {**row, **{f"usage_{name}": usages[row["id"]].get(name) for name in usage_keys[1:]}}
        for row in rows
    ]
    wanted = (schema.job.c.id, *DERIVED, COVERAGE.label("usage_coverage"))
    query = sa.select(*wanted).select_from(schema.job.join(schema.job_usage))
    with _memory_database().connect() as db:
        for name, names, values in (
            ("job", job_keys, [[row.get(name) for name in job_keys] for row in result]),
            (
                "job_usage", usage_keys,
                [[row["id"], *(row[f"usage_{each}"] for each in usage_keys[1:])] for row in result],
            ),
            *(
                (each.name, [column.name for column in each.columns], [])
                for each in (schema.poll_state, schema.job_reallocation)
            ),
        ):  # fmt: skip
            db.exec_driver_sql(f"CREATE TABLE {name} ({', '.join(names)})")
            marks = ", ".join("?" * len(names))
            if values:
                insert = f"INSERT INTO {name} VALUES ({marks})"
                db.exec_driver_sql(insert, [tuple(each) for each in values])
        figures = {each["id"]: each for each in db.execute(query).mappings()}
    return [{**row, **figures[row["id"]]} for row in result]


@functools.cache
def _memory_database() -> sa.Engine:
    """An in-memory database; each connection starts without tables."""
    return sa.create_engine("sqlite://", poolclass=sa.NullPool)
