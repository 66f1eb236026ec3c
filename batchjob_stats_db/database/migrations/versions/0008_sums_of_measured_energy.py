"""Take accounting's energy out of the sums.

Accounting has the energy of whole nodes, which was added once for each of the jobs that shared one.
"""

from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    """Have the days of clusters with such energy summed up again, if all their jobs are there.

    Retention deletes jobs by their end, so that no job is missing on the days after the earliest.
    """
    op.execute(
        "INSERT INTO rollup_due (cluster, day) "
        "SELECT DISTINCT cluster, day FROM daily_cluster_usage AS sums "
        "WHERE cluster IN (SELECT cluster FROM job WHERE energy_joules IS NOT NULL) "
        "AND day >= (SELECT min(end_time) FROM job WHERE job.cluster = sums.cluster) "
        "AND NOT EXISTS (SELECT 1 FROM rollup_due AS due "
        "WHERE due.cluster = sums.cluster AND due.day = sums.day)"
    )
