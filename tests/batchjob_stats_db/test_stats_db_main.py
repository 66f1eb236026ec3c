"""The command line of batchjob_stats_db."""

import json
import os
import re
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest
import sqlalchemy as sa

from batchjob.schedulers.accounting import Batch
from batchjob_stats_db.database import schema
from batchjob_stats_db.database.engine import writer_lock
from batchjob_stats_db.main import main
from batchjob_stats_server.main import main as stats_server
from tests.helpers.http_server import json_response, serving
from tests.helpers.processes import daemon, free_ports
from tests.helpers.waiting import scaled, until

pytestmark = pytest.mark.usefixtures("restore_logging")


@pytest.fixture
def run(url, tmp_path, capsys):
    """Runs the command on the test's database; returns status, output and errors."""
    config = tmp_path / "batchjob.yaml"
    text = url.render_as_string(hide_password=False)
    config.write_text(
        f"db: {{url: {json.dumps(text)}}}\n"
        "clusters:\n  - name: c1\n    sources: {sacct: {sacct: /bin/false, squeue: /bin/false}}\n"
    )

    def call(*arguments):
        status = main(["--config.file", str(config), *map(str, arguments)])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return call


@pytest.mark.parametrize(
    ("text", "message"),
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
def test_invalid_settings_are_reported_in_one_line(tmp_path, capsys, text, message):
    (tmp_path / "c.yaml").write_text(text)
    assert main(["--config.file", str(tmp_path / "c.yaml"), "--once"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert re.search(message, error)


@pytest.mark.parametrize("command", [main, stats_server])
@pytest.mark.parametrize(
    ("url", "status"),
    [("postgresql://batchjob@127.0.0.1:1/jobs", 1), ("mysql://127.0.0.1/jobs", 2)],
    ids=["away", "wrong"],
)
def test_exit_status_lets_systemd_restart_only_if_retrying_helps(
    tmp_path, capsys, command, url, status
):
    config = tmp_path / "batchjob.yaml"
    config.write_text("clusters: [{name: c1, sources: {sacct: }}]")
    config_options = ["--config.file", str(config)] if command is main else []
    assert command([*config_options, "--db.url", url]) == status
    assert capsys.readouterr().err.count("\n") == 1
    for unit in ("batchjob_stats_db", "batchjob_stats_server"):
        unit_lines = Path(f"deploy/systemd/{unit}.service").read_text().split("\n")
        assert {"Restart=on-failure", "RestartPreventExitStatus=2"} <= set(unit_lines)


def test_invalid_arguments_are_reported_in_one_line(capsys):
    for arguments in (["backfill"], ["backfill", "--since", "soon"], ["bakup"], ["--db.urll=x"]):
        assert main(arguments) == 2
        assert capsys.readouterr().err.count("\n") == 1


def test_migrate_creates_the_tables(empty_url, capsys):
    url = empty_url.render_as_string(hide_password=False)
    assert main([f"--db.url={url}", "check"]) == 2
    assert "`batchjob_stats_db migrate`" in capsys.readouterr().err
    assert main([f"--db.url={url}", "migrate"]) == 0
    assert capsys.readouterr().out == f"schema none -> {schema.REVISION}\n"
    assert main([f"--db.url={url}", "migrate"]) == 0
    assert capsys.readouterr().out == f"schema {schema.REVISION}\n"


def test_once_reports_a_failed_scheduler(run, rows):
    assert run("--once")[0] == 1
    assert "/bin/false: exit status 1" in rows(schema.poll_state)[0]["error"]


def test_second_writer_is_refused(run, url):
    if url.get_backend_name() != "sqlite":
        pytest.skip("PostgreSQL allows several writers")
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
    assert "'=x" in table  # not a formula in a spreadsheet
    assert run("export", "--since", "2999-01-01")[1] == ""


def test_import_reports_the_invalid_line(run, tmp_path):
    (tmp_path / "in").write_text('{"cluster": 3}\n')
    status, _, error = run("import", tmp_path / "in")
    assert (status, error.count("\n")) == (1, 1)
    assert "line 1: cluster and source: expected" in error


def test_check_reports_a_source_that_was_never_read(run, store, job, url):
    store.write(Batch((job(),), (), "", 0), "sacct")
    status, output, _ = run("check")
    assert status == 1
    assert "c1: sacct: not read for" in output


def test_configuration_check_includes_the_rights(run):
    status, _, error = run("--check")
    assert status == 2
    assert "c1: sacct: " in error


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ("samples: {top}/empty", "c1: samples: {top}/empty: it contains samples of no job"),
        ("samples: {top}/absent", "c1: samples: {top}/absent: No such file or directory"),
        ("sources: {{pbs_log: {{path: {top}/empty}}}}", "c1: pbs_log: {top}/empty: no log file"),
        ("sources: {{jsonl: {{path: {top}/absent}}}}", "c1: jsonl: {top}/absent: No such file"),
        ("sources: {{bjobs: {{bjobs: {top}/absent}}}}", "c1: bjobs: {top}/absent: No such file"),
    ],
)
def test_configuration_check_names_a_source_that_is_empty_or_absent(
    url, tmp_path, capsys, given, error
):
    (tmp_path / "empty").mkdir()
    (tmp_path / "jobs.jsonl").touch()
    config = {"sources": f"{{jsonl: {{path: {tmp_path}/jobs.jsonl}}}}"}
    name, _, value = given.format(top=tmp_path).partition(": ")
    lines = [f"    {key}: {text}" for key, text in {**config, name: value}.items()]
    file = tmp_path / "config.yml"
    file.write_text("\n".join(["clusters:", "  - name: c1", *lines, ""]))
    flags = [f"--config.file={file}", f"--db.url={url.render_as_string()}", "--check"]
    assert main(flags) == 2
    assert error.format(top=tmp_path) in capsys.readouterr().err


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


def test_recompute_rolls_up_the_days_again(run, store, job, rows):
    store.write(Batch((job(),), (), "", 0), "s")
    status, _, error = run("recompute", "--since", "2026-01-01")
    assert status == 0, error
    assert sum(row["wall_seconds"] for row in rows(schema.daily_usage)) == 3600


def test_daemon_serves_health_and_stops(url, tmp_path):
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
        assert process.wait(scaled(30)) == 0
    assert "Traceback" not in (tmp_path / "log").read_text()


def _page(url):
    try:
        with urllib.request.urlopen(url, timeout=scaled(5)) as answer:
            return answer.read()
    except urllib.error.URLError:
        return b""


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("10.0.0.1:10910", "no scrape target has the name of a node: targets such as 10.0.0.1:10"),
        ("n001.example.org:10910", ""),
        (None, "c1: "),  # the store does not answer
    ],
)
def test_check_says_if_no_target_has_the_name_of_a_node(run, engine, tmp_path, target, words):
    """The series of a job from other nodes can then not be told from its own."""
    row = {"cluster": "c1", "day": 0, "node": "n001", "jobs_ended": 0, "jobs_unmeasured": 0,
           "run_seconds": 0.0, "covered_seconds": 0.0}  # fmt: skip
    with engine.begin() as db:
        db.execute(sa.insert(schema.daily_node_coverage).values(**row))
    metric = {"__name__": "batchjob_node_cpus", "cluster": "c1", "instance": target}
    result = [{"metric": metric, "value": [0, "8"]}]
    answer = {"status": "success", "data": {"resultType": "vector", "result": result}}
    with serving(lambda _: json_response(answer if target else {}, 200 if target else 503)) as tsdb:
        config = tmp_path / "batchjob.yaml"
        config.write_text(f"{config.read_text()}tsdb: {{url: '{tsdb.url}'}}\n")
        _, output, _ = run("check")
    lines = [line for line in output.splitlines() if line.startswith("c1: ")]
    assert [line for line in lines if words and words in line] == lines
    assert bool(lines) == bool(words)
