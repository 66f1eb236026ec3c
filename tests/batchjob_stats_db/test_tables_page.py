"""The documentation page of the tables, and the views for analysis given there."""

import re

import sqlalchemy as sa

from batchjob.schedulers.accounting import Batch
from batchjob_stats_db.database.schema import metadata
from tests.tables_page import PAGE, updated, views


def test_page_lists_every_table_and_column():
    page = PAGE.read_text()
    assert page == updated(page), "run: python -m tests.tables_page"
    for table in metadata.tables.values():
        about, _, rows = page.partition(f"\n## {table.name}\n")[2].partition("| Column")
        assert about.strip()
        section = rows.partition("\n## ")[0]
        assert re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE) == table.columns.keys()


def test_page_explains_every_column():
    for line in re.findall(r"^\| `\w+` \|.*", PAGE.read_text(), re.MULTILINE):
        assert len(line.split("|")[4].strip()) > 2, line


def test_explanations_are_kept_and_missing_ones_are_left_to_be_written():
    page = PAGE.read_text()
    kept = updated(page.replace("`label` | text |  | ", "`label` | text |  | new: "))
    assert "`label` | text |  | new: description given by its creator |" in kept
    lines = [line for line in page.splitlines(keepends=True) if not line.startswith("| `label`")]
    assert "`label` | text |  |  |" in updated("".join(lines))


def test_views_join_the_tables_of_a_run(engine, store, job):
    """In one session, with the statements of the page."""
    store.write(Batch([job("1")], (), "", None), "sacct")
    with engine.connect() as db:
        db.execute(
            sa.text(
                "INSERT INTO job_usage (job_id, source, measured_time, until_time, samples, "
                "dropped_series, nodes, coverage, caveats, memory_peak_bytes) "
                "SELECT id, 'prometheus', 1, 1, 1, 0, 1, 1.0, '', 7 FROM job"
            )
        )
        for statement in views():
            db.execute(sa.text(statement))
        found = db.execute(sa.text("SELECT jobid, usage_memory_peak_bytes FROM jobs")).all()
        assert found == [("1", 7)]
        assert db.execute(sa.text("SELECT count(*) FROM gpus_of_jobs")).scalar_one() == 0
        assert db.execute(sa.text("SELECT count(*) FROM nodes_of_jobs")).scalar_one() == 1
