"""PBS and Torque: accounting logs and qstat, on what OpenPBS 23.06 wrote."""

import json
import lzma
import os
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchjob.runtime.settings import SettingsError, build_section
from batchjob.schedulers.accounting import ShrunkenError, SourceError, UnfinishedJob
from batchjob.schedulers.pbs.accounting import pbs_log, qstat
from batchjob.schedulers.pbs.accounting.log_line import parse_attributes
from batchjob.schedulers.pbs.accounting.pbs_log import PbsLog
from batchjob.schedulers.pbs.accounting.qstat import Qstat
from batchjob.schedulers.pbs.qstat_jobs import parse_json_jobs, parse_text_jobs
from batchjob.schedulers.records import NodeShare, merge_records
from batchjob.schedulers.states import JobState

RECORDINGS = Path(__file__).parents[2] / "fixtures" / "accounting"
LOG = lzma.decompress((RECORDINGS / "openpbs-23.06.06.accounting.xz").read_bytes())
QSTAT = lzma.decompress((RECORDINGS / "openpbs-23.06.06.qstat.json.xz").read_bytes())
MB = 1024**2


@pytest.fixture
def logs(tmp_path):
    """`logs(text, day="20261120")` writes a day's file and gives the source."""
    source = PbsLog("c1", pbs_log.PbsLogOptions(path=str(tmp_path), time_zone="UTC"))

    def write(content, day="20261120"):
        data = content if isinstance(content, bytes) else content.encode()
        (tmp_path / day).write_bytes(data)
        return source

    return write


def read(source, watermark='{"since": 0}', unfinished=None):
    """What a poller would know after reading: records by id and run, watermark, quarantine."""
    known = dict(unfinished or {})
    found, bad = {}, []
    for batch in source.read(watermark, known):
        watermark = batch.watermark
        bad += batch.quarantined
        for job in batch.jobs:
            earlier = found.get((job.jobid, job.run))
            found[job.jobid, job.run] = (
                job
                if earlier is None
                else type(job)._make(
                    old if new in (None, "", ()) else new
                    for old, new in zip(earlier, job, strict=True)
                )
            )
    return found, watermark, bad


def test_every_job_of_the_log(logs):
    found, _, bad = read(logs(LOG))
    assert not bad
    assert not any("[]" in jobid for jobid, _ in found)
    job = found["1.pbs01", 1]
    assert (job.user, job.group, job.account, job.name) == ("bob", "bob", "chem", "memhog")
    assert (job.partition, job.state) == ("workq", JobState.COMPLETED)
    assert (job.submit_time, job.start_time, job.end_time) == (1795175147, 1795175147, 1795175222)
    assert (job.exit_code, job.exit_signal, job.elapsed_seconds) == (0, 0, 75)
    assert job.nodes == (NodeShare("pbs01", 1, 500 * MB, None),)
    assert (job.requested_memory_bytes, job.time_limit_seconds) == (500 * MB, 600)
    assert job.peak_memory_bytes == 311808 * 1024
    assert found["0.pbs01", 1].cpu_seconds == 74


@pytest.mark.parametrize(
    ("jobid", "state", "code", "signal"),
    [
        ("2[2].pbs01", JobState.FAILED, 7, 0),
        ("4.pbs01", JobState.FAILED, 139, 0),
        ("5.pbs01", JobState.TIMEOUT, None, None),
        ("8.pbs01", JobState.CANCELLED, None, 15),
        ("15.pbs01", JobState.CANCELLED, None, 9),
        ("10.pbs01", JobState.CANCELLED, None, None),
    ],
)
def test_how_jobs_ended(logs, jobid, state, code, signal):
    job = read(logs(LOG))[0][jobid, 1]
    assert (job.state, job.exit_code, job.exit_signal) == (state, code, signal)
    assert job.end_time


def test_array_tasks_gpus_chunks_and_dependencies(logs):
    found = read(logs(LOG))[0]
    assert (found["2[3].pbs01", 1].array_jobid, found["2[3].pbs01", 1].array_index) == ("2", 3)
    assert found["11.pbs01", 1].allocated_gpus == found["11.pbs01", 1].requested_gpus == 1
    assert found["7.pbs01", 1].nodes == (NodeShare("pbs01", 2, 200 * MB, None),)
    assert found["18.pbs01", 1].dependencies == "afterok:15.pbs01@pbs01"
    assert found["5.pbs01", 1].reason == "walltime exceeded"


