"""A person's jobs at present: what runs, waits and failed, and what was used in the last day."""

import pytest

from batchjob.schedulers.states import JobState
from batchjob_stats_db.database.access import EVERYTHING
from batchjob_stats_db.queries.job_list import Page, list_jobs
from batchjob_stats_server.api import present
from batchjob_stats_server.report.headline import headline
from batchjob_stats_server.report.model import ReportInput
from tests.batchjob_stats_server.conftest import NOW

HOUR = 3600


@pytest.fixture
def found(services):
    return present.gather(services, EVERYTHING, None)


def ids(rows):
    return {row["jobid"] for row in rows}


def test_what_runs_waits_and_failed(found):
    assert ids(found.running) == {"3"}
    assert [ids(group.rows) for group in found.waiting] == [{"8"}]
    assert found.waiting[0].words.startswith("Waiting for")
    assert [ids(group.rows) for group in found.failed()] == [{"1"}]
    assert found.failed()[0].words.startswith("Failed")


def job(start, end=None, **more):
    return dict.fromkeys(present.COLUMNS) | {
        "id": 1, "state": "RUNNING", "start_time": start, "end_time": end, "allocated_cpus": 4,
        "cpu_efficiency": 0.5, "energy_used_joules": 3600.0, "name": "a", **more,
    }  # fmt: skip


def present_of(*running, ended=()):
    now = NOW // HOUR * HOUR + 1800
    return present.Present(now, running, (), (), ended, False, {})


def test_hours_are_means_of_what_ran_in_them():
    now = NOW // HOUR * HOUR + 1800
    of_cpus = present_of(job(now - HOUR)).by_hour()["CPUs"]
    # The last hour has been going on for half of its time.
    assert of_cpus == {now - 1800 - HOUR: (1.0, 2.0), now - 1800: (2.0, 4.0)}


def test_jobs_of_the_days_before_are_in_no_hour():
    now = NOW // HOUR * HOUR + 1800
    assert present_of(ended=[job(now - 90000, now - 89000)]).by_hour()["CPUs"] == {}


def test_a_job_that_was_not_measured_held_what_it_was_allocated():
    now = NOW // HOUR * HOUR + 1800
    hours = present_of(job(now - 1800, cpu_efficiency=None)).by_hour()
    assert hours["CPUs"] == {now - 1800: (0.0, 4)}
    assert hours["GPUs"] == {}


def test_failures_of_one_name_are_one_group():
    rows = [job(1, 2, id=n, state=JobState.TIMEOUT, time_limit_seconds=60) for n in range(3)]
    (group,) = present_of(ended=rows).failed()
    assert len(group.rows) == 3


@pytest.mark.parametrize("state", JobState)
def test_the_columns_suffice_for_the_words_of_every_state(services, state):
    """Also of one that ended without a reason; a missing column would fail the page."""
    with services.reader.connect() as db:
        (row, *_) = list_jobs(db, EVERYTHING, page=Page(columns=present.COLUMNS)).rows
    texts = {"error": "no", "reason": "NodeDown", "dependencies": "", "node_list": "n1"}
    for more in ({}, {"exit_code": 139}, {"exit_signal": 9}, texts, {"as_of_basis": "nodes"}):
        headline(ReportInput({**row, "state": state, **more}, NOW))


def test_text_for_a_terminal(proxy_client):
    text = proxy_client("carol").get("/api/v1/now").text
    assert "Running" in text
    assert "no sample" in text
    assert "bob" not in text


def test_page_says_what_is_and_links_to_the_jobs(proxy_client):
    answer = proxy_client("carol").get("/", headers={"Accept": "text/html"})
    assert 'href="/jobs/3' in answer.text
    assert "Nothing waits." in answer.text
