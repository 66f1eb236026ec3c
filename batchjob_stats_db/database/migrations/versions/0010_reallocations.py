"""The times at which jobs gave back nodes, or were allocated more."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    """Add the table of changes, and the time until which a job had a node."""
    op.add_column("job_node", sa.Column("until_time", sa.Float))
    op.create_table(
        "job_reallocation",
        sa.Column(
            "job_id",
            sa.BigInteger().with_variant(sa.Integer, "sqlite"),
            sa.ForeignKey("job.id", ondelete="CASCADE"),
            primary_key=True,
        ),
        sa.Column("until_time", sa.Float, primary_key=True),
        sa.Column("cpus", sa.Float),
        sa.Column("memory_bytes", sa.BigInteger),
        sa.Column("gpus", sa.BigInteger),
        sqlite_with_rowid=False,
    )
