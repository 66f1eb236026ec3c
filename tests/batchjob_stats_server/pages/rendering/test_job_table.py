"""Tables of jobs."""

import re

import pytest

from batchjob_stats_db.database.access import EVERYTHING
from batchjob_stats_db.database.engine import parse_url, reader_engine
from batchjob_stats_db.queries.filters import Filter
from batchjob_stats_db.queries.job_list import Page, list_jobs
from batchjob_stats_server.pages.rendering import job_table
from batchjob_stats_server.pages.rendering.job_table import (
    COLUMN_TITLES,
    LISTED_COLUMNS,
    TableContext,
)
from tests.batchjob_stats_server import example_site


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    path = tmp_path_factory.mktemp("site") / "jobs.db"
    example_site.make(path, 120)
    engine = reader_engine(parse_url(f"sqlite:///{path}"))
    with engine.connect() as db:
        yield db
    engine.dispose()


def columns(**changes):
    everything = {
        "chosen": COLUMN_TITLES, "sort": "", "has_waiting": False, "has_gpus": True,
        "several_users": True, "several_clusters": True,
    }  # fmt: skip
    return job_table.columns(**everything | changes)


def titles(**changes):
    return [each.title for each in columns(**changes)]


def test_cells_are_made_of_the_columns_that_lists_read(site):
    facts = TableContext(example_site.NOW, {})
    started = list_jobs(
        site, EVERYTHING, Filter(started=True), page=Page(200, columns=LISTED_COLUMNS)
    ).rows
    waiting = list_jobs(site, EVERYTHING, Filter(states=("PENDING",))).rows
    assert len(started) > 50
    assert waiting
    shown = columns(has_waiting=True)
    for rows, is_waiting in ((started, False), (waiting, True)):
        body = job_table.body(rows, shown, facts, is_waiting)
        assert body.count("<tr ") == len(rows)
        wide = [int(number) - 1 for number in re.findall(r'colspan="([0-9]+)"', body)]
        assert body.count("<td ") + sum(wide) == len(rows) * (len(shown) + 1)
        assert bool(wide) == is_waiting
        assert not re.search(r"<script|<img", body)


def test_a_table_has_the_columns_that_were_chosen():
    shown = titles(chosen={"cpu", "gpu"}, has_gpus=False)
    assert shown == ["Name", "State", "User", "Cluster", "CPU"]
    alone = {"chosen": {"memory"}, "several_users": False, "several_clusters": False}
    assert titles(**alone) == ["Name", "State", "Memory"]


def test_a_table_has_the_column_by_which_it_is_sorted(site):
    alone = {"chosen": {"cpu"}, "several_users": False, "several_clusters": False}
    by_waste = {**alone, "sort": "gpu_unused_seconds"}
    assert titles(**by_waste) == ["Name", "State", "CPU", "Unused GPU time"]
    assert titles(**by_waste, has_gpus=False) == ["Name", "State", "CPU"]
    facts = TableContext(example_site.NOW, {})
    shown = columns(**by_waste)[-1]
    cells = [
        shown.render_cell({"gpu_unused_seconds": seconds}, facts) for seconds in (9000.0, None)
    ]
    assert cells[0].split() == ["2.5", "h"]
    assert "not measured" in cells[1]


def test_jobs_that_wait_have_a_reason_in_place_of_their_use(site):
    (row,) = list_jobs(site, EVERYTHING, Filter(states=("PENDING",)), page=Page(1)).rows
    shown = columns(chosen={"cpu", "started"}, has_waiting=True)
    facts = TableContext(example_site.NOW, {})
    body = job_table.body([{**row, "reason": "Priority"}], shown, facts, is_waiting=True)
    assert 'data-label="Submitted"' in body
    assert re.search(r'data-label="Reason">.*Priority', body)
    assert 'data-label="CPU"' not in body


def test_energy_by_accounting_is_that_of_its_nodes():
    (shown,) = (each for each in columns() if each.title == "Energy")
    facts = TableContext(example_site.NOW, {})
    measured, accounted = (
        shown.render_cell({"energy_used_joules": 3600.0, "energy_basis": basis}, facts)
        for basis in ("measured", "accounting")
    )
    assert accounted == f"{measured} of its nodes"


def test_cpus_of_a_job_whose_allocation_changed_are_those_at_last(site):
    filters, page = Filter(started=True), Page(1, columns=LISTED_COLUMNS)
    (row,) = list_jobs(site, EVERYTHING, filters, page=page).rows
    facts = TableContext(example_site.NOW, {})
    (shown,) = (each for each in columns() if each.title == "CPUs")
    held = {"allocated_cpus": 4, "resized_cpu_seconds": None}
    assert shown.render_cell({**row, **held}, facts) == "4"
    assert shown.render_cell({**row, **held, "resized_cpu_seconds": 7200.0}, facts) == "4 at last"
