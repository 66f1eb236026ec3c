"""Questions on the command line, of this machine's own runs and of a server."""

import csv
import io
import json
import os
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path

import pytest
import uvicorn

from batchjob.local_runs import record
from batchjob.runtime.settings import SettingsError
from batchjob.schedulers.states import JobState
from batchjob_cli import job, jobs, stats
from batchjob_cli.client.connect import next_page
from batchjob_cli.client.remote import Server
from batchjob_cli.up import options, stack, token
from batchjob_stats_server import main as server_main
from batchjob_stats_server import services

NOW = int(time.time())


def finished(name, state=JobState.COMPLETED, **more):
    """A run that took a minute."""
    return record.Run(
        jobid=str(uuid.uuid4()), node=os.uname().nodename, user="alice", uid=1000,
        submit_time=NOW - 90, start_time=NOW - 90, end_time=NOW - 30, state=state, name=name,
        supervisor=record.SupervisorProcess(1, 1, "gone"),
        exit_code=0 if state == "COMPLETED" else 1,
        user_cpu_seconds=50.0, system_cpu_seconds=4.0, peak_memory_bytes=3 << 30,
        allocated_cpus=1, **more,
    )  # fmt: skip


@pytest.fixture
def data(tmp_path):
    """A data directory with three runs."""
    folder = tmp_path / "runs"
    folder.mkdir()
    for run in (
        finished("align", tool="blast"),
        finished("align", JobState.FAILED, tool="blast"),
        finished("plot\x1b[2J", tool="=cmd()"),
    ):
        record.write(folder, run)
    return str(tmp_path)


def asked(capsys, command, *arguments):
    assert command.run(list(arguments)) == 0
    return capsys.readouterr().out


def test_a_table_of_jobs(data, capsys):
    lines = asked(capsys, jobs, "--data", data).splitlines()
    assert lines[0].split()[:3] == ["JOB", "NAME", "USER"]
    assert len(lines) == 4
    assert all("0:01:00" in line and "90 %" in line and "3 GiB" in line for line in lines[1:])


def test_those_that_wait_come_first(data, capsys):
    waiting = finished("later", JobState.PENDING)._replace(
        start_time=None, end_time=None, exit_code=None, supervisor=record.this_process()
    )
    record.write(Path(data) / "runs", waiting)
    first, *rest = json.loads(asked(capsys, jobs, "--data", data, "--format=json"))
    assert (first["jobid"], first["state"], len(rest)) == (waiting.jobid, "PENDING", 3)
    (only,) = json.loads(asked(capsys, jobs, "--data", data, "--state=pending", "--format=json"))
    assert only["jobid"] == waiting.jobid
    ended = json.loads(asked(capsys, jobs, "--data", data, "--state=failed", "--format=json"))
    assert [each["state"] for each in ended] == ["FAILED"]


def test_a_stopped_run_is_not_one_that_was_cancelled(data, capsys):
    for name, word in (("ended", "stopped"), ("never", "")):
        run = finished(name, JobState.CANCELLED, state_word=word)
        record.write(Path(data) / "runs", run)
    lines = asked(capsys, jobs, "--data", data, "--state=cancelled").splitlines()[1:]
    assert sorted(line.split()[1] + " " + line.split()[3] for line in lines) == [
        "ended stopped",
        "never cancelled",
    ]


def test_a_job_by_its_name_or_by_its_id_elsewhere(data, capsys):
    run = finished("train", tool="celery", record_id="5b7c-task", parameters='{"epochs": 3}',
                   error="no mesh", submit_line="worker -A site", work_dir="/srv")  # fmt: skip
    record.write(Path(data) / "runs", run)
    for text in ("train", "5b7c-task", run.jobid[:13]):
        out = asked(capsys, job, "--data", data, text)
        told = ("worker -A site", "/srv", "celery", '{"epochs": 3}', "no mesh", "5b7c-task")
        assert all(each in out for each in (run.jobid, *told)), out
        assert "54 s (user 50 s, system 4 s)" in out


def test_a_name_cannot_move_the_cursor(data, capsys):
    out = asked(capsys, jobs, "--data", data)
    assert "\x1b" not in out
    assert "plot?[2J" in out


@pytest.mark.parametrize(
    ("arguments", "count"),
    [
        (["--name", "align"], 2),
        (["--tool", "blast", "--state", "failed"], 1),
        (["--user", "bob"], 0),
        (["--since", "1m"], 0),
        (["--since", "10m"], 3),
        (["--limit", "2"], 2),
        (["--running"], 0),
    ],
)
def test_filters(data, capsys, arguments, count):
    rows = json.loads(asked(capsys, jobs, "--data", data, "--format", "json", *arguments))
    assert len(rows) == count


def test_csv_holds_no_formula(data, capsys):
    text = asked(capsys, jobs, "--data", data, "--format", "csv")
    assert {row["tool"] for row in csv.DictReader(io.StringIO(text))} == {"blast", "'=cmd()"}


