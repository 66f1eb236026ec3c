"""What tracked work says of itself: its tool, its parameters, what went wrong."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Add the columns."""
    for name in ("tool", "parameters", "error"):
        op.add_column("job", sa.Column(name, sa.Text(), server_default="", nullable=False))
