"""Slurm's accounting by sacct, on what real releases printed."""

import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchjob.runtime.subprocesses import CommandFailedError, CommandTimeoutError
from batchjob.schedulers.accounting import (
    ShrunkenError,
    SourceError,
    SubmittedJob,
    UnfinishedJob,
)
from batchjob.schedulers.records import NodeShare, QuarantinedRow
from batchjob.schedulers.slurm.accounting.queries import ParsedJob
from batchjob.schedulers.slurm.accounting.sacct import Sacct, SacctOptions
from batchjob.schedulers.slurm.accounting.sacct_records import FIELDS, parse_jobs, parse_rows
from batchjob.schedulers.states import JobState

TESTS = Path(__file__).parents[4]
RECORDINGS = TESTS / "fixtures" / "accounting"
SIMULATED = TESTS / "simulated" / "sacct.py"
GB, MB = 1024**3, 1024**2


@pytest.fixture
def program(tmp_path):
    """Makes an executable script; `program("sacct", "echo hello")` gives its path."""

    def make(name: str, script: str) -> str:
        path = tmp_path / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        return str(path)

    return make


@pytest.fixture
def source(program):
    """A source over a recording, its clock just after the recording's end."""

    def make(recording: str, now: int = 1795185000, **options) -> Sacct:
        slurm = program("slurm", f'exec {sys.executable} {SIMULATED} {RECORDINGS}/{recording} "$@"')
        settings = {"sacct": slurm, "squeue": slurm} | options
        return Sacct("c1", SacctOptions(**settings), clock=lambda: now)

    return make


def vanished(batches):
    return tuple(jobid for batch in batches for jobid in batch.vanished)


def read(source, since=1795174000, unfinished=None):
    batches = list(source.read(source.watermark_at(since), unfinished or {}))
    return batches, {job.jobid: job for batch in batches for job in batch.jobs}


@pytest.fixture(scope="module")
def jobs_22_05(tmp_path_factory):
    path = tmp_path_factory.mktemp("sacct") / "sacct"
    recording = RECORDINGS / "slurm-22.05.8.sacct.xz"
    path.write_text(f'#!/bin/sh\nexec {sys.executable} {SIMULATED} {recording} "$@"\n')
    path.chmod(0o755)
    options = SacctOptions(sacct=str(path), squeue=str(path))
    return read(Sacct("c1", options, clock=lambda: 1795177000))[1]


def test_every_job_of_22_05_is_read_without_complaint(source):
    batches, found = read(source("slurm-22.05.8.sacct.xz"))
    assert not any(batch.quarantined for batch in batches)
    assert len(found) == 44
    assert int(batches[-1].watermark) == max(job.end_time or 0 for job in found.values())


def test_a_plain_job(jobs_22_05):
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
        ("5", JobState.FAILED, 3, 0),
        ("6", JobState.FAILED, 0, 11),
        ("7", JobState.TIMEOUT, 0, 0),
        ("9", JobState.OUT_OF_MEMORY, 0, 125),
        ("13", JobState.CANCELLED, 0, 0),
        ("29", JobState.NODE_FAIL, None, None),
    ],
)
def test_how_jobs_ended(jobs_22_05, jobid, state, code, signal):
    job = jobs_22_05[jobid]
    assert job.state == state
    if code is not None:
        assert (job.exit_code, job.exit_signal) == (code, signal)


def test_a_step_that_failed_shows_in_the_derived_exit_code(jobs_22_05):
    job = jobs_22_05["11"]
    assert (job.state, job.exit_code, job.derived_exit_code) == (JobState.COMPLETED, 0, 4)
    assert {step.name: step.exit_code for step in job.steps}["post"] == 4


def test_who_cancelled(jobs_22_05):
    assert (jobs_22_05["13"].state_word, jobs_22_05["13"].cancelled_by) == ("CANCELLED", "0")


def test_array_and_het_ids_are_columns(jobs_22_05):
    first, last = jobs_22_05["23"], jobs_22_05["10"]
    assert (first.array_jobid, first.array_index) == ("10", 0)
    assert (last.array_jobid, last.array_index) == ("10", 4)
    assert (jobs_22_05["26"].het_jobid, jobs_22_05["26"].het_offset) == ("25", 1)


