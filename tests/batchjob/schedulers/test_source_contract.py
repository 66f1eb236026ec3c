"""One set of made-up lives, as each source of records would tell it: the rows must be equal."""

import functools
import json
import os
import time
from datetime import UTC
from typing import NamedTuple

import pytest

from batchjob.local_runs.accounting import LocalRunsOptions, Runs
from batchjob.local_runs.record import Run, current_process, write
from batchjob.schedulers.accounting import UnfinishedJob
from batchjob.schedulers.fields import FieldReader
from batchjob.schedulers.json_lines import job_record
from batchjob.schedulers.lsf.accounting import bjobs, lsb_acct, lsb_stream
from batchjob.schedulers.lsf.accounting.event_records import split_words
from batchjob.schedulers.pbs.accounting import qstat
from batchjob.schedulers.pbs.accounting.log_line import parse_line
from batchjob.schedulers.pbs.accounting.log_replay import PbsLogReplay
from batchjob.schedulers.pbs.accounting.records import RecordOptions
from batchjob.schedulers.pbs.qstat_jobs import parse_json_jobs
from batchjob.schedulers.reallocation import with_seen_change
from batchjob.schedulers.records import NodeShare, merge_records
from batchjob.schedulers.slurm import cluster_json, cluster_text
from batchjob.schedulers.slurm.accounting import (
    sacct_records,
    slurm_rest_records,
    squeue_records,
)
from batchjob.schedulers.states import JobState
from tests.batchjob.schedulers.lsf.lsf import finish_line
from tests.batchjob.schedulers.pbs.pbs import log_line, unfinished_jobs

BEGIN = 1_795_100_040
HOUR = 3600


class Life(NamedTuple):
    """A job with 4 CPUs on node01, and what must be stored of it."""

    state: JobState
    start: int | None  # seconds after its submission
    end: int
    suspended: int = 0
    code: int | None = 0  # its own exit status
    index: int | None = None  # in an array
    # How the schedulers say the end.
    pbs_status: int = 0
    lsf_info: int = 0
    slurm_word: str = "COMPLETED"
    limit: int = 10 * HOUR
    counted: int | None = None  # what the scheduler says of its run time, where that is impossible
    gpus: int = 0
    resized: int = 0  # seconds after its submission

    @property
    def told(self) -> int | None:
        """The run time that the scheduler's counter shows."""
        return self.ran if self.counted is None else self.counted

    @property
    def ran(self) -> int | None:
        """Run time in seconds, without suspensions."""
        return None if self.start is None else self.end - self.start - self.suspended


LIVES = {
    "plain": Life(JobState.COMPLETED, 60, HOUR + 60),
    "suspended": Life(JobState.COMPLETED, 60, 3 * HOUR + 60, suspended=2 * HOUR),
    "failed": Life(JobState.FAILED, 60, HOUR, code=7, pbs_status=7, slurm_word="FAILED"),
    "timeout": Life(
        JobState.TIMEOUT, 60, 660, code=None, pbs_status=-29, lsf_info=5, slurm_word="TIMEOUT",
        limit=600,
    ),
    "task": Life(JobState.COMPLETED, 60, 120, index=3),
    "cancelled before its start": Life(
        JobState.CANCELLED, None, 600, code=None, lsf_info=14, slurm_word="CANCELLED by 1001"
    ),
    "of no length": Life(JobState.COMPLETED, 60, 60),
    "with a counter beyond its life": Life(JobState.COMPLETED, 60, HOUR + 60, counted=9 * HOUR),
    "with GPUs": Life(JobState.COMPLETED, 60, HOUR + 60, gpus=2),
}  # fmt: skip


def pbs_log(life):
    jobid = "7.srv" if life.index is None else f"7[{life.index}].srv"
    job = (
        f"user=alice group=g account=projA jobname=train queue=gpu ctime={BEGIN} etime={BEGIN} "
        f"Resource_List.ncpus=4 Resource_List.walltime={clock(life.limit)}"
    )
    vnode = "(node01:ncpus=4)"
    if life.gpus:
        job += f" Resource_List.ngpus={life.gpus}"
        vnode = f"(node01:ncpus=4:ngpus={life.gpus})"
    lines = log_line(BEGIN, "Q", jobid, job)
    if life.start is None:
        lines += log_line(BEGIN + life.end, "D", jobid, "requestor=alice@login")
    else:
        start = f"{job} start={BEGIN + life.start} exec_host=node01/0*4 exec_vnode={vnode}"
        lines += log_line(BEGIN + life.start, "S", jobid, start)
        if life.suspended:
            lines += log_line(BEGIN + life.start + 30, "z", jobid)
            lines += log_line(BEGIN + life.start + 30 + life.suspended, "r", jobid)
        used = f"resources_used.walltime={clock(life.told)} resources_used.cput=00:00:10"
        end = f"{start} session=5 end={BEGIN + life.end} Exit_status={life.pbs_status} {used}"
        lines += log_line(BEGIN + life.end, "E", jobid, end)
    replay = PbsLogReplay(RecordOptions("c1", "pbs_log"))
    record = None
    for line in lines.splitlines():
        for each in replay.records(parse_line(line, UTC, 0)):
            record = each if record is None else merge_records(record, each)
    return record


