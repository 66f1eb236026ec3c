"""Following the daily accounting logs of PBS: new files, bad lines, ambiguous times."""

import os
from datetime import datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchjob.runtime.settings import SettingsError, build_section
from batchjob.schedulers.accounting import SourceError, UnfinishedJob
from batchjob.schedulers.pbs.accounting import pbs_log
from batchjob.schedulers.pbs.accounting.pbs_log import PbsLog
from batchjob.schedulers.records import merge_records
from batchjob.schedulers.states import JobState
from tests.batchjob.schedulers.pbs.pbs import (
    EDGES,
    END_HEAD,
    END_TAIL,
    LOG,
    read_all,
    unfinished_jobs,
)


@pytest.mark.parametrize("log", [LOG, EDGES], ids=["LOG", "EDGES"])
@pytest.mark.parametrize("lines", [1, 7, 30])
def test_reading_in_pieces_gives_the_same_records(tmp_path, log, lines):
    """By pollers that are started for each piece."""
    options = pbs_log.PbsLogOptions(path=str(tmp_path), time_zone="UTC", qstat="")
    file = tmp_path / "20261120"
    merged, watermark = {}, '{"since": 0}'
    text = log.splitlines(keepends=True)
    for end in range(lines, len(text) + lines, lines):
        file.write_bytes(b"".join(text[:end]) + b"11/20/2026 11:4")  # the server is still writing
        source = PbsLog("c1", options, clock=lambda: 0.0)
        for batch in source.read(watermark, unfinished_jobs(merged)):
            watermark = batch.watermark
            for job in batch.jobs:
                key = job.jobid, job.run
                merged[key] = merge_records(merged.get(key, job), job)
    whole = PbsLog("c1", options, clock=lambda: 0.0)
    assert merged == read_all(whole)[0]


@pytest.mark.parametrize(
    ("bad_line", "reason"),
    [
        ("04/04/2026 12:00:00;E;101.srv", "expected stamp;type;id"),
        ("2026-04-04;E;101.srv;user=a", "expected a stamp"),
        (f"04/04/2026 12:00:00;E;no id;{END_TAIL}", "expected a job id"),
        ("04/04/2026 12:00:00;E;101.srv;user=alice end=5", "ctime is missing"),
        (
            f"{END_HEAD} {END_TAIL[:20]}{END_HEAD} {END_TAIL}",
            "ctime stands twice",
        ),  # two writers in one line
        ("\0\0\0\0\0\0", "expected stamp;type;id"),
    ],
)
def test_bad_lines_go_to_quarantine_and_reading_continues(write_log, bad_line, reason):
    good = f"{END_HEAD} {END_TAIL}\n".replace("101", "102")
    jobs, _, quarantined = read_all(write_log(f"{bad_line}\n{good}"))
    assert ("102.srv", 1) in jobs
    assert reason in quarantined[0].reason
    assert quarantined[0].raw == bad_line.replace("\0", "\ufffd")


def test_repeated_hour_at_the_end_of_daylight_saving_time(tmp_path):
    source = PbsLog("c1", pbs_log.PbsLogOptions(path=str(tmp_path), time_zone="Europe/Berlin"))
    (tmp_path / "20261025").write_text(
        "10/25/2026 02:50:00;Q;1.s;user=a ctime=1792889400\n"
        "10/25/2026 02:10:00;D;1.s;requestor=a@h\n"
    )
    job = read_all(source)[0]["1.s", 1]
    assert job.end_time - job.submit_time == 20 * 60


def test_new_daily_file(write_log, tmp_path):
    first, second = f"{END_HEAD} {END_TAIL}\n", f"{END_HEAD} {END_TAIL}\n".replace("101", "102")
    _, watermark, _ = read_all(write_log(first))
    write_log(first + second)
    jobs, watermark, _ = read_all(
        write_log(second.replace("102", "103"), day="20261121"), watermark
    )
    assert set(jobs) == {("102.srv", 1), ("103.srv", 1)}
    assert read_all(write_log(first), watermark)[0] == {}
    (tmp_path / "20261121").unlink()  # its file is gone: read all again rather than miss anything
    assert read_all(write_log(first), watermark)[0]


