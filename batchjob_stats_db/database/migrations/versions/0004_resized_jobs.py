"""Jobs whose allocation changed while they ran."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Add what the earlier phases of an allocation held."""
    for name in ("resized_cpu_seconds", "resized_gpu_seconds", "resized_memory_byte_seconds"):
        op.add_column("job", sa.Column(name, sa.Float))
