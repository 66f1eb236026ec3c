"""An index of failed jobs, of which an administrator's page counts those of two days."""

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"

_FAILED = sa.text(
    "state IN ('FAILED', 'TIMEOUT', 'OUT_OF_MEMORY', 'NODE_FAIL', 'BOOT_FAIL', 'DEADLINE') "
    "AND start_time IS NOT NULL"
)


def upgrade() -> None:
    """Create the index."""
    columns = ["cluster", "end_time", "start_time", "state", "username"]
    op.create_index("ix_job_failed", "job", columns, sqlite_where=_FAILED, postgresql_where=_FAILED)
