"""What may be wrong with a job's figures are its caveats, here as everywhere else."""

from alembic import op

revision = "0016"
down_revision = "0015"


def upgrade() -> None:
    """Rename the columns."""
    for table in ("job", "job_usage"):
        op.execute(f"ALTER TABLE {table} RENAME COLUMN doubt TO caveats")
