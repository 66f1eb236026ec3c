"""Questions on the command line, of this machine's own runs and of a server."""

import contextlib
import csv
import fcntl
import io
import json
import os
import pty
import struct
import subprocess
import sys
import termios
import threading
import time
import uuid
from pathlib import Path

import pytest
import sqlalchemy as sa
import uvicorn

from batchjob.local_runs import record
from batchjob.runtime.settings import SettingsError
from batchjob.schedulers.states import JobState
from batchjob_cli import job, jobs, stats
from batchjob_cli.client import connect
from batchjob_cli.client.answer import next_page_link
from batchjob_cli.client.remote import Server
from batchjob_cli.client.running_up import TOKEN_FILE, announce, keep_file
from batchjob_cli.job_columns import DEFAULT_KEYS
from batchjob_cli.main import main
from batchjob_cli.up import options, records, stack, token
from batchjob_stats_db.database import schema, scripts
from batchjob_stats_db.database.engine import parse_url, writer_engine
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


def test_a_script_that_is_not_kept(data, capsys):
    (jobid, *_) = [path.stem for path in (Path(data) / "runs").iterdir()]
    assert main(["job", jobid, "--script", "--data", data]) == 3
    assert "there is no batch script" in capsys.readouterr().err


def test_those_that_wait_come_first(data, capsys):
    waiting = finished("later", JobState.PENDING)._replace(
        start_time=None, end_time=None, exit_code=None, supervisor=record.current_process()
    )
    record.write(Path(data) / "runs", waiting)
    first, *rest = json.loads(asked(capsys, jobs, "--data", data, "--format=json"))
    assert (first["jobid"], first["state"], len(rest)) == (waiting.jobid, "PENDING", 3)
    (only,) = json.loads(asked(capsys, jobs, "--data", data, "--state=pending", "--format=json"))
    assert only["jobid"] == waiting.jobid
    ended = json.loads(asked(capsys, jobs, "--data", data, "--state=failed", "--format=json"))
    assert [each["state"] for each in ended] == ["FAILED"]


def test_a_script_that_is_kept_here(data, capsys):
    record.write(Path(data) / "runs", finished("only"))
    asked(capsys, jobs, "--data", data)  # makes the database
    with writer_engine(parse_url(f"sqlite:///{data}/jobs.db")).begin() as db:
        numbers = db.scalars(sa.select(schema.job.c.id)).all()
        scripts.store(db, numbers, "#!/bin/sh\necho 1\necho 2\n", 17)
    assert job.run(["only", "--script", "--data", data]) == 0
    out, error = capsys.readouterr()
    assert (out, error) == ("#!/bin/sh\necho 1\n", "batchjob: truncated; the script has 24 B\n")


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


def test_a_table_of_tracked_work_has_its_tool_cpu_time_and_error(data, capsys):
    record.write(Path(data) / "runs", finished("mesh", tool="openfoam", error="no mesh"))
    head, *rows = asked(capsys, jobs, "--data", data, "--name", "mesh").splitlines()
    assert head.split()[-4:] == ["TOOL", "CPU", "TIME", "ERROR"]
    assert all(each in rows[0] for each in ("openfoam", "54 s", "no mesh"))


def test_a_run_without_a_name_is_listed_by_its_command(data, capsys):
    record.write(Path(data) / "runs", finished("", submit_line="python train.py --epochs 3"))
    assert "python train.py --epochs" in asked(capsys, jobs, "--data", data)


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
        ("", 3, pytest.approx(2 / 3)),
    ]
    assert (rows[0]["cpu_seconds"], rows[0]["mean_cpu_seconds"]) == (108.0, 54.0)
    assert (rows[0]["elapsed_seconds"], rows[0]["mean_elapsed_seconds"]) == (120.0, 60.0)
    assert [row["failed"] for row in rows] == [1, 0, 1]
    assert [row["overall"] for row in rows] == [False, False, True]
    assert rows[0]["peak_memory_bytes"] == 3 << 30
    table = asked(capsys, stats, "--data", data, "--by=tool")
    assert "50 %" in table
    assert table.splitlines()[-1].startswith("all ")


