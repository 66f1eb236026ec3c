"""The tables. Times are UTC epoch seconds, sizes bytes, energy joules, emissions grams.

A job's start and end have milliseconds if their source does; all other times are whole seconds. The
columns of `job` and `job_step` are the fields of the records they are written from (`records.py`).
NULL, or "" for text, means "not known" or "not yet", never zero. Derived data (usage, daily sums)
are in tables of their own and can be rebuilt.
"""

import sqlite3
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy import (
    BigInteger,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
)

from batchjob.judgements import FAILED_STATES
from batchjob.quantities.gpu import PROFILE_RATIOS
from batchjob.quantities.usage import ENERGY_COLUMNS, USAGE_COLUMNS, UsageColumn

REVISION = "0016"
"""The latest migration; together they create these tables."""

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)

# SQLite assigns ids automatically only if the type is exactly INTEGER.
_Id = BigInteger().with_variant(Integer, "sqlite")


def _id() -> Column[int]:
    return Column("id", _Id, primary_key=True)


def _job_id() -> Column[int]:
    return Column("job_id", _Id, ForeignKey("job.id", ondelete="CASCADE"), primary_key=True)


def _day() -> Column[int]:
    """Midnight UTC, in epoch seconds."""
    return Column("day", BigInteger, primary_key=True)


def _columns(kind: type[sa.types.TypeEngine[Any]], names: str, **options: Any) -> list[Column[Any]]:
    return [Column(name, kind, **options) for name in names.split()]


def _required(names: str, kind: type[sa.types.TypeEngine[Any]]) -> list[Column[Any]]:
    return _columns(kind, names, nullable=False)


class Count(sa.types.TypeDecorator[float]):
    """A number that is usually whole, and then an int: half a CPU, a time to the millisecond.

    A text or bytes in its place, as SQLite returns them from a damaged file, raise DBAPIError.
    """

    impl = Float
    cache_ok = True

    def result_processor(
        self, dialect: sa.Dialect, coltype: object
    ) -> Callable[[float | None], float | None]:
        """A column's value in Python; `process_result_value` would cost another function call."""
        del dialect, coltype
        return _whole_as_int


def _whole_as_int(value: float | None) -> float | None:
    if type(value) is float:  # a page reads thousands of them
        return int(value) if value.is_integer() else value
    if isinstance(value, (str, bytes)):
        error = sqlite3.DatabaseError(f"malformed: {value!r:.40} where a number must be")
        raise sa.exc.DatabaseError(None, None, error)
    return int(value) if value is not None and value % 1 == 0 else value


_keys = partial(_columns, Text, primary_key=True)
_texts = partial(_columns, Text, nullable=False, server_default="")  # "": nothing is stated
_integers, _numbers, _floats = (partial(_columns, kind) for kind in (BigInteger, Count, Float))


def _usage_columns(columns: Iterable[UsageColumn]) -> list[Column[Any]]:
    return [Column(each.name, BigInteger if each.is_integer else Float) for each in columns]


def _table(name: str, *items: sa.schema.SchemaItem, has_rowid: bool = False) -> Table:
    """A table; in SQLite without a rowid, unless it is wide or has an `id`."""
    return Table(name, metadata, *items, sqlite_with_rowid=has_rowid)


def _partial_index(
    name: str, where: sa.ColumnElement[bool] | sa.TextClause, *columns: Column[Any]
) -> None:
    """An index of the rows for which a condition holds.

    With the condition as an argument of the index, SQLAlchemy would import the modules of both
    databases with this one.
    """
    Index(name, *columns, info={"where": where})


@sa.event.listens_for(metadata, "before_create")
def _set_conditions(_: MetaData, db: sa.Connection, **__: Any) -> None:
    for index in (index for table in metadata.tables.values() for index in table.indexes):
        if "where" in index.info:
            index.dialect_options[db.dialect.name]["where"] = index.info["where"]


cluster = _table("cluster", *_keys("name"), *_required("first_time", BigInteger), has_rowid=True)

account = _table("account", *_keys("cluster account"), *_texts("parent limits"))

