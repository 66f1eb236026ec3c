"""The first tables."""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

_SUMS = (
    "jobs_started jobs_ended jobs_failed wait_seconds wall_seconds "
    "cpu_allocated_seconds gpu_allocated_seconds memory_allocated_byte_seconds "
    "measured_cpu_allocated_seconds measured_gpu_allocated_seconds "
    "measured_memory_allocated_byte_seconds cpu_seconds gpu_seconds memory_byte_seconds "
    "energy_host_joules energy_gpu_joules"
)


def upgrade() -> None:
    """Create all tables."""
    _create_people()
    _create_jobs()
    _create_job_parts()
    _create_scripts()
    _create_sums()
    _create_poller_state()


def _create_people() -> None:
    """Clusters, and who belongs to which account and may use the server."""
    _create_table(
        "cluster", *_names("name"), *_integers("first_time", required=True), rowid=True, key="name"
    )
    _create_table(
        "account", *_names("cluster account"), *_texts("parent limits"), key="cluster account"
    )
    _create_table(
        "association",
        *_names("cluster account username role"),
        *_integers("is_default since_time", required=True),
        key="cluster account username role",
    )
    _create_table(
        "api_token",
        _id("id"),
        *_names("digest username"),
        *_texts("cluster"),
        *_names("role label"),
        *_integers("created_time", required=True),
        *_integers("expiry_time last_used_time"),
        _id("parent_id", required=False),
        *_texts("maker maker_via maker_certificate"),
        sa.ForeignKeyConstraint(
            ["parent_id"], ["api_token.id"], name=op.f("fk_api_token_parent_id"), ondelete="CASCADE"
        ),
        sa.UniqueConstraint("digest", name=op.f("uq_api_token_digest")),
        rowid=True,
        key="id",
    )
    _index("ix_api_token_parent_id", "api_token", "parent_id")
    _create_table(
        "login", *_names("username groups"), *_integers("login_time", required=True), key="username"
    )
    _create_table(
        "login_session",
        _id("id"),
        *_names("digest username"),
        *_texts("subject provider_session"),
        *_integers("created_time expiry_time", required=True),
        sa.UniqueConstraint("digest", name=op.f("uq_login_session_digest")),
        rowid=True,
        key="id",
    )
    _index("ix_login_session_username", "login_session", "username")


def _create_jobs() -> None:
    """Records of jobs."""
    _create_table(
        "job",
        _id("id"),
        *_names("cluster jobid"),
        *_integers("submit_time", required=True),
        *_texts("state state_word source"),
        *_integers("run", required=True),
        *_texts("record_id sluid username"),
        *_integers("uid"),
        *_texts("groupname account partition qos name reservation"),
        *_integers("priority"),
        *_floats("expected_start_time eligible_time start_time end_time elapsed_seconds"),
        *_integers(
            "suspended_seconds time_limit_seconds exit_code exit_signal derived_exit_code "
            "derived_exit_signal"
        ),
        *_texts("reason cancelled_by"),
        *_integers("restarts requested_cpus requested_memory_bytes requested_gpus requested_nodes"),
        *_texts("requested_resources"),
        *_floats("allocated_cpus"),
        *_integers("allocated_memory_bytes allocated_gpus allocated_nodes"),
        *_texts("allocated_resources node_list array_jobid"),
        *_integers("array_index"),
        *_texts("het_jobid"),
        *_integers("het_offset"),
        *_texts("dependencies submit_line work_dir stdout_path tool parameters error result_type"),
        *_floats("user_cpu_seconds system_cpu_seconds cpu_seconds"),
        *_integers("peak_memory_bytes energy_joules"),
        *_integers("update_time", required=True),
        *_texts("doubt"),
        *_integers("usage_due_time"),
        sa.UniqueConstraint(
            "cluster",
            "jobid",
            "submit_time",
            "run",
            name=op.f("uq_job_cluster_jobid_submit_time_run"),
        ),
        rowid=True,
        key="id",
    )
    _index("ix_job_account_time", "job", "cluster account start_time id")
    _index("ix_job_array_jobid", "job", "cluster array_jobid", "array_jobid != ''")
    _index("ix_job_end_time", "job", "cluster end_time id")
    _index("ix_job_het_jobid", "job", "cluster het_jobid", "het_jobid != ''")
    _index("ix_job_over_day", "job", "cluster start_time", "end_time - start_time > 86400")
    _index("ix_job_over_week", "job", "cluster start_time", "end_time - start_time > 604800")
    _index("ix_job_start_time", "job", "cluster start_time id")
    _index("ix_job_unfinished", "job", "cluster state username", "end_time IS NULL")
    _index("ix_job_usage_due", "job", "cluster usage_due_time", "usage_due_time IS NOT NULL")
    _index("ix_job_user_time", "job", "cluster username start_time id")


