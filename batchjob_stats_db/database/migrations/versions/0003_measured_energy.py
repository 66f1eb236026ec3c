"""Sums of peak memory, and of how much of the allocated CPU time those of energy are."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"

_TABLES = ("daily", "daily_account", "daily_cluster", "monthly_user", "monthly_account")
_ENERGY = "measured_energy_cpu_allocated_seconds"
_MEMORY = ("measured_memory_peak_allocated_byte_seconds", "memory_peak_byte_seconds")
_COLUMNS = {"usage": (_ENERGY, *_MEMORY), "emissions": (_ENERGY,)}


def upgrade() -> None:
    """Add the columns, and have the days whose jobs are all still there summed up again.

    Retention deletes jobs by their end, so that no job is missing on the days after the earliest.
    """
    for table in _TABLES:
        for what, names in _COLUMNS.items():
            for name in names:
                column = sa.Column(name, sa.Float, nullable=False, server_default="0")
                op.add_column(f"{table}_{what}", column)
    op.execute(
        "INSERT INTO rollup_due (cluster, day) "
        "SELECT DISTINCT cluster, day FROM daily_cluster_usage AS sums "
        "WHERE day >= (SELECT min(end_time) FROM job WHERE job.cluster = sums.cluster) "
        "AND NOT EXISTS (SELECT 1 FROM rollup_due AS due "
        "WHERE due.cluster = sums.cluster AND due.day = sums.day)"
    )
