"""Sums by day alone and by user and month, waits by partition, an index of job ends."""

from datetime import UTC, datetime

import sqlalchemy as sa
from alembic import op
from sqlalchemy.engine import Connection

revision = "0002"
down_revision = "0001"

_DAY = 86400
_SUMS = (
    "jobs_started", "jobs_ended", "jobs_failed", "wait_seconds", "wall_seconds",
    "cpu_allocated_seconds", "gpu_allocated_seconds", "memory_allocated_byte_seconds",
    "measured_cpu_allocated_seconds", "measured_gpu_allocated_seconds",
    "measured_memory_allocated_byte_seconds", "cpu_seconds", "gpu_seconds", "memory_byte_seconds",
    "energy_host_joules", "energy_gpu_joules",
)  # fmt: skip
_WAITS = ("mean", "p50", "p90", "p99", "max")
_KINDS: tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...] = (
    ("usage", (), _SUMS),
    ("emissions", ("provider",), ("grams",)),
)


def upgrade() -> None:
    """Make the tables, and fill them from what is there."""
    op.create_index("ix_job_end_time", "job", ["cluster", "end_time", "id"])
    for what, keys, sums in _KINDS:
        _table(f"daily_cluster_{what}", "day", keys, sums)
        _table(f"monthly_user_{what}", "month", ("account", "username", *keys), sums)
        for name in ("account", "username"):
            table = f"monthly_user_{what}"
            op.create_index(f"ix_{table}_{name}", table, ["cluster", name, "month"])
    op.create_table(
        "daily_wait",
        sa.Column("cluster", sa.Text(), nullable=False),
        sa.Column("day", sa.BigInteger(), nullable=False),
        sa.Column("partition", sa.Text(), nullable=False),
        sa.Column("jobs_started", sa.BigInteger(), nullable=False),
        *(sa.Column(f"wait_{each}_seconds", sa.Float(), nullable=False) for each in _WAITS),
        sa.PrimaryKeyConstraint("cluster", "day", "partition", name=op.f("pk_daily_wait")),
        sqlite_with_rowid=False,
    )
    _fill(op.get_bind())


def _table(name: str, time: str, keys: tuple[str, ...], sums: tuple[str, ...]) -> None:
    op.create_table(
        name,
        sa.Column("cluster", sa.Text(), nullable=False),
        sa.Column(time, sa.BigInteger(), nullable=False),
        *(sa.Column(key, sa.Text(), nullable=False) for key in keys),
        *(sa.Column(each, sa.Float(), nullable=False) for each in sums),
        sa.PrimaryKeyConstraint("cluster", time, *keys, name=op.f(f"pk_{name}")),
        sqlite_with_rowid=False,
    )


def _fill(db: Connection) -> None:
    days = db.execute(sa.text("SELECT DISTINCT cluster, day FROM daily_account_usage")).all()
    for what, keys, sums in _KINDS:
        _fold(db, f"daily_account_{what}", f"daily_cluster_{what}", "day", keys, sums)
    months = {(cluster, *_month(day)) for cluster, day in days}
    for cluster, begin, end in sorted(months):
        for what, keys, sums in _KINDS:
            whose = ("account", "username", *keys)
            _fold(
                db, f"daily_{what}", f"monthly_user_{what}", str(begin), whose, sums,
                cluster=cluster, begin=begin, end=end,
            )  # fmt: skip
    for cluster, day in days:
        db.execute(_WAIT, {"cluster": cluster, "day": day, "until": day + _DAY})


def _fold(
    db: Connection, source: str, into: str, time: str, keys: tuple[str, ...],
    sums: tuple[str, ...], **span: str | int,
) -> None:  # fmt: skip
    """Add up; names come from this file alone, so that they may stand in the text."""
    listed = "".join(f", {key}" for key in keys)
    added = ", ".join(f"SUM({each})" for each in sums)
    name = "day" if time == "day" else "month"
    where = "WHERE cluster = :cluster AND day >= :begin AND day < :end" if span else ""
    groups = f"cluster{', day' if time == 'day' else ''}{listed}"
    db.execute(
        sa.text(
            f"INSERT INTO {into} (cluster, {name}{listed}, {', '.join(sums)}) "  # noqa: S608 (names of ours)
            f"SELECT cluster, {time}{listed}, {added} FROM {source} {where} GROUP BY {groups}"
        ),
        span,
    )


def _month(day: int) -> tuple[int, int]:
    """Where the month (UTC) of a day begins and ends."""
    at = datetime.fromtimestamp(day, UTC)
    begin = datetime(at.year, at.month, 1, tzinfo=UTC)
    after = datetime(at.year + at.month // 12, at.month % 12 + 1, 1, tzinfo=UTC)
    return int(begin.timestamp()), int(after.timestamp())


_WAIT = sa.text("""
INSERT INTO daily_wait (cluster, day, "partition", jobs_started, wait_mean_seconds,
                        wait_p50_seconds, wait_p90_seconds, wait_p99_seconds, wait_max_seconds)
SELECT :cluster, CAST(:day AS BIGINT), "partition", MAX(jobs), AVG(wait),
       MIN(CASE WHEN place * 100 >= jobs * 50 THEN wait END),
       MIN(CASE WHEN place * 100 >= jobs * 90 THEN wait END),
       MIN(CASE WHEN place * 100 >= jobs * 99 THEN wait END),
       MAX(wait)
FROM (
    SELECT "partition", wait,
           ROW_NUMBER() OVER (PARTITION BY "partition" ORDER BY wait) AS place,
           COUNT(*) OVER (PARTITION BY "partition") AS jobs
    FROM (
        SELECT "partition",
               CASE WHEN start_time > COALESCE(eligible_time, submit_time)
                    THEN start_time - COALESCE(eligible_time, submit_time) ELSE 0 END AS wait
        FROM job
        WHERE cluster = :cluster AND start_time >= :day AND start_time < :until
    ) AS started
) AS ranked
GROUP BY "partition"
""")
