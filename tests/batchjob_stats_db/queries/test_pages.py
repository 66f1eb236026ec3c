"""Pages of jobs in any order: each job once, with unknown and equal values."""

import time

import pytest
import sqlalchemy as sa

from batchjob.schedulers.accounting import Batch
from batchjob.schedulers.states import JobState
from batchjob_stats_db.database import schema
from batchjob_stats_db.database.access import EVERYTHING, Access, ClusterAccount, ClusterLogin
from batchjob_stats_db.database.engine import reader_engine
from batchjob_stats_db.queries import job_list
from batchjob_stats_db.queries.filters import Filter
from batchjob_stats_db.queries.job_list import (
    ALL_JOBS,
    NEWEST_FIRST,
    SORTS,
    Page,
    SortOrder,
    TooManyError,
    list_jobs,
    rows_by_ids,
)
from tests.helpers.clock import Clock, set_sqlite_clock

COORDINATOR = Access((ClusterLogin("", "user0"),), (ClusterAccount("c1", "account1"),))


@pytest.fixture
def db(engine, store, job, now):
    """Sixty jobs of three users, many of them equal, some not started or not ended."""
    runs = [
        job(
            str(n),
            user=f"user{n % 3}",
            account=f"account{n % 2}",
            partition="gpu" if n % 7 == 0 else "cpu",
            state=_state(n),
            submit_time=now - 9000,
            start_time=None if n % 11 == 10 else now - 8000 + n // 4,
            end_time=None if _state(n).is_live else now - n // 3,
            elapsed_seconds=None if n % 10 == 9 else n // 5,
            allocated_gpus=2 if n % 7 == 0 else None,
        )
        for n in range(60)
    ]
    store.write(Batch(tuple(runs), (), "", 0), "s")
    with engine.begin() as write:
        ids = write.execute(sa.select(schema.job.c.id, schema.job.c.jobid)).all()
        write.execute(sa.insert(schema.job_usage), [_usage(*each) for each in ids if each.id % 3])
    with engine.connect() as connection:
        if engine.dialect.name == "sqlite":  # on PostgreSQL, time stands still in a transaction
            clock = Clock(time.time())  # the order by run time changes while jobs run
            set_sqlite_clock(connection.connection.driver_connection, clock)
        yield connection


def _state(n):
    if n % 22 == 10:
        return JobState.PENDING
    return JobState.RUNNING if n % 10 == 9 else JobState.COMPLETED


