"""The same lives, read by each of Slurm's interfaces, give equal records."""

import json
import lzma
from itertools import chain
from math import floor
from pathlib import Path

import pytest

from batchjob.schedulers.slurm import cluster_json, cluster_text
from batchjob.schedulers.slurm.accounting.queries import collect_batch
from batchjob.schedulers.slurm.accounting.sacct_records import parse_jobs as parse_sacct
from batchjob.schedulers.slurm.accounting.sacct_records import parse_rows
from batchjob.schedulers.slurm.accounting.slurm_rest_records import parse_jobs as parse_rest
from batchjob.schedulers.slurm.accounting.squeue_records import (
    QUEUE_FIELDS,
    add_suspension_times,
    parse_json_queue,
    queued_jobs,
)
from batchjob.schedulers.states import JobState

RECORDINGS = Path(__file__).parents[4] / "fixtures" / "accounting"

# What an interface does not state. JSON has no numeric user id and no id of the database's row, and
# always the expanded path; the SLUID came with v0.0.45, the submit lines of steps as well.
UNSTATED = {"source": "", "record_id": "", "uid": None, "stdout_path": ""}
BEFORE_45 = {**UNSTATED, "sluid": "", "each_step": {"submit_line": ""}}
NO_EXIT = {"exit_code": None, "exit_signal": None}
# Up to v0.0.39 all ends have the same exit code and no signal, and there is no submit line.
BEFORE_40 = {
    **BEFORE_45, **NO_EXIT, "derived_exit_code": None, "derived_exit_signal": None,
    "submit_line": "", "each_step": {"submit_line": "", **NO_EXIT},
}  # fmt: skip


def recorded(name):
    return lzma.decompress((RECORDINGS / f"slurm-{name}.xz").read_bytes())


def jobs_from_sacct(name):
    head, _, body = recorded(f"{name}.sacct").partition(b"\n")
    fields = head.decode().strip("\x02").split("\x02")
    return by_key(collect_batch(parse_sacct("c1", parse_rows(body, fields, "\x02"))))


def jobs_from_rest(name):
    document = json.loads(recorded(f"{name}.jobs.json"))
    return by_key(collect_batch(parse_rest("slurm_rest", "c1", document)))


def by_key(batch):
    return {job.key: job for job in batch.jobs}


def comparable(record, unstated):
    """The record without what an interface does not state; CPU time to the millisecond.

    A job's CPU time is the sum of those of its steps.
    """
    values = {**record._asdict(), **unstated} if "steps" in record._fields else record._asdict()
    for name in ("cpu_seconds", "user_cpu_seconds", "system_cpu_seconds"):
        if values[name] is not None:  # sacct cuts the rest off
            values[name] = floor(values[name] * 1000 + 1e-6)
    if "steps" in values:
        for name in ("cpu_seconds", "user_cpu_seconds", "system_cpu_seconds"):
            values[name] = values[name] is not None
        steps = {each.step: comparable(each, {}) for each in values.pop("steps")}
        in_each = unstated.get("each_step", {})
        values["steps"] = {name: {**step, **in_each} for name, step in steps.items()}
    return values


@pytest.mark.parametrize(
    ("sacct", "rest", "unstated"),
    [
        ("22.05.8-lives", "22.05.8-lives", BEFORE_40),
        ("24.11.5", "24.11.5", BEFORE_45),
        ("26.05.3", "26.05.3-v0.0.44", BEFORE_45),
        ("26.05.3", "26.05.3", UNSTATED),
    ],
)
def test_sacct_and_slurmrestd_agree(sacct, rest, unstated):
    expected, found = jobs_from_sacct(sacct), jobs_from_rest(rest)
    compared = expected.keys() & found.keys()
    assert len(compared) >= min(len(expected), len(found)) > 10
    for key in compared:
        assert comparable(found[key], unstated) == comparable(expected[key], unstated)


