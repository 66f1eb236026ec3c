"""Jobs at the edges of their lives, on what OpenPBS wrote of 101 submissions on a busy machine."""

import json
import lzma
from datetime import UTC

import pytest

from batchjob.schedulers.accounting import UnfinishedJob
from batchjob.schedulers.fields import FieldReader
from batchjob.schedulers.pbs.accounting import pbs_log, qstat
from batchjob.schedulers.pbs.accounting.log_line import parse_line
from batchjob.schedulers.pbs.accounting.log_replay import PbsLogReplay
from batchjob.schedulers.pbs.accounting.pbs_log import PbsLog
from batchjob.schedulers.pbs.accounting.qstat import Qstat, QstatOptions
from batchjob.schedulers.pbs.accounting.records import RecordOptions
from batchjob.schedulers.pbs.qstat_jobs import parse_json_jobs
from batchjob.schedulers.records import NodeShare, merge_by_key, merge_records
from batchjob.schedulers.states import JobState
from tests.batchjob.schedulers.pbs.pbs import RECORDINGS, log_line, read_all, unfinished_jobs

EDGES = RECORDINGS / "openpbs-2026-edges"
LOG = lzma.decompress((EDGES / "accounting.xz").read_bytes())
AFTERWARDS = 1795754000  # well after the last line


def recorded_qstat(name):
    if (whole := EDGES / f"qstat-{name}.json.xz").exists():  # with the history of that moment
        return parse_json_jobs(lzma.decompress(whole.read_bytes()))
    return parse_json_jobs((EDGES / f"qstat-{name}.json").read_bytes())


@pytest.fixture
def logged(tmp_path):
    """Records of the whole log, by job and run."""
    (tmp_path / "20261127").write_bytes(LOG)
    options = pbs_log.PbsLogOptions(path=str(tmp_path), time_zone="UTC", qstat="")
    jobs, _, quarantined = read_all(PbsLog("c1", options, clock=lambda: AFTERWARDS))
    assert quarantined == []
    return jobs


def test_job_deleted_after_its_node_lost_it_ends_with_its_deletion(logged):
    job = logged["74.pbs01", 2]
    assert (job.state, job.end_time, job.cancelled_by) == (JobState.CANCELLED, 1795751807, "root")


def test_deletion_of_a_running_job_is_no_end_while_its_end_may_be_logged(write_log):
    jobs = read_all(write_log(LOG))[0]
    assert (jobs["74.pbs01", 2].state, jobs["74.pbs01", 2].end_time) == (JobState.RUNNING, None)


@pytest.mark.parametrize("jobid", ["60.pbs01", "62.pbs01", "77.pbs01"])
def test_job_killed_by_pbs_is_not_cancelled(logged, jobid):
    job = logged[jobid, 1]
    assert (job.state, job.cancelled_by) == (JobState.FAILED, "")
    assert job.reason == "killed by PBS; nobody deleted it"


@pytest.mark.parametrize(("jobid", "run"), [("1", 2), ("10", 1), ("11", 1), ("78", 1), ("98", 2)])
def test_deleted_job_is_cancelled_by_the_one_who_deleted_it(logged, jobid, run):
    job = logged[f"{jobid}.pbs01", run]
    assert (job.state, job.cancelled_by, job.reason) == (JobState.CANCELLED, "root", "")


def test_requeue_after_a_node_failure_is_no_success(logged):
    job = logged["74.pbs01", 1]
    assert (job.state, job.exit_code, job.reason) == (
        JobState.REQUEUED, None, "its first node was lost",
    )  # fmt: skip


def test_starts_that_pbs_gave_up_are_no_runs(logged):
    (job,) = (job for (jobid, _), job in logged.items() if jobid == "95.pbs01")
    assert (job.state, job.run, job.start_time, job.nodes) == (JobState.PENDING, 1, None, ())
    assert job.reason == "its start failed and is tried again"


def test_memory_in_bytes_of_a_run_that_ended_when_its_daemon_restarted(logged):
    """`resources_used.mem=6908b`; all other records of this server are in kb."""
    run = logged["42[5].pbs01", 1]
    assert (run.state, run.peak_memory_bytes) == (JobState.REQUEUED, 6908)
    assert run.reason == "its node's PBS daemon restarted while it ran"


def test_job_deleted_with_the_one_it_depended_on_says_so(logged):
    job = logged["71.pbs01", 1]
    assert job.state is JobState.CANCELLED
    assert job.reason == "Job deleted as result of dependency on job 66.pbs01"


