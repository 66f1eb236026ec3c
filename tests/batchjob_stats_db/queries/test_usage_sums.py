"""Sums of a window equal those of its days, whether read by day or by month."""

import itertools

import pytest
import sqlalchemy as sa
from hypothesis import given, settings
from hypothesis import strategies as st

from batchjob.schedulers.accounting import Batch
from batchjob_stats_db.database import schema
from batchjob_stats_db.database.access import EVERYTHING, Access, ClusterAccount, ClusterLogin
from batchjob_stats_db.days import DAY, month_of
from batchjob_stats_db.measure.rollup import drop_days, due_days, roll_up
from batchjob_stats_db.queries import stats, usage

D0 = 19900 * DAY  # a midnight; all jobs have ended before NOW
DAYS = 600
USERS_AND_ACCOUNTS = [("alice", "physics"), ("bob", "physics"), ("bob", "chem"), ("carol", "bio")]
KEYS = [each for n in range(3) for each in itertools.combinations(("username", "account"), n)]


@pytest.fixture
def rolled_up_engine(store, job, engine):
    """Jobs on some of the days, rolled up."""
    runs = [
        job(
            f"{number}",
            user=user,
            account=account,
            submit_time=D0 + day * DAY,
            start_time=D0 + day * DAY + 600,
            end_time=D0 + day * DAY + 600 + 100 * number,
        )
        for number, (day, (user, account)) in enumerate(
            zip(range(0, DAYS, 23), itertools.cycle(USERS_AND_ACCOUNTS), strict=False)
        )
    ]
    store.write(Batch(tuple(runs), (), "", 0), "s")
    roll_up_all_days(engine)
    return engine


def roll_up_all_days(engine):
    with engine.begin() as db:
        for day in due_days(db, "c1", 1000):
            roll_up(db, "c1", day, D0 + 2 * DAYS * DAY)


def expected_sums(db, by, since, until, matches=lambda _row: True):
    """Sums added up in Python from the daily rows by user."""
    sums = {}
    for row in db.execute(sa.select(schema.daily_usage)).mappings():
        if since <= row["day"] < until and matches(row):
            key = tuple(row[name] for name in by)
            sums[key] = sums.get(key, 0) + row["wall_seconds"]
    return sums


def queried_sums(db, access, by, since, until, **filters):
    rows = usage.sum_usage(db, access, by, since, until, columns=["wall_seconds"], **filters)
    return {tuple(row[name] for name in by): row["wall_seconds"] for row in rows}


def test_sums_of_any_window(rolled_up_engine):
    with rolled_up_engine.connect() as db:

        @settings(max_examples=50, deadline=None)
        @given(
            st.integers(D0 - 300 * DAY, D0 + DAYS * DAY),
            st.integers(0, DAYS * DAY),
            st.sampled_from(KEYS[1:]),
        )
        def check(since, length, by):
            window = (since, since + length)
            assert queried_sums(db, EVERYTHING, by, *window) == expected_sums(db, by, *window)

        check()


def test_sums_are_limited_to_accessible_jobs(rolled_up_engine):
    window = (D0 + 3 * DAY, D0 + 500 * DAY)
    bob = Access((ClusterLogin("c1", "bob"),))
    chemist = Access((ClusterLogin("c1", "alice"),), (ClusterAccount("c1", "chem"),))
    with rolled_up_engine.connect() as db:
        for by in KEYS[1:]:
            assert queried_sums(db, bob, by, *window) == expected_sums(
                db, by, *window, lambda row: row["username"] == "bob"
            )
            assert queried_sums(db, chemist, by, *window) == expected_sums(
                db, by, *window, lambda row: "alice" in row.values() or "chem" in row.values()
            )
            assert queried_sums(
                db, EVERYTHING, by, *window, user="bob", account="chem"
            ) == expected_sums(db, by, *window, lambda row: {"bob", "chem"} <= set(row.values()))
        assert [row["account"] for row in stats.accounts(db, EVERYTHING, *window)] == [
            "bio", "chem", "physics",
        ]  # fmt: skip


def test_cluster_access_gives_the_sums_of_that_cluster_only(rolled_up_engine, store):
    window = (D0, D0 + DAYS * DAY)
    operator = Access((ClusterLogin("c1", "dave"),), clusters=("c1",))
    elsewhere = Access((ClusterLogin("c1", "dave"),), clusters=("c2",))
    with rolled_up_engine.connect() as db:
        for by in (["username"], ["account"], ["day"]):
            assert (
                queried_sums(db, operator, by, *window)
                == queried_sums(db, EVERYTHING, by, *window)
                != {}
            )
            assert queried_sums(db, elsewhere, by, *window) == {}
            assert queried_sums(db, operator, by, *window, cluster="c2") == {}


def test_monthly_sums_follow_corrections_and_retention(rolled_up_engine, store, job):
    late = job("7", user="dave", account="bio", submit_time=D0, start_time=D0, end_time=D0 + 50)
    store.write(Batch((late,), (), "", 0), "s")
    roll_up_all_days(rolled_up_engine)
    with rolled_up_engine.begin() as db:
        drop_days(db, "c1", D0 + 100 * DAY + 5)
    with rolled_up_engine.connect() as db:
        for since in range(D0, D0 + 300 * DAY, 13 * DAY):
            window = (since, since + 290 * DAY)
            assert queried_sums(db, EVERYTHING, ["username"], *window) == expected_sums(
                db, ["username"], *window
            )
        months = db.execute(sa.select(schema.USAGE.monthly_by_user.c.month)).scalars()
        assert min(months) >= month_of(D0 + 100 * DAY)
        assert min(db.execute(sa.select(schema.daily_usage.c.day)).scalars()) > D0 + 100 * DAY