def test_who_deleted(logs):
    found = read(logs(LOG))[0]
    assert found["8.pbs01", 1].cancelled_by == "carol"  # it ran
    assert found["10.pbs01", 1].cancelled_by == "dave"  # it waited
    assert found["10.pbs01", 1].start_time is None


def test_a_rerun_is_a_record_of_its_own(logs):
    found = read(logs(LOG))[0]
    first, second = found["16.pbs01", 1], found["16.pbs01", 2]
    assert (first.state, first.end_time) == (JobState.REQUEUED, 1795175582)
    assert (second.state, second.start_time) == (JobState.CANCELLED, 1795175583)
    assert first.submit_time == second.submit_time


@pytest.mark.parametrize("lines", [1, 7, 30])
def test_reading_in_pieces_is_reading_at_once(logs, lines):
    whole = read(logs(LOG))[0]
    pieces, watermark, unfinished = {}, '{"since": 0}', {}
    text = LOG.splitlines(keepends=True)
    for end in range(lines, len(text) + lines, lines):
        source = logs(b"".join(text[:end]) + b"11/20/2026 11:4")  # the server is still writing
        for batch in source.read(watermark, unfinished):
            watermark = batch.watermark
            for job in batch.jobs:
                key = job.jobid, job.run
                earlier = pieces.get(key, job)
                pieces[key] = type(job)._make(
                    old if new in (None, "", ()) else new
                    for old, new in zip(earlier, job, strict=True)
                )
                if pieces[key].state.is_live:
                    known = UnfinishedJob(job.submit_time, job.run, pieces[key].start_time)
                    unfinished[job.jobid] = known
                elif unfinished.get(job.jobid, (0, job.run))[1] == job.run:
                    unfinished.pop(job.jobid, None)
    assert pieces == whole


def test_log_and_qstat_agree(logs, tmp_path):
    logged = read(logs(LOG))[0]
    for jobid, row in parse_json_jobs(QSTAT).items():
        if jobid.startswith("17[") or "[]" in jobid:
            continue  # sub-jobs that never ran are not in the log
        job = Qstat("c1", qstat.QstatOptions()).record(jobid, qstat.FieldReader(row))
        same = logged[jobid, job.run]
        for name in (
            "submit_time", "start_time", "user", "group", "account", "partition", "name", "state",
            "exit_code", "exit_signal", "reason", "requested_cpus", "requested_memory_bytes",
            "requested_gpus", "allocated_cpus", "nodes", "array_jobid", "array_index",
            "cpu_seconds", "peak_memory_bytes", "time_limit_seconds",
        ):  # fmt: skip
            assert getattr(job, name) == getattr(same, name), (jobid, name)
        assert abs(job.end_time - same.end_time) <= 1


def test_a_sub_job_that_never_ran_is_cancelled_without_a_start():
    row = parse_json_jobs(QSTAT)["17[2].pbs01"]
    job = Qstat("c1", qstat.QstatOptions()).record("17[2].pbs01", qstat.FieldReader(row))
    assert (job.state, job.start_time, job.exit_code) == (JobState.CANCELLED, None, None)


HEAD = "04/04/2026 13:06:40;E;101.srv;user=alice group=phys"
TAIL = "ctime=1775296800 start=1775296900 end=1775300800 Exit_status=0"


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("jobname=train queue=q", "train"),
        ('jobname="my train" queue=q', "my train"),
        ("jobname=my train queue=q", "my train"),
        ('jobname="never closed queue=q', '"never closed'),
        ("jobname=a;b;c queue=q", "a;b;c"),
        ("jobname=x user=root queue=q", "x"),
    ],
)
def test_names_with_blanks_quotes_and_semicolons(logs, given, name):
    found, _, bad = read(logs(f"{HEAD} {given} {TAIL}\n"))
    job = found["101.srv", 1]
    assert (job.name, job.user, job.partition) == (name, "alice", "q")
    assert not bad


