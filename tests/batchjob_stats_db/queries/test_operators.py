"""Reports for operators: waste, failures, waits and idle GPUs."""

import pytest
import sqlalchemy as sa

from batchjob.schedulers.accounting import Batch
from batchjob.schedulers.records import NodeShare
from batchjob.schedulers.states import JobState
from batchjob_stats_db.database import schema
from batchjob_stats_db.database.access import EVERYTHING, Access, ClusterLogin
from batchjob_stats_db.days import DAY
from batchjob_stats_db.measure.rollup import due_days, renew_paces, roll_up
from batchjob_stats_db.queries import job_list, usage
from batchjob_stats_db.queries.job_list import TooManyError
from batchjob_stats_db.queries.operators import (
    cpus_by_node,
    failures_by_node,
    failures_by_state,
    idle_gpus,
    most_failures,
    most_wasteful,
    paces_by_node,
    waits_by_partition,
)
from batchjob_stats_db.queries.stats import usual_waits

D0 = 20540 * DAY
ALICE = Access((ClusterLogin("c1", "alice"),))


@pytest.fixture
def write_jobs(store, engine, job):
    """Writes jobs with their usage and rolls them up; returns a connection."""

    def write(*jobs):
        records = [
            job(str(n), start_time=D0, submit_time=D0 - 60 * n, **fields)
            for n, (fields, _) in enumerate(jobs)
        ]
        store.write(Batch(tuple(records), (), "", 0), "s")
        with engine.begin() as db:
            for n, (_, measured) in enumerate(jobs):
                if measured is not None:
                    gpus = measured.pop("devices", ())
                    db.execute(sa.insert(schema.job_usage).values(_usage(n + 1, measured)))
                    for index, busy in enumerate(gpus):
                        row = {"job_id": n + 1, "node": "n1", "uuid": str(index)}
                        db.execute(sa.insert(schema.job_gpu).values(
                            **row, gpu_instance="", utilization_ratio=busy))  # fmt: skip
            for day in due_days(db, "c1", 100):
                roll_up(db, "c1", day, D0 + DAY)
        return engine.connect()

    return write


def _usage(job_id, values):
    given = {"job_id": job_id, "source": "s", "measured_time": 0, "until_time": D0 + 7200}
    return {**given, "samples": 9, "dropped_series": 0, "nodes": 1, "coverage": 1.0, **values}


def ended(user, seconds, **more):
    return {"user": user, "end_time": D0 + seconds, **more}


def test_most_waste(write_jobs):
    db = write_jobs(
        (ended("alice", 1000), {"user_cpu_seconds": 100.0, "system_cpu_seconds": 0.0}),
        (ended("bob", 1000), {"user_cpu_seconds": 3900.0, "system_cpu_seconds": 100.0}),
        (ended("carol", 9000), None),  # not measured
        (ended("dave", 2000), {"user_cpu_seconds": 1000.0, "system_cpu_seconds": 0.0,
                               "memory_peak_bytes": 0}),
    )  # fmt: skip
    with db:
        sums = usage.sum_usage(db, EVERYTHING, ["username"], D0, D0 + DAY)
    rows = most_wasteful(sums, 10, "cpu")
    assert [(row["username"], row["cpu_unused_seconds"]) for row in rows] == [
        ("dave", 7000),
        ("alice", 3900),
    ]
    assert rows[1]["cpu_efficiency"] == pytest.approx(100 / 4000)
    assert rows[0]["gpu_efficiency"] is None
    assert [row["username"] for row in most_wasteful(sums, 1, "memory")] == ["dave"]


def test_most_failures(write_jobs):
    failed = {"state": JobState.OUT_OF_MEMORY}
    db = write_jobs(
        (ended("alice", 10), None),
        (ended("alice", 10, **failed), None),
        (ended("bob", 10), None),
        (ended("bob", 10, **failed), None),
        (ended("bob", 10, **failed), None),
    )
    with db:
        sums = usage.sum_usage(db, EVERYTHING, ["username"], D0, D0 + DAY)
    rows = most_failures(sums, 10)
    assert [(row["username"], row["jobs_failed"]) for row in rows] == [("bob", 2), ("alice", 1)]
    assert rows[0]["failed_ratio"] == pytest.approx(2 / 3)
    assert len(most_failures(sums, 1)) == 1