def test_words_for_states(data, capsys):
    for name, word in (("broken", "error"), ("gave up", "failed")):
        run = finished(name, JobState.FAILED, state_word=word)
        record.write(Path(data) / "runs", run)

    def names(*states):
        given = [f"--state={each}" for each in states]
        return {row["name"] for row in json.loads(
            asked(capsys, jobs, "--data", data, "--format=json", *given))}  # fmt: skip

    assert names("error") == {"broken"}
    assert {"broken", "gave up"} <= names("failed")
    assert names("success") == names("completed")
    assert names("error", "success") >= {"broken"}


def test_jobs_by_their_own_id_and_by_their_workflow(data, capsys):
    for name, own in (("split", "a1"), ("merge", "a2")):
        run = finished(name, record_id=own, workflow="order-17", tool="celery")
        record.write(Path(data) / "runs", run)

    def names(*given):
        rows = json.loads(asked(capsys, jobs, "--data", data, "--format=json", *given))
        return {row["name"] for row in rows}

    assert names("--record-id", "a2") == {"merge"}
    assert names("--workflow", "order-17") == {"split", "merge"}


def test_nothing_has_run_yet(tmp_path, capsys):
    assert asked(capsys, jobs, "--data", str(tmp_path / "new")) == "no job\n"
    assert asked(capsys, stats, "--data", str(tmp_path / "new")) == "no job\n"


@pytest.mark.parametrize(
    ("command", "arguments", "told"),
    [
        (jobs, ["--limit", "0"], "--limit: expected a whole number of at least 1"),
        (jobs, ["--state", "done"], "expected one of "),
        (jobs, ["--since", "yesterday"], "--since"),
        (jobs, ["--limit", "-5"], "--limit: expected a whole number of at least 1, got '-5'"),
        (jobs, ["--sort", "zz"], "sort: unknown key 'zz'; expected a name such as start_time, el"),
        (
            jobs,
            ["--sort", "energy"],
            "'energy'; did you mean usage_energy_joules or energy_used_joules?",
        ),
        (jobs, ["--server", "example.org"], "expected http://HOST or https://HOST"),
        (jobs, ["--server", "http://127.0.0.1:1"], "http://127.0.0.1:1/api/v1/: "),
        (jobs, ["--server", "http://127.0.0.1:99999"], "expected http://HOST or https://HOST"),
        (jobs, ["--server", "http://me:secret@a"], "--server: expected no user and password"),
        (
            jobs,
            ["--server", "https://a", "--ca-file", "/etc/passwd"],
            "/etc/passwd: no certificate or crl found",
        ),
        (jobs, ["--token-file", "/nonexistent", "--server", "http://127.0.0.1:1"], "--token-file"),
        (job, ["no-such-job"], "there is no job no-such-job"),
    ],
)
def test_bad_input_is_one_line(data, command, arguments, told):
    with pytest.raises(SettingsError) as error:
        command.run(["--data", data, *arguments])
    assert told in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("arguments", "status", "told"),
    [
        (["job", "two\nlines"], 3, "there is no job two\\nlines that you may see"),
        (["jobs", "--name", "\udcff"], 2, "\\udcff: expected UTF-8"),
    ],
)
def test_whatever_is_given_the_error_is_one_line(data, capsys, arguments, status, told):
    assert main([*arguments, "--data", data]) == status
    assert capsys.readouterr().err == f"batchjob: {told}\n"


def test_a_certificate_that_is_none(data, tmp_path, capsys):
    file = tmp_path / "client.pem"
    file.write_text("no certificate")
    file.chmod(0o600)
    assert main(["jobs", "--data", data, "--server", "https://a", "--cert", str(file)]) == 2
    assert capsys.readouterr().err == f"batchjob: --cert: {file}: expected PEM\n"


@pytest.fixture
def server(data, tmp_path):
    """The same database, served; address and the path of a token's file."""
    chosen = options.settings([f"--data={data}"])
    url = records.record_runs(Path(data))
    settings = stack.server_settings(chosen, Path(data), url)
    own = token.create_token("alice", url)
    made = services.build(settings)._replace(process_token=own)
    answering = server_main.create_server(settings, made)
    with (
        keep_file(tmp_path / TOKEN_FILE, own.text),
        server_main.open_listener(("127.0.0.1", 0)) as listener,
    ):
        thread = threading.Thread(target=uvicorn.Server.run, args=(answering, [listener]))
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}", str(tmp_path / TOKEN_FILE)
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
    assert next_page_link('</api/v1/jobs?cursor=7>; rel="next"') == "/api/v1/jobs?cursor=7"
    assert next_page_link('</a>; rel="prev", </b>; rel=next') == "/b"
    assert next_page_link("") == ""


