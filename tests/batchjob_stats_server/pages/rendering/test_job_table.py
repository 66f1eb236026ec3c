"""Tables of jobs."""

import re

import pytest

from batchjob_stats_db.database.access import EVERYTHING
from batchjob_stats_db.database.engine import parse_url, reader_engine
from batchjob_stats_db.queries.job_rows import rows_by_ids
from batchjob_stats_db.queries.jobs import pending
from batchjob_stats_db.queries.paging import find_ids
from batchjob_stats_server.pages.job_columns import Column
from batchjob_stats_server.pages.rendering import job_table
from batchjob_stats_server.pages.rendering.job_table import JOB_COLUMNS, ListLayout, TableContext
from tests.batchjob_stats_server import example_site


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    path = tmp_path_factory.mktemp("site") / "jobs.db"
    example_site.make(path, 120)
    engine = reader_engine(parse_url(f"sqlite:///{path}"))
    with engine.connect() as db:
        yield db
    engine.dispose()


def layout(**changes):
    everything = ListLayout(frozenset(Column), False, True, True, True, True)
    return everything._replace(**changes)


def test_cells_are_made_of_the_columns_that_lists_read(site):
    facts = TableContext(example_site.NOW, {}, {})
    started = rows_by_ids(site, find_ids(site, EVERYTHING, 200, started=True).ids, JOB_COLUMNS)
    waiting = pending(site, EVERYTHING, names=JOB_COLUMNS)
    assert len(started) > 50
    assert waiting
    for rows, shown in (
        (started, job_table.columns(layout())),
        (waiting, job_table.columns(layout(is_waiting=True))),
    ):
        body = job_table.body(rows, shown, facts)
        assert body.count("<tr ") == len(rows)
        assert body.count("<td ") == len(rows) * (len(shown) + 1)
        assert not re.search(r"<script|<img", body)


def test_a_table_has_the_columns_that_were_chosen():
    shown = job_table.columns(layout(chosen={Column.CPU, Column.GPU}, has_gpus=False))
    assert [each.title for each in shown] == ["Name", "State", "User", "Cluster", "CPU"]
    alone = layout(chosen={Column.CPU_LINE}, several_users=False, several_clusters=False)
    assert [each.title for each in job_table.columns(alone)] == ["Name", "State", "CPU over time"]
    nothing_measured = job_table.columns(alone._replace(has_measurements=False))
    assert [each.title for each in nothing_measured] == ["Name", "State"]


def test_jobs_that_wait_have_a_reason_in_place_of_their_use():
    shown = job_table.columns(layout(chosen={Column.CPU, Column.STARTED}, is_waiting=True))
    titles = [each.title for each in shown]
    assert titles == ["Name", "State", "User", "Cluster", "Submitted", "Reason"]