def _usage(job_id, jobid):
    n = int(jobid)
    return {
        "job_id": job_id, "source": "s", "measured_time": 0, "until_time": 10**10, "samples": 1,
        "dropped_series": 0, "nodes": 1, "coverage": 1.0,
        "user_cpu_seconds": float(n // 6), "system_cpu_seconds": 0.1,
        "memory_peak_bytes": n // 6 << 30,
        "gpu_utilization_ratio": n % 5 / 7 if n % 2 else None,
        "energy_host_active_joules": n // 8 / 3, "energy_gpu_idle_joules": None,
    }  # fmt: skip


def read_all_pages(db, access, order=NEWEST_FIRST, job_filter=ALL_JOBS, size=7):
    """The rows of all pages, one after the other."""
    rows_so_far, after = [], None
    while True:
        rows, after = list_jobs(db, access, job_filter, order, Page(size, after))
        rows_so_far += rows
        if after is None:
            return rows_so_far


@pytest.mark.parametrize("access", [EVERYTHING, COORDINATOR], ids=["all", "coordinator"])
@pytest.mark.parametrize("descending", [True, False])
@pytest.mark.parametrize("key", SORTS.values())
def test_pages_in_any_order_contain_each_job_once(db, key, descending, access):
    rows = read_all_pages(db, access, SortOrder(key, descending))
    expected = read_all_pages(db, access)
    if (key, access) == ("end_time", EVERYTHING):  # the index that is walked has ended jobs
        expected = [row for row in expected if row["end_time"] is not None]
    assert sorted(row["id"] for row in rows) == sorted(row["id"] for row in expected)
    if key == "start_time":  # pending jobs come first there; tested separately
        rows = [row for row in rows if row["state"] != "PENDING"]
    known = [row for row in rows if row[key] is not None]
    assert rows[: len(known)] == known
    ordered = sorted(known, key=lambda row: (row[key], row["id"]), reverse=descending)
    assert [row["id"] for row in known] == [row["id"] for row in ordered]


def test_coordinator_sees_own_jobs_and_those_of_the_account(db):
    rows = read_all_pages(db, COORDINATOR, SortOrder("usage_energy_joules"))
    assert all(row["username"] == "user0" or row["account"] == "account1" for row in rows)
    assert {row["username"] for row in rows} == {"user0", "user1", "user2"}


def limited(**limits):
    return Filter(limits=tuple(limits.items()))


@pytest.mark.parametrize(
    ("job_filter", "matches"),
    [
        (Filter(running=True), lambda row: row["end_time"] is None),
        (limited(gpus_at_least=1), lambda row: row["allocated_gpus"] == 2),
        (
            limited(elapsed_at_least=3, elapsed_at_most=5),
            lambda row: 3 <= row["elapsed_seconds"] <= 5,
        ),
        (limited(cpu_efficiency_at_most=0.2), lambda row: row["cpu_efficiency"] <= 0.2),
        (limited(memory_efficiency_at_least=0.5), lambda row: row["memory_efficiency"] >= 0.5),
        (
            limited(gpu_utilization_at_most=0.3),
            lambda row: row["usage_gpu_utilization_ratio"] <= 0.3,
        ),
        (Filter(ended_from=1_775_299_990), lambda row: row["end_time"] >= 1_775_299_990),
        (Filter(ended_before=1_775_299_990), lambda row: row["end_time"] < 1_775_299_990),
    ],
)  # fmt: skip
def test_filters(db, job_filter, matches):
    for key in ("start_time", "end_time", "usage_energy_joules"):
        rows = read_all_pages(db, EVERYTHING, SortOrder(key), job_filter)
        assert all(matches(row) for row in rows)
        if not job_filter.running:
            assert 0 < len(rows) < 54


def test_efficiencies_are_null_where_values_are_unknown(db, engine):
    rows = {row["jobid"]: row for row in read_all_pages(db, EVERYTHING)}
    assert rows["12"]["cpu_efficiency"] == pytest.approx((2 + 0.1) / (4 * 2))
    assert rows["12"]["memory_efficiency"] == pytest.approx(2 / 8)
    assert rows["3"]["cpu_efficiency"] is None  # it ran for no time
    assert rows["12"]["wait_seconds"] == 1000 + 3
    assert rows["2"]["memory_efficiency"] is None  # not measured
    assert rows["2"]["usage_energy_joules"] is None


def test_accounted_cpu_time_is_used_where_none_was_measured(store, job, engine):
    store.write(Batch((job("1", user_cpu_seconds=7200.0, system_cpu_seconds=0.0),), (), "", 0), "s")
    with engine.connect() as db:
        assert list_jobs(db, EVERYTHING).rows[0]["cpu_efficiency"] == 0.5


def test_page_that_reads_too_many_rows_is_refused(db, monkeypatch):
    monkeypatch.setattr(job_list, "MOST_READ", 20)
    with pytest.raises(TooManyError, match="jobs by usage_energy_joules more than 20"):
        list_jobs(db, EVERYTHING, order=SortOrder("usage_energy_joules"))
    assert list_jobs(db, EVERYTHING, Filter(user="user1"), SortOrder("usage_energy_joules")).rows


@pytest.mark.parametrize(
    ("key", "access"),
    [("start_time", EVERYTHING), ("start_time", COORDINATOR), ("end_time", EVERYTHING)],
)
@pytest.mark.parametrize("descending", [True, False])
def test_rare_jobs_are_found_over_several_pages(db, key, descending, access, monkeypatch):
    """A page ends once it has read enough rows, and continues on the next."""
    order, job_filter = SortOrder(key, descending), Filter(partition="gpu")
    expected = [row["id"] for row in read_all_pages(db, access, order, job_filter, size=100)]
    monkeypatch.setattr(job_list, "MOST_READ", 4)
    first = list_jobs(db, access, job_filter, order, Page(7))
    assert first.more is not None
    assert len(first.rows) < 7
    assert [row["id"] for row in read_all_pages(db, access, order, job_filter)] == expected


def test_only_the_requested_columns_are_read(db):
    rows, _ = list_jobs(db, EVERYTHING, page=Page(5, columns=("state", "usage_energy_joules")))
    assert len(rows) == 5
    assert {tuple(row) for row in rows} == {("id", "state", "usage_energy_joules")}


@pytest.mark.parametrize(
    ("job_filter", "expected"),
    [
        (Filter(), True),
        (Filter(cluster="c1", started_from=5), True),
        (Filter(user="user1"), True),
        (Filter(node="n1", started_before=9), True),
        (Filter(user="user1", account="a"), False),  # other accounts are skipped
        (Filter(ended_before=5), False),
        (Filter(states=(JobState.FAILED,)), False),
        (Filter(running=True), False),
    ],
)
def test_filters_for_which_a_page_reads_only_its_rows(job_filter, expected):
    newest, own = SortOrder("start_time"), Access((ClusterLogin("", "user1"),))
    assert job_list.reads_only_its_rows(EVERYTHING, job_filter, newest) is expected
    assert not job_list.reads_only_its_rows(EVERYTHING, job_filter, SortOrder("cpu_efficiency"))
    of_others = job_filter.account or job_filter.node
    assert job_list.reads_only_its_rows(own, job_filter, newest) is (expected and not of_others)


def test_accesses_for_which_a_page_reads_only_its_rows():
    newest, own = SortOrder("start_time"), Access((ClusterLogin("", "user1"),))
    coordinator = Access((ClusterLogin("", "user1"),), (ClusterAccount("c1", "a"),))
    assert job_list.reads_only_its_rows(coordinator, Filter(), newest)
    assert not job_list.reads_only_its_rows(own, Filter(user="user2"), newest)
    assert not job_list.reads_only_its_rows(coordinator, Filter(user="user1"), newest)


def test_page_of_many_accounts_reads_other_rows():
    many = Access((), tuple(ClusterAccount("c1", f"a{number}") for number in range(9)))
    assert not job_list.reads_only_its_rows(many, Filter(), SortOrder("start_time"))


def test_deleted_job_is_left_out_of_the_page(db):
    ids = [row["id"] for row in list_jobs(db, EVERYTHING, page=Page(3)).rows]
    assert [row["id"] for row in rows_by_ids(db, [ids[0], -1, ids[1]])] == ids[:2]
    assert rows_by_ids(db, []) == []


@pytest.mark.parametrize("descending", [True, False])
@pytest.mark.parametrize("size", [1, 7, 1000])
def test_pending_jobs_come_first_and_each_job_once(db, size, descending):
    rows = read_all_pages(db, EVERYTHING, SortOrder(descending=descending), size=size)
    pending = [row for row in rows if row["state"] == "PENDING" and row["start_time"] is None]
    started = [row for row in rows if row["start_time"] is not None]
    never_started = [row for row in rows if row not in pending and row not in started]
    assert rows == pending + started + never_started
    assert pending
    assert started
    assert len({row["id"] for row in rows}) == len(rows) == 60
    submitted = [(row["submit_time"], row["id"]) for row in pending]
    assert submitted == sorted(submitted, reverse=descending)


@pytest.mark.parametrize("new_state", [JobState.RUNNING, JobState.CANCELLED])
def test_job_that_starts_while_a_page_is_read_appears_once(url, store, job, now, new_state):
    def write(state):
        times = {
            "submit_time": now - 60,
            "start_time": now - 1 if state == JobState.RUNNING else None,
            "end_time": now if state == JobState.CANCELLED else None,
        }
        store.write(Batch((job("1", state=state, **times),), (), "", 0), "s")

    def change_state_after_the_pending_query(_db, _cursor, statement, *_):
        if "ORDER BY job.submit_time" in statement:
            write(new_state)

    write(JobState.PENDING)
    engine = reader_engine(url)
    sa.event.listen(engine, "after_cursor_execute", change_state_after_the_pending_query)
    with engine.connect() as db:
        (row,) = list_jobs(db, EVERYTHING).rows
    assert row["state"] == new_state
    engine.dispose()


def test_pending_jobs_are_found_by_their_state(db):
    rows = read_all_pages(db, EVERYTHING, SortOrder(), Filter(states=("PENDING",)))
    assert rows
    assert {row["state"] for row in rows} == {"PENDING"}
    running = read_all_pages(db, EVERYTHING, SortOrder(), Filter(running=True))
    assert "PENDING" not in {row["state"] for row in running}