@pytest.mark.parametrize(
    ("arguments", "status", "told"),
    [
        (("--server", "http://127.0.0.1:1"), 5, "http://127.0.0.1:1/api/v1/: 127.0.0.1:1: "),
        (
            (),
            2,
            "jobs: sqlalchemy is not installed; install it with: pip install "
            "'batchjob-monitoring[server]'",
        ),
    ],
)
def test_a_node_without_a_server_s_libraries_can_ask_one(arguments, status, told, tmp_path):
    program = (
        "import sys; sys.modules |= dict.fromkeys(('sqlalchemy', 'requests', 'fastapi', 'orjson'));"
        "from batchjob_cli.main import main; sys.exit(main(sys.argv[1:]))"
    )
    argv = [sys.executable, "-c", program, "jobs", *arguments]
    environment = {**os.environ, "BATCHJOB_DATA": str(tmp_path)}
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (status, "")
    assert told in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "status", "told"),
    [
        (["jobs", "--stat", "failed"], 2, "--state"),
        (["jobs", "--since", "foo"], 2, "expected a time such as 22:30 or 2026-04-04T22:30, or"),
        (["jobs", "--since", "2026-13-45"], 2, "or how long ago such as 2d, got '2026-13-45'"),
        (["jbos"], 2, "did you mean jobs?"),
        (["unheard-of"], 2, "expected one of up, run, jobs"),
        (["job", "no-such-job"], 3, "there is no job no-such-job"),
        (["job", "align"], 3, "'align' matches 2 runs: "),
        (["metrics", "align"], 3, "'align' matches 2 runs: "),
        (["metrics", "no-such-job"], 3, "no-such-job"),
        (["job", ""], 2, "JOB: expected an id or a name"),
        (["logs", "no-such-run"], 3, "no run has the id or name"),
        (["jobs", "--sort", "-bytes"], 2, "sort: unknown key '-bytes'"),
        (
            ["jobs", "--server", "https://{address}"],
            5,
            "the server does not speak TLS; is it http://",
        ),
        (["jobs", "--server", "http://{address}"], 4, "--token-file or $BATCHJOB_TOKEN gives one"),
        (
            ["job", "no-such", "--server", "http://{address}", "--token-file", "{token}"],
            3,
            "no-such",
        ),
        (
            ["job", "align", "--server", "http://{address}", "--token-file", "{token}"],
            3,
            "'align' matches several jobs: ",
        ),
        (["jobs", "--server", "http://127.0.0.1:1"], 5, "Connection refused"),
    ],
)
def test_the_exit_status_says_what_kind_of_error_it_was(
    data, server, capsys, monkeypatch, arguments, status, told
):
    monkeypatch.setenv("BATCHJOB_DATA", data)
    url, token_file = server
    given = [each.format(address=url.partition("//")[2], token=token_file) for each in arguments]
    assert main(given) == status
    error = capsys.readouterr().err
    assert told in error
    assert error.startswith("batchjob: ")
    assert error.count("\n") == 1
    assert not any(word in error for word in ("Errno", "_ssl.c", "Input should", "pattern"))


LIST = """
import sys
from batchjob_cli.main import main
status = main(sys.argv[1:])
heavy = ("fastapi", "starlette", "pydantic", "uvicorn", "plotly", "batchjob_exporter", "alembic")
print(*(name for name in heavy if name in sys.modules), file=sys.stderr)
sys.exit(status)
"""


@pytest.mark.parametrize("command", [["jobs"], ["stats"], ["job", "only"]])
def test_an_answer_from_the_local_database_loads_no_web_server(data, capsys, command):
    record.write(Path(data) / "runs", finished("only"))
    asked(capsys, jobs, "--data", data)  # makes the database
    argv = [sys.executable, "-c", LIST, *command, "--data", data]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert done.stderr.split() == []
    assert "only" in done.stdout


