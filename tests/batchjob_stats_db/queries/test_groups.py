"""Job arrays and het jobs, one row per group."""

from collections import Counter

import pytest

from batchjob.schedulers.accounting import Batch
from batchjob.schedulers.states import JobState
from batchjob_stats_db.database.access import EVERYTHING, Access, ClusterLogin
from batchjob_stats_db.queries import arrays, job_list
from batchjob_stats_db.queries.arrays import JobGroupKind, groups, list_jobs
from batchjob_stats_db.queries.filters import Filter
from batchjob_stats_db.queries.job_list import Page, TooManyError


@pytest.fixture
def db(engine, store, job, now):
    """Three arrays of 3, 4 and 5 tasks, a het job of two parts, and a single job."""
    tasks = [
        job(
            f"{number}{index}",
            array_jobid=str(number),
            array_index=index,
            user=f"user{number % 2}",
            start_time=now - 1000 * number - index,
            end_time=None if (number, index) == (3, 1) else now - 10 + index,
            state=JobState.RUNNING if (number, index) == (3, 1) else JobState.FAILED,
            elapsed_seconds=None if (number, index) == (3, 1) else 100,
            user_cpu_seconds=200.0,
            system_cpu_seconds=0.0,
        )
        for number, size in ((3, 3), (4, 4), (5, 5))
        for index in range(size)
    ]
    parts = [job(f"9{n}", het_jobid="90", het_offset=n, start_time=now - 50) for n in range(2)]
    store.write(Batch((*tasks, *parts, job("1")), (), "", 0), "s")
    with engine.connect() as connection:
        yield connection


def group_jobids(page):
    return [row["jobid"] for row in page.rows]


def test_one_row_per_array(db, now):
    page = groups(db, EVERYTHING, JobGroupKind.ARRAY, 10, Filter())
    assert group_jobids(page) == ["3", "4", "5"]
    row = page.rows[0]
    assert (row["jobs"], row["jobs_running"], row["jobs_failed"]) == (3, 1, 2)
    assert (row["start_time"], row["end_time"]) == (now - 3002, None)
    assert row["elapsed_seconds"] > 3000  # one of them runs
    assert row["cpu_seconds"] == 400
    assert row["cpu_efficiency"] == pytest.approx(400 / (200 * 4))
    assert row["usage_energy_joules"] is None
    assert page.rows[1]["end_time"] == now - 7


def test_one_row_per_het_job(db):
    (row,) = groups(db, EVERYTHING, JobGroupKind.HET, 10, Filter()).rows
    assert (row["jobid"], row["jobs"], row["jobs_completed"]) == ("90", 2, 2)


def test_access_limits_the_groups(db):
    own = Access((ClusterLogin("", "user0"),))
    assert group_jobids(groups(db, own, JobGroupKind.ARRAY, 10, Filter())) == ["4"]


def test_group_includes_jobs_that_do_not_match_the_filter(db, now):
    page = groups(db, EVERYTHING, JobGroupKind.ARRAY, 10, Filter(started_from=now - 3000))
    assert [(row["jobid"], row["jobs"]) for row in page.rows] == [("3", 3)]
    running = groups(db, EVERYTHING, JobGroupKind.ARRAY, 10, Filter(running=True))
    assert group_jobids(running) == ["3"]


def test_pages_are_consecutive(db):
    found, after = [], None
    while found == [] or after:
        page = groups(db, EVERYTHING, JobGroupKind.ARRAY, 2, Filter(), after)
        found += group_jobids(page)
        after = page.more
    assert found == ["3", "4", "5"]


def test_page_ends_early_where_groups_are_large(db, monkeypatch):
    monkeypatch.setattr(job_list, "check_row_limit", lambda *_: None)
    monkeypatch.setattr(job_list, "MOST_READ", 5)
    page = groups(db, EVERYTHING, JobGroupKind.ARRAY, 10, Filter())
    assert group_jobids(page) == ["3"]
    assert group_jobids(groups(db, EVERYTHING, JobGroupKind.ARRAY, 10, Filter(), page.more)) == [
        "4"
    ]


def test_query_reading_too_many_jobs_is_refused(db, monkeypatch):
    monkeypatch.setattr(job_list, "MOST_READ", 5)
    with pytest.raises(TooManyError):
        groups(db, EVERYTHING, JobGroupKind.ARRAY, 10, Filter())


def test_list_has_each_array_once_with_its_states(db, now):
    page = list_jobs(db, EVERYTHING, Filter(arrays_once=True))
    shown = {row["jobid"]: row["array_states"] for row in page.rows}
    assert shown == {
        "3": "1 RUNNING, 2 FAILED", "4": "4 FAILED", "5": "5 FAILED",
        "90": None, "91": None, "1": None,
    }  # fmt: skip
    running, ended = (row for row in page.rows if row["jobid"] in ("3", "4"))
    assert (running["state"], running["elapsed_seconds"]) == ("RUNNING", None)
    assert (ended["start_time"], ended["elapsed_seconds"]) == (now - 4003, 3996)
    assert ended["cpu_efficiency"] == pytest.approx(200 / (100 * 4))
    assert ended["user_cpu_seconds"] is None  # a task's figure is none of the array


def test_array_is_in_the_list_of_its_most_alive_tasks_only(db):
    ended = Filter(states=("FAILED", "COMPLETED"), arrays_once=True)
    shown = [row["jobid"] for row in list_jobs(db, EVERYTHING, ended).rows]
    assert sorted(shown) == ["1", "4", "5", "90", "91"]
    running = Filter(running=True, arrays_once=True)
    assert [row["jobid"] for row in list_jobs(db, EVERYTHING, running).rows] == ["3"]


def test_list_of_arrays_in_pages_lacks_none(db):
    found, after = [], None
    while not found or after:
        rows, after = list_jobs(db, EVERYTHING, Filter(arrays_once=True), page=Page(2, after))
        found += [row["jobid"] for row in rows]
    assert sorted(found) == ["1", "3", "4", "5", "90", "91"]


def test_tasks_of_arrays_that_are_too_large_are_listed_one_by_one(db, monkeypatch):
    monkeypatch.setattr(arrays, "MOST_TASKS", 3)
    found, after = Counter(), None
    while not found or after:
        rows, after = list_jobs(db, EVERYTHING, Filter(arrays_once=True), page=Page(2, after))
        found.update(row["array_jobid"] for row in rows)
    assert (found["3"], found["4"], found["5"]) == (1, 4, 5)