job = _table(
    "job",
    _id(),
    # The record's fields in order, except `nodes` and `steps`, which have tables of their own.
    *_required("cluster jobid", Text),
    *_required("submit_time", BigInteger),
    *_texts("state state_word source"),
    *_required("run", BigInteger),
    # Not `user` and `group`: unquoted, `user` means the current user in PostgreSQL.
    *_texts("record_id sluid username"),
    *_integers("uid"),
    *_texts("groupname account partition qos name reservation"),
    *_integers("priority"),
    *_numbers("expected_start_time eligible_time start_time end_time elapsed_seconds"),
    *_integers("suspended_seconds time_limit_seconds"),
    *_integers("exit_code exit_signal exit_code_or_128_more"),
    *_integers("derived_exit_code derived_exit_signal"),
    *_texts("reason cancelled_by"),
    *_integers("restarts requested_cpus requested_memory_bytes requested_gpus requested_nodes"),
    *_texts("requested_resources"),
    *_numbers("allocated_cpus"),
    *_integers("allocated_memory_bytes allocated_gpus allocated_nodes"),
    *_floats("resized_cpu_seconds resized_gpu_seconds resized_memory_byte_seconds"),
    *_texts("allocated_resources node_list array_jobid"),
    *_integers("array_index"),
    *_texts("het_jobid"),
    *_integers("het_offset"),
    *_texts("dependencies submit_line work_dir stdout_path tool parameters error result_type"),
    # Measured by the scheduler itself; job_usage has our own measurements.
    *_integers("cpu_at_least"),
    *_floats("user_cpu_seconds system_cpu_seconds cpu_seconds"),
    *_integers("peak_memory_bytes energy_joules"),
    # Not from the job record.
    *_required("update_time", BigInteger),
    # "runaway": the job is running according to accounting, but unknown to the controller; "times":
    # its end is before its start.
    *_texts("caveats"),
    *_integers("usage_due_time"),
    UniqueConstraint("cluster", "jobid", "submit_time", "run"),
    Index("ix_job_user_time", "cluster", "username", "start_time", "id"),
    Index("ix_job_account_time", "cluster", "account", "start_time", "id"),
    Index("ix_job_start_time", "cluster", "start_time", "id"),
    has_rowid=True,
)
# Without those that have not ended, which look as rare in SQLite's statistics as those of a second.
_partial_index(
    "ix_job_end_time", job.c.end_time.is_not(None), job.c.cluster, job.c.end_time, job.c.id
)
_partial_index(
    "ix_job_unfinished", job.c.end_time.is_(None), job.c.cluster, job.c.state, job.c.username
)
_partial_index(
    "ix_job_usage_due", job.c.usage_due_time.is_not(None), job.c.cluster, job.c.usage_due_time
)
_failed = job.c.state.in_([sa.literal_column(f"'{state.value}'") for state in FAILED_STATES])
HAS_FAILED = _failed & job.c.start_time.is_not(None)
"""Whether a job ran and failed: what databases find by an index if it is written like this."""
HAS_STARTED = (job.c.start_time + 0).is_not(None)
"""For unfinished jobs: without the zero, SQLite reads the index of start times, of all jobs."""
_counted = (job.c[name] for name in ("cluster", "end_time", "start_time", "state", "username"))
_partial_index("ix_job_failed", HAS_FAILED, *_counted)
# Runs longer than a day and longer than a week, for the days they overlap (measure/daily_sums.py).
for _name, _seconds in (("ix_job_over_day", 86400), ("ix_job_over_week", 604800)):
    _long = sa.text(f"end_time - start_time > {_seconds}")
    _partial_index(_name, _long, job.c.cluster, job.c.start_time)
# Array tasks and components of het jobs; most jobs are neither.
for _group_column in (job.c.array_jobid, job.c.het_jobid):
    _grouped = _group_column != sa.literal_column("''")
    _partial_index(f"ix_job_{_group_column.name}", _grouped, job.c.cluster, _group_column)

job_node = _table(
    "job_node",
    _job_id(),
    *_keys("node"),
    *_numbers("cpus"),
    *_integers("memory_bytes gpus"),
    *_numbers("until_time"),  # when the job gave it back
    *_required("cluster", Text),
    *_numbers("start_time"),  # the job's, so that a node's newest jobs are one index range
    Index("ix_job_node_node_time", "cluster", "node", "start_time", "job_id"),
)

job_reallocation = _table(
    "job_reallocation",
    _job_id(),
    # A Reallocation's fields, in order.
    Column("until_time", Float, primary_key=True),
    *_numbers("cpus"),
    *_integers("memory_bytes gpus"),
)

job_step = _table(
    "job_step",
    _job_id(),
    # A step record's fields, in order.
    *_keys("step"),
    *_texts("state state_word name"),
    *_integers("start_time end_time elapsed_seconds exit_code exit_signal exit_code_or_128_more"),
    *_integers("nodes"),
    *_texts("node_list"),
    *_integers("tasks cpus gpus"),
    *_floats("user_cpu_seconds system_cpu_seconds cpu_seconds"),
    *_integers("peak_task_memory_bytes memory_bytes read_bytes written_bytes energy_joules"),
    *_texts("submit_line"),
)

