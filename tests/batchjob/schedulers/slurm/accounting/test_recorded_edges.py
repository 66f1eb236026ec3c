"""Edges of jobs' lives as Slurm 26.05.3 and 22.05.8 recorded them: the figures of each."""

from pathlib import Path

import pytest

from batchjob.schedulers.fields import FieldReader
from batchjob.schedulers.slurm.accounting.sacct_records import parse_rows
from batchjob.schedulers.slurm.accounting.squeue_records import QUEUE_FIELDS, queued_jobs
from batchjob.schedulers.states import JobState
from tests.batchjob.schedulers.slurm.accounting.test_sources_agree import (
    jobs_from_rest,
    jobs_from_sacct,
    queue_from_json,
    queue_from_text,
)

GOLDEN = Path(__file__).parents[4] / "golden"
MB = 1 << 20
EDGES = {
    "time limit of a minute; its end may be late": (
        "7", JobState.TIMEOUT,
        {"time_limit_seconds": 60, "elapsed_seconds": 76, "exit_code": 0, "exit_signal": 0},
    ),
    "held for 209 s, which is no wait": ("14", JobState.COMPLETED, {"wait": 0, "held": 209}),
    "licences: those that AccountingStorageTRES names, as matlab but not abaqus": (
        "16", JobState.COMPLETED,
        {"allocated_resources": "billing=1,cpu=1,license/matlab=2,mem=50M,node=1"},
    ),
    "--exclusive -n1: all CPUs of the node, and the memory asked for": (
        "26", JobState.COMPLETED,
        {"requested_cpus": 1, "allocated_cpus": 2, "allocated_memory_bytes": 50 * MB},
    ),
    "--mem=0: the memory of the node": (
        "27", JobState.COMPLETED,
        {"requested_memory_bytes": 4000 * MB, "allocated_memory_bytes": 4000 * MB},
    ),
    "-t 10, changed to 20 while it ran": ("36", JobState.COMPLETED, {"time_limit_seconds": 1200}),
    "shards are no GPUs": ("37", JobState.COMPLETED, {"allocated_gpus": None}),
    "preempted: nobody cancelled it": (
        "39", JobState.PREEMPTED, {"cancelled_by": "", "exit_signal": 0, "reason": ""},
    ),
    "-N4 --mem=20M: memory is that of all nodes": (
        "66", JobState.COMPLETED,
        {"requested_nodes": 4, "requested_memory_bytes": 80 * MB, "allocated_cpus": 4},
    ),
    "task of an array with %2: eligible once the one before it has ended": (
        "72", JobState.COMPLETED, {"wait": 0, "held": 8},
    ),
    "suspended for 193 s": (
        "104", JobState.COMPLETED,
        {"elapsed_seconds": 6, "suspended_seconds": 193, "cpu_seconds": 4.622},
    ),
    "salloc without srun: its step `extern` used nothing that is known": (
        "109", JobState.COMPLETED, {"cpu_seconds": None, "peak_memory_bytes": None},
    ),
    "node failed": (
        "60", JobState.NODE_FAIL, {"cpu_seconds": None, "peak_memory_bytes": None, "wait": 1},
    ),
    "run again after its node failed, eligible after two minutes": (
        "61", JobState.COMPLETED, {"held": 121, "elapsed_seconds": 61, "cpu_seconds": 0.004},
    ),
    "out of memory in a step": (
        "30", JobState.FAILED,
        {"exit_code": 1, "derived_exit_code": 0, "derived_exit_signal": 125,
         "peak_memory_bytes": 99_229_696, "cpu_seconds": 0.156},
    ),
    "out of memory in a step, and the script goes on": (
        "32", JobState.COMPLETED,
        {"exit_code": 0, "derived_exit_signal": 125, "peak_memory_bytes": 83_439_616},
    ),
    "out of memory in the script": (
        "31", JobState.OUT_OF_MEMORY,
        {"exit_signal": 125, "derived_exit_signal": 0, "peak_memory_bytes": 104_411_136},
    ),
}  # fmt: skip