def test_torque(logs):
    found, _, bad = read(
        logs(
            "04/04/2026 13:06:40;Q;7-3.srv;queue=batch\n"
            f"{HEAD.replace('101.srv', '7-3.srv')} jobname=t queue=batch ctime=1775296800 "
            "qtime=1775296800 etime=1775296800 start=1775296900 owner=alice@login "
            "exec_host=n1/0-3+n2/0-3 Resource_List.neednodes=2:ppn=4 Resource_List.nodes=2:ppn=4 "
            "total_execution_slots=8 unique_node_count=2 session=1 end=1775300800 Exit_status=271 "
            "resources_used.cput=01:00:00 resources_used.mem=1024kb\n"
        )
    )
    job = found["7-3.srv", 1]
    assert not bad
    assert (job.array_jobid, job.array_index, job.state) == ("7", 3, JobState.CANCELLED)
    assert job.nodes == (NodeShare("n1", 4), NodeShare("n2", 4))
    assert (job.allocated_cpus, job.allocated_nodes, job.cpu_seconds) == (8, 2, 3600)
    assert job.requested_resources == "2:ppn=4"


def test_suspended_resumed_and_altered(logs):
    lines = """04/04/2026 12:00:00;Q;5.s;user=a ctime=1775296800 queue=q jobname=j
04/04/2026 12:00:01;a;5.s;Resource_List.walltime=01:00:00
04/04/2026 12:00:02;S;5.s;user=a ctime=1775296800 queue=q start=1775296802 exec_host=n/0*2
04/04/2026 12:00:03;z;5.s;resources_used.cput=00:00:01
"""
    found, watermark, _ = read(logs(lines))
    assert (found["5.s", 1].state, found["5.s", 1].time_limit_seconds) == (JobState.SUSPENDED, 3600)
    assert found["5.s", 1].name == "j"
    source = logs(lines + "04/04/2026 12:00:09;r;5.s;\n")
    known = {"5.s": UnfinishedJob(1775296800, 1, 1775296802)}
    assert read(source, watermark, known)[0]["5.s", 1].state == JobState.RUNNING


def test_a_start_without_an_end_before_it_is_another_run(logs):
    known = {"5.s": UnfinishedJob(1775296800, 1, 1775296801)}
    line = "04/04/2026 12:30:00;S;5.s;user=a ctime=1775296800 start=1775298600 exec_host=n/0\n"
    found = read(logs(line), unfinished=known)[0]
    assert found["5.s", 1].state == JobState.REQUEUED
    assert (found["5.s", 2].state, found["5.s", 2].start_time) == (JobState.RUNNING, 1775298600)


def test_a_reused_id_is_another_job(logs):
    known = {"101.srv": UnfinishedJob(1675296800, 3, 1675296900)}
    found = read(logs(f"{HEAD} {TAIL}\n"), unfinished=known)[0]
    assert list(found) == [("101.srv", 1)]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("04/04/2026 12:00:00;E;101.srv", "expected stamp;type;id"),
        ("2026-04-04;E;101.srv;user=a", "expected a stamp"),
        (f"04/04/2026 12:00:00;E;no id;{TAIL}", "expected a job id"),
        ("04/04/2026 12:00:00;E;101.srv;user=alice end=5", "ctime is missing"),
        (f"{HEAD} {TAIL[:20]}{HEAD} {TAIL}", "expected"),  # two writers in one line
        ("\0\0\0\0\0\0", "expected stamp;type;id"),
    ],
)
def test_bad_lines_go_to_quarantine_and_the_next_one_is_read(logs, line, reason):
    good = f"{HEAD} {TAIL}\n".replace("101", "102")
    found, _, bad = read(logs(f"{line}\n{good}"))
    assert ("102.srv", 1) in found
    assert reason in bad[0].reason
    assert bad[0].raw == line.replace("\0", "\ufffd")


def test_a_field_that_cannot_be_read_costs_that_field_only(logs):
    line = f"{HEAD} {TAIL} exec_host=n1 resources_used.mem=lots"
    found, _, bad = read(logs(line + "\n"))
    assert (found["101.srv", 1].state, found["101.srv", 1].nodes) == (JobState.COMPLETED, ())
    assert "exec_host: not an exec_host" in bad[0].reason
    assert "resources_used.mem: expected a size" in bad[0].reason