job_usage = _table(
    "job_usage",
    _job_id(),
    *_required("source", Text),
    *_required("measured_time until_time samples dropped_series nodes", BigInteger),
    *_required("coverage", Float),
    *_texts("caveats"),
    *_usage_columns(USAGE_COLUMNS),
    *_integers("gpus"),
    *_floats("gpu_utilization_ratio gpu_busy_seconds gpu_observed_seconds"),
    *_integers("gpu_memory_peak_bytes"),
    *_floats(" ".join(f"gpu_{name}_ratio" for name in PROFILE_RATIOS)),
    *_usage_columns(ENERGY_COLUMNS),
    has_rowid=True,
)

job_gpu = _table(
    "job_gpu",
    _job_id(),
    *_keys("node uuid gpu_instance"),
    *_texts("gpu"),
    *_floats("utilization_ratio"),
    *_integers("memory_peak_bytes samples"),
    *_floats("observed_seconds shared_seconds mps_seconds"),
    *_integers("memory_total_bytes"),
    *_floats("profiled_seconds"),
    *_floats(" ".join(f"{name}_ratio {name}_peak_ratio" for name in PROFILE_RATIOS)),
)

job_node_usage = _table(
    "job_node_usage",
    _job_id(),
    *_keys("node"),
    # A NodeUsage's fields, in order.
    *_numbers("cpus"),
    *_floats("cpu_seconds"),
    *_integers("memory_peak_bytes memory_without_cache_bytes memory_limit_bytes"),
)

job_emissions = _table("job_emissions", _job_id(), *_keys("provider"), *_required("grams", Float))

batch_script = _table(
    "batch_script",
    *_keys("digest"),  # the tasks of an array share a script
    *_required("script", Text),
    *_required("whole_bytes", BigInteger),
)

job_script = _table(
    "job_script", _job_id(), *_texts("digest"), Index("ix_job_script_digest", "digest")
)

# fmt: off
DAILY_SUMS = ("jobs_started", "jobs_ended", "jobs_failed", "wait_seconds", "wall_seconds",
    "cpu_allocated_seconds", "gpu_allocated_seconds", "memory_allocated_byte_seconds",
    "measured_cpu_allocated_seconds", "measured_gpu_allocated_seconds",
    "measured_memory_allocated_byte_seconds", "measured_memory_peak_allocated_byte_seconds",
    "measured_energy_cpu_allocated_seconds", "cpu_seconds", "gpu_seconds", "memory_byte_seconds",
    "memory_peak_byte_seconds", "energy_host_joules", "energy_gpu_joules")
# fmt: on
"""What may be added up over days, users and accounts."""

EMISSION_SUMS = ("measured_energy_cpu_allocated_seconds", "grams")
"""The same, of emissions by one provider."""

daily_usage = _table(
    "daily_usage",
    *_keys("cluster"),
    _day(),
    *_keys("account username"),
    *_required(" ".join(DAILY_SUMS), Float),
    Index("ix_daily_usage_user", "cluster", "username", "day"),
    Index("ix_daily_usage_account", "cluster", "account", "day"),
)

daily_emissions = _table(
    "daily_emissions",
    *_keys("cluster"),
    _day(),
    *_keys("account username provider"),  # those of different providers must not be added up
    *_required(" ".join(EMISSION_SUMS), Float),
)


def _aggregate_table(
    name: str, period: str, keys: tuple[str, ...], sums: tuple[str, ...], *indexed: str
) -> Table:
    """Sums with fewer rows than those by day and user, for queries that need no more detail."""
    return _table(
        name,
        *_keys("cluster"),
        Column(period, BigInteger, primary_key=True),
        *_keys(" ".join(keys)),
        *_required(" ".join(sums), Float),
        *(Index(f"ix_{name}_{suffix}", "cluster", column, period)
          for suffix, column in (("user", "username"), ("account", "account"))
          if suffix in indexed),
    )  # fmt: skip


class Sums(NamedTuple):
    """The same sums in five tables, each but the first made from another one.

    A year of 2000 users is 730,000 rows by day, and 24,000 by month.
    """

    by_user: Table  # one row per day, account and user
    by_account: Table  # one row per day and account
    by_day: Table  # one row per day
    monthly_by_user: Table  # one row per month, account and user
    monthly_by_account: Table  # one row per month and account
    keys: tuple[str, ...]  # additional key columns
    columns: tuple[str, ...]  # summed columns

    def months(self) -> tuple[tuple[Table, Table], ...]:
        """Tables of days, each with that of its months."""
        return (self.by_user, self.monthly_by_user), (self.by_account, self.monthly_by_account)