def test_what_exclusive_placement_holds_is_unknown_to_qstat():
    """Its answer names the request only, and the node may have any size."""
    job = Poller().read({"100.pbs01": recorded_qstat("final")["100.pbs01"]})["100.pbs01", 1]
    assert (job.requested_cpus, job.allocated_cpus, job.allocated_nodes) == (1, None, 1)
    assert job.nodes == (NodeShare("pbs01"),)


def test_exclusive_placement_holds_the_whole_node(logged):
    job = logged["100.pbs01", 1]
    assert (job.allocated_cpus, job.allocated_gpus) == (40, 4)
    assert job.nodes == (NodeShare("pbs01", 40, 23080 * 1024**2, 4),)


def test_run_time_is_the_walltime_on_a_busy_node(logged):
    job = logged["14.pbs01", 1]
    assert (job.end_time - job.start_time, job.elapsed_seconds, job.suspended_seconds) == (
        101, 0, 0,
    )  # fmt: skip


def test_suspended_job(logged):
    job = logged["63.pbs01", 1]
    assert (job.elapsed_seconds, job.suspended_seconds) == (76, 29)


def test_renamed_job_and_account_with_quotes(logged):
    assert logged["64.pbs01", 1].name == "renamed64"
    accounts = {job.account for job in logged.values()}
    assert 'the "big" one' in accounts


def test_deleted_waiting_subjobs_have_rows_with_their_own_ends(logged):
    for jobid, end in (("42[4]", 1795751318), ("55[4]", 1795751387), ("65[4]", 1795751422)):
        job = logged[f"{jobid}.pbs01", 1]
        assert (job.state, job.start_time, job.end_time) == (JobState.CANCELLED, None, end)
        assert (job.user, job.cancelled_by, job.name) == ("carol", "root", "arr2")


def read_after_restart(folder, log, first):
    """Records of the log from the line `first` on; another poller has read those before it."""
    options = pbs_log.PbsLogOptions(path=str(folder), time_zone="UTC", qstat="")
    file, line = folder / "20261120", log[: log.index(first)].rindex(b"\n") + 1
    file.write_bytes(log[:line])
    jobs, watermark, _ = read_all(PbsLog("c1", options))
    file.write_bytes(log)
    return read_all(PbsLog("c1", options), watermark, unfinished_jobs(jobs))[0]


def test_deleted_waiting_subjob_has_a_row_after_a_restart_of_the_poller(logged, tmp_path_factory):
    """Its array's line was read before; 42[1] had ended."""
    late = LOG + b"11/27/2026 03:48:39;D;42[1].pbs01;requestor=root@pbs01\n"
    jobs = read_after_restart(tmp_path_factory.mktemp("log"), late, b"D;42[4]")
    assert jobs["42[4].pbs01", 1] == logged["42[4].pbs01", 1]
    assert ("42[1].pbs01", 1) not in jobs


@pytest.mark.parametrize("first", [b"Q;1.pbs01", b"D;17[]"])
def test_waiting_subjobs_end_with_the_deletion_of_their_array(tmp_path, first):
    """Of the array 17[0-5:2], only 17[0] had begun."""
    log = lzma.decompress((RECORDINGS / "openpbs-23.06.06.accounting.xz").read_bytes())
    jobs = read_after_restart(tmp_path, log, first)
    for (jobid, _), job in jobs.items():
        if jobid.startswith("17["):
            assert (job.state, job.user, job.cancelled_by) == (
                JobState.CANCELLED, "alice", "root",
            )  # fmt: skip
    ends = {key[0]: job.end_time for key, job in jobs.items() if key[0].startswith("17[")}
    deleted = 1795175621
    assert ends == {"17[0].pbs01": deleted + 2, "17[2].pbs01": deleted, "17[4].pbs01": deleted}
    assert jobs["17[2].pbs01", 1].start_time is None


def test_subjobs_deleted_by_a_range_end_with_their_array(write_log):
    """`qdel 5[2-3]`: the server logs nothing of those that wait."""
    begin, head = 1795751738, "user=a ctime=1795751738 queue=q"
    run = f"{head} start={begin + 1} exec_host=n1/0"
    text = log_line(begin, "Q", "5[].s", f"{head} array_indices=1-3")
    text += log_line(begin + 1, "S", "5[].s", f"{head} start={begin + 1} array_indices=1-3")
    text += log_line(begin + 1, "S", "5[1].s", run)
    text += log_line(begin + 9, "E", "5[1].s", f"{run} end={begin + 9} Exit_status=0")
    text += log_line(begin + 9, "E", "5[].s", f"{head} session=0 end={begin + 9} Exit_status=0")
    jobs = read_all(write_log(text))[0]
    assert {jobid: (job.state, job.end_time) for (jobid, _), job in jobs.items()} == {
        "5[1].s": (JobState.COMPLETED, begin + 9), "5[2].s": (JobState.CANCELLED, begin + 9),
        "5[3].s": (JobState.CANCELLED, begin + 9),
    }  # fmt: skip