def test_reservations_licences_and_checkpoints_are_passed_over(logs):
    lines = "".join(f"04/04/2026 12:00:00;{kind};7.s;x=1\n" for kind in "UYBFKkLPpCTuse")
    found, _, bad = read(logs(lines.replace(";e;7.s", ";e;R7.s").replace(";L;7.s", ";L;license")))
    assert (found, bad) == ({}, [])


def test_the_hour_that_comes_twice(tmp_path):
    source = PbsLog("c1", pbs_log.PbsLogOptions(path=str(tmp_path), time_zone="Europe/Berlin"))
    (tmp_path / "20261025").write_text(
        "10/25/2026 02:50:00;Q;1.s;user=a ctime=1792889400\n"
        "10/25/2026 02:10:00;D;1.s;requestor=a@h\n"
    )
    job = read(source)[0]["1.s", 1]
    assert job.end_time - job.submit_time == 20 * 60


def test_a_new_day_and_the_end_of_the_last_one(logs, tmp_path):
    first, second = f"{HEAD} {TAIL}\n", f"{HEAD} {TAIL}\n".replace("101", "102")
    _, watermark, _ = read(logs(first))
    logs(first + second.rstrip("\n"))  # the last line has no end, and a newer file is there
    found, watermark, _ = read(logs(second.replace("102", "103"), day="20261121"), watermark)
    assert set(found) == {("102.srv", 1), ("103.srv", 1)}
    assert read(logs(first), watermark)[0] == {}
    (tmp_path / "20261121").unlink()  # gone: all is read again rather than anything missed
    assert read(logs(first), watermark)[0]


def test_a_file_with_a_used_inode_is_another_file(logs, tmp_path):
    _, watermark, _ = read(logs(f"{HEAD} {TAIL}\n"))
    other = f"{HEAD} {TAIL} x=1\n".replace("101", "999")
    found, _, _ = read(logs(other), watermark)  # written in place: the same inode
    assert ("999.srv", 1) in found


def test_backfill_reads_the_files_changed_since(logs, tmp_path):
    source = logs(f"{HEAD} {TAIL}\n", day="20260404")
    os.utime(tmp_path / "20260404", (1775300800, 1775300800))
    logs(f"{HEAD} {TAIL}\n".replace("101", "102"), day="20261120")
    found, _, _ = read(source, source.watermark_at(1775400000))
    assert set(found) == {("102.srv", 1)}


def test_what_keeps_us_from_the_logs(tmp_path):
    gone = PbsLog("c1", pbs_log.PbsLogOptions(path=str(tmp_path / "none")))
    assert "No such file" in gone.check()[0]
    with pytest.raises(SourceError, match="No such file"):
        list(gone.read('{"since": 0}', {}))
    empty = PbsLog("c1", pbs_log.PbsLogOptions(path=str(tmp_path)))
    assert "no log file" in empty.check()[0]
    with pytest.raises(SettingsError, match="expected a time zone such as Europe/Berlin"):
        build_section(pbs_log.PbsLogOptions, "pbs_log", {"pbs_log.time-zone": "Mars/Olympus"})


@given(st.text())
def test_any_message_gives_attributes(message):
    assert all(isinstance(value, str) for value in parse_attributes(message).values())


def qstat_program(tmp_path, output: bytes, plain: bytes = b"", server: str = "") -> str:
    (tmp_path / "json").write_bytes(output)
    (tmp_path / "plain").write_bytes(plain)
    (tmp_path / "server").write_text(server)
    script = tmp_path / "qstat"
    script.write_text(f"""#!/bin/sh
cd {tmp_path}; case "$*" in *-B*) cat server;; *json*) cat json;; *) cat plain;; esac
""")
    script.chmod(0o755)
    return str(script)


