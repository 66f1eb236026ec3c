"""Sums of spans of 2 to 256 days, by account and by user, instead of those of months."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.engine import Connection

revision = "0004"
down_revision = "0003"

_DAY = 86400
_SPANS = (2, 4, 8, 16, 32, 64, 128, 256)
_SUMS = (
    "jobs_started", "jobs_ended", "jobs_failed", "wait_seconds", "wall_seconds",
    "cpu_allocated_seconds", "gpu_allocated_seconds", "memory_allocated_byte_seconds",
    "measured_cpu_allocated_seconds", "measured_gpu_allocated_seconds",
    "measured_memory_allocated_byte_seconds", "cpu_seconds", "gpu_seconds", "memory_byte_seconds",
    "energy_host_joules", "energy_gpu_joules",
)  # fmt: skip
_TABLES: tuple[tuple[str, str, tuple[str, ...], tuple[str, ...]], ...] = (
    ("span_user_usage", "daily_usage", ("account", "username"), _SUMS),
    ("span_account_usage", "daily_account_usage", ("account",), _SUMS),
    ("span_user_emissions", "daily_emissions", ("account", "username", "provider"), ("grams",)),
    ("span_account_emissions", "daily_account_emissions", ("account", "provider"), ("grams",)),
)


def upgrade() -> None:
    """Make the tables, and fill them from the days."""
    for name, days, keys, sums in _TABLES:
        op.create_table(
            name,
            sa.Column("cluster", sa.Text(), nullable=False),
            sa.Column("days", sa.BigInteger(), nullable=False),
            sa.Column("day", sa.BigInteger(), nullable=False),
            *(sa.Column(key, sa.Text(), nullable=False) for key in keys),
            *(sa.Column(each, sa.Float(), nullable=False) for each in sums),
            sa.PrimaryKeyConstraint("cluster", "days", "day", *keys, name=op.f(f"pk_{name}")),
            sqlite_with_rowid=False,
        )
        _fill(op.get_bind(), name, days, keys, sums)
    for what in ("usage", "emissions"):
        op.drop_table(f"monthly_account_{what}")
        op.drop_table(f"monthly_user_{what}")


def _fill(
    db: Connection, name: str, days: str, keys: tuple[str, ...], sums: tuple[str, ...]
) -> None:
    """Each length from the one before."""
    source = days
    for length in _SPANS:
        begin = f"day - day % {length * _DAY}"
        added = ", ".join(f"SUM({each})" for each in sums)
        columns = ", ".join(keys)
        db.execute(
            sa.text(
                f"INSERT INTO {name} (cluster, days, day, {columns}, {', '.join(sums)}) "  # noqa: S608 (names of ours)
                f"SELECT cluster, {length}, {begin}, {columns}, {added} FROM {source} "
                f"GROUP BY cluster, {begin}, {columns}"
            )
        )
        source = f"{name} WHERE days = {length}"