def test_failures_by_node_and_state(write_jobs):
    failed, lost = JobState.FAILED, JobState.NODE_FAIL
    n1, n2, both = ((NodeShare(node, 4) for node in names) for names in ("1", "2", "12"))
    jobs = [
        ended("alice", 60, state=failed, nodes=tuple(n1)),
        ended("bob", 60, state=lost, nodes=tuple(both)),
        *(ended("carol", 60, state=failed, nodes=(NodeShare("3", 4),)) for _ in range(3)),
        ended("carol", 60, state=JobState.COMPLETED, nodes=tuple(n2)),
        ended("dave", -2 * DAY, state=failed, nodes=(NodeShare("4", 4),)),
    ]
    with write_jobs(*((fields, None) for fields in jobs)) as db:
        by_node = [tuple(row.values()) for row in failures_by_node(db, "c1", D0)]
        by_state = [tuple(row.values()) for row in failures_by_state(db, "c1", D0)]
    assert by_node == [("1", 2, 2), ("3", 3, 1), ("2", 1, 1)]  # several users first
    assert by_state == [("FAILED", 4, 2), ("NODE_FAIL", 1, 1)]


def test_pace_of_a_node_is_relative_to_jobs_of_the_same_name_elsewhere(write_jobs):
    def runs(node, seconds, count=5, **fields):
        alike = {"name": "solve", "allocated_nodes": 1, "allocated_cpus": 4, **fields}
        nodes = (NodeShare(node, 4),)
        return [ended("alice", 1, elapsed_seconds=seconds, nodes=nodes, **alike)] * count

    jobs = [
        *runs("fast", 100), *runs("usual", 110), *runs("slow", 220),
        *runs("few", 500, 4),
        *runs("large", 500, allocated_cpus=8),  # nothing like it ran elsewhere
        *runs("short", 30), *runs("failed", 500, state=JobState.FAILED),
        *runs("wide", 500, allocated_nodes=2),
    ]  # fmt: skip
    with write_jobs(*((fields, None) for fields in jobs)) as db:
        renew_paces(db, "c1", D0 + 2 * DAY)
        paces = {row["node"]: dict(row) for row in paces_by_node(db, "c1")}
        renew_paces(db, "c1", D0 + 10 * DAY)
        later = paces_by_node(db, "c1")
    assert paces.keys() == {"fast", "usual", "slow"}
    # The medians of the nodes are 100, 110, 220 and, with few jobs, 500: the usual time is 165.
    assert paces["slow"] == {"node": "slow", "pace": 220 / 165, "jobs_compared": 5}
    assert later == []


def test_cpus_of_jobs_that_were_on_a_node_since_a_time(write_jobs):
    jobs = [
        ended("alice", 60, nodes=(NodeShare("n1", 4), NodeShare("n2", 8))),
        ended("alice", 900, nodes=(NodeShare("n1", 2),)),
        {"user": "bob", "state": JobState.RUNNING, "nodes": (NodeShare("n1", 1),)},
        {"user": "bob", "state": JobState.RUNNING, "nodes": (NodeShare("n3"),)},
    ]
    with write_jobs(*((fields, None) for fields in jobs)) as db:
        assert cpus_by_node(db, "c1", D0 + 300) == {"n1": 3.0, "n3": None}
        assert cpus_by_node(db, "c1", D0) == {"n1": 7.0, "n2": 8.0, "n3": None}


def test_waits_by_partition_of_all_and_own_jobs(write_jobs, monkeypatch):
    db = write_jobs(
        (ended("alice", 10), None),
        (ended("bob", 10), None),
        (ended("bob", 10, partition="gpu"), None),
        (ended("alice", 10), None),
    )
    with db:
        rows = waits_by_partition(db, EVERYTHING, D0, D0 + DAY)
        assert [(row["partition"], row["jobs_started"]) for row in rows] == [("cpu", 3), ("gpu", 1)]
        assert rows[0]["wait_max_seconds"] == 180
        assert len(waits_by_partition(db, EVERYTHING, D0, D0 + DAY, partition="gpu")) == 1
        (own,) = waits_by_partition(db, ALICE, D0, D0 + DAY)
        assert (own["jobs_started"], own["wait_p50_seconds"]) == (2, 0)
        assert waits_by_partition(db, ALICE, D0, D0 + DAY, partition="gpu") == []
        monkeypatch.setattr(job_list, "MOST_READ", 1)
        with pytest.raises(TooManyError):
            waits_by_partition(db, ALICE, D0, D0 + DAY)


