"""Tables of jobs."""

import re

import pytest

from batchjob_stats_db.database.access import EVERYTHING
from batchjob_stats_db.database.engine import parse, reader
from batchjob_stats_db.queries.job_rows import numbered
from batchjob_stats_db.queries.jobs import pending
from batchjob_stats_db.queries.paging import numbers
from batchjob_stats_server.pages.job_columns import Column
from batchjob_stats_server.pages.rendering import job_table
from batchjob_stats_server.pages.rendering.job_table import READ, ListLayout, TableFacts
from tests.batchjob_stats_server import example_site


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    path = tmp_path_factory.mktemp("site") / "jobs.db"
    example_site.make(path, 120)
    engine = reader(parse(f"sqlite:///{path}"))
    with engine.connect() as db:
        yield db
    engine.dispose()


def layout(**changes):
    everything = ListLayout(frozenset(Column), False, True, True, True, True)
    return everything._replace(**changes)


def test_cells_are_made_of_the_columns_that_lists_read(site):
    facts = TableFacts(example_site.NOW, {}, {})
    started = numbered(site, numbers(site, EVERYTHING, 200, started=True).ids, READ)
    waiting = pending(site, EVERYTHING, names=READ)
    assert len(started) > 50
    assert waiting
    for rows, shown in (
        (started, job_table.columns(layout())),
        (waiting, job_table.columns(layout(waits=True))),
    ):
        body = job_table.body(rows, shown, facts)
        assert body.count("<tr ") == len(rows)
        assert body.count("<td ") == len(rows) * (len(shown) + 1)
        assert not re.search(r"<script|<img", body)


def test_a_table_has_the_columns_that_were_chosen():
    shown = job_table.columns(layout(chosen={Column.CPU, Column.GPU}, gpus=False))
    assert [each.title for each in shown] == ["Name", "State", "User", "Cluster", "CPU"]
    alone = layout(chosen={Column.CPU_LINE}, several_users=False, several_clusters=False)
    assert [each.title for each in job_table.columns(alone)] == ["Name", "State", "CPU over time"]
    nothing_measured = job_table.columns(alone._replace(lines=False))
    assert [each.title for each in nothing_measured] == ["Name", "State"]


def test_jobs_that_wait_have_a_reason_in_place_of_their_use():
    shown = job_table.columns(layout(chosen={Column.CPU, Column.STARTED}, waits=True))
    titles = [each.title for each in shown]
    assert titles == ["Name", "State", "User", "Cluster", "Submitted", "Reason"]