# What the answers of a version lack that those of v0.0.44 have, by the fields in their OpenAPI
# documents (23.11, 24.05, 24.11 and 25.05); both have the same shapes. Not recorded.
JOBS_BEFORE_44 = {
    "v0.0.40": (
        "qosreq", "restart_cnt", "segment_size", "stdin", "stdout", "stderr", "stdin_expanded",
        "stdout_expanded", "stderr_expanded", "time/planned", "reservation/requested",
    ),
    "v0.0.41": ("qosreq", "restart_cnt", "segment_size", "reservation/requested"),
    "v0.0.43": (),
}  # fmt: skip
STEPS_BEFORE_43 = (
    "step/stdin", "step/stdout", "step/stderr", "step/stdin_expanded", "step/stdout_expanded",
    "step/stderr_expanded", "time/limit",
)  # fmt: skip
QUEUE_BEFORE_44 = {
    "v0.0.40": ("step_id", "submit_line", "licenses_allocated", "priority_by_partition",
                "segment_size", "stdin_expanded", "stdout_expanded", "stderr_expanded"),
    "v0.0.43": ("step_id", "submit_line"),
}  # fmt: skip
QUEUE_BEFORE_44["v0.0.41"] = QUEUE_BEFORE_44["v0.0.40"]


def without(record, paths):
    """A copy of a JSON object without the members at some paths."""
    copy = json.loads(json.dumps(record))
    for path in paths:
        *outer, name = path.split("/")
        inner = copy
        for each in outer:
            inner = inner[each]
        inner.pop(name, None)
    return copy


@pytest.mark.parametrize("version", JOBS_BEFORE_44)
def test_sacct_agrees_with_slurmrestd_made_from_the_openapi_document(version):
    document = json.loads(recorded("26.05.3-v0.0.44.jobs.json"))
    made = [without(job, JOBS_BEFORE_44[version]) for job in document["jobs"]]
    if version != "v0.0.43":
        for job in made:
            job["steps"] = [without(step, STEPS_BEFORE_43) for step in job["steps"]]
    found = by_key(collect_batch(parse_rest("slurm_rest", "c1", document | {"jobs": made})))
    unstated = BEFORE_45 | ({} if version == "v0.0.43" else {"restarts": None})
    expected = jobs_from_sacct("26.05.3")
    compared = expected.keys() & found.keys()
    assert len(compared) > 100
    for key in compared:
        assert comparable(found[key], unstated) == comparable(expected[key], unstated)


@pytest.mark.parametrize("version", QUEUE_BEFORE_44)
def test_squeue_agrees_with_slurmrestd_made_from_the_openapi_document(version):
    document = json.loads(recorded("26.05.3-v0.0.44.queue.json"))
    made = [without(job, QUEUE_BEFORE_44[version]) for job in document["jobs"]]
    if version != "v0.0.43":
        for job, later in zip(made, document["jobs"], strict=True):
            job["standard_output"] = later["stdout_expanded"]  # with its patterns expanded
    found = collect_batch(queued_jobs("slurm_rest", "c1", parse_json_queue({"jobs": made})))
    queue = queue_from_json("26.05.3").values()
    assert by_key(found) == {job.key: job._replace(sluid="", submit_line="") for job in queue}


def as_v0_0_39(job):
    """A recorded v0.0.42 job as v0.0.39 writes it, by its OpenAPI document: not recorded.

    States are one word, exit codes are less deep, and steps are identified otherwise.
    """
    flat = {"exit_code": old_exit(job["exit_code"]), "state": old_state(job["state"])}
    steps = [
        step
        | {"exit_code": old_exit(step["exit_code"]), "state": "+".join(step["state"])}
        | {"step": step["step"] | {"id": {"step_id": step["step"]["id"].partition(".")[2]}}}
        for step in job["steps"]
    ]
    return job | flat | {"derived_exit_code": old_exit(job["derived_exit_code"]), "steps": steps}


def old_state(state):
    return state | {"current": "+".join(state["current"])}


def old_exit(code):
    return {"status": "+".join(code["status"]), "return_code": {**code["return_code"], "number": 0}}


def test_records_of_v0_0_39_are_those_of_later_versions():
    document = json.loads(recorded("24.11.5.jobs.json"))
    old = document | {"jobs": [as_v0_0_39(job) for job in document["jobs"]]}
    found = by_key(collect_batch(parse_rest("slurm_rest", "c1", old)))
    derived = {"derived_exit_code": None, "derived_exit_signal": None}
    unstated = {**NO_EXIT, **derived, "each_step": NO_EXIT}
    for key, job in jobs_from_rest("24.11.5").items():
        assert comparable(found[key], unstated) == comparable(job, unstated)


