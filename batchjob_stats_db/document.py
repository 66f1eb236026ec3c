"""Generates docs/stats_db_options.md from the poller's options, and docs/tables.md from the schema.

python -m batchjob_stats_db.document [DIRECTORY]
"""

import textwrap
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import sqlalchemy as sa

from batchjob.option_page import generated_comment, options_section, table, usage_text, write
from batchjob.schedulers.registry import SOURCES
from batchjob_stats_db.column_meanings import meaning
from batchjob_stats_db.database.schema import job, job_gpu, job_node, job_usage, metadata
from batchjob_stats_db.poller.options import SECTIONS


def options_page() -> str:
    """All flags and keys of the poller, and the keys of each source of records."""
    parts = [
        "# Options of the poller",
        generated_comment("batchjob_stats_db.document"),
        usage_text("poll.interval", "1m"),
        *(part for name, cls in SECTIONS.items() for part in options_section(name, {name: cls})),
        "# Options of a cluster's sources",
        "Each cluster of the list `clusters` has a `name` and, under `sources`, at least one "
        "source of records with keys of its own, which are available only in the "
        "file. It may also have its own `tsdb` with the options above:",
        "```yaml\nclusters:\n  - name: alpha\n    sources:\n      sacct: {timeout: 5m}\n"
        '      sacctmgr: {}\n    tsdb: {url: "http://prometheus-alpha:9090"}\n```',
    ]
    for name, entry in SOURCES.items():
        parts += options_section(f"{name}: {entry.description}", {"": entry.load().options})
    return "\n\n".join(parts) + "\n"


_SUMS = "Sums of the jobs that ran in the period: resources allocated, measured and used"
_GRAMS = "Grams of CO2e by provider of the factor"
TABLES: Mapping[str, str] = {
    "cluster": "Clusters, and the time each was first seen.",
    "account": "Accounts of a cluster, each with its parent.",
    "association": "Who may use which account, and who coordinates or administers.",
    "job": "One row for each run of a job, from the scheduler's accounting.",
    "job_node": "The nodes of a run, with the resources allocated on each.",
    "job_reallocation": (
        "Changes of a running job's allocation: what it held until then, and not from then on."
    ),
    "job_step": "The steps of a run (Slurm).",
    "job_usage": "Measured usage of a run; absent until it was measured.",
    "job_node_usage": "Measured usage of each node of a run.",
    "job_gpu": "The GPUs that a run was allocated or used.",
    "job_emissions": f"{_GRAMS}, for each run.",
    "batch_script": "Batch scripts, if the site keeps them.",
    "job_script": "The batch script of a run.",
    "daily_usage": f"{_SUMS}, by day (UTC), account and user.",
    "daily_account_usage": f"{_SUMS}, by day and account.",
    "daily_cluster_usage": f"{_SUMS}, by day.",
    "monthly_user_usage": f"{_SUMS}, by month, account and user.",
    "monthly_account_usage": f"{_SUMS}, by month and account.",
    "daily_emissions": f"{_GRAMS}, by day, account and user.",
    "daily_account_emissions": f"{_GRAMS}, by day and account.",
    "daily_cluster_emissions": f"{_GRAMS}, by day.",
    "monthly_user_emissions": f"{_GRAMS}, by month, account and user.",
    "monthly_account_emissions": f"{_GRAMS}, by month and account.",
    "daily_wait": "Wait times of the jobs that started on a day, by partition.",
    "daily_node_coverage": (
        "Measured fraction of the jobs that ended on a node, today and yesterday (UTC)."
    ),
    "rollup_due": "State of the poller: days whose sums must be recomputed.",
    "poll_state": "State of the poller: position in each source.",
    "quarantine": "State of the poller: records that were rejected.",
    "subscription": "What people want to be told of their jobs, and how.",
    "outbox": "State of the poller: messages to be sent, and those of the last weeks.",
    "message_site": "State of the poller: what it tells the server about messages.",
    "api_token": "State of the server: API tokens, as digests.",
    "login": "State of the server: users who have logged in.",
    "login_session": "State of the server: browser sessions, as digests.",
}


def tables_page() -> str:
    parts = [
        "# Tables",
        generated_comment("batchjob_stats_db.document"),
        "All tables and columns of the job database, which are the same in SQLite and PostgreSQL. "
        "Within a major version none is renamed or removed; new ones may be added. Open the "
        "database "
        "read-only. NULL, or an empty text, means that something is not known, never zero. Names "
        "end in units: `_time` is UTC epoch seconds, as `day` and `month` are; `_seconds`, "
        "`_bytes`, `_joules` and `_byte_seconds` are in these units; a `_ratio` is a "
        "fraction of 1.",
        "## Views for analysis",
        "These views join the tables of a run. They exist until the end of the session that "
        "creates them, write nothing, and keep their names and columns as the tables do. "
        "PostgreSQL requires the privilege TEMPORARY, which all users have by default. "
        "Columns of `job_usage` have the prefix `usage_`, as in the API.",
        "```sql\n" + "\n\n".join(views()) + "\n```",
    ]
    for each in metadata.sorted_tables:
        parts += [f"## {each.name}", TABLES[each.name], table(_HEADINGS, _column_rows(each))]
    return "\n\n".join(parts) + "\n"


def views() -> Iterator[str]:
    """Statements that create views for one session, in SQLite and in PostgreSQL."""
    own = [f"job.{column.name}" for column in job.columns if column.name != "usage_due_time"]
    usage = [_usage_column(column) for column in job_usage.columns if not column.primary_key]
    yield _view_statement(
        "jobs", [*own, *usage], "job LEFT JOIN job_usage ON job_usage.job_id = job.id"
    )
    for name, part in (("nodes_of_jobs", job_node), ("gpus_of_jobs", job_gpu)):
        columns = [
            f"{part.name}.{each.name}" for each in part.columns if each.name not in _OMITTED_COLUMNS
        ]
        joined = f"{part.name} JOIN job ON job.id = {part.name}.job_id"
        yield _view_statement(name, [*(f"job.{key}" for key in _RUN_COLUMNS), *columns], joined)


_RUN_COLUMNS = ("id", "cluster", "jobid", "username", "account", "state", "start_time", "end_time")
_OMITTED_COLUMNS = (*_RUN_COLUMNS, "job_id")


def _usage_column(column: sa.Column[Any]) -> str:
    return f"job_usage.{column.name} AS usage_{column.name}"


def _view_statement(name: str, columns: Iterable[str], joined: str) -> str:
    text = textwrap.fill(", ".join(columns), 96, initial_indent="  ", subsequent_indent="  ")
    return f"CREATE TEMPORARY VIEW {name} AS SELECT\n{text}\nFROM {joined};"


_HEADINGS = ("Column", "Type", "Key", "Meaning")


def _column_rows(each: sa.Table) -> Iterator[tuple[str, ...]]:
    for column in each.columns:
        kind = {sa.Text: "text", sa.Float: "number"}.get(type(column.type), "")
        kind = kind or ("integer" if isinstance(column.type, sa.Integer) else "number")
        key = "primary" if column.primary_key else ""
        yield (f"`{column.name}`", kind, key, meaning(each.name, column.name))


PAGES = {"stats_db_options.md": options_page, "tables.md": tables_page}

if __name__ == "__main__":
    write(PAGES)
