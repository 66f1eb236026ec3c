"""Answers of a server equal the local ones, and which libraries they need."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import sqlalchemy as sa

from batchjob.local_runs import record
from batchjob.runtime.settings import SettingsError
from batchjob_cli import job, jobs, logs
from batchjob_cli.client import connect
from batchjob_cli.client.answer import next_page_link
from batchjob_cli.client.problems import NotFoundError
from batchjob_cli.client.remote import Server
from batchjob_cli.client.running_up import announce
from batchjob_cli.job_columns import DEFAULT_KEYS
from batchjob_stats_db.database import schema
from batchjob_stats_db.database.engine import parse_url, writer_engine
from tests.batchjob_cli.client.local_runs import command_output, finished_run


def test_server_list_equals_local_list(data, server, capsys, monkeypatch):
    url, file = server
    local = command_output(capsys, jobs, "--data", data, "--format=json")
    remote = command_output(capsys, jobs, "--server", url, "--token-file", file, "--format=json")
    assert json.loads(remote) == json.loads(local)
    monkeypatch.setenv("BATCHJOB_SERVER", url)
    monkeypatch.setenv("BATCHJOB_TOKEN", Path(file).read_text().strip())
    pages = command_output(capsys, jobs, "--limit=3", "--format=json")
    assert json.loads(pages) == json.loads(local)
    with pytest.raises(SettingsError, match=r"token.*\(status 401\)"):
        jobs.run(["--server", url, "--token-file", "/dev/null"])


def test_next_page_on_another_host_is_not_followed():
    with pytest.raises(SettingsError, match="names a next page elsewhere"):
        Server("https://jobs.example.org", "secret")("https://evil.example.org/api/v1/jobs", {})


def test_next_page_link_header():
    assert next_page_link('</api/v1/jobs?cursor=7>; rel="next"') == "/api/v1/jobs?cursor=7"
    assert next_page_link('</a>; rel="prev", </b>; rel=next') == "/b"
    assert next_page_link("") == ""


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
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
def test_server_can_be_asked_without_server_libraries(arguments, status, message, tmp_path):
    program = (
        "import sys; sys.modules |= dict.fromkeys(('sqlalchemy', 'requests', 'fastapi', 'orjson'));"
        "from batchjob_cli.main import main; sys.exit(main(sys.argv[1:]))"
    )
    argv = [sys.executable, "-c", program, "jobs", *arguments]
    environment = {**os.environ, "BATCHJOB_DATA": str(tmp_path)}
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (status, "")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


COMMAND_PROGRAM = """
import sys
from batchjob_cli.main import main
status = main(sys.argv[1:])
heavy = ("fastapi", "starlette", "pydantic", "uvicorn", "plotly", "batchjob_exporter", "alembic")
print(*(name for name in heavy if name in sys.modules), file=sys.stderr)
sys.exit(status)
"""


@pytest.mark.parametrize("command", [["jobs"], ["stats"], ["job", "only"]])
def test_local_answer_imports_no_web_server(data, capsys, command):
    record.write(Path(data) / "runs", finished_run("only"))
    command_output(capsys, jobs, "--data", data)  # makes the database
    argv = [sys.executable, "-c", COMMAND_PROGRAM, *command, "--data", data]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert done.stderr.split() == []
    assert "only" in done.stdout


def test_list_from_batchjob_up_imports_no_database(data, server):
    url, _ = server
    program = COMMAND_PROGRAM.replace('"fastapi"', '"sqlalchemy", "fastapi"')
    with announce(Path(data), url):
        argv = [sys.executable, "-c", program, "jobs", "--data", data]
        done = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert done.stderr.split() == []
    assert "align" in done.stdout


def test_list_options_work_the_same_with_a_server(data, server, capsys):
    url, token_file = server
    ask = ["--server", url, "--token-file", token_file]
    for more in ([], ["--sort", "-usage_energy_joules"], ["--name", "align"], ["--limit=1"]):
        local = command_output(capsys, jobs, "--data", data, "--format=json", *more)
        assert json.loads(local) == json.loads(
            command_output(capsys, jobs, *ask, "--format=json", *more)
        )


def test_server_is_asked_for_table_keys_only(data, server, capsys):
    """And the table is the same: it needs no other key."""
    url, token_file = server
    ask = ["--server", url, "--token-file", token_file]
    table = command_output(capsys, jobs, "--data", data)
    assert "align" in table
    assert command_output(capsys, jobs, *ask) == table
    given = connect.command_parser("jobs", "").parse_args(ask)
    (rows,) = connect.job_pages(given, {}, 50, DEFAULT_KEYS)
    assert rows
    assert all(set(row) == set(DEFAULT_KEYS) for row in rows)


@pytest.mark.parametrize("form", ["text", "json", "markdown", "html"])
def test_report_is_the_same_with_a_server(data, server, capsys, form):
    url, token_file = server
    (row,) = json.loads(
        command_output(capsys, jobs, "--data", data, "--format=json", "--state=failed")
    )
    given = ["--utc", f"--format={form}", row["jobid"][:8]]
    remote = command_output(capsys, job, "--server", url, "--token-file", token_file, *given)
    assert command_output(capsys, job, "--data", data, *given) == remote
    assert row["jobid"] in remote


def give_id_of_cluster(data, name, jobid):
    """Make a recorded run look like a job of a cluster."""
    with writer_engine(parse_url(f"sqlite:///{data}/jobs.db")).begin() as db:
        named = (schema.job.c.name == name) & (schema.job.c.state == "COMPLETED")
        values = {"jobid": jobid, "stdout_path": "/home/alice/slurm-%j.out"}
        db.execute(sa.update(schema.job).where(named).values(**values))


def test_id_of_a_cluster_job_comes_before_a_prefix_with_batchjob_up(data, server, capsys):
    give_id_of_cluster(data, "align", "7")
    run = finished_run("mine")
    run = run._replace(jobid=f"7{run.jobid[1:]}")
    record.write(Path(data) / "runs", run)
    with announce(Path(data), server[0]):
        assert "Job 7 on local" in command_output(capsys, job, "7", "--data", data)


@pytest.mark.parametrize("remote", [False, True])
def test_logs_say_where_the_output_of_a_cluster_job_is(data, server, capsys, remote):
    url, token_file = server
    give_id_of_cluster(data, "align", "8000757")
    where = ["--server", url, "--token-file", token_file] if remote else ["--data", data]
    with pytest.raises(
        NotFoundError, match=r"a job of local; its output is in /home/alice/slurm-8"
    ):
        logs.run(["8000757", *where])