def test_qstat(tmp_path):
    source = Qstat(
        "c1", qstat.QstatOptions(qstat=qstat_program(tmp_path, QSTAT)), lambda: 1795176000
    )
    found, watermark, bad = read(source, "0", {"99.pbs01": UnfinishedJob(1795170000, 1, None)})
    assert len(found) == 24
    assert not bad
    assert watermark == "1795176000"
    job = found["0.pbs01", 1]
    assert job.submit_line == "qsub -A physics /srv/pbsmini/jobs/cpu.pbs"
    assert (job.work_dir, job.stdout_path.rpartition("/")[2]) == (
        "/srv/pbsmini/home/alice",
        "cpuburn.o0",
    )
    (*_, last) = source.read("0", {"99.pbs01": UnfinishedJob(1795170000, 1, None)})
    assert last.vanished == ("99.pbs01",)


@pytest.mark.parametrize("name", ["123", "1e5", "true", "null", "1.50"])
def test_names_that_look_like_json_are_names(name):
    document = f'{{"Jobs": {{"1.s": {{"Job_Name": {name}, "Resource_List": {{"ncpus": 2}}}}}}}}'
    row = parse_json_jobs(document.encode())["1.s"]
    assert (row["jobname"], row["Resource_List.ncpus"]) == (name, "2")


def test_what_is_no_json_is_read_as_text(tmp_path):
    broken = QSTAT.replace(b'"cpuburn"', b'"cpu"burn"').replace(b'"physics"', b"007")
    plain = b"""Job Id: 0.pbs01
    Job_Name = cpu"burn
    Job_Owner = alice@pbs01
    job_state = R
    ctime = Fri Nov 20 11:45:47 2026
    stime = Fri Nov 20 11:45:48 2026
    exec_host = pbs01/0
    Variable_List = PBS_O_HOME=/srv,PBS_O_LANG=C.UTF-8,
\tPBS_O_WORKDIR=/srv/al
\tice,PBS_O_SYSTEM=Linux
    run_count = 1

"""
    program = qstat_program(tmp_path, broken, plain)
    job = read(Qstat("c1", qstat.QstatOptions(qstat=program)), "0")[0]["0.pbs01", 1]
    assert (job.name, job.user, job.state) == ('cpu"burn', "alice", JobState.RUNNING)
    assert (job.start_time, job.work_dir) == (1795175148, "/srv/alice")


def test_a_value_that_is_nested_without_end_is_read_as_text(tmp_path):
    nested = QSTAT.replace(b'"cpuburn"', b"[" * 100_000)
    program = qstat_program(tmp_path, nested, b"Job Id: 0.pbs01\n    ctime = 1795175147\n")
    assert list(read(Qstat("c1", qstat.QstatOptions(qstat=program)), "0")[0]) == [("0.pbs01", 1)]


def test_a_name_that_is_not_utf_8_keeps_no_job_out(tmp_path):
    program = qstat_program(tmp_path, QSTAT.replace(b'"cpuburn"', b'"caf\xe9"'))
    found = read(Qstat("c1", qstat.QstatOptions(qstat=program)), "0")[0]
    assert found["0.pbs01", 1].name == "caf\ufffd"


def test_what_a_user_wrote_changes_no_attribute():
    plain = b"Job Id: 1.s\n    job_state = Q\n    Variable_List = A=1,\n    job_state = R\n\tB=2\n"
    assert parse_text_jobs(plain)["1.s"]["job_state"] == "Q"


def test_an_empty_history_is_an_error_while_jobs_are_unfinished(tmp_path):
    program = qstat_program(tmp_path, b'{"timestamp": 1}')
    source = Qstat("c1", qstat.QstatOptions(qstat=program), lambda: 1795176000)
    with pytest.raises(ShrunkenError):
        list(source.read("1795175000", {"1.s": UnfinishedJob(1, 1, None)}))
    assert [batch.jobs for batch in source.read("1795175000", {})] == [()]


def test_after_a_longer_absence_than_the_history_missing_jobs_have_ended(tmp_path):
    program = qstat_program(tmp_path, b'{"timestamp": 1}')
    options = qstat.QstatOptions(qstat=program, history=3600)
    known = {f"{number}.s": UnfinishedJob(1, 1, None) for number in range(50)}
    source = Qstat("c1", options, lambda: 1795176000)
    with pytest.raises(ShrunkenError):
        list(source.read(str(1795176000 - 3600), known))
    (*_, last) = source.read(str(1795176000 - 3601), known)
    assert len(last.vanished) == 50