def test_idle_gpus(write_jobs):
    running = {"end_time": None, "state": JobState.RUNNING, "allocated_gpus": 4}
    db = write_jobs(
        ({**running, "user": "alice"}, {"gpus": 4, "gpu_utilization_ratio": 0.0}),
        ({**running, "user": "bob"},
         {"gpus": 4, "gpu_utilization_ratio": 0.5, "devices": (1.0, 1.0, 0.0, 0.0)}),
        ({**running, "user": "busy"}, {"gpus": 4, "gpu_utilization_ratio": 0.9, "devices": (0.9,)}),
        ({**running, "user": "unknown"}, {"gpu_utilization_ratio": None}),
        ({**running, "user": "unmeasured"}, None),
        ({**running, "user": "new"},
         {"gpus": 4, "gpu_utilization_ratio": 0.0, "until_time": D0 + 60}),
        # Its process began to use the GPU a moment ago, and no source names the GPU before that.
        ({**running, "user": "late", "allocated_gpus": 1},
         {"gpus": 1, "gpu_utilization_ratio": 0.0, "gpu_observed_seconds": 0.6}),
        ({**running, "user": "seen", "allocated_gpus": 1},
         {"gpus": 1, "gpu_utilization_ratio": 0.0, "gpu_observed_seconds": 7150.0}),
        # Another job uses its second GPU as well.
        ({**running, "user": "shared", "allocated_gpus": 2},
         {"gpus": 2, "gpu_utilization_ratio": 0.0, "gpu_observed_seconds": 7150.0,
          "devices": (0.0, None)}),
        (ended("over", 9000, allocated_gpus=4), {"gpus": 4, "gpu_utilization_ratio": 0.0}),
    )  # fmt: skip
    with db:
        rows = idle_gpus(db, EVERYTHING, 0.01, 1800, 10)
        assert [(row["username"], row["idle_gpus"]) for row in rows] == [
            ("alice", 4),
            ("bob", 2),
            ("shared", 1),
            ("seen", 1),
        ]
        assert rows[0]["idle_gpu_seconds"] == 4 * 7200
        assert len(idle_gpus(db, ALICE, 0.01, 1800, 10)) == 1
        assert len(idle_gpus(db, EVERYTHING, 0.01, 0, 10)) == 5


def test_usual_waits_are_quantiles_of_all_jobs_of_the_month(engine, store, job):
    """A median of the days' medians, weighted by their jobs, was 10 s here."""
    waits = {D0: [10] * 30 + [7200] * 29, D0 + DAY: [3600] * 20}
    records = [
        job(f"{day}-{n}", start_time=day, submit_time=day - wait, end_time=day + 9, user=user)
        for day, seconds in waits.items()
        for n, wait in enumerate(seconds)
        for user in ["alice" if n % 2 else "bob"]
    ]
    store.write(Batch(tuple(records), (), "", 0), "s")
    now = D0 + 2 * DAY
    with engine.begin() as db:
        for day in due_days(db, "c1", 100):
            roll_up(db, "c1", day, now)
        rows = usual_waits(db, EVERYTHING, "c1", now)
        by_owner = {
            (row["partition"], row["username"], row["account"]): (
                row["jobs_started"], row["wait_p50_seconds"], row["wait_p90_seconds"]
            )
            for row in rows
        }  # fmt: skip
        assert by_owner["cpu", "", ""] == (79, 3600, 7200)
        assert by_owner["", "alice", ""] == (39, 3600, 7200)
        assert by_owner["", "", records[0].account] == (79, 3600, 7200)
        for_alice = {row["username"] for row in usual_waits(db, ALICE, None, now)}
        assert for_alice == {"", "alice"}
        assert usual_waits(db, EVERYTHING, "c1", now + 2 * DAY) == []