def test_a_list_from_batchjob_up_loads_no_database(data, server):
    url, _ = server
    program = LIST.replace('"fastapi"', '"sqlalchemy", "fastapi"')
    with announce(Path(data), url):
        argv = [sys.executable, "-c", program, "jobs", "--data", data]
        done = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert done.stderr.split() == []
    assert "align" in done.stdout


def test_the_list_is_the_same_with_and_without_the_server(data, server, capsys):
    url, token_file = server
    ask = ["--server", url, "--token-file", token_file]
    for more in ([], ["--sort", "-usage_energy_joules"], ["--name", "align"], ["--limit=1"]):
        local = asked(capsys, jobs, "--data", data, "--format=json", *more)
        assert json.loads(local) == json.loads(asked(capsys, jobs, *ask, "--format=json", *more))


def test_a_server_is_asked_for_the_keys_of_the_table_alone(data, server, capsys):
    """And the table is the same: it needs no other key."""
    url, token_file = server
    ask = ["--server", url, "--token-file", token_file]
    table = asked(capsys, jobs, "--data", data)
    assert "align" in table
    assert asked(capsys, jobs, *ask) == table
    given = connect.command_parser("jobs", "").parse_args(ask)
    (rows,) = connect.job_pages(given, {}, 50, DEFAULT_KEYS)
    assert rows
    assert all(set(row) == set(DEFAULT_KEYS) for row in rows)


@pytest.mark.parametrize("form", ["text", "json", "markdown", "html"])
def test_the_report_is_the_same_with_and_without_the_server(data, server, capsys, form):
    url, token_file = server
    (row,) = json.loads(asked(capsys, jobs, "--data", data, "--format=json", "--state=failed"))
    given = ["--utc", f"--format={form}", row["jobid"][:8]]
    remote = asked(capsys, job, "--server", url, "--token-file", token_file, *given)
    assert asked(capsys, job, "--data", data, *given) == remote
    assert row["jobid"] in remote


def on_a_terminal(arguments, columns, **environment):
    """What a command prints on a terminal of so many columns."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    env = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "NO_COLOR")} | environment
    argv = [sys.executable, "-m", "batchjob_cli", *arguments]
    with subprocess.Popen(argv, stdout=slave, env=env):
        os.close(slave)
        shown = b""
        with contextlib.suppress(OSError):  # EIO: the other end is closed
            while piece := os.read(master, 4096):
                shown += piece
    os.close(master)
    return shown.decode().replace("\r", "")


def test_a_table_fits_the_terminal(data):
    for columns in (60, 80, 132):
        lines = on_a_terminal(["jobs", "--data", data], columns, NO_COLOR="1").splitlines()
        assert len(lines) == 4
        assert max(map(len, lines)) <= columns
        assert lines[0].split()[:2] == ["JOB", "NAME"]
        assert "STATE" in lines[0]


def test_ids_are_short_on_a_terminal_and_good_for_other_commands(data, capsys):
    shown = on_a_terminal(["jobs", "--data", data, "--state=failed"], 80, NO_COLOR="1")
    short = shown.splitlines()[1].split()[0]
    assert len(short) == 8
    assert f"Job {short}" in asked(capsys, job, "--data", data, short)
    assert len(asked(capsys, jobs, "--data", data).splitlines()[1].split()[0]) == 36


def test_states_have_colours_unless_asked_not_to(data):
    assert "\x1b[31mfailed" in on_a_terminal(["jobs", "--data", data], 132, TERM="xterm")
    assert "\x1b" not in on_a_terminal(["jobs", "--data", data], 132, TERM="xterm", NO_COLOR="1")


def test_columns_of_ones_own(data, capsys):
    chosen = ("--data", data, "--name=align", "-o", "name,state,elapsed_seconds")
    heading, first, *_ = asked(capsys, jobs, *chosen).splitlines()
    assert heading.split() == ["NAME", "STATE", "ELAPSED"]
    assert first.split()[0] == "align"
    assert first.split()[2] == "0:01:00"
    assert json.loads(asked(capsys, jobs, *chosen, "--format=json"))[0].keys() == {
        "name", "state", "elapsed_seconds",
    }  # fmt: skip
    with pytest.raises(SettingsError, match="did you mean elapsed_seconds"):
        jobs.run(["--data", data, "-o", "elapsed_second"])
