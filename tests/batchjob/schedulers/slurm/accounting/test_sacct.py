"""Slurm's accounting by sacct, on recorded output of real releases."""

import sys
from pathlib import Path

import pytest

from batchjob.runtime.subprocesses import CommandFailedError, CommandTimeoutError
from batchjob.schedulers.accounting import (
    SourceError,
    SubmittedJob,
    UnfinishedJob,
)
from batchjob.schedulers.fields import FieldReader
from batchjob.schedulers.records import NodeShare
from batchjob.schedulers.slurm.accounting.sacct import Sacct, SacctOptions
from batchjob.schedulers.slurm.accounting.sacct_records import FIELDS, job_record
from batchjob.schedulers.states import JobState

TESTS = Path(__file__).parents[4]
RECORDINGS = TESTS / "fixtures" / "accounting"
SIMULATED = TESTS / "simulated" / "sacct.py"


@pytest.fixture
def write_program(tmp_path):
    """`write_program("sacct", "echo hello")` writes an executable script and returns its path."""

    def make(name: str, script: str) -> str:
        path = tmp_path / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        return str(path)

    return make


@pytest.fixture
def make_source(write_program):
    """Makes a source over a recording, with a clock just after the recording's end."""

    def make(recording: str, now: int = 1795185000, **options) -> Sacct:
        slurm = write_program(
            "slurm", f'exec {sys.executable} {SIMULATED} {RECORDINGS}/{recording} "$@"'
        )
        settings = {"sacct": slurm, "squeue": slurm, "scontrol": slurm} | options
        return Sacct("c1", SacctOptions(**settings), clock=lambda: now)

    return make


def vanished_jobids(batches):
    return tuple(jobid for batch in batches for jobid in batch.vanished)


def read_jobs(source, since=1795174000, unfinished=None):
    batches = list(source.read(source.watermark_at(since), unfinished or {}))
    return batches, {job.jobid: job for batch in batches for job in batch.jobs}


@pytest.fixture(scope="module")
def jobs_22_05(tmp_path_factory):
    path = tmp_path_factory.mktemp("sacct") / "sacct"
    recording = RECORDINGS / "slurm-22.05.8.sacct.xz"
    path.write_text(f'#!/bin/sh\nexec {sys.executable} {SIMULATED} {recording} "$@"\n')
    path.chmod(0o755)
    options = SacctOptions(sacct=str(path), squeue=str(path), scontrol=str(path))
    return read_jobs(Sacct("c1", options, clock=lambda: 1795177000))[1]


def test_all_jobs_of_22_05_are_read_without_quarantine(make_source):
    batches, found = read_jobs(make_source("slurm-22.05.8.sacct.xz"))
    assert not any(batch.quarantined for batch in batches)
    assert len(found) == 44
    assert int(batches[-1].watermark) == max(job.end_time or 0 for job in found.values())


def test_completed_job(jobs_22_05):
    job = jobs_22_05["2"]
    assert (job.user, job.uid, job.account, job.name) == ("alice", 20001, "physics", "cpuburn")
    assert (job.state, job.state_word) == (JobState.COMPLETED, "COMPLETED")
    assert job.end_time - job.start_time == job.elapsed_seconds
    assert job.requested_cpus == job.allocated_cpus == 2
    assert job.nodes == (NodeShare("node001", 2, job.allocated_memory_bytes, None),)
    assert job.cpu_seconds == pytest.approx(job.user_cpu_seconds + job.system_cpu_seconds, abs=0.01)
    assert [step.step for step in job.steps] == ["batch", "extern"]


@pytest.mark.parametrize(
    ("jobid", "state", "code", "signal"),
    [
        ("5", JobState.FAILED, None, 0),  # 3, or 131
        ("6", JobState.FAILED, 0, 11),
        ("7", JobState.TIMEOUT, 0, 0),
        ("9", JobState.OUT_OF_MEMORY, 0, 125),
        ("13", JobState.CANCELLED, 0, 0),
        ("29", JobState.NODE_FAIL, 0, 0),
    ],
)
def test_end_states_and_exit_codes(jobs_22_05, jobid, state, code, signal):
    job = jobs_22_05[jobid]
    assert job.state == state
    assert (job.exit_code, job.exit_signal) == (code, signal)


def test_derived_exit_code_of_failed_step(jobs_22_05):
    job = jobs_22_05["11"]
    assert (job.state, job.exit_code, job.derived_exit_code) == (JobState.COMPLETED, 0, 4)
    assert {step.name: step.exit_code for step in job.steps}["post"] == 4


def test_cancelled_by(jobs_22_05):
    assert (jobs_22_05["13"].state_word, jobs_22_05["13"].cancelled_by) == ("CANCELLED", "root")


def test_array_and_het_job_ids(jobs_22_05):
    first, last = jobs_22_05["23"], jobs_22_05["10"]
    assert (first.array_jobid, first.array_index) == ("10", 0)
    assert (last.array_jobid, last.array_index) == ("10", 4)
    assert (jobs_22_05["26"].het_jobid, jobs_22_05["26"].het_offset) == ("25", 1)


