"""The command, from the command line."""

import json
import os
import re
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from batchjob.schedulers.accounting import Batch
from batchjob_stats_db.database import schema
from batchjob_stats_db.database.engine import writer_lock
from batchjob_stats_db.main import main
from batchjob_stats_server.main import main as stats_server
from tests.e2e.processes import daemon, free_ports, until

pytestmark = pytest.mark.usefixtures("logging_as_it_was")


@pytest.fixture
def run(url, tmp_path, capsys):
    """Runs the command on the test's database; returns status, output and complaints."""
    config = tmp_path / "batchjob.yaml"
    text = url.render_as_string(hide_password=False)
    config.write_text(
        f"db: {{url: {json.dumps(text)}}}\n"
        "clusters:\n  - name: c1\n    sources: {sacct: {sacct: /bin/false, squeue: /bin/false}}\n"
    )

    def call(*arguments):
        status = main(["--config.file", str(config), *map(str, arguments)])
        said = capsys.readouterr()
        return status, said.out, said.err

    return call


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("clusters: 3", "clusters: expected a list"),
        ("clusters: [{name: a}]", r"clusters\[0\].sources: expected at least one of sacct"),
        ("clusters: [{name: a, sources: {sact: }}]", "unknown source sact; did you mean sacct"),
        ("clusters: [{name: a, sources: {sacct: {timout: 3}}}]", "unknown key .*timout; did you"),
        ("clusters: [{name: a, sources: {sacct: {timeout: x}}}]", "sacct.timeout: expected a dur"),
        ("clusters: [{sources: {sacct: }}]", "expected a mapping with the cluster's name"),
        (
            "clusters: [{name: a, sources: {sacct: }}, {name: a, sources: {sacct: }}]",
            "must not be repeated",
        ),
        ("tsdb: {url: prometheus}", "tsdb.url: expected http://HOST"),
        ("dbb: {url: x}", "unknown key dbb"),
        ("", "expected at least one cluster"),
        ("clusters: [{name: a, sources: {sacct: }, tsdb: {token-file: /none}}]", "a: tsdb.token"),
    ],
)
def test_wrong_settings_are_said_in_one_line(tmp_path, capsys, text, said):
    (tmp_path / "c.yaml").write_text(text)
    assert main(["--config.file", str(tmp_path / "c.yaml"), "--once"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert re.search(said, error)


@pytest.mark.parametrize("command", [main, stats_server])
@pytest.mark.parametrize(
    ("url", "status"),
    [("postgresql://batchjob@127.0.0.1:1/jobs", 1), ("mysql://127.0.0.1/jobs", 2)],
    ids=["away", "wrong"],
)
def test_a_unit_is_started_again_for_a_database_that_is_away(
    tmp_path, capsys, command, url, status
):
    config = tmp_path / "batchjob.yaml"
    config.write_text("clusters: [{name: c1, sources: {sacct: }}]")
    given = ["--config.file", str(config)] if command is main else []
    assert command([*given, "--db.url", url]) == status
    assert capsys.readouterr().err.count("\n") == 1
    for unit in ("batchjob_stats_db", "batchjob_stats_server"):
        words = Path(f"deploy/systemd/{unit}.service").read_text().split("\n")
        assert {"Restart=on-failure", "RestartPreventExitStatus=2"} <= set(words)


def test_wrong_arguments_are_said_in_one_line(capsys):
    for arguments in (["backfill"], ["backfill", "--since", "soon"], ["bakup"], ["--db.urll=x"]):
        assert main(arguments) == 2
        assert capsys.readouterr().err.count("\n") == 1


def test_migrate_is_what_makes_the_tables(empty_url, capsys):
    url = empty_url.render_as_string(hide_password=False)
    assert main([f"--db.url={url}", "check"]) == 2
    assert "`batchjob_stats_db migrate`" in capsys.readouterr().err
    assert main([f"--db.url={url}", "migrate"]) == 0
    assert capsys.readouterr().out == f"schema none -> {schema.REVISION}\n"
    assert main([f"--db.url={url}", "migrate"]) == 0
    assert capsys.readouterr().out == f"schema {schema.REVISION}\n"


def test_once_says_that_the_scheduler_failed(run, rows):
    assert run("--once")[0] == 1
    assert "/bin/false: exit status 1" in rows(schema.poll_state)[0]["error"]


def test_a_second_writer_is_refused(run, url):
    if url.get_backend_name() != "sqlite":
        pytest.skip("PostgreSQL has as many writers as one likes")
    with writer_lock(url):
        status, _, error = run("--once")
    assert status == 1
    assert "is already writing to it" in error


def test_export_and_import(run, store, job, tmp_path, rows):
    store.write(Batch((job("1"), job("2", name='=x"\n')), (), "", 0), "s")
    status, lines, _ = run("export")
    assert status == 0
    (tmp_path / "out").write_text(lines)
    before = rows(schema.job)
    assert run("forget", "--user", "alice")[:2] == (0, "2 jobs\n")
    assert run("import", tmp_path / "out")[:2] == (0, "2 jobs\n")
    after = rows(schema.job)
    assert [row["username"] for row in after] == ["alice", "alice"]
    assert [row["name"] for row in after] == [row["name"] for row in before]
    status, table, _ = run("export", "--format", "csv")
    assert "'=x" in table  # no formula for a spreadsheet
    assert run("export", "--since", "2999-01-01")[1] == ""


def test_an_import_names_the_line_that_is_wrong(run, tmp_path):
    (tmp_path / "in").write_text('{"cluster": 3}\n')
    status, _, error = run("import", tmp_path / "in")
    assert (status, error.count("\n")) == (1, 1)
    assert "line 1: cluster: expected" in error


def test_check_finds_what_is_wrong(run, store, job, url):
    store.write(Batch((job(),), (), "", 0), "sacct")
    status, said, _ = run("check")
    assert status == 1
    assert "c1: sacct: not read for" in said


def test_the_configuration_is_checked_with_the_rights(run):
    status, _, error = run("--check")
    assert status == 2
    assert "c1: sacct: " in error


def test_anonymise(run, store, job, rows, tmp_path):
    store.write(Batch((job("1"), job("2", user="bob")), (), "", 0), "s")
    (tmp_path / "key").write_text("0123456789abcdef")
    (tmp_path / "key").chmod(0o600)
    assert run("anonymise", "--key-file", tmp_path / "key")[:2] == (0, "2 users\n")
    names = {row["username"] for row in rows(schema.job)}
    assert len(names) == 2
    assert all(name.startswith("u-") for name in names)
    assert all(row["name"] == "" and row["uid"] is None for row in rows(schema.job))
    assert run("anonymise", "--key-file", tmp_path / "key")[1] == "0 users\n"
    (tmp_path / "short").write_text("x")
    assert run("anonymise", "--key-file", tmp_path / "short")[0] == 2


def test_recompute_makes_the_days_anew(run, store, job, rows):
    store.write(Batch((job(),), (), "", 0), "s")
    status, _, said = run("recompute", "--since", "2026-01-01")
    assert status == 0, said
    assert sum(row["wall_seconds"] for row in rows(schema.daily_usage)) == 3600


def test_the_daemon_serves_its_health_and_stops(url, tmp_path):
    (port,) = free_ports(1)
    config = tmp_path / "c.yml"
    config.write_text(
        f"db: {{url: {json.dumps(url.render_as_string(hide_password=False))}}}\n"
        f"web: {{listen-address: '127.0.0.1:{port}'}}\n"
        "clusters: [{name: c1, sources: {sacct: {sacct: /bin/false, squeue: /bin/false}}}]\n"
    )
    argv = [sys.executable, "-m", "batchjob_stats_db.main", "--config.file", str(config)]
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    with daemon(argv, tmp_path / "log", environ) as process:
        base = f"http://127.0.0.1:{port}"
        until(lambda: b"polls_total" in _page(f"{base}/metrics"), "metrics")
        assert _page(f"{base}/-/healthy") == b"ok\n"
        process.terminate()
        assert process.wait(30) == 0
    assert "Traceback" not in (tmp_path / "log").read_text()


def _page(url):
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return answer.read()
    except urllib.error.URLError:
        return b""