RUN = [line for line in LOG.splitlines(keepends=True) if b";3.pbs01" in line]
NEXT = b"11/20/2026 12:00:00;D;900.pbs01;requestor=b@pbs01\n"


@given(st.integers(1, len(RUN[-1]) - 2), st.booleans())
def test_line_that_was_cut_gives_no_wrong_value(tmp_path_factory, cut, restarted):
    """A server that stopped while it wrote goes on in a new file, or at once in the same."""
    folder = tmp_path_factory.mktemp("logs")
    (folder / "20261120").write_bytes(b"".join(RUN))
    source = PbsLog("c1", pbs_log.PbsLogOptions(path=str(folder), time_zone="UTC", qstat=""))
    whole = read_all(source)[0]["3.pbs01", 1]
    written = b"".join(RUN[:-1]) + RUN[-1][:cut]
    (folder / "20261120").write_bytes(written + NEXT if restarted else written)
    if not restarted:
        (folder / "20261121").write_bytes(NEXT)
    jobs, _, quarantined = read_all(source)
    (job,) = jobs.values()
    assert quarantined or (job.state, job.end_time) == (whole.state, whole.end_time)
    assert job.state in (JobState.RUNNING, JobState.UNKNOWN, whole.state)
    assert job.end_time in (None, whole.end_time)
    for name in ("submit_time", "start_time", "user", "exit_code", "peak_memory_bytes", "nodes"):
        assert getattr(job, name) in (None, getattr(whole, name))


def test_two_servers_in_one_folder(write_log, tmp_path):
    """One took over from the other, and numbers its jobs anew; stamps go back at times."""
    ends = [f"{END_HEAD} {END_TAIL}\n".replace("101.srv", f"101.{name}") for name in ("a", "b")]
    source = write_log(ends[0] + ends[1].replace("13:06", "12:59"), day="20260404")
    write_log(ends[1].replace("101", "102") + ends[0].replace("101", "102"), day="20260405")
    jobs, _, quarantined = read_all(source)
    assert set(jobs) == {("101.a", 1), ("101.b", 1), ("102.a", 1), ("102.b", 1)}
    assert quarantined == []


@pytest.mark.parametrize("zone", ["Pacific/Auckland", "America/St_Johns", "UTC"])
def test_times_of_a_server_in_another_zone(tmp_path, zone):
    """Only the stamps are local time: a deletion has no other time."""
    options = pbs_log.PbsLogOptions(path=str(tmp_path), time_zone=zone)
    deleted = datetime.fromtimestamp(1775296860, ZoneInfo(zone)).strftime("%m/%d/%Y %H:%M:%S")
    (tmp_path / "20260404").write_text(
        f"{deleted};Q;1.s;user=a ctime=1775296800 queue=q\n{deleted};D;1.s;requestor=a@h\n"
    )
    job = read_all(PbsLog("c1", options))[0]["1.s", 1]
    assert (job.submit_time, job.end_time) == (1775296800, 1775296860)


@pytest.mark.parametrize("zone", ["Pacific/Auckland", "Asia/Kathmandu", "America/Los_Angeles"])
def test_zone_that_is_not_set_is_seen_by_the_ends_of_jobs(tmp_path, caplog, zone):
    """An end has its time in epoch seconds as well; stamps of other lines are corrected by it."""

    def stamp(at):
        return datetime.fromtimestamp(at, ZoneInfo(zone)).strftime("%m/%d/%Y %H:%M:%S")

    options = pbs_log.PbsLogOptions(path=str(tmp_path), time_zone="UTC", qstat="")
    file, begin = tmp_path / "20260404", 1775296800
    file.write_text(
        f"{stamp(begin + 90)};E;1.s;user=a ctime={begin} start={begin + 5} end={begin + 90} "
        f"exec_host=n/0 Exit_status=0\n{stamp(begin + 95)};Q;2.s;user=a ctime={begin + 95}\n"
    )
    jobs, watermark, _ = read_all(PbsLog("c1", options))
    assert "set time-zone" in caplog.text
    with file.open("a") as log:
        log.write(f"{stamp(begin + 99)};D;2.s;requestor=a@h\n")
    caplog.clear()
    late = read_all(PbsLog("c1", options), watermark, unfinished_jobs(jobs))[0]
    assert late["2.s", 1].end_time == begin + 99
    assert caplog.text == ""


