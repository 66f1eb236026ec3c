"""Keep how long each GPU of a job was observed, and for how long it was busy."""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"

_JOB = sa.table("job", *map(sa.column, ("id", "start_time")))
_USAGE = sa.table(
    "job_usage",
    *map(
        sa.column,
        ("job_id", "until_time", "coverage", "gpus", "gpu_utilization_ratio", "gpu_busy_seconds",
         "gpu_observed_seconds"),
    ),
)  # fmt: skip


def upgrade() -> None:
    """Add the columns. What was measured so far, in means, covers the measured time."""
    for name in ("gpu_busy_seconds", "gpu_observed_seconds"):
        op.add_column("job_usage", sa.Column(name, sa.Float))
    for name in ("observed_seconds", "shared_seconds", "mps_seconds"):
        op.add_column("job_gpu", sa.Column(name, sa.Float))
    usage = _USAGE.c
    start = sa.select(_JOB.c.start_time).where(_JOB.c.id == usage.job_id).scalar_subquery()
    seconds = usage.gpus * (usage.until_time - start)
    op.execute(
        sa.update(_USAGE)
        .where(usage.gpu_utilization_ratio.is_not(None))
        .values(
            gpu_busy_seconds=seconds * usage.gpu_utilization_ratio, gpu_observed_seconds=seconds
        )
    )
