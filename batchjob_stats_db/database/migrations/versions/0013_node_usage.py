"""Keep the use of each node of a job, and the memory of its GPUs."""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    """Add the table and the column, both empty: they are filled as jobs are measured."""
    op.add_column("job_gpu", sa.Column("memory_total_bytes", sa.BigInteger))
    whole_number = sa.BigInteger().with_variant(sa.Integer, "sqlite")
    job_id = sa.Column(
        "job_id", whole_number, sa.ForeignKey("job.id", ondelete="CASCADE"), primary_key=True
    )
    op.create_table(
        "job_node_usage",
        job_id,
        sa.Column("node", sa.Text, primary_key=True),
        sa.Column("cpus", sa.Float),
        sa.Column("cpu_seconds", sa.Float),
        sa.Column("memory_peak_bytes", sa.BigInteger),
        sa.Column("memory_without_cache_bytes", sa.BigInteger),
        sa.Column("memory_limit_bytes", sa.BigInteger),
        sqlite_with_rowid=False,
    )