def test_when_pbs_expects_to_start_a_job_that_waits(tmp_path):
    shown = {
        "ctime": "Fri Nov 20 11:45:47 2026", "Job_Owner": "alice@pbs01", "job_state": "Q",
        "estimated": {"start_time": "Fri Nov 20 13:00:00 2026"},
    }  # fmt: skip
    program = qstat_program(tmp_path, json.dumps({"Jobs": {"1.pbs01": shown}}).encode())
    found, _, _ = read(
        Qstat("c1", qstat.QstatOptions(qstat=program), lambda: 1795176000), "1795175100", {}
    )
    at = found["1.pbs01", 1].expected_start_time
    assert datetime.fromtimestamp(at, UTC).strftime("%H:%M:%S") == "13:00:00"


@pytest.mark.parametrize(
    ("change", "end"),
    [
        ({"job_state": "R", "stime": "Fri Nov 20 11:58:00 2026"}, "11:58:00"),
        ({"job_state": "Q", "mtime": "Fri Nov 20 11:57:00 2026"}, "11:57:00"),
    ],
)
def test_a_run_before_the_one_that_qstat_shows_is_over(tmp_path, change, end):
    shown = {"ctime": "Fri Nov 20 11:45:47 2026", "Job_Owner": "alice@pbs01", "run_count": 2}
    shown["run_count"] -= change["job_state"] == "Q"  # it counts runs that began
    program = qstat_program(tmp_path, json.dumps({"Jobs": {"1.pbs01": shown | change}}).encode())
    source = Qstat("c1", qstat.QstatOptions(qstat=program), lambda: 1795176000)
    known = {"1.pbs01": UnfinishedJob(1795175147, 1, 1795175200)}
    found, _, _ = read(source, "1795175900", known)
    before, now = found["1.pbs01", 1], found["1.pbs01", 2]
    assert (before.state, now.state.is_live) == (JobState.REQUEUED, True)
    assert datetime.fromtimestamp(before.end_time, UTC).strftime("%H:%M:%S") == end
    assert before.reason == "its end was not logged"


def test_rights_and_history(tmp_path):
    good = "Server: s\n    query_other_jobs = True\n    job_history_enable = True\n"
    assert (
        Qstat("c1", qstat.QstatOptions(qstat=qstat_program(tmp_path, b"", server=good))).check()
        == ()
    )
    poor = Qstat("c1", qstat.QstatOptions(qstat=qstat_program(tmp_path, b"", server="Server: s\n")))
    assert [line.split("'")[1] for line in poor.check()] == [
        "set server query_other_jobs = True",
        "set server job_history_enable = True",
    ]


@given(st.text() | st.from_regex(r"(Job Id: [0-9]{1,3}\n|    [a-z]+ = .*\n|\t.*\n)*"))
def test_any_text_gives_jobs(output):
    for job in parse_text_jobs(output.encode("utf-8", "replace")).values():
        json.dumps(job)


def line(seconds, kind, job, attributes=""):
    at = datetime.fromtimestamp(seconds, UTC).strftime("%m/%d/%Y %H:%M:%S")
    return f"{at};{kind};{job};{attributes}\n"


def test_a_run_of_torque_that_is_rerun_ends_when_it_is_rerun(logs):
    """Torque writes nothing but the id then."""
    begin = 1_795_100_000
    start = f"ctime={begin} user=alice queue=q exec_host=n1/0 start="
    text = (
        line(begin, "Q", "7.srv", "queue=q")
        + line(begin + 10, "S", "7.srv", f"{start}{begin + 10}")
        + line(begin + 3610, "R", "7.srv")
        + line(begin + 7000, "S", "7.srv", f"{start}{begin + 7000}")
        + line(begin + 8000, "E", "7.srv", f"{start}{begin + 7000} end={begin + 8000}")
    )
    found, _, bad = read(logs(text))
    assert bad == []
    first, second = found["7.srv", 1], found["7.srv", 2]
    assert (first.state, first.end_time, first.elapsed_seconds) == (
        JobState.REQUEUED, begin + 3610, 3600,
    )  # fmt: skip
    assert (second.start_time, second.end_time) == (begin + 7000, begin + 8000)
    assert len(found) == 2