def test_gpus_and_their_steps(jobs_22_05):
    job = jobs_22_05["12"]
    assert (job.requested_gpus, job.allocated_gpus) == (2, 2)
    step = job.steps[-1]
    assert (step.step, step.gpus, step.cpus, step.tasks) == ("0", 1, 1, 1)
    assert "|" in step.submit_line


def test_several_nodes_say_nothing_about_the_share_of_each(jobs_22_05):
    job = jobs_22_05["11"]
    assert job.allocated_cpus == 4
    assert [share.node for share in job.nodes] == ["node001", "node003"]
    assert {share.cpus for share in job.nodes} == {None}


def test_24_11_has_sluid_restarts_and_stdout(source):
    batches, found = read(source("slurm-24.11.5.sacct.xz"))
    assert not any(batch.quarantined for batch in batches)
    job = next(job for job in found.values() if job.name.startswith("weird"))
    assert job.name == "weird `näme` | 100%, a=b"
    assert job.sluid.startswith("s5PX")
    assert job.stdout_path == "/home/alice/slurm-%j.out"
    assert job.restarts == 0
    assert job.submit_line.endswith("/opt/w/weird.sh")


def test_names_with_newline_quote_and_the_usual_delimiter(source):
    batches, found = read(source("slurm-22.05.8-hostile.sacct.xz"))
    assert not any(batch.quarantined for batch in batches)
    assert found["1"].name == "new\nline|bar`q"
    assert found["9"].name == "delim\x1finside\ttab"


def test_requeued_runs_are_records_of_their_own(source):
    batches, _ = read(source("slurm-22.05.8-hostile.sacct.xz"))
    runs = {job.key: job for batch in batches for job in batch.jobs if job.jobid == "7"}
    first, second = sorted(runs.values(), key=lambda run: run.submit_time)
    assert (first.state, second.state) == (JobState.REQUEUED, JobState.RUNNING)
    assert (second.end_time, second.cpu_seconds, second.exit_code) == (None, None, None)


def test_a_job_cancelled_while_held_has_no_start(source):
    _, found = read(source("slurm-22.05.8-hostile.sacct.xz"))
    job = found["5"]
    assert (job.state, job.start_time, job.exit_code) == (JobState.CANCELLED, None, None)
    assert job.end_time is not None
    assert (job.nodes, job.cpu_seconds, job.allocated_cpus) == ((), None, None)


ROW = dict.fromkeys(FIELDS, "") | {
    "JobIDRaw": "77", "JobID": "77", "State": "COMPLETED", "ExitCode": "0:0", "User": "alice",
    "UID": "1001", "Submit": "1775300000", "Start": "1775300100", "End": "1775304000",
    "NodeList": "n1", "AllocTRES": "cpu=4,mem=8G,node=1,gres/gpu=1,gres/gpu:a100=1",
}  # fmt: skip


def printed(*changes: dict[str, str], delimiter="\x1f!") -> bytes:
    lines = [[(ROW | change)[field] for field in FIELDS] for change in changes]
    text = "".join("".join(cell + delimiter for cell in line) + "\n" for line in lines)
    return text.encode("utf-8", "surrogateescape")


def parse(output: bytes) -> list[ParsedJob]:
    return list(parse_jobs("c1", parse_rows(output, FIELDS, "\x1f!")))


def test_typed_gpus_are_not_counted_twice():
    (parsed,) = parse(printed({}))
    assert (parsed.job.allocated_gpus, parsed.job.allocated_memory_bytes) == (1, 8 * GB)


def test_text_among_rows_goes_to_quarantine_and_no_row_is_lost():
    output = (
        printed({})
        + b"sacct: error: slurm_persist_conn_open failed\n"
        + printed({"JobIDRaw": "78"})
    )
    parsed = parse(output)
    assert [each.job.jobid for each in parsed if each.job] == ["77", "78"]
    (bad,) = [bad for each in parsed for bad in each.quarantined]
    assert bad == QuarantinedRow(
        "sacct", "text among the rows", "sacct: error: slurm_persist_conn_open failed"
    )


@pytest.mark.parametrize("cut", [1, 3, 40, 200])
def test_an_answer_cut_within_a_row_is_no_answer(cut):
    output = printed({}, {"JobIDRaw": "78"})
    with pytest.raises(SourceError, match="ends within a row"):
        parse(output[: -cut - 2])