def test_gpus_of_job_and_step(jobs_22_05):
    job = jobs_22_05["12"]
    assert (job.requested_gpus, job.allocated_gpus) == (2, 2)
    step = job.steps[-1]
    assert (step.step, step.gpus, step.cpus, step.tasks) == ("0", 1, 1, 1)
    assert "|" in step.submit_line


def test_shares_of_multi_node_job_are_unknown(jobs_22_05):
    job = jobs_22_05["11"]
    assert job.allocated_cpus == 4
    assert [share.node for share in job.nodes] == ["node001", "node003"]
    assert {share.cpus for share in job.nodes} == {None}


def test_24_11_has_sluid_restarts_and_stdout(make_source):
    batches, found = read_jobs(make_source("slurm-24.11.5.sacct.xz"))
    assert not any(batch.quarantined for batch in batches)
    job = next(job for job in found.values() if job.name.startswith("weird"))
    assert job.name == "weird `näme` | 100%, a=b"
    assert job.sluid.startswith("s5PX")
    assert job.stdout_path == "/home/alice/slurm-%j.out"
    assert job.restarts == 0
    assert job.submit_line.endswith("/opt/w/weird.sh")


def test_job_names_with_newline_quote_and_delimiter(make_source):
    batches, found = read_jobs(make_source("slurm-22.05.8-hostile.sacct.xz"))
    assert not any(batch.quarantined for batch in batches)
    assert found["1"].name == "new\nline|bar`q"
    assert found["9"].name == "delim\x1finside\ttab"


def test_requeued_runs_are_separate_records(make_source):
    batches, _ = read_jobs(make_source("slurm-22.05.8-hostile.sacct.xz"))
    runs = {job.key: job for batch in batches for job in batch.jobs if job.jobid == "7"}
    first, second = sorted(runs.values(), key=lambda run: run.submit_time)
    assert (first.state, second.state) == (JobState.REQUEUED, JobState.RUNNING)
    assert (second.end_time, second.cpu_seconds, second.exit_code) == (None, None, None)


def test_job_cancelled_while_held_has_no_start(make_source):
    _, found = read_jobs(make_source("slurm-22.05.8-hostile.sacct.xz"))
    job = found["5"]
    assert (job.state, job.start_time, job.exit_code) == (JobState.CANCELLED, None, None)
    assert job.end_time is not None
    assert (job.nodes, job.cpu_seconds, job.allocated_cpus) == ((), None, None)


def test_absent_jobs_are_queried_by_id_and_missing_ones_have_vanished(make_source):
    known = {
        "6": UnfinishedJob(1795183635, 1, 1795183635),
        "4242": UnfinishedJob(1795183600, 1, 1795183601),
    }
    batches, _ = read_jobs(make_source("slurm-22.05.8-hostile.sacct.xz"), unfinished=known)
    assert vanished_jobids(batches) == ("4242",)


def test_job_ids_of_other_schedulers_are_not_queried(make_source):
    job = UnfinishedJob(1795183635, 1, 1795183635)
    known = dict.fromkeys(("1.pbs01", "0f8fad5b-d9cb"), job)
    batches, _ = read_jobs(make_source("slurm-22.05.8-hostile.sacct.xz"), unfinished=known)
    assert vanished_jobids(batches) == ()


def test_sluid_of_a_resized_job_stays_that_of_its_cgroup():
    """Slurm 26.05: each part of a resized job has a record and a SLUID of its own."""
    part = {
        "JobIDRaw": "3", "JobID": "3", "State": "COMPLETED", "Submit": "1795746752",
        "Start": "1795746752", "End": "1795746815", "SLUID": "s8N5M8DDHSTD00",
        "OriginalSLUID": "s8N5M8DDH3XD00",
    }  # fmt: skip
    assert job_record("c1", "3", FieldReader(part)).sluid == "s8N5M8DDH3XD00"
    del part["OriginalSLUID"]  # before 26.05
    assert job_record("c1", "3", FieldReader(part)).sluid == "s8N5M8DDHSTD00"


def test_old_job_with_reused_id_has_vanished(make_source):
    known = {"6": UnfinishedJob(1695183635, 1, 1695183635)}
    batches, _ = read_jobs(make_source("slurm-22.05.8-hostile.sacct.xz"), unfinished=known)
    assert vanished_jobids(batches) == ("6",)


def test_empty_output_is_an_error_while_jobs_are_unfinished(write_program):
    sacct = write_program("sacct", f'[ "$1" = --helpformat ] && echo {" ".join(FIELDS)}; exit 0')
    squeue = write_program("squeue", "exit 0")
    source = Sacct("c1", SacctOptions(sacct=sacct, squeue=squeue), clock=lambda: 1795190000)
    with pytest.raises(SourceError, match="1 of 1 unfinished jobs are missing"):
        read_jobs(source, 1795189900, {"6": UnfinishedJob(1795183635, 1, 1795183635)})
    with pytest.raises(SourceError):  # raised before a long gap is read
        read_jobs(source, 1795000000, {"6": UnfinishedJob(1795183635, 1, 1795183635)})


