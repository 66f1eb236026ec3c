"""Job records as JSON: files of JSON lines, and the files of local runs."""

import json
import os
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchjob.local_runs import accounting
from batchjob.local_runs import record as run_files
from batchjob.local_runs.record import Run, SupervisorProcess, current_process, is_supervisor_alive
from batchjob.runtime.logins import login
from batchjob.schedulers import json_lines
from batchjob.schedulers.accounting import DeletedRecord, SourceError, UnfinishedJob
from batchjob.schedulers.fields import RowError
from batchjob.schedulers.json_record import decode, encode
from batchjob.schedulers.records import JobRecord, NodeShare, Reallocation, StepRecord
from batchjob.schedulers.states import JobState

FULL_RECORD = JobRecord(
    cluster="c1", jobid="a.1", submit_time=1775300000, state=JobState.FAILED, state_word="Held",
    source="jsonl", user="alice", uid=1001, start_time=1775300100, end_time=1775304000,
    exit_code=3, allocated_cpus=8, cpu_seconds=12.5,
    nodes=(NodeShare("n1", 8), NodeShare("n2", until_time=1775301900)),
    steps=(StepRecord("0", JobState.COMPLETED, "COMPLETED", cpus=4),),
    resized_cpu_seconds=-7200.0, reallocations=(Reallocation(1775301900, -4, 1 << 30, 0),),
)  # fmt: skip
MINIMAL_RECORD = {"jobid": "1", "submit_time": 1775300000, "state": "running"}


def test_record_round_trip():
    document = json.loads(json.dumps(encode(FULL_RECORD)))
    assert decode(document, "c1", "jsonl") == (FULL_RECORD, ())


def test_minimal_record():
    job, complaints = decode(MINIMAL_RECORD, "c1", "jsonl")
    assert not complaints
    assert (job.state, job.state_word, job.nodes) == (JobState.RUNNING, "RUNNING", ())


def test_job_that_never_started_holds_nothing():
    held = {"allocated_cpus": 16, "node_list": "n1", "nodes": ["n1"], "requested_cpus": 16}
    job, complaints = decode(MINIMAL_RECORD | held | {"state": "cancelled"}, "c1", "jsonl")
    assert (job.allocated_cpus, job.node_list, job.nodes) == (None, "", ())
    assert (job.requested_cpus, complaints) == (16, ())


@pytest.mark.parametrize(
    ("time_text", "seconds"),
    [
        (1775300000, 1775300000),
        (1775300000.25, 1775300000.25),
        (1775300000.1234567, 1775300000.123),
        ("2026-04-04T12:53:20+02:00", 1775300000),
        ("2026-04-04T12:53:20.5+02:00", 1775300000.5),
    ],
)
def test_times_are_parsed_to_milliseconds(time_text, seconds):
    record = MINIMAL_RECORD | {"submit_time": time_text, "start_time": time_text}
    job, _ = decode(record, "c1", "x")
    assert (job.start_time, job.submit_time) == (seconds, 1775300000)


def test_nodes_are_names_or_objects_without_duplicates():
    nodes = ["n1", {"node": "n2", "cpus": 4}, "n1", {"cpus": 1}, 5]
    job, complaints = decode(MINIMAL_RECORD | {"nodes": nodes}, "c1", "x")
    assert job.nodes == (NodeShare("n1"), NodeShare("n2", 4))
    assert complaints[0] == "nodes: node is missing"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"jobid": None}, "jobid is missing"),
        ({"jobid": 5}, "jobid: expected text, got 5"),
        ({"state": "DONE"}, "state: expected one of PENDING"),
        (
            {"submit_time": "2026-04-04T12:00:00"},
            "submit_time: expected epoch seconds or a time with",
        ),
    ],
)
def test_record_without_required_fields_is_rejected(change, reason):
    with pytest.raises(RowError, match=reason):
        decode(MINIMAL_RECORD | change, "c1", "x")


def test_invalid_field_is_dropped_and_reported():
    job, complaints = decode(
        MINIMAL_RECORD
        | {"uid": -5, "user": "alice", "usr": "x", "cpu_seconds": True, "uids": None},
        "c1",
        "x",
    )
    assert (job.user, job.uid, job.cpu_seconds) == ("alice", None, None)
    assert [line.partition(":")[0] for line in complaints] == ["uid", "usr", "cpu_seconds"]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@given(st.dictionaries(st.sampled_from(JobRecord._fields), json_values) | json_values)
def test_any_json_gives_a_record_or_a_row_error(document):
    try:
        job, _ = decode(document, "c1", "x")
    except RowError:
        return
    assert (job.cluster, job.source) == ("c1", "x")
    assert all(not isinstance(value, int) or value < 2**63 for value in job)