def test_states_of_runs_that_were_requeued_or_resized():
    """Slurm's JSON has them as PENDING with a flag, its commands as the flag alone."""
    jobs = jobs_from_rest("26.05.3").values()
    by_state = {
        state: {(job.jobid, job.state_word) for job in jobs if job.state is state}
        for state in (JobState.REQUEUED, JobState.RESIZED)
    }
    assert by_state == {
        JobState.REQUEUED: {("34", "REQUEUED"), ("64", "REQUEUED")},
        JobState.RESIZED: {(each, "RESIZING") for each in ("35", "126", "129", "133")},
    }
    assert not [job for job in jobs if job.state is JobState.PENDING and job.start_time]


@pytest.mark.parametrize("read", [jobs_from_sacct, jobs_from_rest])
def test_parts_of_resized_jobs_follow_one_another_with_what_each_held(read):
    """26.05: the record of a first part has the allocation of the second one."""
    parts = sorted(
        (job for job in read("26.05.3").values() if job.jobid in ("35", "126", "129", "133")),
        key=lambda job: (int(job.jobid), job.submit_time),
    )
    held = [(job.allocated_cpus, job.allocated_nodes, job.allocated_memory_bytes >> 20)
            for job in parts]  # fmt: skip
    assert held == [
        (2, 2, 100), (1, 1, 50),  # one of two nodes was given back
        (2, 2, 40), (1, 1, 20),
        (1, 1, 500), (1, 1, 200),  # --mem-update
        (1, 1, 200), (1, 1, 100),
    ]  # fmt: skip
    for first, second in zip(parts[::2], parts[1::2], strict=True):
        assert first.end_time == second.start_time == second.submit_time
        whole = second.end_time - first.start_time
        assert first.elapsed_seconds + second.elapsed_seconds == whole


def test_started_jobs_have_no_reason_for_which_they_waited():
    """Slurm keeps JobArrayTaskLimit, ReqNodeNotAvail and others after the start."""
    jobs = chain(jobs_from_sacct("26.05.3").values(), jobs_from_rest("26.05.3").values())
    assert {job.reason for job in jobs if job.start_time is not None} == {""}


def queue_from_text(name, at):
    head, _, body = recorded(f"{name}.squeue").partition(b"\n")
    fields = head.decode().strip("\x02").split("\x02")
    assert tuple(fields) == QUEUE_FIELDS
    rows = add_suspension_times(parse_rows(body, fields, "\x02"), at, at)
    return by_key(collect_batch(queued_jobs("sacct", "c1", rows)))


TIMES_OF_QUEUE = (
    "EligibleTime", "StartTime", "EndTime", "ResizeTime", "TimeUsed", "TimeLimit",
)  # fmt: skip


@pytest.mark.parametrize("column", TIMES_OF_QUEUE)
def test_invalid_time_in_squeue_leaves_the_rest_of_each_row(column):
    """squeue prints INVALID where the clocks differ, or where a time is no time."""
    head, _, body = recorded("22.05.8-lives.squeue").partition(b"\n")
    fields = head.decode().strip("\x02").split("\x02")
    rows = list(parse_rows(body, fields, "\x02"))
    for row in rows:
        row.values = {**row.values, column: "INVALID"}
    found = list(queued_jobs("sacct", "c1", add_suspension_times(rows, 0, 0)))
    jobs = by_key(collect_batch(iter(found)))
    whole = queue_from_text("22.05.8-lives", 0)
    assert jobs.keys() == whole.keys()
    kept = ("state", "user", "name", "reason", "requested_cpus", "allocated_cpus", "node_list")
    for key, job in jobs.items():
        assert [getattr(job, name) for name in kept] == [getattr(whole[key], name) for name in kept]
    reasons = {bad.reason for each in found for bad in each.quarantined}
    assert all(reason.startswith(f"{column}: expected") for reason in reasons)


def queue_from_json(name):
    document = json.loads(recorded(f"{name}.queue.json"))
    return by_key(collect_batch(queued_jobs("slurm_rest", "c1", parse_json_queue(document))))


