"""The index by end time has ended jobs only, so that unfinished ones are found by their own."""

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"

_ENDED = sa.text("end_time IS NOT NULL")


def upgrade() -> None:
    """Make the index again."""
    op.drop_index("ix_job_end_time", "job")
    columns = ["cluster", "end_time", "id"]
    op.create_index("ix_job_end_time", "job", columns, sqlite_where=_ENDED, postgresql_where=_ENDED)