def test_line_with_invalid_utf8_keeps_its_job(tmp_path):
    path = tmp_path / "jobs.jsonl"
    path.write_bytes(
        json.dumps(MINIMAL_RECORD | {"name": "caf?"}).encode().replace(b"?", b"\xe9") + b"\n"
    )
    source = json_lines.Jsonl("c1", json_lines.JsonLinesOptions(path=str(path)))
    (batch,) = source.read(source.watermark_at(0), {})
    assert not batch.quarantined
    assert [job.name for job in batch.jobs] == ["caf\ufffd"]


def test_json_lines_file_is_followed(tmp_path):
    path = tmp_path / "jobs.jsonl"
    source = json_lines.Jsonl("c1", json_lines.JsonLinesOptions(path=str(path)))
    assert "No such file" in source.check()[0]
    with pytest.raises(SourceError, match="No such file"):
        list(source.read('{"since": 0}', {}))
    path.write_text(
        json.dumps(MINIMAL_RECORD)
        + "\n{broken\n\n[1]\n"
        + json.dumps(MINIMAL_RECORD | {"jobid": "2"})
    )
    (batch,) = source.read(source.watermark_at(0), {})
    assert [job.jobid for job in batch.jobs] == ["1"]  # the last line is still being written
    assert [bad.reason.partition(":")[0] for bad in batch.quarantined] == [
        "not JSON",
        "expected a JSON object, got [1]",
    ]
    with path.open("a") as file:
        file.write("\n" + json.dumps(MINIMAL_RECORD | {"jobid": "2", "state": "COMPLETED"}) + "\n")
    (batch,) = source.read(batch.watermark, {})
    assert [(job.jobid, job.state) for job in batch.jobs] == [("2", JobState.COMPLETED)]


def test_directory_of_json_lines(tmp_path):
    for number in (2, 1):
        (tmp_path / f"{number}.jsonl").write_text(
            json.dumps(MINIMAL_RECORD | {"jobid": str(number)}) + "\n"
        )
    source = json_lines.Jsonl("c1", json_lines.JsonLinesOptions(path=str(tmp_path)))
    found = [job.jobid for batch in source.read('{"since": 0}', {}) for job in batch.jobs]
    assert found == ["1", "2"]


RUN_ID = "0f8fad5b-d9cb-469f-a165-708677289500"


def run(**changes) -> Run:
    run = Run(
        jobid=RUN_ID, node=os.uname().nodename, user="alice", uid=os.geteuid(),
        submit_time=1775300000, start_time=1775300000, state=JobState.RUNNING,
        supervisor=current_process(), name="train", submit_line="python train.py", allocated_cpus=4,
    )  # fmt: skip
    return run._replace(**changes)


@pytest.fixture
def source(tmp_path):
    return accounting.Runs("c1", accounting.LocalRunsOptions(path=str(tmp_path)))


def test_run_is_read_while_running_and_after_its_end(source, tmp_path):
    run_files.write(tmp_path, run())
    first, last = source.read("0", {})
    (job,) = first.jobs
    assert not last.quarantined
    assert (job.jobid, job.state, job.user, job.uid) == (
        RUN_ID,
        JobState.RUNNING,
        login(),
        os.geteuid(),
    )
    assert job.nodes == (NodeShare(os.uname().nodename, 4),)
    unfinished = {RUN_ID: UnfinishedJob(1775300000, 1, 1775300000)}
    assert list(source.read(last.watermark, unfinished))[-1].vanished == ()
    run_files.write(
        tmp_path,
        run(state=JobState.COMPLETED, end_time=1775300060, exit_code=0, user_cpu_seconds=30.0,
            system_cpu_seconds=1.5),
    )  # fmt: skip
    first, last = source.read(last.watermark, unfinished)
    assert (first.jobs[0].elapsed_seconds, first.jobs[0].cpu_seconds) == (60, 31.5)
    assert last.vanished == ()
    assert list(tmp_path.glob(".*")) == []


def test_run_without_a_live_supervisor_has_vanished(source, tmp_path):
    child = subprocess.Popen(["true"])
    child.wait()
    own_process = current_process()
    unfinished = {RUN_ID: UnfinishedJob(1775300000, 1, 1775300000)}
    for dead_process in (
        own_process._replace(pid=child.pid),
        own_process._replace(start_ticks=own_process.start_ticks + 1),  # its process id was reused
        own_process._replace(boot_id="0"),
    ):
        run_files.write(tmp_path, run(supervisor=dead_process))
        assert list(source.read("0", unfinished))[-1].vanished == (RUN_ID,)
    run_files.write(tmp_path, run(supervisor=SupervisorProcess(1, 1, "0"), node="other"))
    assert list(source.read("0", unfinished))[-1].vanished == ()
    (tmp_path / f"{RUN_ID}.json").unlink()
    assert list(source.read("0", unfinished))[-1].vanished == (RUN_ID,)
    assert not is_supervisor_alive({})


