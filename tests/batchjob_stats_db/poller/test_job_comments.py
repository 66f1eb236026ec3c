"""Summaries of jobs, as they are written into the scheduler's accounting."""

import base64
import gzip
import json
import threading

import pytest
import sqlalchemy as sa
from prometheus_client import CollectorRegistry, Counter

from batchjob.runtime.subprocesses import SchedulerError
from batchjob.schedulers.accounting import Batch, JobComment
from batchjob.schedulers.records import NodeShare
from batchjob_stats_db.database import schema
from batchjob_stats_db.poller.job_comments import JobCommentWriter

GIB = 2**30


class Accounting:
    """A scheduler's accounting with comments: each job has one, of the run that ended last."""

    writes_comments = True

    def __init__(self, **kept):
        self.kept, self.written, self.failing = dict(kept), {}, set()

    def comments(self, jobids):
        return {jobid: self.kept[jobid] for jobid in jobids if jobid in self.kept}

    def write_comment(self, jobid, text):
        if jobid in self.failing:
            raise SchedulerError("sacctmgr: slurmdbd does not answer")
        self.written[jobid] = text


@pytest.fixture
def add_job(store, job, now, rows):
    """Stores a job that was measured to its end: `add_job("1", nodes=(("n1", 2, 30.0),))`."""

    def add(jobid, *, nodes=(("n1", 2, 30.0),), gpus=(), coverage=1.0, **fields):
        record = job(jobid, start_time=now - 700, end_time=now - 600, allocated_nodes=len(nodes),
                     nodes=tuple(NodeShare(name, cpus=cpus, memory_bytes=8 * GIB)
                                 for name, cpus, _ in nodes), **fields)  # fmt: skip
        store.write(Batch((record,), (), "", 0), "sacct")
        (number,) = [row["id"] for row in rows(schema.job) if row["jobid"] == jobid]
        with store.engine.begin() as db:
            db.execute(sa.update(schema.job).values(usage_due_time=None))
            db.execute(sa.insert(schema.job_usage).values(
                job_id=number, source="prometheus", measured_time=now - 60 + number, samples=9,
                until_time=now - 600, dropped_series=0, nodes=len(nodes), coverage=coverage,
                caveats="", user_cpu_seconds=1.0, system_cpu_seconds=1.0,
            ))  # fmt: skip
            for name, cpus, seconds in nodes:
                db.execute(sa.insert(schema.job_node_usage).values(
                    job_id=number, node=name, cpus=cpus, cpu_seconds=seconds,
                    memory_without_cache_bytes=GIB,
                ))  # fmt: skip
            for gpu in gpus:
                db.execute(sa.insert(schema.job_gpu).values(job_id=number, **gpu))

    return add


@pytest.fixture
def run(store, now):
    """Lets a writer pass over the jobs: `run(accounting)` returns the number by outcome."""

    def run_passes(accounting, passes=1):
        registry = CollectorRegistry()
        count = Counter("comments", "", ("cluster", "outcome"), registry=registry)
        writer = JobCommentWriter(store, "sacct", accounting, count)
        errors = []
        for _ in range(passes):
            try:
                writer.run(now, threading.Event(), lambda: None)
            except SchedulerError as error:
                errors.append(str(error))
        samples = [each for family in registry.collect() for each in family.samples]
        outcomes = {s.labels["outcome"]: int(s.value) for s in samples if s.name.endswith("_total")}
        return (outcomes, errors) if errors else outcomes

    return run_passes


def decoded(text):
    assert text.startswith("JS1:")
    return json.loads(gzip.decompress(base64.b64decode(text[4:])))


def test_summary_has_every_node_and_gpu(add_job, run, now):
    gpu = {"node": "n1", "gpu_instance": "", "samples": 9, "memory_total_bytes": 80 * GIB}
    add_job(
        "1",
        nodes=(("n1", 2, 30.04), ("n2", 4, 10.0)),
        gpus=[
            gpu | {"uuid": "GPU-a", "gpu": "0", "utilization_ratio": 0.5, "memory_peak_bytes": GIB},
            gpu | {"uuid": "GPU-b", "gpu": "1", "utilization_ratio": 0.0, "memory_peak_bytes": 0},
        ],
        allocated_gpus=2,
    )
    accounting = Accounting(**{"1": JobComment(now - 600, "")})
    assert run(accounting) == {"written": 1}
    assert decoded(accounting.written["1"]) == {
        "total_time": 100,
        "gpus": 2,
        "nodes": {
            "n1": {
                "cpus": 2, "total_time": 30.0, "used_memory": GIB, "total_memory": 8 * GIB,
                "gpu_utilization": {"0": 50.0, "1": 0.0},
                "gpu_used_memory": {"0": GIB, "1": 0},
                "gpu_total_memory": {"0": 80 * GIB, "1": 80 * GIB},
            },
            "n2": {"cpus": 4, "total_time": 10.0, "used_memory": GIB, "total_memory": 8 * GIB},
        },
    }  # fmt: skip


def test_figures_of_gpus_are_left_out_where_one_is_unknown(add_job, run, now):
    """A reader takes a GPU that is missing from one of the three lists for an idle one."""
    gpu = {"node": "n1", "gpu_instance": "", "samples": 9, "memory_total_bytes": 80 * GIB,
           "memory_peak_bytes": GIB}  # fmt: skip
    gpus = [gpu | {"uuid": "GPU-a", "gpu": "0", "utilization_ratio": 0.5},
            gpu | {"uuid": "GPU-b", "gpu": "1", "utilization_ratio": None}]  # fmt: skip
    add_job("1", gpus=gpus, allocated_gpus=2)
    accounting = Accounting(**{"1": JobComment(now - 600, "")})
    run(accounting)
    assert "gpu_utilization" not in decoded(accounting.written["1"])["nodes"]["n1"]


def test_comments_of_the_site_and_of_other_runs_are_left_alone(add_job, run, now):
    for jobid in ("1", "2", "3"):
        add_job(jobid)
    accounting = Accounting(
        **{"1": JobComment(now - 600, "refunded, ticket 17"), "2": JobComment(now - 10, "")}
    )
    assert run(accounting, passes=3) == {"left alone": 1, "no record": 2}
    assert accounting.written == {}


def test_job_that_was_not_measured_to_its_end_has_no_summary(add_job, run, now):
    add_job("1", coverage=0.9)
    add_job("2")
    ended = JobComment(now - 600, "")
    accounting = Accounting(**{"1": ended, "2": ended})
    assert run(accounting) == {"written": 1, "incomplete": 1}
    assert accounting.written.keys() == {"2"}


def test_short_job_has_the_word_that_jobstats_writes(store, add_job, run, now, rows):
    add_job("1")
    with store.engine.begin() as db:
        db.execute(sa.update(schema.job).values(start_time=now - 630))
    accounting = Accounting(**{"1": JobComment(now - 600, "")})
    run(accounting)
    assert accounting.written == {"1": "JS1:Short"}


def test_outage_loses_no_comment_and_one_bad_job_does_not_stop_the_others(add_job, run, now):
    for jobid in ("1", "2", "3"):
        add_job(jobid)
    accounting = Accounting(**{jobid: JobComment(now - 600, "") for jobid in ("1", "2", "3")})
    accounting.failing = {"2"}
    outcomes, errors = run(accounting, passes=3)
    assert outcomes == {"written": 2, "failed": 1}
    assert errors == ["sacctmgr: slurmdbd does not answer"] * 2
    assert accounting.written.keys() == {"1", "3"}