@pytest.fixture(scope="module", params=[jobs_from_sacct, jobs_from_rest])
def jobs(request):
    """The jobs of 26.05.3 by id and state."""
    return {(job.jobid, job.state): job for job in request.param("26.05.3").values()}


@pytest.mark.parametrize("edge", EDGES)
def test_figures_of_a_recorded_edge(jobs, edge):
    jobid, state, expected = EDGES[edge]
    job = jobs[jobid, state]
    figures = job._asdict() | {"held": job.eligible_time - job.submit_time}
    figures["wait"] = job.start_time - job.eligible_time
    assert {name: figures[name] for name in expected} == pytest.approx(expected, abs=0.001)


def test_steps_of_ends_from_outside(jobs):
    """The signal that a step ended by is SIGTERM, whatever `scancel` sent; a lost node has none."""
    for jobid, state, code, signal in (
        ("7", JobState.TIMEOUT, 0, 15),
        ("39", JobState.PREEMPTED, 0, 15),
        ("60", JobState.NODE_FAIL, None, None),
    ):
        (batch,) = [step for step in jobs[jobid, state].steps if step.step == "batch"]
        ended = batch.state, batch.exit_code, batch.exit_signal
        assert ended == (JobState.CANCELLED, code, signal)


def test_waiting_jobs_have_the_reason_of_the_controller():
    """Accounting keeps `Dependency` where squeue says that it is never satisfied."""
    for queue in (queue_from_json("26.05.3"), queue_from_text("22.05.8-lives", 0)):
        waiting = [job for job in queue.values() if job.state is JobState.PENDING]
        reasons = {job.reason: job.eligible_time for job in waiting}
        assert reasons["BeginTime"] > max(job.submit_time for job in waiting)
        assert reasons["DependencyNeverSatisfied"] is None


def test_sluid_is_the_exporters_after_a_requeue_and_after_a_resize():
    """A requeue makes a new directory; a resize keeps the first one, `OriginalSLUID`."""
    runs = {(job.jobid, job.state): job.sluid for job in jobs_from_rest("26.05.3-v2").values()}
    assert runs == {
        ("1", JobState.REQUEUED): "s8N5M8DDGS5600",
        ("1", JobState.RUNNING): "s8N5M8DDHNSJ00",
        ("3", JobState.RESIZED): "s8N5M8DDH3XD00",
        ("3", JobState.COMPLETED): "s8N5M8DDH3XD00",
    }
    tree = "slurm-26.05-v2-sluid-io-pids-05-requeued-run-srun-salloc.prom"  # of the same minute
    exposed = (GOLDEN / tree).read_text().splitlines()
    (info,) = [line for line in exposed if line.startswith("batchjob_job_info") and '"1"' in line]
    assert 'sluid="s8N5M8DDHNSJ00"' in info


@pytest.mark.parametrize("name", ["a|b", "x\ny|dsu1", 'q"`', "n" * 300, "(null)", ""])
def test_name_in_squeue_shifts_no_column(name):
    row = dict.fromkeys(QUEUE_FIELDS, "N/A") | {
        "JobID": "7", "JobArrayID": "7", "State": "PENDING", "SubmitTime": "1795754551",
        "UserName": "dsu1", "Name": name,
    }  # fmt: skip
    others = [row | {"JobID": each, "JobArrayID": each} for each in ("8", "9")]
    text = "".join("".join(f"{cell}\x1f!" for cell in each.values()) + "\n"
                   for each in (others[0], row, others[1]))  # fmt: skip
    rows = list(parse_rows(text.encode(), QUEUE_FIELDS, "\x1f!"))
    assert all(isinstance(each, FieldReader) for each in rows)
    found = [(each.job.jobid, each.job.user, each.job.name) for each in queued_jobs("s", "c", rows)]
    assert found == [(jobid, "dsu1", name) for jobid in ("8", "7", "9")]
