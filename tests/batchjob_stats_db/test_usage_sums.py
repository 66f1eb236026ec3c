"""Sums of any window are those of its days, whether they are read by day or by month."""

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

D0 = 20540 * DAY  # a midnight
DAYS = 600
PEOPLE = [("alice", "physics"), ("bob", "physics"), ("bob", "chem"), ("carol", "bio")]
KEYS = [each for n in range(3) for each in itertools.combinations(("username", "account"), n)]


@pytest.fixture
def filled(store, job, engine):
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
            zip(range(0, DAYS, 23), itertools.cycle(PEOPLE), strict=False)
        )
    ]
    store.write(Batch(tuple(runs), (), "", 0), "s")
    roll_all(engine)
    return engine


def roll_all(engine):
    with engine.begin() as db:
        for day in due_days(db, "c1", 1000):
            roll_up(db, "c1", day, D0 + 2 * DAYS * DAY)


def added_up(db, by, since, until, which=lambda _row: True):
    """From the days by user, without SQL."""
    sums = {}
    for row in db.execute(sa.select(schema.daily_usage)).mappings():
        if since <= row["day"] < until and which(row):
            key = tuple(row[name] for name in by)
            sums[key] = sums.get(key, 0) + row["wall_seconds"]
    return sums


def asked(db, access, by, since, until, **which):
    rows = usage.sum_usage(db, access, by, since, until, columns=["wall_seconds"], **which)
    return {tuple(row[name] for name in by): row["wall_seconds"] for row in rows}


def test_any_window(filled):
    with filled.connect() as db:

        @settings(max_examples=50, deadline=None)
        @given(
            st.integers(D0 - 300 * DAY, D0 + DAYS * DAY),
            st.integers(0, DAYS * DAY),
            st.sampled_from(KEYS[1:]),
        )
        def check(since, length, by):
            window = (since, since + length)
            assert asked(db, EVERYTHING, by, *window) == added_up(db, by, *window)

        check()


def test_every_reader_gets_the_sums_of_what_may_be_seen(filled):
    window = (D0 + 3 * DAY, D0 + 500 * DAY)
    bob = Access((ClusterLogin("c1", "bob"),))
    chemist = Access((ClusterLogin("c1", "alice"),), (ClusterAccount("c1", "chem"),))
    with filled.connect() as db:
        for by in KEYS[1:]:
            assert asked(db, bob, by, *window) == added_up(
                db, by, *window, lambda row: row["username"] == "bob"
            )
            assert asked(db, chemist, by, *window) == added_up(
                db, by, *window, lambda row: "alice" in row.values() or "chem" in row.values()
            )
            assert asked(db, EVERYTHING, by, *window, user="bob", account="chem") == added_up(
                db, by, *window, lambda row: {"bob", "chem"} <= set(row.values())
            )
        assert [row["username"] for row in stats.users(db, bob, *window)] == ["bob", "bob"]
        assert len(stats.users(db, EVERYTHING, *window)) == len(PEOPLE)
        assert [row["account"] for row in stats.accounts(db, EVERYTHING, *window)] == [
            "bio", "chem", "physics",
        ]  # fmt: skip


def test_who_sees_a_whole_cluster_gets_its_sums_and_no_other(filled, store):
    window = (D0, D0 + DAYS * DAY)
    operator = Access((ClusterLogin("c1", "dave"),), clusters=("c1",))
    elsewhere = Access((ClusterLogin("c1", "dave"),), clusters=("c2",))
    with filled.connect() as db:
        for by in (["username"], ["account"], ["day"]):
            assert asked(db, operator, by, *window) == asked(db, EVERYTHING, by, *window) != {}
            assert asked(db, elsewhere, by, *window) == {}
            assert asked(db, operator, by, *window, cluster="c2") == {}


def test_corrections_and_retention_reach_every_month(filled, store, job):
    late = job("7", user="dave", account="bio", submit_time=D0, start_time=D0, end_time=D0 + 50)
    store.write(Batch((late,), (), "", 0), "s")
    roll_all(filled)
    with filled.begin() as db:
        drop_days(db, "c1", D0 + 100 * DAY + 5)
    with filled.connect() as db:
        for since in range(D0, D0 + 300 * DAY, 13 * DAY):
            window = (since, since + 290 * DAY)
            assert asked(db, EVERYTHING, ["username"], *window) == added_up(
                db, ["username"], *window
            )
        months = db.execute(sa.select(schema.USAGE.monthly_by_user.c.month)).scalars()
        assert min(months) >= month_of(D0 + 100 * DAY)
        assert min(db.execute(sa.select(schema.daily_usage.c.day)).scalars()) > D0 + 100 * DAY
