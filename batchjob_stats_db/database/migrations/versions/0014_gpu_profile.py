"""Keep how well each GPU of a job was used: multiprocessors, tensor cores and memory."""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"

_RATIOS = ("sm_active", "sm_occupancy", "tensor_active", "dram_active")


def upgrade() -> None:
    """Add the columns, which are empty for earlier jobs."""
    op.add_column("job_gpu", sa.Column("profiled_seconds", sa.Float))
    for name in _RATIOS:
        op.add_column("job_usage", sa.Column(f"gpu_{name}_ratio", sa.Float))
        op.add_column("job_gpu", sa.Column(f"{name}_ratio", sa.Float))
        op.add_column("job_gpu", sa.Column(f"{name}_peak_ratio", sa.Float))
