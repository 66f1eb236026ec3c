"""Job arrays, one row for each in a list."""

from collections import Counter

import pytest

from batchjob.schedulers.accounting import Batch
from batchjob.schedulers.states import JobState
from batchjob_stats_db.database.access import EVERYTHING, Access, ClusterLogin
from batchjob_stats_db.queries import arrays
from batchjob_stats_db.queries.arrays import list_jobs
from batchjob_stats_db.queries.filters import Filter
from batchjob_stats_db.queries.job_list import Page, SortOrder


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


def test_figures_of_an_array_are_those_of_all_its_tasks(db, now):
    rows = {row["jobid"]: row for row in list_jobs(db, EVERYTHING, Filter(arrays_once=True)).rows}
    running, ended = rows["3"], rows["4"]
    assert (running["start_time"], running["end_time"]) == (now - 3002, None)
    assert running["cpu_seconds"] == 400
    assert running["cpu_efficiency"] == pytest.approx(400 / (200 * 4))
    assert running["usage_energy_joules"] is None
    assert ended["end_time"] == now - 7


def test_tasks_of_others_are_not_counted(db):
    own = Access((ClusterLogin("", "user0"),))
    (row,) = list_jobs(db, own, Filter(arrays_once=True)).rows
    assert (row["jobid"], row["array_states"]) == ("4", "4 FAILED")


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


@pytest.mark.parametrize("key", ["start_time", "submit_time", "jobid"])
@pytest.mark.parametrize("descending", [True, False])
@pytest.mark.parametrize("limit", [2, 3, 4])
def test_list_of_arrays_in_pages_lacks_none(db, key, descending, limit):
    order = SortOrder(key, descending)
    found, after = [], None
    while not found or after:
        page = Page(limit, after)
        rows, after = list_jobs(db, EVERYTHING, Filter(arrays_once=True), order, page)
        found += [row["jobid"] for row in rows]
    assert sorted(found) == ["1", "3", "4", "5", "90", "91"]


def test_tasks_of_arrays_that_are_too_large_are_listed_one_by_one(db, monkeypatch):
    monkeypatch.setattr(arrays, "MOST_TASKS", 3)
    found, after = Counter(), None
    while not found or after:
        rows, after = list_jobs(db, EVERYTHING, Filter(arrays_once=True), page=Page(2, after))
        found.update(row["array_jobid"] for row in rows)
    assert (found["3"], found["4"], found["5"]) == (1, 4, 5)


def test_page_of_more_arrays_than_a_statement_has_room_for(engine, store, job, now):
    tasks = (
        job(f"{task}{n:04}", array_jobid=f"{n}", array_index=task, start_time=now + 1200 * task + n)
        for task in range(2)
        for n in range(1100)
    )
    store.write(Batch(tuple(tasks), (), "", 0), "s")
    oldest_first, once = SortOrder("start_time", descending=False), Filter(arrays_once=True)
    with engine.connect() as db:
        first, after = list_jobs(db, EVERYTHING, once, oldest_first, Page(1000))
        second, after = list_jobs(db, EVERYTHING, once, oldest_first, Page(1000, after))
    assert [row["jobid"] for row in (*first, *second)] == [str(n) for n in range(1100)]
    assert after is None
