"""The first tables."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

_SUMS = (
    "jobs_started", "jobs_ended", "jobs_failed", "wait_seconds", "wall_seconds",
    "cpu_allocated_seconds", "gpu_allocated_seconds", "memory_allocated_byte_seconds",
    "measured_cpu_allocated_seconds", "measured_gpu_allocated_seconds",
    "measured_memory_allocated_byte_seconds", "cpu_seconds", "gpu_seconds", "memory_byte_seconds",
    "energy_host_joules", "energy_gpu_joules",
)  # fmt: skip


def upgrade() -> None:
    """Make all tables."""
    op.create_table(
        "account",
        sa.Column("cluster", sa.Text(), nullable=False),
        sa.Column("account", sa.Text(), nullable=False),
        sa.Column("parent", sa.Text(), server_default="", nullable=False),
        sa.Column("limits", sa.Text(), server_default="", nullable=False),
        sa.PrimaryKeyConstraint("cluster", "account", name=op.f("pk_account")),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "api_token",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("username", sa.Text(), nullable=False),
        sa.Column("cluster", sa.Text(), server_default="", nullable=False),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("label", sa.Text(), nullable=False),
        sa.Column("created_time", sa.BigInteger(), nullable=False),
        sa.Column("expiry_time", sa.BigInteger(), nullable=True),
        sa.Column("last_used_time", sa.BigInteger(), nullable=True),
        sa.Column("parent_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=True),
        sa.Column("maker", sa.Text(), server_default="", nullable=False),
        sa.Column("maker_via", sa.Text(), server_default="", nullable=False),
        sa.Column("maker_certificate", sa.Text(), server_default="", nullable=False),
        sa.ForeignKeyConstraint(
            ["parent_id"],
            ["api_token.id"],
            name=op.f("fk_api_token_parent_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_api_token")),
        sa.UniqueConstraint("digest", name=op.f("uq_api_token_digest")),
    )
    op.create_index("ix_api_token_parent_id", "api_token", ["parent_id"])
    op.create_table(
        "login",
        sa.Column("username", sa.Text(), nullable=False),
        sa.Column("groups", sa.Text(), nullable=False),
        sa.Column("login_time", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("username", name=op.f("pk_login")),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "login_session",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("username", sa.Text(), nullable=False),
        sa.Column("subject", sa.Text(), server_default="", nullable=False),
        sa.Column("provider_session", sa.Text(), server_default="", nullable=False),
        sa.Column("created_time", sa.BigInteger(), nullable=False),
        sa.Column("expiry_time", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_login_session")),
        sa.UniqueConstraint("digest", name=op.f("uq_login_session_digest")),
    )
    op.create_index("ix_login_session_username", "login_session", ["username"])
    op.create_table(
        "association",
        sa.Column("cluster", sa.Text(), nullable=False),
        sa.Column("account", sa.Text(), nullable=False),
        sa.Column("username", sa.Text(), nullable=False),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("is_default", sa.BigInteger(), nullable=False),
        sa.Column("since_time", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint(
            "cluster", "account", "username", "role", name=op.f("pk_association")
        ),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "cluster",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("first_time", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_cluster")),
    )
    op.create_table(
        "daily_emissions",
        sa.Column("cluster", sa.Text(), nullable=False),
        sa.Column("day", sa.BigInteger(), nullable=False),
        sa.Column("account", sa.Text(), nullable=False),
        sa.Column("username", sa.Text(), nullable=False),
        sa.Column("provider", sa.Text(), nullable=False),
        sa.Column("grams", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint(
            "cluster", "day", "account", "username", "provider", name=op.f("pk_daily_emissions")
        ),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "daily_usage",
        sa.Column("cluster", sa.Text(), nullable=False),
        sa.Column("day", sa.BigInteger(), nullable=False),
        sa.Column("account", sa.Text(), nullable=False),
        sa.Column("username", sa.Text(), nullable=False),
        sa.Column("jobs_started", sa.Float(), nullable=False),
        sa.Column("jobs_ended", sa.Float(), nullable=False),
        sa.Column("jobs_failed", sa.Float(), nullable=False),
        sa.Column("wait_seconds", sa.Float(), nullable=False),
        sa.Column("wall_seconds", sa.Float(), nullable=False),
        sa.Column("cpu_allocated_seconds", sa.Float(), nullable=False),
        sa.Column("gpu_allocated_seconds", sa.Float(), nullable=False),
        sa.Column("memory_allocated_byte_seconds", sa.Float(), nullable=False),
        sa.Column("measured_cpu_allocated_seconds", sa.Float(), nullable=False),
        sa.Column("measured_gpu_allocated_seconds", sa.Float(), nullable=False),
        sa.Column("measured_memory_allocated_byte_seconds", sa.Float(), nullable=False),
        sa.Column("cpu_seconds", sa.Float(), nullable=False),
        sa.Column("gpu_seconds", sa.Float(), nullable=False),
        sa.Column("memory_byte_seconds", sa.Float(), nullable=False),
        sa.Column("energy_host_joules", sa.Float(), nullable=False),
        sa.Column("energy_gpu_joules", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint(
            "cluster", "day", "account", "username", name=op.f("pk_daily_usage")
        ),
        sqlite_with_rowid=False,
    )
    op.create_index(
        "ix_daily_usage_account", "daily_usage", ["cluster", "account", "day"], unique=False
    )
    op.create_index(
        "ix_daily_usage_user", "daily_usage", ["cluster", "username", "day"], unique=False
    )
    op.create_table(
        "daily_wait",
        sa.Column("cluster", sa.Text(), nullable=False),
        sa.Column("day", sa.BigInteger(), nullable=False),
        sa.Column("partition", sa.Text(), nullable=False),
        sa.Column("jobs_started", sa.BigInteger(), nullable=False),
        sa.Column("wait_mean_seconds", sa.Float(), nullable=False),
        sa.Column("wait_p50_seconds", sa.Float(), nullable=False),
        sa.Column("wait_p90_seconds", sa.Float(), nullable=False),
        sa.Column("wait_p99_seconds", sa.Float(), nullable=False),
        sa.Column("wait_max_seconds", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("cluster", "day", "partition", name=op.f("pk_daily_wait")),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "job",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("cluster", sa.Text(), nullable=False),
        sa.Column("jobid", sa.Text(), nullable=False),
        sa.Column("submit_time", sa.BigInteger(), nullable=False),
        sa.Column("state", sa.Text(), server_default="", nullable=False),
        sa.Column("state_word", sa.Text(), server_default="", nullable=False),
        sa.Column("source", sa.Text(), server_default="", nullable=False),
        sa.Column("run", sa.BigInteger(), nullable=False),
        sa.Column("record_id", sa.Text(), server_default="", nullable=False),
        sa.Column("sluid", sa.Text(), server_default="", nullable=False),
        sa.Column("username", sa.Text(), server_default="", nullable=False),
        sa.Column("uid", sa.BigInteger(), nullable=True),
        sa.Column("groupname", sa.Text(), server_default="", nullable=False),
        sa.Column("account", sa.Text(), server_default="", nullable=False),
        sa.Column("partition", sa.Text(), server_default="", nullable=False),
        sa.Column("qos", sa.Text(), server_default="", nullable=False),
        sa.Column("name", sa.Text(), server_default="", nullable=False),
        sa.Column("reservation", sa.Text(), server_default="", nullable=False),
        sa.Column("priority", sa.BigInteger(), nullable=True),
        sa.Column("expected_start_time", sa.Float(), nullable=True),
        sa.Column("eligible_time", sa.Float(), nullable=True),
        sa.Column("start_time", sa.Float(), nullable=True),
        sa.Column("end_time", sa.Float(), nullable=True),
        sa.Column("elapsed_seconds", sa.Float(), nullable=True),
        sa.Column("suspended_seconds", sa.BigInteger(), nullable=True),
        sa.Column("time_limit_seconds", sa.BigInteger(), nullable=True),
        sa.Column("exit_code", sa.BigInteger(), nullable=True),
        sa.Column("exit_signal", sa.BigInteger(), nullable=True),
        sa.Column("derived_exit_code", sa.BigInteger(), nullable=True),
        sa.Column("derived_exit_signal", sa.BigInteger(), nullable=True),
        sa.Column("reason", sa.Text(), server_default="", nullable=False),
        sa.Column("cancelled_by", sa.Text(), server_default="", nullable=False),
        sa.Column("restarts", sa.BigInteger(), nullable=True),
        sa.Column("requested_cpus", sa.BigInteger(), nullable=True),
        sa.Column("requested_memory_bytes", sa.BigInteger(), nullable=True),
        sa.Column("requested_gpus", sa.BigInteger(), nullable=True),
        sa.Column("requested_nodes", sa.BigInteger(), nullable=True),
        sa.Column("requested_resources", sa.Text(), server_default="", nullable=False),
        sa.Column("allocated_cpus", sa.Float(), nullable=True),
        sa.Column("allocated_memory_bytes", sa.BigInteger(), nullable=True),
        sa.Column("allocated_gpus", sa.BigInteger(), nullable=True),
        sa.Column("allocated_nodes", sa.BigInteger(), nullable=True),
        sa.Column("allocated_resources", sa.Text(), server_default="", nullable=False),
        sa.Column("node_list", sa.Text(), server_default="", nullable=False),
        sa.Column("array_jobid", sa.Text(), server_default="", nullable=False),
        sa.Column("array_index", sa.BigInteger(), nullable=True),
        sa.Column("het_jobid", sa.Text(), server_default="", nullable=False),
        sa.Column("het_offset", sa.BigInteger(), nullable=True),
        sa.Column("dependencies", sa.Text(), server_default="", nullable=False),
        sa.Column("submit_line", sa.Text(), server_default="", nullable=False),
        sa.Column("work_dir", sa.Text(), server_default="", nullable=False),
        sa.Column("stdout_path", sa.Text(), server_default="", nullable=False),
        sa.Column("tool", sa.Text(), server_default="", nullable=False),
        sa.Column("parameters", sa.Text(), server_default="", nullable=False),
        sa.Column("error", sa.Text(), server_default="", nullable=False),
        sa.Column("result_type", sa.Text(), server_default="", nullable=False),
        sa.Column("user_cpu_seconds", sa.Float(), nullable=True),
        sa.Column("system_cpu_seconds", sa.Float(), nullable=True),
        sa.Column("cpu_seconds", sa.Float(), nullable=True),
        sa.Column("peak_memory_bytes", sa.BigInteger(), nullable=True),
        sa.Column("energy_joules", sa.BigInteger(), nullable=True),
        sa.Column("update_time", sa.BigInteger(), nullable=False),
        sa.Column("doubt", sa.Text(), server_default="", nullable=False),
        sa.Column("usage_due_time", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_job")),
        sa.UniqueConstraint(
            "cluster",
            "jobid",
            "submit_time",
            "run",
            name=op.f("uq_job_cluster_jobid_submit_time_run"),
        ),
    )
    op.create_index(
        "ix_job_account_time", "job", ["cluster", "account", "start_time", "id"], unique=False
    )
    op.create_index(
        "ix_job_array_jobid",
        "job",
        ["cluster", "array_jobid"],
        unique=False,
        sqlite_where=sa.text("array_jobid != ''"),
        postgresql_where=sa.text("array_jobid != ''"),
    )
    op.create_index("ix_job_end_time", "job", ["cluster", "end_time", "id"], unique=False)
    op.create_index(
        "ix_job_het_jobid",
        "job",
        ["cluster", "het_jobid"],
        unique=False,
        sqlite_where=sa.text("het_jobid != ''"),
        postgresql_where=sa.text("het_jobid != ''"),
    )
    op.create_index(
        "ix_job_over_day",
        "job",
        ["cluster", "start_time"],
        unique=False,
        sqlite_where=sa.text("end_time - start_time > 86400"),
        postgresql_where=sa.text("end_time - start_time > 86400"),
    )
    op.create_index(
        "ix_job_over_week",
        "job",
        ["cluster", "start_time"],
        unique=False,
        sqlite_where=sa.text("end_time - start_time > 604800"),
        postgresql_where=sa.text("end_time - start_time > 604800"),
    )
    op.create_index("ix_job_start_time", "job", ["cluster", "start_time", "id"], unique=False)
    op.create_index(
        "ix_job_unfinished",
        "job",
        ["cluster", "state", "username"],
        unique=False,
        sqlite_where=sa.text("end_time IS NULL"),
        postgresql_where=sa.text("end_time IS NULL"),
    )
    op.create_index(
        "ix_job_usage_due",
        "job",
        ["cluster", "usage_due_time"],
        unique=False,
        sqlite_where=sa.text("usage_due_time IS NOT NULL"),
        postgresql_where=sa.text("usage_due_time IS NOT NULL"),
    )
    op.create_index(
        "ix_job_user_time", "job", ["cluster", "username", "start_time", "id"], unique=False
    )
    op.create_table(
        "poll_state",
        sa.Column("cluster", sa.Text(), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("watermark", sa.Text(), server_default="", nullable=False),
        sa.Column("success_time", sa.BigInteger(), nullable=True),
        sa.Column("error_time", sa.BigInteger(), nullable=True),
        sa.Column("error", sa.Text(), server_default="", nullable=False),
        sa.Column("rows", sa.BigInteger(), nullable=True),
        sa.Column("seconds", sa.Float(), nullable=True),
        sa.PrimaryKeyConstraint("cluster", "source", name=op.f("pk_poll_state")),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "quarantine",
        sa.Column("cluster", sa.Text(), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("time", sa.BigInteger(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("raw", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("cluster", "source", "digest", name=op.f("pk_quarantine")),
    )
    op.create_table(
        "rollup_due",
        sa.Column("cluster", sa.Text(), nullable=False),
        sa.Column("day", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("cluster", "day", name=op.f("pk_rollup_due")),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "job_emissions",
        sa.Column("job_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("provider", sa.Text(), nullable=False),
        sa.Column("grams", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(
            ["job_id"], ["job.id"], name=op.f("fk_job_emissions_job_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("job_id", "provider", name=op.f("pk_job_emissions")),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "job_gpu",
        sa.Column("job_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("node", sa.Text(), nullable=False),
        sa.Column("uuid", sa.Text(), nullable=False),
        sa.Column("gpu_instance", sa.Text(), nullable=False),
        sa.Column("gpu", sa.Text(), server_default="", nullable=False),
        sa.Column("utilization_ratio", sa.Float(), nullable=True),
        sa.Column("memory_peak_bytes", sa.BigInteger(), nullable=True),
        sa.Column("samples", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(
            ["job_id"], ["job.id"], name=op.f("fk_job_gpu_job_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("job_id", "node", "uuid", "gpu_instance", name=op.f("pk_job_gpu")),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "job_node",
        sa.Column("job_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("node", sa.Text(), nullable=False),
        sa.Column("cpus", sa.Float(), nullable=True),
        sa.Column("memory_bytes", sa.BigInteger(), nullable=True),
        sa.Column("gpus", sa.BigInteger(), nullable=True),
        sa.Column("cluster", sa.Text(), nullable=False),
        sa.Column("start_time", sa.Float(), nullable=True),
        sa.ForeignKeyConstraint(
            ["job_id"], ["job.id"], name=op.f("fk_job_node_job_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("job_id", "node", name=op.f("pk_job_node")),
        sqlite_with_rowid=False,
    )
    op.create_index(
        "ix_job_node_node_time",
        "job_node",
        ["cluster", "node", "start_time", "job_id"],
        unique=False,
    )
    op.create_table(
        "job_step",
        sa.Column("job_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("step", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), server_default="", nullable=False),
        sa.Column("state_word", sa.Text(), server_default="", nullable=False),
        sa.Column("name", sa.Text(), server_default="", nullable=False),
        sa.Column("start_time", sa.BigInteger(), nullable=True),
        sa.Column("end_time", sa.BigInteger(), nullable=True),
        sa.Column("elapsed_seconds", sa.BigInteger(), nullable=True),
        sa.Column("exit_code", sa.BigInteger(), nullable=True),
        sa.Column("exit_signal", sa.BigInteger(), nullable=True),
        sa.Column("nodes", sa.BigInteger(), nullable=True),
        sa.Column("node_list", sa.Text(), server_default="", nullable=False),
        sa.Column("tasks", sa.BigInteger(), nullable=True),
        sa.Column("cpus", sa.BigInteger(), nullable=True),
        sa.Column("gpus", sa.BigInteger(), nullable=True),
        sa.Column("user_cpu_seconds", sa.Float(), nullable=True),
        sa.Column("system_cpu_seconds", sa.Float(), nullable=True),
        sa.Column("cpu_seconds", sa.Float(), nullable=True),
        sa.Column("peak_task_memory_bytes", sa.BigInteger(), nullable=True),
        sa.Column("memory_bytes", sa.BigInteger(), nullable=True),
        sa.Column("read_bytes", sa.BigInteger(), nullable=True),
        sa.Column("written_bytes", sa.BigInteger(), nullable=True),
        sa.Column("energy_joules", sa.BigInteger(), nullable=True),
        sa.Column("submit_line", sa.Text(), server_default="", nullable=False),
        sa.ForeignKeyConstraint(
            ["job_id"], ["job.id"], name=op.f("fk_job_step_job_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("job_id", "step", name=op.f("pk_job_step")),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "job_usage",
        sa.Column("job_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("measured_time", sa.BigInteger(), nullable=False),
        sa.Column("until_time", sa.BigInteger(), nullable=False),
        sa.Column("samples", sa.BigInteger(), nullable=False),
        sa.Column("dropped_series", sa.BigInteger(), nullable=False),
        sa.Column("nodes", sa.BigInteger(), nullable=False),
        sa.Column("coverage", sa.Float(), nullable=False),
        sa.Column("doubt", sa.Text(), server_default="", nullable=False),
        sa.Column("user_cpu_seconds", sa.Float(), nullable=True),
        sa.Column("system_cpu_seconds", sa.Float(), nullable=True),
        sa.Column("throttled_seconds", sa.Float(), nullable=True),
        sa.Column("memory_peak_bytes", sa.BigInteger(), nullable=True),
        sa.Column("memory_peak_node_bytes", sa.BigInteger(), nullable=True),
        sa.Column("memory_limit_bytes", sa.BigInteger(), nullable=True),
        sa.Column("swap_peak_bytes", sa.BigInteger(), nullable=True),
        sa.Column("memory_average_bytes", sa.Float(), nullable=True),
        sa.Column("working_set_average_bytes", sa.Float(), nullable=True),
        sa.Column("io_read_bytes", sa.BigInteger(), nullable=True),
        sa.Column("io_written_bytes", sa.BigInteger(), nullable=True),
        sa.Column("process_io_read_bytes", sa.BigInteger(), nullable=True),
        sa.Column("process_io_written_bytes", sa.BigInteger(), nullable=True),
        sa.Column("network_received_bytes", sa.BigInteger(), nullable=True),
        sa.Column("network_sent_bytes", sa.BigInteger(), nullable=True),
        sa.Column("major_page_faults", sa.BigInteger(), nullable=True),
        sa.Column("memory_limit_hits", sa.BigInteger(), nullable=True),
        sa.Column("oom_kills", sa.BigInteger(), nullable=True),
        sa.Column("threads_peak", sa.BigInteger(), nullable=True),
        sa.Column("cpu_waiting_seconds", sa.Float(), nullable=True),
        sa.Column("memory_waiting_seconds", sa.Float(), nullable=True),
        sa.Column("io_waiting_seconds", sa.Float(), nullable=True),
        sa.Column("gpus", sa.BigInteger(), nullable=True),
        sa.Column("gpu_utilization_ratio", sa.Float(), nullable=True),
        sa.Column("gpu_memory_peak_bytes", sa.BigInteger(), nullable=True),
        sa.Column("energy_host_active_joules", sa.Float(), nullable=True),
        sa.Column("energy_host_idle_joules", sa.Float(), nullable=True),
        sa.Column("energy_gpu_active_joules", sa.Float(), nullable=True),
        sa.Column("energy_gpu_idle_joules", sa.Float(), nullable=True),
        sa.ForeignKeyConstraint(
            ["job_id"], ["job.id"], name=op.f("fk_job_usage_job_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("job_id", name=op.f("pk_job_usage")),
    )
    op.create_table(
        "batch_script",
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("script", sa.Text(), nullable=False),
        sa.Column("whole_bytes", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("digest", name=op.f("pk_batch_script")),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "job_script",
        sa.Column(
            "job_id",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            nullable=False,
        ),
        sa.Column("digest", sa.Text(), server_default="", nullable=False),
        sa.ForeignKeyConstraint(
            ["job_id"], ["job.id"], name=op.f("fk_job_script_job_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("job_id", name=op.f("pk_job_script")),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_job_script_digest", "job_script", ["digest"])
    for what, keys, sums in (("usage", (), _SUMS), ("emissions", ("provider",), ("grams",))):
        _folded(f"daily_account_{what}", "day", ("account", *keys), sums, "account")
        _folded(f"daily_cluster_{what}", "day", keys, sums)
        _folded(
            f"monthly_user_{what}", "month", ("account", "username", *keys), sums, "user", "account"
        )
        _folded(f"monthly_account_{what}", "month", ("account", *keys), sums, "account")


def _folded(
    name: str, when: str, keys: tuple[str, ...], sums: tuple[str, ...], *indexed: str
) -> None:
    """Sums of fewer rows than those by day and user."""
    op.create_table(
        name,
        sa.Column("cluster", sa.Text(), nullable=False),
        sa.Column(when, sa.BigInteger(), nullable=False),
        *(sa.Column(key, sa.Text(), nullable=False) for key in keys),
        *(sa.Column(each, sa.Float(), nullable=False) for each in sums),
        sa.PrimaryKeyConstraint("cluster", when, *keys, name=op.f(f"pk_{name}")),
        sqlite_with_rowid=False,
    )
    for short in indexed:
        column = {"user": "username"}.get(short, short)
        op.create_index(f"ix_{name}_{short}", name, ["cluster", column, when])