def pbs_qstat(life):
    jobid = "7.srv" if life.index is None else f"7[{life.index}].srv"
    job = {
        "Job_Name": "train", "Job_Owner": "alice@login", "euser": "alice", "egroup": "g",
        "Account_Name": "projA", "job_state": "F", "queue": "gpu", "ctime": date(BEGIN),
        "etime": date(BEGIN), "Resource_List": {"ncpus": 4, "walltime": clock(life.limit)},
        "history_timestamp": BEGIN + life.end, "substate": 91 if life.start is None else 92,
    }  # fmt: skip
    if life.start is not None:
        job |= {
            "stime": date(BEGIN + life.start), "exec_host": "node01/0*4", "run_count": 1,
            "exec_vnode": "(node01:ncpus=4)", "Exit_status": life.pbs_status,
            "resources_used": {"walltime": clock(life.told), "cput": "00:00:10"},
        }  # fmt: skip
        if life.gpus:
            job["Resource_List"]["ngpus"] = life.gpus
            job["exec_vnode"] = f"(node01:ncpus=4:ngpus={life.gpus})"
        job |= {} if life.suspended else {"session_id": 5}  # a suspension ends the session
    row = parse_json_jobs(json.dumps({"Jobs": {jobid: job}}).encode())[jobid]
    return qstat.finished_record(RecordOptions("c1", "qstat"), jobid, FieldReader(row))


def lsf_acct(life):
    start, code = life.start, life.code or 0
    done = life.state is JobState.COMPLETED
    status = (64 if done else 32, code << 8)
    line = finish_line(
        head=f'"JOB_FINISH" "10.1" {BEGIN + life.end} 7 1001 33554435 4 {BEGIN} 0 0 '
        f'{0 if start is None else BEGIN + start} "alice"',
        hosts='4 "node01" "node01" "node01" "node01"' if start is not None else "0",
        slots='4 "node01" "node01" "node01" "node01"' if start is not None else "0",
        status=f"{status[0]} 12.5", name='"train"', info=str(life.lsf_info),
        exit=f'"" "projA" {status[1]} 4 "" "" {life.index or 0} 2097152 4194304 "" "" "" "" 0 ""',
        limits=f"{life.limit} 4194304 1500000",
        more=f'"" -1 "" "" "" "" -1 "" "" 5136 "" {BEGIN + (life.resized or start or 0)} "" ""',
        rest=f'"" -1 "" -1 0 "" 0 0 "" {life.told or 0} "/home/alice/run" 0 "" '
        "0.000000 0.00 0.00 0.00 0.00",
    )  # fmt: skip
    return lsb_acct.job_from_finish("c1", split_words(line))[0]


def lsf_stream(life):
    code = (life.code or 0) << 8
    pairs = {
        "userId": 1001, "userName": "alice", "queue": "gpu", "jobName": "train",
        "projectName": "projA", "submitTime": BEGIN, "numProcessors": 4, "exitStatus": code,
        "jStatus": 64 if life.state is JobState.COMPLETED else 32, "exitInfo": life.lsf_info,
        "index": life.index or 0, "runLimit": life.limit,
    }  # fmt: skip
    if life.start is not None:
        pairs |= {
            "startTime": BEGIN + life.start, "runTime": life.told, "execHosts": "node01",
            "slotUsages": 4, "lastResizeTime": BEGIN + (life.resized or life.start),
        }  # fmt: skip
    words = " ".join(f'"{name}" "{value}"' for name, value in pairs.items() if value)
    line = f'"JOB_FINISH2" "10.1" {BEGIN + life.end} 7 {len(pairs)} {words}'
    return lsb_stream.job_from_finish2("c1", split_words(line))[0]


def lsf_bjobs(life):
    row = {
        "JOBID": "7", "JOBINDEX": str(life.index or 0), "USER": "alice", "QUEUE": "gpu",
        "JOB_NAME": "train", "PROJ_NAME": "projA", "NREQ_SLOT": "4",
        "STAT": "DONE" if life.state is JobState.COMPLETED else "EXIT",
        "SUBMIT_TIME": lsf_date(BEGIN), "FINISH_TIME": lsf_date(BEGIN + life.end),
        "START_TIME": "-" if life.start is None else lsf_date(BEGIN + life.start),
        "ALLOC_SLOT": "-" if life.start is None else "4*node01",
        "RUN_TIME": f"{life.told or 0} second(s)", "RUNTIMELIMIT": str(life.limit / 60),
        "EXIT_CODE": str(life.code or ""),
        "EXIT_REASON": bjobs.LSF_EXIT_INFO[life.lsf_info][0] if life.lsf_info else "",
    }  # fmt: skip
    return bjobs.job_record("c1", FieldReader(row), BEGIN + 10 * HOUR)