def test_a_run_without_a_logged_end_ends_where_the_next_begins(logs):
    begin = 1_795_100_000
    start = f"ctime={begin} user=alice queue=q exec_host=n1/0 start="
    text = line(begin + 10, "S", "7.srv", f"{start}{begin + 10}")
    text += line(begin + 7000, "S", "7.srv", f"{start}{begin + 7000}")
    found, _, _ = read(logs(text))
    lost = found["7.srv", 1]
    assert (lost.state, lost.end_time, lost.elapsed_seconds) == (
        JobState.REQUEUED, begin + 7000, 6990,
    )  # fmt: skip
    assert lost.reason == "its end was not logged"
    assert found["7.srv", 2].state is JobState.RUNNING


@given(st.data())
def test_lines_out_of_order_make_the_same_runs(tmp_path_factory, data):
    """Lines jittered by up to 20 s; a job of three runs, each longer than that."""
    begin = 1_795_100_000
    times = f"ctime={begin} user=alice queue=q exec_host=n1/0*2"
    events = [(begin, "Q", f"ctime={begin} queue=q")]
    for run, (start, end) in enumerate([(30, 600), (630, 900), (930, 4000)], 1):
        started = f"{times} start={begin + start}"
        events.append((begin + start, "S", started))
        kind = "E" if run == 3 else "R"
        ended = f"{started} end={begin + end} run_count={run} Exit_status=0"
        events.append((begin + end, kind, ended))
    jitter = st.integers(0, 40)
    late = sorted(events, key=lambda event: event[0] + data.draw(jitter))
    folder = tmp_path_factory.mktemp("logs")
    (folder / "20261120").write_text("".join(line(at, kind, "7.srv", a) for at, kind, a in late))
    source = PbsLog("c1", pbs_log.PbsLogOptions(path=str(folder), time_zone="UTC"))
    records = [job for batch in source.read('{"since": 0}', {}) for job in batch.jobs]
    runs = {}
    for job in records:
        runs[job.run] = merge_records(runs[job.run], job) if job.run in runs else job
    assert {run: (job.start_time, job.end_time) for run, job in sorted(runs.items())} == {
        1: (begin + 30, begin + 600), 2: (begin + 630, begin + 900), 3: (begin + 930, begin + 4000),
    }  # fmt: skip
    assert [runs[run].state for run in (1, 2, 3)] == [
        JobState.REQUEUED, JobState.REQUEUED, JobState.COMPLETED,
    ]  # fmt: skip


def test_gpus_of_torque_are_in_its_nodes(logs):
    begin = 1_795_100_000
    text = line(
        begin + 100, "E", "8.srv",
        f"ctime={begin} user=alice start={begin} end={begin + 100} exec_host=n1/0-27+n2/0-27 "
        "Resource_List.nodes=2:ppn=28:gpus=2+n7:ppn=1:gpus=4 Exit_status=0",
    )  # fmt: skip
    job = read(logs(text))[0]["8.srv", 1]
    assert (job.requested_gpus, job.allocated_gpus) == (8, 8)


def test_the_hour_that_comes_twice_is_told_by_the_lines_before_the_last_reading(tmp_path):
    options = pbs_log.PbsLogOptions(path=str(tmp_path), time_zone="Europe/Berlin")
    log = tmp_path / "20261025"
    first = "10/25/2026 02:50:00;Q;1.srv;ctime=1792889400 queue=q user=alice\n"
    second = "10/25/2026 02:10:00;Q;2.srv;ctime=1792890600 queue=q user=alice\n"
    log.write_text(first + second)
    _, watermark, _ = read(PbsLog("c1", options))
    log.write_text(first + second + "10/25/2026 02:20:00;D;2.srv;requestor=alice@n\n")
    known = {"2.srv": UnfinishedJob(1792890600, 1, None)}
    found, _, _ = read(PbsLog("c1", options), watermark, known)
    assert found["2.srv", 1].end_time == 1792891200