@pytest.mark.parametrize("length", [100, 65_533, 65_536, 70_001, 200_000])
def test_fields_of_any_length_are_read_whole(length):
    """An answer is split in pieces; neither a field nor a character falls between two."""
    names = [f"é{number}" * (length // 3) for number in range(3)]
    found = parse_rows(printed(*({"JobName": name} for name in names)), FIELDS, "\x1f!")
    assert [row.values["JobName"] for row in found] == names


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"JobIDRaw": "7x"}, "JobIDRaw: expected a job id"),
        ({"Submit": "Unknown"}, "Submit is missing"),
        ({"Submit": "2026-04-04T12:00:00"}, "Submit: expected a whole number"),
        ({"State": ""}, "State is missing"),
    ],
)
def test_a_row_without_key_or_state_goes_to_quarantine_with_its_text(change, reason):
    parsed = parse(printed(change, {"JobIDRaw": "78"}))
    assert [each.job.jobid for each in parsed if each.job] == ["78"]
    (bad,) = [bad for each in parsed for bad in each.quarantined]
    assert bad.reason.startswith(reason)
    assert "alice" in bad.raw


def test_a_field_that_cannot_be_read_costs_that_field_only():
    (parsed,) = parse(printed({"AllocTRES": "cpu=lots", "NodeList": "n[3-1]"}))
    assert (parsed.job.user, parsed.job.allocated_cpus, parsed.job.nodes) == ("alice", None, ())
    (bad,) = parsed.quarantined
    assert "AllocTRES: expected a size" in bad.reason
    assert "NodeList: not a range" in bad.reason


def test_steps_of_a_job_that_cannot_be_read_do_not_go_to_another():
    parsed = parse(
        printed({}, {"JobIDRaw": "78", "State": ""}, {"JobIDRaw": "78.0", "JobID": "78.0"})
    )
    assert [each.job.steps for each in parsed if each.job] == [()]
    assert len([bad for each in parsed for bad in each.quarantined]) == 2


def test_names_come_back_as_they_are_or_fit_for_a_database():
    for name in ("a|b", 'q"uote', "new\nline", "\n", "x" * 10_000, "\x1f", "ünï"):
        (parsed,) = parse(printed({"JobName": name}))
        assert parsed.job.name == name
    (parsed,) = parse(printed({"JobName": "nul\0 byte\udcff"}))
    assert parsed.job.name == "nul\ufffd byte\\xff"


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=60))
def test_no_name_can_forge_or_hide_a_row(name):
    if "\x1f!" in name:
        return
    parsed = parse(printed({"JobName": name}, {"JobIDRaw": "78", "SubmitLine": name}))
    assert [(each.job.jobid, each.job.user) for each in parsed] == [
        ("77", "alice"),
        ("78", "alice"),
    ]
    assert parsed[0].job.name == name.replace("\0", "\ufffd")


@given(st.binary(max_size=300))
def test_any_bytes_give_records_quarantine_or_a_source_error(output):
    try:
        parse(output)
    except SourceError:
        pass
    else:
        assert b"\x1f!" not in output


def test_a_hundred_thousand_nodes():
    (parsed,) = parse(
        printed({"NodeList": "n[000000-099999]", "AllocTRES": "cpu=800000,node=100000"})
    )
    assert len(parsed.job.nodes) == 100_000


def test_absent_jobs_are_asked_for_by_id_and_missing_ones_have_vanished(source):
    known = {
        "6": UnfinishedJob(1795183635, 1, 1795183635),
        "4242": UnfinishedJob(1795183600, 1, 1795183601),
    }
    batches, _ = read(source("slurm-22.05.8-hostile.sacct.xz"), unfinished=known)
    assert vanished(batches) == ("4242",)


def test_jobs_of_another_kind_are_not_asked_for(source):
    job = UnfinishedJob(1795183635, 1, 1795183635)
    known = dict.fromkeys(("1.pbs01", "0f8fad5b-d9cb"), job)
    batches, _ = read(source("slurm-22.05.8-hostile.sacct.xz"), unfinished=known)
    assert vanished(batches) == ()