def test_a_report_by_the_beginning_of_an_id(data, capsys):
    (row,) = json.loads(asked(capsys, jobs, "--data", data, "--format=json", "--state=failed"))
    text = asked(capsys, job, "--data", data, row["jobid"][:8])
    assert f"Job {row['jobid']}" in text
    assert "FAILED" in text


def test_totals_and_success(data, capsys):
    rows = json.loads(asked(capsys, stats, "--data", data, "--format=json", "--by=tool"))
    assert [(row["key"], row["jobs"], row["success_ratio"]) for row in rows] == [
        ("blast", 2, 0.5),
        ("=cmd()", 1, 1.0),
    ]
    assert rows[0]["cpu_seconds"] == 108.0
    assert rows[0]["peak_memory_bytes"] == 3 << 30
    table = asked(capsys, stats, "--data", data, "--by=tool")
    assert "50 %" in table


def test_nothing_has_run_yet(tmp_path, capsys):
    assert asked(capsys, jobs, "--data", str(tmp_path / "new")) == "no job\n"
    assert asked(capsys, stats, "--data", str(tmp_path / "new")) == "no job\n"


@pytest.mark.parametrize(
    ("command", "arguments", "told"),
    [
        (jobs, ["--limit", "0"], "--limit: expected a whole number of at least 1"),
        (jobs, ["--state", "done"], "'done' is none of"),
        (jobs, ["--since", "yesterday"], "--since"),
        (jobs, ["--server", "example.org"], "expected http://HOST or https://HOST"),
        (jobs, ["--server", "http://127.0.0.1:1"], "http://127.0.0.1:1/api/v1/: "),
        (jobs, ["--token-file", "/nonexistent", "--server", "http://127.0.0.1:1"], "--token-file"),
        (job, ["no-such-job"], "there is no job no-such-job"),
    ],
)
def test_bad_input_is_one_line(data, command, arguments, told):
    with pytest.raises(SettingsError) as error:
        command.run(["--data", data, *arguments])
    assert told in str(error.value)
    assert "\n" not in str(error.value)


@pytest.fixture
def server(data, tmp_path):
    """The same database, served; address and the path of a token's file."""
    chosen = options.settings([f"--data={data}"])
    stack.record_runs(chosen, Path(data))
    url = stack.database(chosen, Path(data))
    settings = stack.server_settings(chosen, Path(data), url)
    own = token.fresh("alice", url)
    made = services.build(settings)._replace(process_token=own)
    answering = server_main.server(settings, made)
    with token.written(own, tmp_path), server_main.listening(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=uvicorn.Server.run, args=(answering, [listener]))
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}", str(tmp_path / token.FILE)
        finally:
            answering.should_exit = True
            thread.join()


def test_a_server_gives_the_same_answers(data, server, capsys, monkeypatch):
    url, file = server
    local = asked(capsys, jobs, "--data", data, "--format=json")
    remote = asked(capsys, jobs, "--server", url, "--token-file", file, "--format=json")
    assert json.loads(remote) == json.loads(local)
    monkeypatch.setenv("BATCHJOB_SERVER", url)
    monkeypatch.setenv("BATCHJOB_TOKEN", Path(file).read_text().strip())
    pages = asked(capsys, jobs, "--limit=3", "--format=json")
    assert json.loads(pages) == json.loads(local)
    with pytest.raises(SettingsError, match=r"token.*\(status 401\)"):
        jobs.run(["--server", url, "--token-file", "/dev/null"])


def test_a_next_page_elsewhere_is_not_followed():
    with pytest.raises(SettingsError, match="names a next page elsewhere"):
        Server("https://jobs.example.org", "secret")("https://evil.example.org/api/v1/jobs", {})


def test_the_next_page_stands_in_a_header():
    assert next_page('</api/v1/jobs?cursor=7>; rel="next"') == "/api/v1/jobs?cursor=7"
    assert next_page('</a>; rel="prev", </b>; rel=next') == "/b"
    assert next_page("") == ""


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--server", "http://127.0.0.1:1"), "http://127.0.0.1:1/api/v1/: 127.0.0.1:1: "),
        ((), "jobs: sqlalchemy is not installed here; pip install 'batchjob-monitoring[server]'"),
    ],
)
def test_a_node_without_a_server_s_libraries_can_ask_one(arguments, told, tmp_path):
    program = (
        "import sys; sys.modules |= dict.fromkeys(('sqlalchemy', 'requests', 'fastapi', 'orjson'));"
        "from batchjob_cli.main import main; sys.exit(main(sys.argv[1:]))"
    )
    argv = [sys.executable, "-c", program, "jobs", *arguments]
    environment = {**os.environ, "BATCHJOB_DATA": str(tmp_path)}
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert told in done.stderr
    assert done.stderr.count("\n") == 1