def test_failed_prologue_says_what_happened(logged):
    job = logged["94.pbs01", 1]
    assert (job.state, job.elapsed_seconds) == (JobState.FAILED, 0)
    assert "its prologue" in job.reason


def test_qstat_job_deleted_after_its_node_lost_it():
    job = qstat.finished_record(
        OPTIONS, "74.pbs01", FieldReader(recorded_qstat("final")["74.pbs01"])
    )
    assert (job.state, job.run, job.end_time) == (JobState.CANCELLED, 2, 1795751807)


OPTIONS = RecordOptions("c1", "qstat")


class Poller:
    """Reads what qstat says at several moments, as a poller would."""

    def __init__(self):
        self.source = Qstat("c1", QstatOptions(trust_missing=True))
        self.jobs, self.watermark, self.answer = {}, "0", {}
        self.source.query_jobs = self._query

    def _query(self):
        return [(jobid, FieldReader(dict(row))) for jobid, row in self.answer.items()]

    def read(self, answer):
        self.answer = answer
        unfinished = unfinished_jobs(self.jobs)
        for batch in self.source.read(self.watermark, unfinished):
            self.watermark = batch.watermark
            for job in batch.jobs:
                earlier = self.jobs.get((job.jobid, job.run), job)
                self.jobs[job.jobid, job.run] = merge_records(earlier, job)
        return self.jobs


def test_job_first_seen_after_refused_starts_waits_for_its_first_run():
    held = recorded_qstat("held-after-21-attempts")["95.pbs01"]
    poller = Poller()
    for _ in range(2):
        assert list(poller.read({"95.pbs01": held})) == [("95.pbs01", 1)]


def test_job_that_ran_between_two_readings_waits_for_its_next_run():
    """Nothing says that its start was refused: it ran, and was rerun."""
    poller, held = Poller(), recorded_qstat("held-after-21-attempts")["95.pbs01"]
    waiting = {**held, "run_count": "0", "job_state": "Q", "comment": "", "Exit_status": "0"}
    poller.read({"95.pbs01": waiting})
    assert ("95.pbs01", 2) in poller.read({"95.pbs01": {**waiting, "run_count": "1"}})


def test_job_held_after_many_starts_is_one_waiting_run_until_it_is_deleted():
    """Its start was refused 21 times; PBS' run_count says 21."""
    poller, held = Poller(), recorded_qstat("held-after-21-attempts")["95.pbs01"]
    waiting = {**held, "run_count": "0", "job_state": "Q", "comment": ""}
    poller.read({"95.pbs01": waiting})
    starting = {**held, "run_count": "3", "job_state": "R", "substate": "41", "exec_host": "n/0"}
    poller.read({"95.pbs01": starting})
    jobs = poller.read({"95.pbs01": held})
    assert list(jobs) == [("95.pbs01", 1)]
    job = jobs["95.pbs01", 1]
    assert (job.state, job.start_time) == (JobState.PENDING, None)
    assert job.reason == "job held, too many failed attempts to run"
    deleted = {**held, "job_state": "F", "substate": "91", "history_timestamp": "1795752000"}
    for _ in range(2):  # PBS lists it for two weeks, and the poller restarts meanwhile
        restarted = Poller()
        restarted.jobs, restarted.watermark = poller.jobs, poller.watermark
        poller = restarted
        jobs = poller.read({"95.pbs01": deleted})
        assert list(jobs) == [("95.pbs01", 1)]
    job = jobs["95.pbs01", 1]
    assert (job.state, job.end_time, job.reason) == (JobState.CANCELLED, 1795752000, "")


def test_job_deleted_while_it_waits_for_its_second_run_keeps_its_first():
    poller, job = Poller(), recorded_qstat("rerun")["1.pbs01"]
    poller.read({"1.pbs01": {**job, "run_count": "1"}})
    waiting = {name: value for name, value in job.items() if not name.startswith("exec_")}
    waiting |= {"job_state": "Q", "run_count": "1"}
    poller.read({"1.pbs01": waiting})
    end = {"job_state": "F", "substate": "91", "history_timestamp": "1795752000"}
    jobs = poller.read({"1.pbs01": waiting | end})
    assert [jobs["1.pbs01", run].state for run in (1, 2)] == [
        JobState.REQUEUED, JobState.CANCELLED,
    ]  # fmt: skip
    assert (jobs["1.pbs01", 2].start_time, jobs["1.pbs01", 2].end_time) == (None, 1795752000)