def test_hour_that_occurs_twice_is_no_other_zone(tmp_path, caplog):
    """The first line that is read is in the second of the two hours."""
    options = pbs_log.PbsLogOptions(path=str(tmp_path), time_zone="Europe/Berlin", qstat="")
    end = 1792893000  # 02:50, for the second time
    (tmp_path / "20261025").write_text(
        f"10/25/2026 02:50:00;E;1.s;user=a ctime=5 start=6 end={end} exec_host=n/0 Exit_status=0\n"
        f"10/25/2026 03:10:00;Q;2.s;user=a ctime={end + 1200}\n10/25/2026 03:10:00;D;2.s;\n"
    )
    job = read_all(PbsLog("c1", options))[0]["2.s", 1]
    assert job.end_time == job.submit_time
    assert caplog.text == ""


def test_rewritten_file_with_the_same_inode_is_read_from_its_start(write_log, tmp_path):
    _, watermark, _ = read_all(write_log(f"{END_HEAD} {END_TAIL}\n"))
    other = f"{END_HEAD} {END_TAIL} x=1\n".replace("101", "999")
    jobs, _, _ = read_all(write_log(other), watermark)  # written in place: the same inode
    assert ("999.srv", 1) in jobs


def test_backfill_reads_only_files_modified_since(write_log, tmp_path):
    source = write_log(f"{END_HEAD} {END_TAIL}\n", day="20260404")
    os.utime(tmp_path / "20260404", (1775300800, 1775300800))
    write_log(f"{END_HEAD} {END_TAIL}\n".replace("101", "102"), day="20261120")
    jobs, _, _ = read_all(source, source.watermark_at(1775400000))
    assert set(jobs) == {("102.srv", 1)}


def test_missing_directory_no_files_and_bad_time_zone_are_errors(tmp_path):
    missing = PbsLog("c1", pbs_log.PbsLogOptions(path=str(tmp_path / "none")))
    assert "No such file" in missing.check()[0]
    with pytest.raises(SourceError, match="No such file"):
        list(missing.read('{"since": 0}', {}))
    empty = PbsLog("c1", pbs_log.PbsLogOptions(path=str(tmp_path)))
    assert "no log file" in empty.check()[0]
    with pytest.raises(SettingsError, match="expected a time zone such as Europe/Berlin"):
        build_section(pbs_log.PbsLogOptions, "pbs_log", {"pbs_log.time-zone": "Mars/Olympus"})


def test_repeated_hour_is_resolved_by_lines_read_earlier(tmp_path):
    options = pbs_log.PbsLogOptions(path=str(tmp_path), time_zone="Europe/Berlin")
    log = tmp_path / "20261025"
    first = "10/25/2026 02:50:00;Q;1.srv;ctime=1792889400 queue=q user=alice\n"
    second = "10/25/2026 02:10:00;Q;2.srv;ctime=1792890600 queue=q user=alice\n"
    log.write_text(first + second)
    _, watermark, _ = read_all(PbsLog("c1", options))
    log.write_text(first + second + "10/25/2026 02:20:00;D;2.srv;requestor=alice@n\n")
    unfinished = {"2.srv": UnfinishedJob(1792890600, 1, None)}
    jobs, _, _ = read_all(PbsLog("c1", options), watermark, unfinished)
    assert jobs["2.srv", 1].end_time == 1792891200
