"""Which jobs a user sees, their order, filters, sums and tokens."""

from datetime import UTC, datetime

import pytest
import sqlalchemy as sa

from batchjob.schedulers.accounting import Batch
from batchjob.schedulers.records import Account, Association, Associations, NodeShare, Role
from batchjob.schedulers.states import JobState
from batchjob_stats_db.admin.check import findings
from batchjob_stats_db.database import schema, tokens
from batchjob_stats_db.database.access import (
    EVERYTHING,
    NOTHING,
    Access,
    ClusterAccount,
    ClusterLogin,
    of_user,
)
from batchjob_stats_db.database.store import Store
from batchjob_stats_db.measure.rollup import due_days, roll_up
from batchjob_stats_db.queries import jobs, nodes, stats, usage
from batchjob_stats_db.queries.efficiency import SOURCE_READ_TIME
from batchjob_stats_db.queries.filters import Filter
from batchjob_stats_db.queries.job_list import Page, list_jobs

ALICE = Access((ClusterLogin("c1", "alice"),))


@pytest.fixture
def db(engine, store, job, now):
    """Five jobs of three users on two clusters."""
    running = {"state": JobState.RUNNING, "end_time": None}
    store.write(
        Batch(
            (
                job("1", start_time=now - 500),
                job("2", user="bob", account="chem", start_time=now - 400),
                job("3", user="carol", start_time=now - 300, **running),
                job("4", start_time=now - 200, nodes=(NodeShare("n002"),), **running),
                job("5", state=JobState.PENDING, start_time=None, end_time=None, nodes=()),
            ),
            (),
            "",
            0,
        ),
        "s",
    )
    other = Store(engine, "c2", clock=lambda: now)
    other.write(Batch((job("1", cluster="c2", start_time=now - 100),), (), "", 0), "s")
    with engine.connect() as connection:
        yield connection


def jobids(rows):
    return [(row["cluster"], row["jobid"]) for row in rows]


def test_pending_jobs_come_first_then_the_newest(db):
    assert jobids(list_jobs(db, EVERYTHING).rows) == [
        ("c1", "5"), ("c2", "1"), ("c1", "4"), ("c1", "3"), ("c1", "2"), ("c1", "1"),
    ]  # fmt: skip
    assert jobids(list_jobs(db, NOTHING).rows) == []
    assert jobids(list_jobs(db, ALICE).rows) == [
        ("c1", "5"), ("c1", "4"), ("c1", "1"),
    ]  # fmt: skip


def test_a_peak_of_accounting_that_may_be_page_cache_does_not_say_that_memory_was_short(
    store, job, engine
):
    killed = {"state": JobState.OUT_OF_MEMORY, "cpu_at_least": 0}
    cases = {
        "1": ({"cpu_at_least": 0}, 100, None),  # jobacct_gather/cgroup
        "2": ({}, 100, None),
        "3": ({"cpu_at_least": 1}, 100, 1),  # jobacct_gather/linux
        "4": ({"cpu_at_least": 1}, 50, None),  # which may have missed the peak
        "5": (killed, 100, 1),
    }
    jobs = [
        job(
            number, allocated_memory_bytes=100, peak_memory_bytes=peak, elapsed_seconds=3600, **more
        )
        for number, (more, peak, _) in cases.items()
    ]
    store.write(Batch(tuple(jobs), (), "", 0), "s")
    with engine.connect() as connection:
        found = {
            row["jobid"]: row["memory_short"] for row in list_jobs(connection, EVERYTHING).rows
        }
    assert found == {number: short for number, (_, _, short) in cases.items()}


def test_pages_are_consecutive(db):
    found, after = [], None
    while found == [] or after:
        page, after = list_jobs(db, EVERYTHING, page=Page(2, after))
        found += jobids(page)
    assert found == jobids(list_jobs(db, EVERYTHING).rows)


def test_coordinator_sees_the_account_and_own_jobs_once(db):
    both = Access((ClusterLogin("c1", "alice"),), (ClusterAccount("c1", "physics"),))
    assert jobids(list_jobs(db, both).rows) == [
        ("c1", "5"),
        ("c1", "4"),
        ("c1", "3"),
        ("c1", "1"),
    ]