def test_shrunken_output_does_not_move_the_watermark(make_source):
    known = {str(number): UnfinishedJob(1795183600, 1, None) for number in range(1000, 1100)}
    batches = make_source("slurm-22.05.8-hostile.sacct.xz").read("1795189000", known)
    assert int(next(batches).watermark) <= 1795189000
    with pytest.raises(SourceError, match="100 of 100"):
        list(batches)
    trusting = make_source("slurm-22.05.8-hostile.sacct.xz", trust_missing=True)
    assert len(vanished_jobids(read_jobs(trusting, 1795189000, known)[0])) == 50  # one query


def test_last_window_is_read_after_clock_went_back(make_source):
    sacct = make_source("slurm-22.05.8-hostile.sacct.xz", now=1795183900)
    batches, found = read_jobs(sacct, since=1795190000)
    assert found
    assert int(batches[-1].watermark) <= 1795183900


def test_failing_or_hanging_sacct_raises(write_program):
    failing = write_program(
        "sacct", "echo 'sacct: error: slurmdbd: Connection refused' >&2; exit 1"
    )
    with pytest.raises(CommandFailedError, match="Connection refused"):
        read_jobs(Sacct("c1", SacctOptions(sacct=failing)))
    hanging = write_program("sacct", "sleep 100")
    with pytest.raises(CommandTimeoutError):
        read_jobs(Sacct("c1", SacctOptions(sacct=hanging, timeout=0.2)))


def test_ssh_command_words_are_quoted(write_program, monkeypatch, tmp_path):
    write_program("ssh", f'echo "$@" > {tmp_path}/arguments; exit 255')
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(CommandFailedError):
        read_jobs(Sacct("c1", SacctOptions(ssh="login1", sacct="/opt/my slurm/sacct")))
    arguments = (tmp_path / "arguments").read_text()
    assert arguments.startswith(
        "-T -o BatchMode=yes -o ConnectTimeout=10 -- login1 env LC_ALL=C.UTF-8"
    )
    assert arguments.endswith("'/opt/my slurm/sacct' --helpformat\n")


CONFIGURATION = "PrivateData            = none\\nSlurmUserId            = slurm(64030)\\n"


@pytest.mark.parametrize(
    ("private", "level", "expected"),
    [
        ("none", "None", ()),
        ("jobs,usage", "Operator", ()),
        ("jobs,usage", "None", ("PrivateData=jobs hides",)),
        ("accounts", "None", ()),
    ],
)
def test_check_reports_missing_rights(
    write_program, monkeypatch, tmp_path, private, level, expected
):
    write_program("id", "echo batchjob")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    script = f"""case "$*" in *configuration*) printf '{CONFIGURATION.replace("none", private)}';;
        *) echo {level};; esac"""
    findings = Sacct("c1", SacctOptions(sacctmgr=write_program("sacctmgr", script))).check()
    assert len(findings) == len(expected)
    assert all(line.startswith(start) for line, start in zip(findings, expected, strict=True))
    assert all("adminlevel=Operator" in line for line in findings)


SCRIPT = "#!/bin/bash\\n# Batch Script for 10_3\\nhostname\\n"


@pytest.mark.parametrize(
    ("job", "ids"),
    [
        (SubmittedJob("12", 1, array_jobid="10", array_index=2), ("10_2", "10_3")),
        (SubmittedJob("10", 1, array_jobid="10"), ("10_[1-3]", "10_1")),
        (SubmittedJob("10", 1, het_jobid="10", het_offset=0), ("10+0", "10+1")),
        (SubmittedJob("10", 1), ("10",)),
    ],
)
def test_script_ends_before_script_of_next_part(write_program, job, ids):
    parts = [f"Batch Script for {each}\\n{'-' * 80}\\n{SCRIPT}\\n" for each in ids]
    sacct = write_program("sacct", f"printf -- '{''.join(parts)}'")
    assert Sacct("c1", SacctOptions(sacct=sacct)).script(job) == SCRIPT.replace("\\n", "\n")


@pytest.mark.parametrize(
    ("options", "queries"), [({}, 2), ({"queue_interval": 0.0}, 5), ({"overlap": 20.0}, 3)]
)
def test_interval_between_queries_of_the_controller(write_program, tmp_path, options, queries):
    sacct = write_program("sacct", f'[ "$1" = --helpformat ] && echo {" ".join(FIELDS)}; exit 0')
    squeue = write_program("squeue", f"echo asked >> {tmp_path}/asked")
    now = [0.0]
    settings = SacctOptions(sacct=sacct, squeue=squeue, scontrol=sacct, **options)
    source = Sacct("c1", settings, clock=lambda: 1795190000, monotonic=lambda: now[0])
    for at in (0, 15, 30, 45, 60):
        now[0] = at
        list(source.read("1795189900", {}))
    assert len((tmp_path / "asked").read_text().splitlines()) == queries
