"""Whatever reading one row raises, and however long it is, the rows around it are read."""

import json
import os

import pytest

from batchjob.runtime.subprocesses import CommandTimeoutError
from batchjob.schedulers import json_lines, snapshot
from batchjob.schedulers.fields import FieldReader
from batchjob.schedulers.json_lines import Jsonl, JsonLinesOptions
from batchjob.schedulers.log_follower import follow, watermark_since
from batchjob.schedulers.pbs.accounting import pbs_log
from batchjob.schedulers.records import JobRecord
from batchjob.schedulers.states import JobState
from tests.batchjob.schedulers.pbs.pbs import LOG


def fails_once(function, error):
    """The function, which raises an error at its second call."""
    calls = []

    def call(*arguments, **named):
        calls.append(1)
        if len(calls) == 2:
            raise error
        return function(*arguments, **named)

    return call


ERRORS = [OverflowError("odd"), KeyError("odd"), RecursionError("odd"), ZeroDivisionError("odd")]


@pytest.mark.parametrize("error", ERRORS, ids=repr)
def test_line_of_json_that_raises(tmp_path, monkeypatch, error):
    path = tmp_path / "jobs.jsonl"
    lines = [{"jobid": str(n), "state": "COMPLETED", "submit_time": 1e9} for n in range(3)]
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    monkeypatch.setattr(json_lines, "decode", fails_once(json_lines.decode, error))
    source = Jsonl("c1", JsonLinesOptions(path=str(path)))
    (batch,) = source.read(watermark_since(0), {})
    assert [job.jobid for job in batch.jobs] == ["0", "2"]
    assert "odd" in batch.quarantined[0].reason


@pytest.mark.parametrize("error", ERRORS, ids=repr)
def test_line_of_a_pbs_log_that_raises(write_log, monkeypatch, error):
    monkeypatch.setattr(pbs_log, "parse_line", fails_once(pbs_log.parse_line, error))
    batches = list(write_log(LOG).read(watermark_since(0), {}))
    reasons = [row.reason for batch in batches for row in batch.quarantined]
    assert any("odd" in reason for reason in reasons)
    assert any(batch.jobs for batch in batches)


@pytest.mark.parametrize("error", ERRORS, ids=repr)
def test_job_of_a_list_that_raises(error):
    class Source(snapshot.SnapshotSource):
        name = "list"

        def query_jobs(self):
            return [(str(number), FieldReader({"id": str(number)})) for number in range(3)]

        def records(self, jobid, row, unfinished, now):
            return [JobRecord("c1", jobid, 1, JobState.COMPLETED, "", "list")]

    source = Source("c1", snapshot.SnapshotOptions())
    source.jobid_pattern = snapshot.re.compile(".*")
    source.records = fails_once(source.records, error)
    batches = list(source.read("1", {}))
    assert [job.jobid for batch in batches for job in batch.jobs] == ["0", "2"]
    assert "odd" in batches[-1].quarantined[0].reason


def test_failure_of_the_scheduler_is_no_fault_of_a_row():
    """It ends the reading, which is tried again."""

    class Source(snapshot.SnapshotSource):
        name = "list"

        def query_jobs(self):
            return [("1", FieldReader({}))]

        def records(self, jobid, row, unfinished, now):
            raise CommandTimeoutError("no answer")

    source = Source("c1", snapshot.SnapshotOptions())
    source.jobid_pattern = snapshot.re.compile(".*")
    with pytest.raises(CommandTimeoutError):
        list(source.read("1", {}))


def test_long_lines_are_read_in_small_parts(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(b"".join(b"%d" % n * (1 << 20) + b"\n" for n in range(10)) * 10)
    chunks = list(follow([path], watermark_since(0)))
    assert sum(len(lines) for lines, _, _ in chunks) == 100
    assert max(sum(map(len, lines)) for lines, _, _ in chunks) <= 18 << 20
    _, watermark, _ = chunks[0]
    again = list(follow([path], watermark))
    assert again[0][0] == chunks[1][0]


def test_line_of_json_that_would_take_all_memory_is_set_aside(tmp_path):
    path = tmp_path / "jobs.jsonl"
    good = json.dumps({"jobid": "1", "state": "COMPLETED", "submit_time": 1e9})
    path.write_text("[" + "{}," * 6_000_000 + "{}]\n" + good + "\n")
    source = Jsonl("c1", JsonLinesOptions(path=str(path)))
    batches = list(source.read(watermark_since(0), {}))
    assert [job.jobid for batch in batches for job in batch.jobs] == ["1"]
    assert "at most 16777216 bytes" in batches[0].quarantined[0].reason


def test_pipe_among_the_files_of_json_is_not_opened(tmp_path):
    os.mkfifo(tmp_path / "a.jsonl")
    (tmp_path / "b.jsonl").write_text('{"jobid": "1", "state": "COMPLETED", "submit_time": 1e9}\n')
    (batch,) = Jsonl("c1", JsonLinesOptions(path=str(tmp_path))).read(watermark_since(0), {})
    assert [job.jobid for job in batch.jobs] == ["1"]