def test_filters(db, now):
    def filtered(**which):
        return jobids(list_jobs(db, EVERYTHING, Filter(**which)).rows)

    assert filtered(user="bob") == [("c1", "2")]
    assert filtered(account="chem") == [("c1", "2")]
    assert filtered(cluster="c2") == [("c2", "1")]
    assert filtered(node="n002") == [("c1", "4")]
    assert filtered(node="n001", cluster="c2") == [("c2", "1")]
    assert filtered(states=("RUNNING",)) == [("c1", "4"), ("c1", "3")]
    assert filtered(started_from=now - 250, started_before=now - 150) == [("c1", "4")]


RUNNING = Filter(running=True)


def test_running_and_pending_jobs(db):
    assert jobids(list_jobs(db, EVERYTHING, RUNNING).rows) == [("c1", "4"), ("c1", "3")]
    assert jobids(list_jobs(db, ALICE, RUNNING).rows) == [("c1", "4")]
    assert jobids(list_jobs(db, ALICE, Filter(states=("PENDING",))).rows) == [("c1", "5")]
    assert [row["node"] for row in nodes.busy_nodes(db, EVERYTHING, "c1")] == ["n001", "n002"]
    assert [(r["state"], r["jobs"]) for r in stats.unfinished_by_state(db, EVERYTHING)] == [
        ("PENDING", 1),
        ("RUNNING", 2),
    ]
    assert [row["name"] for row in stats.clusters(db)] == ["c1", "c2"]


def test_one_job(db):
    (mine,) = jobs.find_jobs(db, ALICE, "1")
    assert [row["node"] for row in jobs.parts_of(db, ALICE, mine["id"])["nodes"]] == ["n001"]
    (other,) = jobs.find_jobs(db, EVERYTHING, "2", "c1")
    assert jobs.parts_of(db, ALICE, other["id"]) is None


def test_usage_sums(db, engine, now):
    with engine.begin() as write:
        for day in due_days(write, "c1", 10):
            roll_up(write, "c1", day, now)
    span = (now - 86400 * 3, now + 86400)
    everyone = usage.sum_usage(db, EVERYTHING, ["username"], *span)
    assert [row["username"] for row in everyone] == ["alice", "bob", "carol"]
    assert [row["username"] for row in usage.sum_usage(db, ALICE, ["username"], *span)] == ["alice"]
    (total,) = usage.sum_usage(db, EVERYTHING, ["cluster"], *span, account="physics")
    assert total["jobs_started"] == 3
    assert usage.sum_emissions(db, EVERYTHING, ["day"], *span) == []


def test_coordinator_of_an_account_sees_its_subaccounts(engine, store):
    associations = Associations(
        (
            Association("", "physics", "alice", Role.COORDINATOR),
            Association("", "chem", "alice", Role.MEMBER),
        ),
        (),
        (
            Account("", "physics"),
            Account("", "optics", "physics"),
            Account("", "lasers", "optics"),
            Account("", "chem"),
        ),
    )
    store.write_associations(associations, "sacctmgr")
    with engine.connect() as db:
        access = of_user(db, "alice", "c1")
    assert [each.account for each in access.accounts] == ["lasers", "optics", "physics"]
    assert access.users == (ClusterLogin("c1", "alice"),)


def test_tokens(engine):
    with engine.begin() as db:
        text = tokens.create(db, "alice", tokens.TokenRole.USER, "laptop", 1000, expiry_time=2000)
        found = tokens.find(db, text, 1500)
        assert (found.username, found.role, found.label) == ("alice", "user", "laptop")
        assert tokens.find(db, text, 2000) is None
        assert tokens.find(db, text + "x", 1500) is None
        tokens.record_use(db, found, 1500)
        assert tokens.list_tokens(db, "alice")[0].last_used_time == 1500
        assert not tokens.revoke(db, found.id, "bob")
        assert tokens.revoke(db, found.id, "alice")
        assert tokens.find(db, text, 1500) is None
    with engine.connect() as db:
        assert tokens.list_tokens(db) == []


