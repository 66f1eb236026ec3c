"""Waits by day and partition."""

import math

import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st

from batchjob.schedulers.accounting import Batch
from batchjob_stats_db.database import schema
from batchjob_stats_db.days import DAY
from batchjob_stats_db.measure.rollup import waits

D0 = 20540 * DAY


def test_wait_begins_when_the_job_becomes_eligible(store, job, engine):
    runs = (
        job("1", submit_time=D0, start_time=D0 + 50),
        job("2", submit_time=D0, eligible_time=D0 + 40, start_time=D0 + 50),
        job("3", submit_time=D0 + 90, start_time=D0 + 60),  # clocks disagree
        job("4", submit_time=D0, start_time=D0 + DAY),
        job("5", submit_time=D0, start_time=D0 + 70, partition="gpu"),
        job("6", submit_time=D0, start_time=None),
    )
    store.write(Batch(runs, (), "", 0), "s")
    with engine.connect() as db:
        rows = db.execute(waits(schema.job.c.cluster == "c1")).mappings().all()
    assert [tuple(row.values()) for row in rows] == [
        ("c1", D0, "cpu", 3, 20, 10, 50, 50, 50),
        ("c1", D0, "gpu", 1, 70, 70, 70, 70, 70),
        ("c1", D0 + DAY, "cpu", 1, DAY, DAY, DAY, DAY, DAY),
    ]


@given(st.lists(st.integers(0, 10_000), min_size=1, max_size=300))
def test_percentiles_use_the_nearest_rank(seconds):
    engine = sa.create_engine("sqlite://")
    schema.metadata.create_all(engine, tables=[schema.job])
    rows = [
        {"cluster": "c1", "jobid": str(n), "submit_time": D0, "start_time": D0 + wait, "run": 0,
         "update_time": 0}
        for n, wait in enumerate(seconds)
    ]  # fmt: skip
    with engine.begin() as db:
        db.execute(sa.insert(schema.job), rows)
        (row,) = db.execute(waits()).mappings().all()
    ordered = sorted(seconds)
    for share in (50, 90, 99):
        rank = math.ceil(share * len(ordered) / 100)
        assert row[f"wait_p{share}_seconds"] == ordered[rank - 1]
    engine.dispose()