def test_job_moved_to_another_server_ends_in_both_sources(write_log):
    poller, job = Poller(), recorded_qstat("suspended")["71.pbs01"]
    poller.read({"71.pbs01": job | {"job_state": "M", "mtime": "1795751450"}})
    line = log_line(1795751440, "Q", "71.pbs01", f"user=dave ctime={job['ctime']} queue=workq")
    line += log_line(1795751450, "M", "71.pbs01", "destination=pbs02")
    logged = read_all(write_log(line))[0]
    for jobs in (poller.jobs, logged):
        moved = jobs["71.pbs01", 1]
        assert (moved.state, moved.start_time, moved.end_time) == (JobState.MOVED, None, 1795751450)


def test_suspension_seen_by_qstat():
    poller = Poller()
    poller.read(recorded_qstat("suspended"))
    job = poller.jobs["63.pbs01", 1]
    assert (job.state, job.elapsed_seconds) == (JobState.SUSPENDED, 5)
    poller.read(recorded_qstat("two-nodes"))
    job = poller.jobs["63.pbs01", 1]
    assert job.state is JobState.RUNNING
    assert 29 <= job.suspended_seconds <= 75  # it was resumed before the server's last change


def test_comment_of_the_past_is_no_reason():
    poller = Poller()
    poller.read(recorded_qstat("rerun"))
    poller.read(recorded_qstat("final"))
    assert {job.reason for job in poller.jobs.values() if not job.state.is_live} == {
        "", "killed by PBS; nobody deleted it",
        "its script did not start: its prologue or the setup on its node failed",
    }  # fmt: skip
    assert poller.jobs["100.pbs01", 1].reason == ""


def test_qstat_names_reservation_and_who_cancelled():
    poller = Poller()
    poller.read(recorded_qstat("suspended"))
    assert poller.jobs["70.pbs01", 1].reservation == "R52.pbs01"
    job = recorded_qstat("rerun")["10.pbs01"] | {"job_state": "F", "substate": "91"}
    poller.read({"10.pbs01": job})
    assert poller.jobs["10.pbs01", 1].cancelled_by == "root"


# What one of the two sources does not know of any job, and what else it does not know of these.
ONLY_IN_QSTAT = {"submit_line", "work_dir", "stdout_path"}
ONLY_LOGGED = {"cancelled_by", "dependencies"}
EXCEPTIONS = {
    # What exclusive placement holds is in the log only.
    ("100.pbs01", "allocated_cpus"), ("100.pbs01", "allocated_gpus"),
    ("100.pbs01", "allocated_memory_bytes"), ("100.pbs01", "nodes"),
    # Deleted, but qstat says that it failed: PBS killed its second run.
    ("98.pbs01", "state"), ("98.pbs01", "reason"),
    ("95.pbs01", "reason"), ("95.pbs01", "eligible_time"),  # it is held
    # Why it was deleted with the job on which it depended.
    ("71.pbs01", "reason"),
    # The first run, which qstat no longer shows.
    ("74.pbs01", "reason"), ("74.pbs01", "elapsed_seconds"), ("74.pbs01", "suspended_seconds"),
    # Deleted waiting subjobs: qstat shows the end of the array.
    ("42[4].pbs01", "end_time"), ("55[4].pbs01", "end_time"), ("65[4].pbs01", "end_time"),
}  # fmt: skip
# Submitted between two answers of qstat, and forgotten by PBS before the next one.
NEVER_IN_QSTAT = {f"{number}.pbs01" for number in (77, *range(79, 93))}

SUBMITTED = {"95.pbs01": recorded_qstat("final")["95.pbs01"] | {"run_count": "0"}}
MOMENTS = ("rerun", "history-early", "suspended", "history-late", "two-nodes",
           "held-after-21-attempts", "final")  # fmt: skip


def test_rows_of_log_and_qstat_are_equal(logged):
    poller = Poller()
    for moment in MOMENTS:
        poller.read(recorded_qstat(moment) | (SUBMITTED if moment == "two-nodes" else {}))
    assert {jobid for jobid, _ in logged} - {jobid for jobid, _ in poller.jobs} == NEVER_IN_QSTAT
    unlike = set()
    for key, job in poller.jobs.items():
        if job.state.is_live and not logged[key].state.is_live:
            assert key[0] in {"63.pbs01", "73.pbs01", "75.pbs01"}  # never in qstat with their ends
            continue
        unlike |= {
            (key[0], name)
            for name, mine, theirs in zip(job._fields, job, logged[key], strict=True)
            if mine != theirs and name not in ONLY_IN_QSTAT | ONLY_LOGGED | {"source", "state_word"}
        }
    assert unlike == EXCEPTIONS