def _create_job_parts() -> None:
    """What belongs to a job: nodes, steps, GPUs, usage and emissions."""
    _create_table(
        "job_node",
        _id("job_id"),
        *_names("node"),
        *_floats("cpus"),
        *_integers("memory_bytes gpus"),
        *_names("cluster"),
        *_floats("start_time"),
        _of_job("job_node"),
        key="job_id node",
    )
    _index("ix_job_node_node_time", "job_node", "cluster node start_time job_id")
    _create_table(
        "job_step",
        _id("job_id"),
        *_names("step"),
        *_texts("state state_word name"),
        *_integers("start_time end_time elapsed_seconds exit_code exit_signal nodes"),
        *_texts("node_list"),
        *_integers("tasks cpus gpus"),
        *_floats("user_cpu_seconds system_cpu_seconds cpu_seconds"),
        *_integers("peak_task_memory_bytes memory_bytes read_bytes written_bytes energy_joules"),
        *_texts("submit_line"),
        _of_job("job_step"),
        key="job_id step",
    )
    _create_table(
        "job_usage",
        _id("job_id"),
        *_names("source"),
        *_integers("measured_time until_time samples dropped_series nodes", required=True),
        *_floats("coverage", required=True),
        *_texts("doubt"),
        *_floats("user_cpu_seconds system_cpu_seconds throttled_seconds"),
        *_integers("memory_peak_bytes memory_peak_node_bytes memory_limit_bytes swap_peak_bytes"),
        *_floats("memory_average_bytes working_set_average_bytes"),
        *_integers(
            "io_read_bytes io_written_bytes process_io_read_bytes process_io_written_bytes "
            "network_received_bytes network_sent_bytes major_page_faults memory_limit_hits "
            "oom_kills threads_peak"
        ),
        *_floats("cpu_waiting_seconds memory_waiting_seconds io_waiting_seconds"),
        *_integers("gpus"),
        *_floats("gpu_utilization_ratio"),
        *_integers("gpu_memory_peak_bytes"),
        *_floats(
            "energy_host_active_joules energy_host_idle_joules energy_gpu_active_joules "
            "energy_gpu_idle_joules"
        ),
        _of_job("job_usage"),
        rowid=True,
        key="job_id",
    )
    _create_table(
        "job_gpu",
        _id("job_id"),
        *_names("node uuid gpu_instance"),
        *_texts("gpu"),
        *_floats("utilization_ratio"),
        *_integers("memory_peak_bytes samples"),
        _of_job("job_gpu"),
        key="job_id node uuid gpu_instance",
    )
    _create_table(
        "job_emissions",
        _id("job_id"),
        *_names("provider"),
        *_floats("grams", required=True),
        _of_job("job_emissions"),
        key="job_id provider",
    )


def _create_scripts() -> None:
    """Batch scripts."""
    _create_table(
        "batch_script",
        *_names("digest script"),
        *_integers("whole_bytes", required=True),
        key="digest",
    )
    _create_table(
        "job_script", _id("job_id"), *_texts("digest"), _of_job("job_script"), key="job_id"
    )
    _index("ix_job_script_digest", "job_script", "digest")


