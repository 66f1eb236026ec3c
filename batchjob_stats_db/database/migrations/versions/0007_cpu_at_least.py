"""Tell CPU times of accounting apart that are lower bounds."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    """Add the column; what accounting was is not known of jobs that are stored."""
    op.add_column("job", sa.Column("cpu_at_least", sa.BigInteger))
