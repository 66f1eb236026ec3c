"""Generates job_list.sql: the statement for rows of jobs as text."""

import sqlalchemy as sa
from sqlalchemy.dialects import sqlite

from batchjob_stats_db.database import schema
from batchjob_stats_db.queries.efficiency import columns
from batchjob_stats_db.queries.job_list import STATEMENT


def text() -> str:
    """The content of the file."""
    condition = "job.id IN (SELECT value FROM json_each(:ids))"
    query = (
        sa.select(*columns())
        .select_from(schema.job.outerjoin(schema.job_usage))
        .where(sa.literal_column(condition, sa.Boolean))
    )
    compiled = query.compile(
        dialect=sqlite.dialect(paramstyle="named"), compile_kwargs={"literal_binds": True}
    )
    counts = [str(each.name) for each in columns() if isinstance(each.type, schema.Count)]
    return f"-- {' '.join((schema.REVISION, *counts))}\n{compiled}\n"


if __name__ == "__main__":
    STATEMENT.write_text(text(), encoding="utf-8")