def _create_sums() -> None:
    """Sums by day and month."""
    for what, keys, sums in (("usage", "", _SUMS), ("emissions", " provider", "grams")):
        indexes = ("account", "username") if what == "usage" else ()
        _sums(f"daily_{what}", "day", f"account username{keys}", sums, *indexes)
        _sums(f"daily_account_{what}", "day", f"account{keys}", sums, "account")
        _sums(f"daily_cluster_{what}", "day", keys, sums)
        _sums(
            f"monthly_user_{what}", "month", f"account username{keys}", sums, "username", "account"
        )
        _sums(f"monthly_account_{what}", "month", f"account{keys}", sums, "account")
    _create_table(
        "daily_wait",
        *_names("cluster"),
        *_integers("day", required=True),
        *_names("partition"),
        *_integers("jobs_started", required=True),
        *_floats("wait_mean_seconds wait_p50_seconds wait_p90_seconds", required=True),
        *_floats("wait_p99_seconds wait_max_seconds", required=True),
        key="cluster day partition",
    )
    _create_table(
        "daily_node_coverage",
        *_names("cluster"),
        *_integers("day", required=True),
        *_names("node"),
        *_integers("jobs_ended jobs_unmeasured", required=True),
        *_floats("run_seconds covered_seconds", required=True),
        key="cluster day node",
    )


def _create_poller_state() -> None:
    """State of the poller: watermarks, quarantine, and the days to roll up."""
    _create_table(
        "poll_state",
        *_names("cluster source"),
        *_texts("watermark"),
        *_integers("success_time error_time"),
        *_texts("error"),
        *_integers("rows"),
        *_floats("seconds"),
        key="cluster source",
    )
    _create_table(
        "quarantine",
        *_names("cluster source digest"),
        *_integers("time", required=True),
        *_names("reason raw"),
        rowid=True,
        key="cluster source digest",
    )
    _create_table(
        "rollup_due", *_names("cluster"), *_integers("day", required=True), key="cluster day"
    )


def _sums(name: str, when: str, keys: str, sums: str, *indexed: str) -> None:
    _create_table(
        name,
        *_names("cluster"),
        *_integers(when, required=True),
        *_names(keys),
        *_floats(sums, required=True),
        key=f"cluster {when} {keys}",
    )
    for column in indexed:
        short = column.removesuffix("name")
        _index(f"ix_{name}_{short}", name, f"cluster {column} {when}")


def _create_table(name: str, *parts: Any, key: str, rowid: bool = False) -> None:
    """Create a table with its primary key; `rowid`: whether it has SQLite's row ids."""
    primary = sa.PrimaryKeyConstraint(*key.split(), name=op.f(f"pk_{name}"))
    without = {} if rowid else {"sqlite_with_rowid": False}
    op.create_table(name, *parts, primary, **without)


def _index(name: str, table: str, columns: str, where: str = "") -> None:
    some: Any = {
        f"{dialect}_where": sa.text(where) for dialect in ("sqlite", "postgresql") if where
    }
    op.create_index(name, table, columns.split(), **some)


def _of_job(table: str) -> sa.ForeignKeyConstraint:
    """Rows are deleted with their job."""
    name = op.f(f"fk_{table}_job_id")
    return sa.ForeignKeyConstraint(["job_id"], ["job.id"], name=name, ondelete="CASCADE")


def _id(name: str, required: bool = True) -> sa.Column[int]:
    """SQLite assigns ids automatically only if the type is exactly INTEGER."""
    kind = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    return sa.Column(name, kind, nullable=not required)


def _names(names: str) -> list[sa.Column[str]]:
    return [sa.Column(name, sa.Text(), nullable=False) for name in names.split()]


def _texts(names: str) -> list[sa.Column[str]]:
    """Text columns, "" if not known."""
    return [sa.Column(name, sa.Text(), server_default="", nullable=False) for name in names.split()]


def _integers(names: str, required: bool = False) -> list[sa.Column[int]]:
    return [sa.Column(name, sa.BigInteger(), nullable=not required) for name in names.split()]


def _floats(names: str, required: bool = False) -> list[sa.Column[float]]:
    return [sa.Column(name, sa.Float(), nullable=not required) for name in names.split()]