@pytest.mark.parametrize(
    ("since", "until"),
    [
        ((2026, 1, 1), (2026, 4, 1)),  # whole months
        ((2026, 1, 17), (2026, 4, 9)),  # days, months, days
        ((2026, 2, 3), (2026, 2, 20)),  # within a month
        ((2026, 1, 31), (2026, 3, 1)),
        ((1970, 1, 1), (9999, 12, 31)),
    ],
)
def test_sums_by_user_account_day_and_cluster_agree(engine, store, job, rows, since, until):
    begin = _at(2026, 1, 10)
    runs = [
        job(
            str(n),
            user=f"user{n % 5}",
            account=f"account{n % 3}",
            submit_time=begin + n * 200_000,
            start_time=begin + n * 200_000,
            end_time=begin + n * 200_000 + n * 9000,
        )
        for n in range(40)
    ]
    store.write(Batch(tuple(runs), (), "", 0), "s")
    jobs = rows(schema.job)
    grams = [{"job_id": row["id"], "provider": "rte", "grams": 5.0} for row in jobs]
    measured = [
        {
            "job_id": row["id"], "source": "prometheus", "until_time": row["end_time"],
            "measured_time": row["end_time"], "samples": 1, "dropped_series": 0, "nodes": 1,
            "coverage": 1.0, "caveats": "", "energy_host_active_joules": 3.6e6,
        }
        for row in jobs
    ]  # fmt: skip
    with engine.begin() as write:
        write.execute(sa.insert(schema.job_usage), measured)
        write.execute(sa.insert(schema.job_emissions), grams)
        for day in due_days(write, "c1", 1000):
            roll_up(write, "c1", day, _at(2026, 12, 1))
        assert [line for line in findings(write, 0) if "by user" in line] == []
    span = (_at(*since), _at(*until))
    with engine.connect() as db:
        for sum_function in (usage.sum_usage, usage.sum_emissions):
            by_user = sum_function(db, EVERYTHING, ["account", "username"], *span)
            by_account = sum_function(db, EVERYTHING, ["account"], *span)
            assert len(by_account) == 3
            for row in by_account:
                parts = [each for each in by_user if each["account"] == row["account"]]
                for name in set(row) - {"account", "provider"}:
                    assert row[name] == pytest.approx(sum(each[name] for each in parts)), name
            by_day = sum_function(db, EVERYTHING, ["day"], *span)
            (cluster_sum,) = sum_function(db, EVERYTHING, ["cluster"], *span)
            for rows_ in (by_day, by_account):
                assert cluster_sum[name] == pytest.approx(sum(each[name] for each in rows_))
            user_access = Access((ClusterLogin("", "user3"),))
            (mine,) = sum_function(db, user_access, ["cluster"], *span)
            (theirs,) = sum_function(db, EVERYTHING, ["cluster"], *span, user="user3")
            assert mine[name] == pytest.approx(theirs[name])
            (account_sum,) = sum_function(db, EVERYTHING, [], *span, account="account1")
            assert account_sum[name] == pytest.approx(by_account[1][name])
            coordinator = Access(accounts=(ClusterAccount("c1", "account1"),))
            (theirs,) = sum_function(db, coordinator, ["account"], *span)
            assert theirs["account"] == "account1"
            assert theirs[name] == pytest.approx(by_account[1][name])


def _at(year, month, day):
    return int(datetime(year, month, day, tzinfo=UTC).timestamp())


@pytest.mark.parametrize(
    ("states", "as_of"),
    [
        ({"sacct": (100, 200)}, 100),
        ({"sacct": (200, 100)}, None),
        ({"sacct": (100, 110), "slurm_rest": (300, None)}, None),  # the site reads another one now
        ({"sacct": (100, 110), "slurm_rest": (300, 310)}, 300),
        ({"sacctmgr": (100, 200)}, None),  # people, not jobs
        ({"sacct": (None, 200)}, None),
    ],
)
def test_job_is_as_of_the_last_read_of_a_source_that_fails(engine, store, job, states, as_of):
    running = job("1", state=JobState.RUNNING, end_time=None, source="squeue")
    store.write(Batch((running,), (), "", 0), "other")
    with engine.begin() as db:
        for source, (success, error) in states.items():
            row = {"source": source, "success_time": success, "error_time": error}
            db.execute(sa.insert(schema.poll_state).values(cluster="c1", **row))
        asked = sa.select(SOURCE_READ_TIME).select_from(schema.job)
        assert db.execute(asked).scalars().all() == [as_of]
