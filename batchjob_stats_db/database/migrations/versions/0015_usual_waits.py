"""The usual waits of partitions, users and accounts."""

from alembic import op

from batchjob_stats_db.database import schema

revision = "0015"
down_revision = "0014"


def upgrade() -> None:
    schema.usual_wait.create(op.get_bind())
