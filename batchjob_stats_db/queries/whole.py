"""Jobs with all there is of them: which ones is asked first, for their numbers alone.

So the statement with all columns is always the same one, made and compiled once: of a hundred
columns SQLAlchemy makes a statement more slowly than SQLite answers it.
"""

import functools
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, RowMapping

from batchjob_stats_db import schema
from batchjob_stats_db.queries.derived import columns

Names = tuple[str, ...]

NAMES: Names = tuple(str(column.name) for column in columns())
"""What there is of a job."""


@functools.lru_cache(256)
def _statement(names: Names) -> sa.Select[Any]:
    return (
        sa.select(*(column for column in columns() if column.name in {"id", *names}))
        .select_from(schema.job.outerjoin(schema.job_usage))
        .where(schema.job.c.id.in_(sa.bindparam("ids", expanding=True)))
    )


def numbered(db: Connection, ids: Sequence[int], names: Names = NAMES) -> list[RowMapping]:
    """The jobs with these numbers, in this order; the caller found that they may be seen.

    `names`: of which columns.
    """
    if not ids:
        return []
    found = {row["id"]: row for row in db.execute(_statement(names), {"ids": ids}).mappings().all()}
    return [found[each] for each in ids if each in found]


def whole(db: Connection, which: sa.Select[Any]) -> list[RowMapping]:
    """The jobs whose numbers this selects, in its order."""
    return numbered(db, db.scalars(which).all())