def ended_run(number: int = 0) -> Run:
    return run(
        jobid=f"{RUN_ID[:-1]}{number}", state=JobState.COMPLETED, end_time=1775300060.0, exit_code=0
    )


def test_clock_that_was_ahead_hides_no_run(tmp_path):
    now = [1775300100.0]
    source = accounting.Runs(
        "c1", accounting.LocalRunsOptions(path=str(tmp_path)), clock=lambda: now[0]
    )
    watermark = "1775300000"
    for number, (ahead_seconds, modified) in enumerate(((86_400, 1775300100), (0, 1775300110))):
        path = run_files.write(tmp_path, ended_run(number))
        os.utime(path, (modified, modified))
        now[0] = 1775300120.0 + ahead_seconds
        *first, last = source.read(watermark, {})
        watermark = last.watermark
        assert [job.jobid for batch in first for job in batch.jobs] == [ended_run(number).jobid]
    assert watermark == "1775300110"  # the file system's time


def test_unfinished_run_is_read_even_if_its_file_is_old(source, tmp_path):
    path = run_files.write(tmp_path, ended_run())
    os.utime(path, (1775300060, 1775300060))
    first, last = source.read("1775400000", {RUN_ID: UnfinishedJob(1775300000, 1, 1775300000)})
    assert [job.end_time for job in first.jobs] == [1775300060]
    assert last.vanished == ()


def test_reread_finds_files_with_an_old_modification_time(source, tmp_path):
    list(source.read("1775300000", {}))
    for number in range(3):
        path = run_files.write(tmp_path, ended_run(number))
        os.utime(path, (1775300060 + number, 1775300060 + number))
    source_at_start = accounting.Runs("c1", accounting.LocalRunsOptions(path=str(tmp_path)))
    assert [batch.jobs for batch in source_at_start.read("1775400000", {})] == [()]

    def keys_to_reread(records):
        return {job.key for job in records if job.jobid.endswith("1")}

    (reread,) = source_at_start.reread(1775300061, keys_to_reread)
    assert [job.jobid for job in reread.jobs] == [ended_run(1).jobid]


def test_reread_skips_runs_that_vanished(source, tmp_path):
    dead_process = current_process()._replace(boot_id="0")
    run_files.write(tmp_path, run(supervisor=dead_process))
    run_files.write(tmp_path, run(jobid=f"{RUN_ID[:-1]}1"))
    (reread,) = source.reread(0, lambda records: {job.key for job in records})
    assert [job.jobid for job in reread.jobs] == [f"{RUN_ID[:-1]}1"]


def test_scheduler_job_ids_are_not_reported_as_vanished_runs(source):
    unfinished = {
        "4711": UnfinishedJob(1, 1, 1),
        "1.pbs01": UnfinishedJob(1, 1, 1),
        "../x": UnfinishedJob(1, 1, 1),
    }
    assert list(source.read("0", unfinished))[-1].vanished == ()


def test_invalid_run_files_go_to_quarantine(source, tmp_path):
    (tmp_path / "a.json").write_text("{")
    (tmp_path / "b.json").write_text('{"version": 99}')
    (tmp_path / "c.json").write_text(json.dumps({"version": 1, "jobid": "../c", "state": "x"}))
    (tmp_path / ".d.json").write_text("half")
    (batch,) = source.read("0", {})
    assert [bad.reason.partition(":")[0] for bad in batch.quarantined] == [
        "a.json",
        "b.json",
        "c.json",
    ]


def test_missing_directory_is_an_error(tmp_path):
    source = accounting.Runs("c1", accounting.LocalRunsOptions(path=str(tmp_path / "none")))
    assert "may not list it" in source.check()[0]
    with pytest.raises(SourceError, match="No such file"):
        list(source.read("0", {}))


def test_deletion_marker_is_reported_then_removed(source, tmp_path):
    (tmp_path / f"{RUN_ID}.deleted").touch()
    (tmp_path / "x.deleted").touch()
    batches = source.read("0", {})
    assert next(batches).deleted == (DeletedRecord("runs", RUN_ID, None),)
    assert (tmp_path / f"{RUN_ID}.deleted").exists()  # until the deletion is written
    assert list(batches) == []
    assert [path.name for path in tmp_path.iterdir()] == ["x.deleted"]


def test_run_file_owned_by_another_user_is_rejected(source, tmp_path, as_recorded):
    path = run_files.write(tmp_path, run(uid=1001))
    os.chown(path, 1002, -1)
    (tmp_path / f"{RUN_ID}.deleted").touch()
    os.chown(tmp_path / f"{RUN_ID}.deleted", 1002, -1)
    (batch,) = source.read("0", {})
    assert batch.jobs == ()
    assert "uid 1002 wrote a run of uid 1001" in batch.quarantined[0].reason
    assert batch.deleted == (DeletedRecord("runs", RUN_ID, 1002),)
