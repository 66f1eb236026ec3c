"""How long jobs take on each node, relative to other nodes; the poller computes it hourly."""

from alembic import op

from batchjob_stats_db.database import schema

revision = "0019"
down_revision = "0018"


def upgrade() -> None:
    """Create the table."""
    schema.node_pace.create(op.get_bind(), checkfirst=True)