def test_squeue_and_slurmrestd_agree_on_the_queue():
    """Slurm 22.05: waiting, held, running, suspended, an array with a limit, a requeued job."""
    text, rest = queue_from_text("22.05.8-lives", 0), queue_from_json("22.05.8-lives")
    # Asked for all, slurmrestd lists those that ended a while ago as well.
    rest = {key: job for key, job in rest.items() if job.state.is_live}
    assert len(rest) == len(text) == 7
    for key, expected in text.items():
        unstated = {"source": "", "stdout_path": ""}  # JSON has the path since 24.05
        assert rest[key]._replace(**unstated) == expected._replace(**unstated), key
        assert expected.stdout_path.startswith("/home/")


@pytest.mark.parametrize("version", ["v0.0.44", "v0.0.45"])
def test_squeue_and_slurmrestd_of_26_05_agree_on_the_queue(version):
    queue = queue_from_json("26.05.3")
    assert len(queue) == 5
    assert queue_from_json(f"26.05.3-{version}") == queue


def test_waiting_jobs_have_what_the_release_gives():
    (waiting,) = [job for job in queue_from_json("26.05.3").values() if job.jobid == "15"]
    assert (waiting.state, waiting.sluid) == (JobState.PENDING, "s4PSM8DCPSP700")
    assert (waiting.priority, waiting.restarts) == (1000, 0)
    assert waiting.submit_line == "sbatch --parsable --begin=now+1hour --mem=50M --wrap sleep 5"
    assert waiting.stdout_path == "/home/dov/slurm-15.out"
    jobs = queue_from_text("22.05.8-lives", 0).values()
    assert {job.priority for job in jobs if job.reason == "JobHeldUser"} == {0}
    assert [job.restarts for job in jobs if job.name == "requeue"] == [1]
    for read in (jobs_from_sacct, jobs_from_rest):
        (waiting,) = [
            job for job in read("26.05.3").values() if job.jobid == "64" and not job.start_time
        ]
        assert (waiting.state, waiting.sluid) == (JobState.PENDING, "s4PSM8DD04DW00")
        assert (waiting.priority, waiting.restarts) == (0, 1)
        assert waiting.submit_line == "sbatch --parsable --mem=20M --wrap sleep 100"
        assert waiting.stdout_path  # the recorded sacct was not asked to expand it


@pytest.mark.parametrize(
    "flag", ["EXPEDITING", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT",
             "REQUEUED", "REVOKED"],
)  # fmt: skip
def test_waiting_job_with_a_flag_has_its_request(flag):
    (raw,) = [
        job
        for job in json.loads(recorded("26.05.3-v0.0.45.queue.json"))["jobs"]
        if job["job_id"] == 15
    ]
    plain, flagged = (
        next(queued_jobs("slurm_rest", "c1", parse_json_queue({"jobs": [raw | {"job_state": s}]})))
        for s in (["PENDING"], ["PENDING", flag])
    )
    assert (plain.job.requested_cpus, plain.job.requested_memory_bytes) == (1, 50 << 20)
    assert flagged.job == plain.job._replace(state_word=flag)


@pytest.mark.parametrize(
    ("words", "state"),
    [
        (["PENDING", "REQUEUED"], JobState.PENDING),
        (["PENDING", "REVOKED"], JobState.PENDING),
        (["PENDING", "STOPPED"], JobState.PENDING),
        (["RUNNING", "RESIZING"], JobState.RUNNING),
        (["RUNNING", "REQUEUED"], JobState.RUNNING),
        (["RUNNING", "STOPPED"], JobState.SUSPENDED),
        (["SUSPENDED", "SIGNALING"], JobState.SUSPENDED),
        (["FAILED", "COMPLETING"], JobState.RUNNING),
        (["PENDING", "COMPLETING", "REQUEUED"], JobState.RUNNING),
        (["REQUEUED"], JobState.PENDING),  # in text, which has one word
        (["RESIZING"], JobState.RUNNING),
        (["STOPPED"], JobState.SUSPENDED),
    ],
)
def test_poller_and_cluster_collector_agree_on_states(words, state):
    raw = {"job_id": 15, "job_state": words, "submit_time": 1, "start_time": 2}
    (parsed,) = queued_jobs("slurm_rest", "c1", parse_json_queue({"jobs": [raw]}))
    (of_cluster,) = cluster_json.jobs({"jobs": [raw]})
    assert (parsed.job.state, of_cluster.state) == (state, state)
    if len(words) == 1:
        table = f"JOBID|STATE|\n15|{words[0]}|\n".encode()
        assert [job.state for job in cluster_text.jobs(table)] == [state]