def test_a_reused_id_does_not_hide_that_the_old_job_is_gone(source):
    known = {"6": UnfinishedJob(1695183635, 1, 1695183635)}
    batches, _ = read(source("slurm-22.05.8-hostile.sacct.xz"), unfinished=known)
    assert vanished(batches) == ("6",)


def test_an_empty_answer_is_an_error_while_jobs_are_unfinished(program):
    sacct = program("sacct", f'[ "$1" = --helpformat ] && echo {" ".join(FIELDS)}; exit 0')
    squeue = program("squeue", "exit 0")
    source = Sacct("c1", SacctOptions(sacct=sacct, squeue=squeue), clock=lambda: 1795190000)
    with pytest.raises(ShrunkenError, match="1 of 1 unfinished jobs are missing"):
        read(source, 1795189900, {"6": UnfinishedJob(1795183635, 1, 1795183635)})
    with pytest.raises(ShrunkenError):  # nor is a long gap read before that is found out
        read(source, 1795000000, {"6": UnfinishedJob(1795183635, 1, 1795183635)})


def test_an_answer_that_shrank_does_not_move_the_watermark(source):
    known = {str(number): UnfinishedJob(1795183600, 1, None) for number in range(1000, 1100)}
    batches = source("slurm-22.05.8-hostile.sacct.xz").read("1795189000", known)
    assert int(next(batches).watermark) <= 1795189000
    with pytest.raises(ShrunkenError, match="100 of 100"):
        list(batches)
    trusting = source("slurm-22.05.8-hostile.sacct.xz", trust_missing=True)
    assert len(vanished(read(trusting, 1795189000, known)[0])) == 50  # one question's worth


def test_a_clock_that_went_back_still_reads_the_last_window(source):
    sacct = source("slurm-22.05.8-hostile.sacct.xz", now=1795183900)
    batches, found = read(sacct, since=1795190000)
    assert found
    assert int(batches[-1].watermark) <= 1795183900


def test_sacct_that_fails_or_hangs(program):
    failing = program("sacct", "echo 'sacct: error: slurmdbd: Connection refused' >&2; exit 1")
    with pytest.raises(CommandFailedError, match="Connection refused"):
        read(Sacct("c1", SacctOptions(sacct=failing)))
    hanging = program("sacct", "sleep 100")
    with pytest.raises(CommandTimeoutError):
        read(Sacct("c1", SacctOptions(sacct=hanging, timeout=0.2)))


def test_by_ssh_every_word_is_quoted(program, monkeypatch, tmp_path):
    program("ssh", f'echo "$@" > {tmp_path}/said; exit 255')
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(CommandFailedError):
        read(Sacct("c1", SacctOptions(ssh="login1", sacct="/opt/my slurm/sacct")))
    said = (tmp_path / "said").read_text()
    assert said.startswith("-T -o BatchMode=yes -o ConnectTimeout=10 -- login1 env LC_ALL=C.UTF-8")
    assert said.endswith("'/opt/my slurm/sacct' --helpformat\n")


CONFIGURATION = "PrivateData            = none\\nSlurmUserId            = slurm(64030)\\n"


@pytest.mark.parametrize(
    ("private", "level", "said"),
    [
        ("none", "None", ()),
        ("jobs,usage", "Operator", ()),
        ("jobs,usage", "None", ("PrivateData=jobs hides",)),
        ("accounts", "None", ()),
    ],
)
def test_rights(program, monkeypatch, tmp_path, private, level, said):
    program("id", "echo batchjob")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    script = f"""case "$*" in *configuration*) printf '{CONFIGURATION.replace("none", private)}';;
        *) echo {level};; esac"""
    findings = Sacct("c1", SacctOptions(sacctmgr=program("sacctmgr", script))).check()
    assert len(findings) == len(said)
    assert all(line.startswith(start) for line, start in zip(findings, said, strict=True))
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
def test_a_script_ends_where_that_of_another_part_begins(program, job, ids):
    parts = [f"Batch Script for {each}\\n{'-' * 80}\\n{SCRIPT}\\n" for each in ids]
    sacct = program("sacct", f"printf -- '{''.join(parts)}'")
    assert Sacct("c1", SacctOptions(sacct=sacct)).script(job) == SCRIPT.replace("\\n", "\n")