def answering(tmp_path, queue, history):
    """A qstat that lists these jobs, and with -x these."""
    for name, jobs in (("queue", queue), ("history", history)):
        (tmp_path / f"{name}.json").write_text(json.dumps({"Jobs": jobs}))
    program = tmp_path / "qstat"
    program.write_text(f"""#!/bin/sh
echo "$*" >> {tmp_path}/calls
case "$*" in *-x*) cat {tmp_path}/history.json;; *) cat {tmp_path}/queue.json;; esac
""")
    program.chmod(0o755)
    return str(program)


def test_running_jobs_that_pbs_no_longer_runs_are_ended(tmp_path):
    ended = json.loads((EDGES / "qstat-final.json").read_bytes())["Jobs"]["78.pbs01"]
    queue = {"3.pbs01": ended | {"job_state": "R"}}
    logs = tmp_path / "accounting"
    logs.mkdir()
    (logs / "20261127").write_text("")
    options = pbs_log.PbsLogOptions(
        path=str(logs), time_zone="UTC", qstat=answering(tmp_path, queue, {"78.pbs01": ended})
    )
    source = PbsLog("c1", options, clock=lambda: AFTERWARDS)
    submitted = int(recorded_qstat("final")["78.pbs01"]["ctime"])
    unfinished = {
        "78.pbs01": UnfinishedJob(submitted, 1, submitted), "3.pbs01": UnfinishedJob(5, 1, 6),
        "9.pbs01": UnfinishedJob(7, 1, 8), "4.pbs01": UnfinishedJob(7, 1, None),
    }  # fmt: skip
    batches = list(source.read('{"since": 0}', unfinished))
    (job,) = batches[-1].jobs
    assert (job.jobid, job.state, job.source) == ("78.pbs01", JobState.CANCELLED, "pbs_log")
    assert batches[-1].vanished == ("9.pbs01",)
    list(source.read(batches[-1].watermark, unfinished))  # once an hour is enough
    assert len((tmp_path / "calls").read_text().splitlines()) == 2


def test_running_jobs_of_a_server_without_history_vanish(tmp_path):
    """PBS keeps no history by default."""
    qstat_program = answering(tmp_path, {"3.pbs01": {"job_state": "R"}}, {})
    refusing = "echo 'qstat: PBS is not configured to maintain job history' >&2; exit 153"
    program = (tmp_path / "qstat").read_text()
    (tmp_path / "qstat").write_text(program.replace(f"cat {tmp_path}/history.json", refusing))
    (tmp_path / "20261127").write_text("")
    options = pbs_log.PbsLogOptions(path=str(tmp_path), time_zone="UTC", qstat=qstat_program)
    unfinished = {"3.pbs01": UnfinishedJob(5, 1, 6), "9.pbs01": UnfinishedJob(7, 1, 8)}
    source = PbsLog("c1", options, clock=lambda: AFTERWARDS)
    assert list(source.read('{"since": 0}', unfinished))[-1].vanished == ("9.pbs01",)


def test_missing_qstat_stops_nothing(tmp_path, caplog):
    (tmp_path / "20261127").write_bytes(LOG)
    options = pbs_log.PbsLogOptions(path=str(tmp_path), time_zone="UTC", qstat="no-such-qstat")
    source = PbsLog("c1", options, clock=lambda: AFTERWARDS)
    unfinished = {"9.pbs01": UnfinishedJob(7, 1, 8)}
    assert read_all(source, unfinished=unfinished)[0]
    assert "running jobs are not compared with PBS' queue" in caplog.text


def test_a_minute_of_refused_starts_is_one_record():
    begin = 1795751738
    text = log_line(begin, "Q", "7.s", f"user=a ctime={begin}")
    for attempt in range(42):
        at = begin + attempt
        start = f"user=a ctime={begin} start={at} exec_host=n1/0 exec_vnode=(n1:ncpus=1)"
        text += log_line(at, "S", "7.s", start)
        text += log_line(at, "R", "7.s", f"{start} session=0 end={at} Exit_status=-3")
    replay = PbsLogReplay(RecordOptions("c1", "pbs_log"))
    records = []
    for each in text.splitlines():
        records += replay.records(parse_line(each, UTC, 0))
    (job,) = merge_by_key(records)
    assert (job.state, job.run, job.start_time, job.nodes) == (JobState.PENDING, 1, None, ())