def _sum_tables(what: str, by_user: Table, keys: tuple[str, ...], columns: tuple[str, ...]) -> Sums:
    account, user = ("account", *keys), ("account", "username", *keys)
    return Sums(
        by_user,
        _aggregate_table(f"daily_account_{what}", "day", account, columns, "account"),
        _aggregate_table(f"daily_cluster_{what}", "day", keys, columns),
        _aggregate_table(f"monthly_user_{what}", "month", user, columns, "user", "account"),
        _aggregate_table(f"monthly_account_{what}", "month", account, columns, "account"),
        keys,
        columns,
    )


USAGE = _sum_tables("usage", daily_usage, (), DAILY_SUMS)
EMISSIONS = _sum_tables("emissions", daily_emissions, ("provider",), EMISSION_SUMS)
SUMS = (USAGE, EMISSIONS)

WAITS = ("mean", "p50", "p90", "p99", "max")

daily_wait = _table(
    "daily_wait",
    *_keys("cluster"),
    _day(),
    *_keys("partition"),
    *_required("jobs_started", BigInteger),
    # Measured from eligibility; each percentile is the wait of an actual job.
    *_required(" ".join(f"wait_{each}_seconds" for each in WAITS), Float),
)
usual_wait = _table(
    "usual_wait",
    # Of all jobs of a partition, a user or an account: the other two are "".
    *_keys("cluster partition username account"),
    *_required("jobs_started", BigInteger),
    *_required("wait_p50_seconds wait_p90_seconds", Float),
    *_required("computed_time", BigInteger),
)
daily_node_coverage = _table(
    "daily_node_coverage",
    *_keys("cluster"),
    _day(),
    *_keys("node"),
    *_required("jobs_ended jobs_unmeasured", BigInteger),
    *_required("run_seconds covered_seconds", Float),
)
node_pace = _table(
    "node_pace",
    *_keys("cluster node"),
    *_required("pace", Float),
    *_required("jobs_compared", BigInteger),
)
rollup_due = _table("rollup_due", *_keys("cluster"), _day())
association = _table(
    "association",
    *_keys("cluster account username role"),
    *_required("is_default since_time", BigInteger),
)
api_token = _table(
    "api_token",
    _id(),
    Column("digest", Text, nullable=False, unique=True),
    *_required("username", Text),
    *_texts("cluster"),
    *_required("role label", Text),
    *_required("created_time", BigInteger),
    *_integers("expiry_time last_used_time"),
    # The token it was created with, and is revoked with; without one, the person who created it and
    # how they were authenticated.
    Column("parent_id", _Id, ForeignKey("api_token.id", ondelete="CASCADE")),
    *_texts("maker maker_via maker_certificate"),
    Index("ix_api_token_parent_id", "parent_id"),
    has_rowid=True,
)
login = _table(
    "login", *_keys("username"), *_required("groups", Text), *_required("login_time", BigInteger)
)
login_session = _table(
    "login_session",
    _id(),
    Column("digest", Text, nullable=False, unique=True),
    *_required("username", Text),
    *_texts("subject provider_session"),
    *_required("created_time expiry_time", BigInteger),
    Index("ix_login_session_username", "username"),
    has_rowid=True,
)
subscription = _table(
    "subscription",
    _id(),
    *_required("username event channel", Text),
    *_texts("target cluster jobid account quiet_hours"),  # "": the site's, all, own jobs, none
    *_required("threshold", BigInteger),  # seconds, or per cent
    *_required("created_time", BigInteger),
    UniqueConstraint(
        "username",
        "event",
        "channel",
        "target",
        "cluster",
        "jobid",
        "account",
        name="uq_subscription",
    ),
    has_rowid=True,
)
outbox = _table(
    "outbox",
    _id(),
    *_required("username cluster event cause channel", Text),
    *_texts("target quiet_hours account state detail"),
    Column("job_id", _Id, ForeignKey("job.id", ondelete="CASCADE")),
    *_required("created_time due_time next_time tries", BigInteger),
    *_integers("batch done_time"),
    # One message per cause.
    UniqueConstraint("cause", "username", "channel", "target", name="uq_outbox"),
    Index("ix_outbox_job_id", "job_id"),
    Index("ix_outbox_state", "state", "cluster", "batch"),
    has_rowid=True,
)
message_site = _table("message_site", *_keys("name"), *_required("value", Text))
poll_state = _table(
    "poll_state",
    *_keys("cluster source"),
    *_texts("watermark"),
    *_integers("success_time error_time"),
    *_texts("error"),
    *_integers("rows"),
    *_floats("seconds"),
)
quarantine = _table(
    "quarantine",
    *_keys("cluster source digest"),  # an overlap that is read twice adds nothing
    *_required("time", BigInteger),
    *_required("reason raw", Text),
    *_texts("rule"),
    has_rowid=True,
)