def slurm_sacct(life):
    never = life.start is None
    tres = "" if never else "cpu=4,node=1,billing=4"
    tres += f",gres/gpu={life.gpus}" * bool(life.gpus)
    row = {
        "JobIDRaw": "7", "JobID": "7" if life.index is None else f"7_{life.index}",
        "State": life.slurm_word, "ExitCode": f"{life.code or 0}:0", "User": "alice", "UID": "1001",
        "Group": "g", "Account": "projA", "Partition": "gpu", "JobName": "train",
        "Submit": str(BEGIN), "Start": "None" if never else str(BEGIN + life.start),
        "End": str(BEGIN + life.end), "ElapsedRaw": str(life.told or 0), "ReqCPUS": "4",
        "Suspended": clock(life.suspended), "TimelimitRaw": str(life.limit // 60),
        "AllocTRES": tres, "AllocCPUS": "0" if never else "4",
        "NodeList": "None assigned" if never else "node01",
    }  # fmt: skip
    return sacct_records.job_record("c1", "7", FieldReader(row))


def slurm_rest(life):
    never = life.start is None
    tres = [] if never else [{"type": "cpu", "count": 4}, {"type": "node", "count": 1}]
    tres += [{"type": "gres", "name": "gpu", "count": life.gpus}] * bool(life.gpus)
    job = {
        "job_id": 7, "user": "alice", "group": "g", "account": "projA", "partition": "gpu",
        "name": "train", "state": {"current": [life.slurm_word.split()[0]], "reason": "None"},
        "exit_code": {"return_code": life.code or 0, "status": ["SUCCESS"]},
        "time": {
            "submission": BEGIN, "start": 0 if never else BEGIN + life.start,
            "end": BEGIN + life.end, "elapsed": life.told or 0, "suspended": life.suspended,
            "limit": life.limit // 60,
        },
        "required": {"CPUs": 4}, "tres": {"allocated": tres, "requested": []},
        "nodes": "None assigned" if never else "node01",
        "array": {} if life.index is None else {"job_id": 7, "task_id": life.index},
    }  # fmt: skip
    ((record, _),) = slurm_rest_records.parse_jobs("slurm_rest", "c1", {"jobs": [job]})
    return record


def json_lines(life):
    never = life.start is None
    held = {"allocated_cpus": 4, "allocated_gpus": life.gpus or None}
    held["nodes"] = [{"node": "node01", "cpus": 4}]
    line = {
        "jobid": "7", "submit_time": BEGIN, "state": life.state, "user": "alice", "uid": 1001,
        "account": "projA", "partition": "gpu", "name": "train", "requested_cpus": 4,
        "time_limit_seconds": life.limit, "end_time": BEGIN + life.end, "exit_code": life.code,
        "suspended_seconds": life.suspended or None, "elapsed_seconds": life.told,
        "array_index": life.index, "array_jobid": "" if life.index is None else "7",
        **({} if never else {"start_time": BEGIN + life.start, **held}),
    }  # fmt: skip
    record, problems = job_record(json.loads(json.dumps(line)), "c1")
    assert problems == ()
    return record


def clock(seconds):
    return f"{seconds // HOUR:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"


def date(at):
    return time.strftime("%a %b %d %H:%M:%S %Y", time.gmtime(at))


def lsf_date(at):
    return time.strftime("%b %d %H:%M:%S %Y", time.gmtime(at))


LSF = (lsf_acct, lsf_stream, lsf_bjobs)  # whose records name GPUs in other ways
SOURCES = [pbs_log, pbs_qstat, lsf_acct, lsf_stream, lsf_bjobs, slurm_sacct, slurm_rest, json_lines]


@pytest.mark.parametrize("life", LIVES.values(), ids=LIVES)
@pytest.mark.parametrize("tell", SOURCES, ids=lambda source: source.__name__)
def test_every_source_tells_the_same(tell, life):
    job = tell(life)
    start = None if life.start is None else BEGIN + life.start
    assert (job.state, job.submit_time, job.start_time, job.end_time) == (
        life.state, BEGIN, start, BEGIN + life.end,
    )  # fmt: skip
    assert (job.user, job.account, job.partition, job.name) == ("alice", "projA", "gpu", "train")
    assert job.time_limit_seconds == life.limit
    assert job.array_index == life.index
    assert bool(job.array_jobid) == (life.index is not None)
    assert job.requested_cpus == 4
    if life.start is None:  # it holds nothing, and never did
        held = (job.allocated_cpus, job.elapsed_seconds, job.suspended_seconds, *job.nodes)
        assert not any(held)
        return
    assert (job.elapsed_seconds, job.suspended_seconds) == (life.ran, life.suspended)
    assert job.allocated_cpus == 4
    if life.gpus:
        assert job.allocated_gpus in (life.gpus, None)
        assert tell in LSF or job.allocated_gpus == life.gpus
    assert [(share.node, share.cpus) for share in job.nodes] == [("node01", 4)]
    if life.code is not None:
        assert job.exit_code == life.code


RUNS = [
    name
    for name, life in LIVES.items()
    if life.suspended == 0 and life.index is None and life.counted is None
]
"""The lives that a run of `batchjob run` can have; the clock of its own run time is believed."""


@pytest.mark.parametrize("name", RUNS)
def test_records_of_runs_tell_the_same(name, tmp_path):
    life, jobid = LIVES[name], "0f3a2b1c-0000-4000-8000-000000000007"
    held = {} if life.start is None else {"allocated_cpus": 4.0, "allocated_gpus": life.gpus}
    run = Run(
        jobid, "node01", "alice", os.geteuid(), BEGIN,
        None if life.start is None else BEGIN + life.start, life.state, current_process(),
        name="train", end_time=BEGIN + life.end, exit_code=life.code,
        time_limit_seconds=float(life.limit), **held,
    )  # fmt: skip
    write(tmp_path, run)
    batches = list(Runs("c1", LocalRunsOptions(path=str(tmp_path))).read("0", {}))
    (job,) = (job for batch in batches for job in batch.jobs)
    start = None if life.start is None else BEGIN + life.start
    assert (job.state, job.submit_time, job.start_time, job.end_time, job.name) == (
        life.state, BEGIN, start, BEGIN + life.end, "train",
    )  # fmt: skip
    assert (job.time_limit_seconds, job.exit_code) == (life.limit, life.code)
    assert (job.elapsed_seconds, job.allocated_cpus) == (life.ran, held.get("allocated_cpus"))
    assert (job.allocated_gpus or 0) == life.gpus
    assert [share.node for share in job.nodes] == ["node01"] * (life.start is not None)


def scontrol_text(state, cpus, gpus):
    line = (
        f"NodeName=node01 CPUAlloc={cpus} CPUEfctv=8 CPUTot=8 Gres=gpu:4 GresUsed=gpu:{gpus} "
        f"RealMemory=16384 AllocMem=0 State={state} Partitions=gpu \n"
    )
    return cluster_text.nodes(line.encode())


def scontrol_json(state, cpus, gpus):
    node = {
        "name": "node01", "state": [state], "cpus": 8, "effective_cpus": 8, "alloc_cpus": cpus,
        "gres": "gpu:4", "gres_used": f"gpu:{gpus}", "real_memory": 16384, "alloc_memory": 0,
        "partitions": ["gpu"],
    }  # fmt: skip
    return cluster_json.nodes({"nodes": [node]})


@pytest.mark.parametrize("tell", [scontrol_text, scontrol_json])
@pytest.mark.parametrize("name", ["plain", "with GPUs"])
def test_node_holds_what_its_job_holds(tell, name):
    job = slurm_sacct(LIVES[name])
    (node,) = tell("MIXED", job.allocated_cpus, job.allocated_gpus or 0)
    (share,) = job.nodes
    assert (node.name, node.state, node.partitions) == (share.node, "mixed", (job.partition,))
    assert (node.cpus, node.cpus_allocated) == (8, share.cpus)
    assert (node.gpus, node.gpus_allocated) == (4, share.gpus or 0)


NOW = BEGIN + HOUR


class Moment(NamedTuple):
    """A job with 4 CPUs an hour after its submission; it started after a minute."""

    state: JobState
    ran: int = 0
    suspended: int | None = None  # seconds, where they are over

    @property
    def has_started(self) -> bool:
        """Whether it holds something."""
        return self.state is not JobState.PENDING


MOMENTS = {
    "waiting": Moment(JobState.PENDING),
    "running": Moment(JobState.RUNNING, HOUR - 60),
    "suspended": Moment(JobState.SUSPENDED, 600),
    "resumed": Moment(JobState.RUNNING, 600, suspended=HOUR - 660),
}


def squeue_text(moment):
    queue = {
        "JobID": "7", "JobArrayID": "7", "UserName": "alice", "UserID": "1001", "GroupName": "g",
        "Account": "projA", "Partition": "gpu", "QOS": "normal", "State": moment.state.value,
        "Reason": "None", "SubmitTime": str(BEGIN), "EligibleTime": str(BEGIN),
        "StartTime": str(BEGIN + 60) if moment.has_started else "N/A", "EndTime": "N/A",
        "ResizeTime": "N/A", "TimeUsed": str(moment.ran // 60) + ":00", "TimeLimit": "10:00:00",
        "tres-alloc": "cpu=4,mem=8G,node=1,billing=4", "Name": "train",
        "NodeList": "node01" if moment.has_started else "", "Dependency": "(null)",
        "Reservation": "(null)", "WorkDir": "/w", "PriorityLong": "1", "RestartCnt": "0",
        "STDOUT": "",
    }  # fmt: skip
    rows = squeue_records.add_suspension_times([FieldReader(queue)], NOW, NOW)
    ((record, _),) = squeue_records.queued_jobs("sacct", "c1", rows)
    return record


def squeue_json(moment):
    changed = {}
    if moment.state is JobState.SUSPENDED:
        changed = {"suspend_time": BEGIN + 660, "pre_sus_time": 600}
    elif moment.suspended is not None:  # it has run for no time since
        changed = {"suspend_time": NOW, "pre_sus_time": 600}
    job = {
        "job_id": 7, "user_name": "alice", "user_id": 1001, "group_name": "g", "account": "projA",
        "partition": "gpu", "qos": "normal", "job_state": [moment.state.value], "name": "train",
        "submit_time": BEGIN, "eligible_time": BEGIN, "time_limit": 600,
        "start_time": BEGIN + 60 if moment.has_started else 0,
        "tres_alloc_str": "cpu=4,node=1" if moment.has_started else "",
        "tres_req_str": "cpu=4,node=1", "nodes": "node01" if moment.has_started else "", **changed,
    }  # fmt: skip
    rows = squeue_records.parse_json_queue({"jobs": [job]})
    ((record, _),) = squeue_records.queued_jobs("slurm_rest", "c1", rows)
    return record


def pbs_log_so_far(moment):
    job = (
        f"user=alice group=g account=projA jobname=train queue=gpu ctime={BEGIN} etime={BEGIN} "
        "Resource_List.ncpus=4 Resource_List.walltime=10:00:00"
    )
    lines = log_line(BEGIN, "Q", "7.srv", job)
    if moment.has_started:
        held = f"start={BEGIN + 60} exec_host=node01/0*4 exec_vnode=(node01:ncpus=4)"
        lines += log_line(BEGIN + 60, "S", "7.srv", f"{job} {held}")
    if moment.state is JobState.SUSPENDED or moment.suspended:
        lines += log_line(BEGIN + 660, "z", "7.srv")
    if moment.suspended:
        lines += log_line(NOW, "r", "7.srv")
    replay, record = PbsLogReplay(RecordOptions("c1", "pbs_log")), None
    for line in lines.splitlines():
        for each in replay.records(parse_line(line, UTC, 0)):
            record = each if record is None else merge_records(record, each)
    return record


def bjobs_so_far(moment):
    word = {JobState.PENDING: "PEND", JobState.RUNNING: "RUN", JobState.SUSPENDED: "USUSP"}
    row = {
        "JOBID": "7", "JOBINDEX": "0", "USER": "alice", "QUEUE": "gpu", "JOB_NAME": "train",
        "PROJ_NAME": "projA", "NREQ_SLOT": "4", "STAT": word[moment.state],
        "SUBMIT_TIME": lsf_date(BEGIN), "FINISH_TIME": "-", "RUNTIMELIMIT": "600.0",
        "START_TIME": lsf_date(BEGIN + 60) if moment.has_started else "-",
        "ALLOC_SLOT": "4*node01" if moment.has_started else "-",
        "RUN_TIME": f"{moment.ran} second(s)",
    }  # fmt: skip
    source = bjobs.Bjobs("c1", bjobs.BjobsOptions())
    (record,) = source.records("7", FieldReader(row), _known(moment), NOW)
    return record


def _known(moment, jobid="7"):
    """The job as the database has it from an earlier poll, while it was suspended."""
    if moment.suspended is None:
        return {}
    return {jobid: UnfinishedJob(BEGIN, 1, BEGIN + 60, JobState.SUSPENDED, 600)}


def qstat_so_far(moment):
    letter = {JobState.PENDING: "Q", JobState.RUNNING: "R", JobState.SUSPENDED: "S"}
    job = {
        "Job_Name": "train", "Job_Owner": "alice@login", "euser": "alice", "egroup": "g",
        "Account_Name": "projA", "job_state": letter[moment.state], "queue": "gpu",
        "ctime": date(BEGIN), "etime": date(BEGIN),
        "Resource_List": {"ncpus": 4, "walltime": "10:00:00"},
    }  # fmt: skip
    if moment.has_started:
        job |= {
            "stime": date(BEGIN + 60), "exec_host": "node01/0*4", "run_count": 1,
            "exec_vnode": "(node01:ncpus=4)", "resources_used": {"walltime": clock(moment.ran)},
            # When the server changed the job, as it does with a suspension.
            "mtime": date(NOW if moment.suspended else BEGIN + 60 + moment.ran),
        }  # fmt: skip
    row = parse_json_jobs(json.dumps({"Jobs": {"7.srv": job}}).encode())["7.srv"]
    source = qstat.Qstat("c1", qstat.QstatOptions())
    records = source.records("7.srv", FieldReader(row), _known(moment, "7.srv"), NOW)
    return records[-1]


@pytest.mark.parametrize("moment", MOMENTS.values(), ids=MOMENTS)
@pytest.mark.parametrize(
    "tell", [squeue_text, squeue_json, pbs_log_so_far, qstat_so_far, bjobs_so_far],
    ids=lambda source: source.__name__,
)  # fmt: skip
def test_every_source_tells_the_same_of_a_job_that_has_not_ended(tell, moment):
    job = tell(moment)
    start = BEGIN + 60 if moment.has_started else None
    assert (job.state, job.submit_time, job.start_time, job.end_time) == (
        moment.state, BEGIN, start, None,
    )  # fmt: skip
    assert (job.user, job.account, job.partition, job.name) == ("alice", "projA", "gpu", "train")
    assert (job.requested_cpus or job.allocated_cpus, job.time_limit_seconds) == (4, 10 * HOUR)
    held = [(share.node, share.cpus) for share in job.nodes]
    assert held == ([("node01", 4)] if moment.has_started else [])
    assert job.allocated_cpus == (4 if moment.has_started else None)
    if moment.state is JobState.SUSPENDED:
        assert job.elapsed_seconds == moment.ran  # from which the time of suspension follows
    if moment.suspended is not None:
        assert job.suspended_seconds == moment.suspended


def pbs_phases():
    return pbs_phases_read_from("S")


def pbs_change_after_the_end():
    return pbs_phases_read_from("S", change=BEGIN + 90_000)


def pbs_phases_read_from(letter, change=BEGIN + 660, after=""):
    """A job that gave back a node, of which the first line that is read has this letter."""
    job = f"user=alice ctime={BEGIN} etime={BEGIN} start={BEGIN + 60}"
    both = "exec_host=n1/0*4+n2/0*4 exec_vnode=(n1:ncpus=4)+(n2:ncpus=4)"
    one = "exec_host=n1/0*4 exec_vnode=(n1:ncpus=4)"
    end = f"end={BEGIN + 3660} Exit_status=0 session=5"
    # The walltime of a phase is its own, that of the end is the job's.
    first, last = (f"resources_used.walltime={clock(seconds)}" for seconds in (600, 3000))
    lines = (
        log_line(BEGIN + 60, "S", "7.srv", f"{job} {both}")
        + log_line(change, "u", "7.srv", f"{job} {both} end={BEGIN + 660} {first}")
        + log_line(change, "c", "7.srv", f"{job} {after or one}")
        + log_line(BEGIN + 3660, "e", "7.srv", f"{job} {one} {end} {last}")
        + log_line(BEGIN + 3660, "E", "7.srv", f"{job} {both} {end}")
    ).splitlines()
    begin = next(index for index, line in enumerate(lines) if f";{letter};" in line)
    replay, record = PbsLogReplay(RecordOptions("c1", "pbs_log")), None
    for line in lines[begin:]:
        for each in replay.records(parse_line(line, UTC, 0)):
            record = each if record is None else merge_records(record, each)
    return record


def pbs_third_phase():
    """The end of its second phase is the first line that is read."""
    job = f"user=alice ctime={BEGIN} etime={BEGIN} start={BEGIN + 60}"
    two, one = ("exec_host=" + "+".join(f"n{each}/0*4" for each in range(number))
                for number in (2, 1))  # fmt: skip
    walltime = f"resources_used.walltime={clock(1000)}"
    end = f"{job} end={BEGIN + 3660} Exit_status=0 session=5"
    lines = (
        log_line(BEGIN + 1660, "u", "7.srv", f"{job} {two} end={BEGIN + 1660} {walltime}")
        + log_line(BEGIN + 1660, "c", "7.srv", f"{job} {one}")
        + log_line(BEGIN + 3660, "e", "7.srv", f"{end} {one} resources_used.walltime=00:33:20")
        + log_line(BEGIN + 3660, "E", "7.srv", f"{end} {two}+n3/0*4")
    )
    replay, record = PbsLogReplay(RecordOptions("c1", "pbs_log")), None
    for line in lines.splitlines():
        for each in replay.records(parse_line(line, UTC, 0)):
            record = each if record is None else merge_records(record, each)
    return record


def lsf_change(begin, end):
    """The record of a change at `end`, which is the end of the phase that began at `begin`."""
    return (
        f'"JOB_RESIZE" "10.1" {BEGIN + end} 7 0 {BEGIN + 60} 1001 "alice" 1 {BEGIN + begin} '
        '2 "4*n1" "4*n2" 1 "4*n2" 2 "4*n1" "4*n2" 1 "4*n2"'
    )


def lsf_phases():
    return lsf_phases_with(lsf_change(60, 660))


def lsf_phases_after_those_of_an_earlier_run():
    """The host of the earlier run failed, of which LSF logs no end."""
    return lsf_phases_with(lsf_change(10, 50), lsf_change(60, 660))


def lsf_phases_with(*records, suspended=0):
    """The end of a job that gave back a node, after these records of its changes."""
    phases = {}
    for each in records:
        lsb_acct.add_phase(phases, split_words(each))
    life = Life(JobState.COMPLETED, 60, 3660, suspended, resized=660)
    job = lsf_acct(life)
    if job.nodes:
        job = job._replace(nodes=(NodeShare("n1", 4),))
    return lsb_acct.with_phases(job, phases)


def json_phases(**sums):
    change = {"until_time": BEGIN + 660, "cpus": 4}
    nodes = [{"node": "n1", "cpus": 4}, {"node": "n2", "cpus": 4, "until_time": BEGIN + 660}]
    line = {
        "jobid": "7", "submit_time": BEGIN, "state": "COMPLETED", "start_time": BEGIN + 60,
        "end_time": BEGIN + 3660, "allocated_cpus": 4, "allocated_nodes": 2, "nodes": nodes,
        "reallocations": [change], **sums,
    }  # fmt: skip
    return job_record(line, "c1")[0]


def json_phases_with_their_sum():
    return json_phases(resized_cpu_seconds=2400.0)


def as_polled(source_at, rows):
    """What three readings say together: both nodes, then one, then the end of the job."""
    known, record = {}, None
    for now, row in zip((BEGIN + 70, BEGIN + 660, BEGIN + 3700), rows, strict=True):
        source = source_at(lambda now=now: now)
        source.query_jobs = lambda row=row: iter([("7.srv", FieldReader(row))])
        (found,) = (job for batch in source.read("0", known) for job in batch.jobs)
        record = found if record is None else merge_records(record, found)
        known = unfinished_jobs({(record.jobid, record.run): record})
    return record


def qstat_phases():
    job = {
        "Job_Name": "train", "Job_Owner": "alice@login", "euser": "alice", "queue": "gpu",
        "ctime": date(BEGIN), "etime": date(BEGIN), "stime": date(BEGIN + 60), "run_count": 1,
        "mtime": date(BEGIN + 60), "job_state": "R",
    }  # fmt: skip
    both = {"exec_host": "n1/0*4+n2/0*4", "exec_vnode": "(n1:ncpus=4)+(n2:ncpus=4)"}
    one = {"exec_host": "n1/0*4", "exec_vnode": "(n1:ncpus=4)"}
    end = {"job_state": "F", "substate": 92, "Exit_status": 0, "session_id": 5,
           "history_timestamp": BEGIN + 3660}  # fmt: skip
    documents = [{"Jobs": {"7.srv": job | held}} for held in (both, one, one | end)]
    rows = [parse_json_jobs(json.dumps(each).encode())["7.srv"] for each in documents]
    return as_polled(lambda clock: qstat.Qstat("c1", qstat.QstatOptions(), clock), rows)


def bjobs_phases():
    job = {
        "JOBID": "7", "JOBINDEX": "0", "USER": "alice", "QUEUE": "gpu", "JOB_NAME": "train",
        "PROJ_NAME": "projA", "NREQ_SLOT": "8", "STAT": "RUN", "SUBMIT_TIME": lsf_date(BEGIN),
        "START_TIME": lsf_date(BEGIN + 60), "FINISH_TIME": "-", "RUN_TIME": "10 second(s)",
    }  # fmt: skip
    both, one = {"ALLOC_SLOT": "4*n1:4*n2"}, {"ALLOC_SLOT": "4*n1"}
    end = {"STAT": "DONE", "FINISH_TIME": lsf_date(BEGIN + 3660), "RUN_TIME": "3600 second(s)"}
    rows = [job | held for held in (both, one, both | end)]  # the end names what it began with
    return as_polled(lambda clock: bjobs.Bjobs("c1", bjobs.BjobsOptions(), clock), rows)


PHASES = (
    pbs_phases, qstat_phases, lsf_phases, lsf_phases_after_those_of_an_earlier_run, bjobs_phases,
    json_phases, json_phases_with_their_sum,
)  # fmt: skip


@pytest.mark.parametrize("tell", PHASES)
def test_every_source_tells_the_same_of_a_job_that_gave_back_a_node(tell):
    """Two nodes for ten minutes, then one for fifty."""
    job = tell()
    assert (job.elapsed_seconds, job.suspended_seconds) == (HOUR, 0)
    assert (job.allocated_cpus, job.allocated_nodes) == (4, 2)
    assert job.resized_cpu_seconds == 4 * 600
    assert [change[:2] for change in job.reallocations] == [(BEGIN + 660, 4)]
    until = {share.node: share.until_time for share in job.nodes}
    assert until == {"n1": None, "n2": BEGIN + 660}


def lsf_second_change():
    return lsf_phases_with(lsf_change(360, 660))


def lsf_first_and_third_change():
    return lsf_phases_with(
        f'"JOB_RESIZE" "10.1" {BEGIN + 660} 7 0 {BEGIN + 60} 1001 "alice" 1 {BEGIN + 60} '
        '2 "4*n1" "8*n2" 1 "4*n2" 0 0',
        f'"JOB_RESIZE" "10.1" {BEGIN + 1860} 7 0 {BEGIN + 60} 1001 "alice" 1 {BEGIN + 1260} '
        '2 "4*n1" "2*n2" 1 "2*n2" 0 0',
    )


def lsf_change_after_the_end():
    return lsf_phases_with(
        f'"JOB_RESIZE" "10.1" {BEGIN + 90_000} 7 0 {BEGIN + 60} 1001 "alice" 1 {BEGIN + 60} '
        '2 "4*n1" "4*n2" 1 "4*n2" 0 0'
    )


def lsf_first_of_two_changes():
    return lsf_phases_with(
        f'"JOB_RESIZE" "10.1" {BEGIN + 360} 7 0 {BEGIN + 60} 1001 "alice" 1 {BEGIN + 60} '
        '2 "4*n1" "4*n2" 1 "2*n2" 0 0'
    )


def pbs_change_without_hosts():
    return pbs_phases_read_from("S", after="exec_host=?")


def lsf_stream_phases():
    job = lsf_stream(Life(JobState.COMPLETED, 60, 3660, resized=660))
    return lsb_acct.with_phases(job, {})


@pytest.mark.parametrize(
    "tell",
    [
        functools.partial(pbs_phases_read_from, "c"),
        functools.partial(pbs_phases_read_from, "e"),
        pbs_third_phase,
        pbs_change_after_the_end,
        lsf_phases_with,
        lsf_second_change,
        lsf_first_and_third_change,
        lsf_change_after_the_end,
        lsf_first_of_two_changes,
        pbs_change_without_hosts,
        lsf_stream_phases,
    ],
)
def test_allocation_is_not_known_if_a_change_was_not_read(tell):
    """The end names what the job began with, or held at last, which is not what it held."""
    job = tell()
    assert (job.state, job.elapsed_seconds) == (JobState.COMPLETED, HOUR)
    assert (job.allocated_cpus, job.allocated_memory_bytes, job.allocated_gpus) == (None,) * 3
    assert (job.allocated_nodes, job.nodes, job.node_list) == (None, (), "")
    assert (job.resized_cpu_seconds, job.reallocations) == (0, ())


def test_what_is_not_known_by_the_log_is_not_known_by_qstat():
    """Of a running job, and of its end."""
    withdrawn = UnfinishedJob(BEGIN, 1, BEGIN + 60, "RUNNING", resized_cpu_seconds=0.0)
    job = pbs_phases()._replace(reallocations=(), resized_cpu_seconds=None)
    for state in (JobState.RUNNING, JobState.COMPLETED):
        seen = with_seen_change(job._replace(state=state), withdrawn, BEGIN + 700)
        assert (seen.allocated_cpus, seen.nodes) == (None, ())


def test_partial_line_withdraws_no_allocation():
    line = {"jobid": "7", "submit_time": BEGIN, "state": "RUNNING"}
    whole = job_record({**line, "allocated_cpus": 8, "nodes": ["n1"]}, "c1")[0]
    partial = job_record({**line, "resized_cpu_seconds": 0}, "c1")[0]
    assert merge_records(whole, partial).allocated_cpus == 8


def test_what_a_job_of_lsf_held_that_was_suspended_is_not_known():
    """LSF says for how long, and not in which of the phases."""
    job = lsf_phases_with(lsf_change(60, 660), suspended=600)
    assert (job.elapsed_seconds, job.suspended_seconds) == (3000, 600)
    assert (job.allocated_cpus, job.resized_cpu_seconds, job.nodes) == (None, 0, ())


def test_phases_are_known_if_the_first_of_them_was_read_to_its_end():
    job, whole = pbs_phases_read_from("u"), pbs_phases()
    assert job.allocated_cpus == 4
    assert job.resized_cpu_seconds == whole.resized_cpu_seconds == 4 * 600
    assert {share.node: share.until_time for share in job.nodes} == {"n1": None, "n2": BEGIN + 660}
