"""Brings docs/tables.md up to date with the schema: `python -m tests.tables_page`.

The page itself is where tables and columns are explained. Names, types, keys and views come from
the schema, and what measured columns mean from their quantities. A new column has no explanation
yet: write it into the page.
"""

import re
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from batchjob.judgements import FAILED_MEANS, USED_MEMORY_MEANS
from batchjob.quantities.usage import ENERGY_COLUMNS, USAGE_COLUMNS, UsageColumn
from batchjob_stats_db.database.schema import job, job_gpu, job_node, job_usage, metadata
from tests.generated_pages import table

PAGE = Path(__file__).parents[1] / "docs/tables.md"
_HEADINGS = ("Column", "Type", "Key", "Meaning")
_ROW = re.compile(r"^\| `(\w+)` \| [^|]* \| [^|]* \| (.*) \|$", re.MULTILINE)


def updated(page: str) -> str:
    """The page with the tables of the schema, and with its own explanations."""
    head, *sections = re.split(r"^## ", page, flags=re.MULTILINE)
    introduction, _, _ = sections[0].partition("```sql\n")
    explained = dict(section.split("\n", 1) for section in sections[1:])
    parts = [
        f"{head}## {introduction}```sql\n" + "\n\n".join(views()) + "\n```",
        *(_section(each, explained.get(each.name, "")) for each in metadata.sorted_tables),
    ]
    return "\n\n".join(parts) + "\n"


def _section(of: sa.Table, text: str) -> str:
    about = text.partition("| Column")[0].strip()
    meanings = {**dict(_ROW.findall(text)), **_derived_meanings(of)}
    rows = [
        (f"`{each.name}`", _kind(each), "primary" if each.primary_key else "",
         meanings.get(each.name, ""))
        for each in of.columns
    ]  # fmt: skip
    return f"## {of.name}\n\n{about}\n\n{table(_HEADINGS, rows)}"


def _kind(column: sa.Column[Any]) -> str:
    if isinstance(column.type, sa.Text):
        return "text"
    return "integer" if isinstance(column.type, sa.Integer) else "number"


def _derived_meanings(of: sa.Table) -> dict[str, str]:
    if of is job_usage:
        return {each.name: _measured(each) for each in (*USAGE_COLUMNS, *ENERGY_COLUMNS)}
    texts = {
        "jobs_failed": f"ended jobs that failed. {FAILED_MEANS}",
        "memory_peak_byte_seconds": f"peak memory times run time. {USED_MEMORY_MEANS}",
    }
    return {name: text for name, text in texts.items() if name in of.columns}


def _measured(column: UsageColumn) -> str:
    which = ", ".join(f"{key} {value}" for key, value in (*column.quantity.labels, *column.labels))
    help_text = column.quantity.metric.help.rstrip(".")
    return f"{column.statistic.value} of: {help_text}" + (f" ({which})" if which else "")


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


if __name__ == "__main__":
    PAGE.write_text(updated(PAGE.read_text()))
