"""The documentation page of the tables, and the views for analysis given there."""

import re
from pathlib import Path

import sqlalchemy as sa

from batchjob.schedulers.accounting import Batch
from batchjob_stats_db.column_meanings import EVERYWHERE, OF_TABLES
from batchjob_stats_db.database.schema import metadata
from batchjob_stats_db.document import TABLES, tables_page, views

PAGE = Path(__file__).parents[2] / "docs/tables.md"


def test_page_lists_every_table_and_column():
    page = tables_page()
    assert page == PAGE.read_text(), "run: python -m batchjob_stats_db.document"
    assert TABLES.keys() == metadata.tables.keys()
    for table in metadata.tables.values():
        section = page.partition(f"\n## {table.name}\n")[2].partition("\n## ")[0]
        assert re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE) == table.columns.keys()


def test_page_explains_every_column():
    for line in re.findall(r"^\| `\w+` \|.*", PAGE.read_text(), re.MULTILINE):
        assert len(line.split("|")[4].strip()) > 2, line


def test_every_explanation_belongs_to_a_column():
    existing = {table.name: set(table.columns.keys()) for table in metadata.tables.values()}
    specific = {name: set(columns) for name, columns in OF_TABLES.items()}
    assert all(columns <= existing[name] for name, columns in specific.items())
    assert set(EVERYWHERE) <= {
        each for name in existing for each in existing[name] - specific.get(name, set())
    }


def test_views_join_the_tables_of_a_run(engine, store, job):
    """In one session, with the statements of the page."""
    store.write(Batch([job("1")], (), "", None), "sacct")
    with engine.connect() as db:
        db.execute(
            sa.text(
                "INSERT INTO job_usage (job_id, source, measured_time, until_time, samples, "
                "dropped_series, nodes, coverage, doubt, memory_peak_bytes) "
                "SELECT id, 'prometheus', 1, 1, 1, 0, 1, 1.0, '', 7 FROM job"
            )
        )
        for statement in views():
            db.execute(sa.text(statement))
        found = db.execute(sa.text("SELECT jobid, usage_memory_peak_bytes FROM jobs")).all()
        assert found == [("1", 7)]
        assert db.execute(sa.text("SELECT count(*) FROM gpus_of_jobs")).scalar_one() == 0
        assert db.execute(sa.text("SELECT count(*) FROM nodes_of_jobs")).scalar_one() == 1
