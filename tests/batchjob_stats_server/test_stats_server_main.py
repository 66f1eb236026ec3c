"""The command batchjob_stats_server: settings, TLS, start and stop."""

import shutil
import signal
import ssl
import subprocess
import sys
import urllib.request

import pytest
import trustme

from batchjob_stats_server.main import main
from tests.helpers.processes import free_ports, run
from tests.helpers.waiting import scaled, until
from tests.private_keys import write_key


def test_check_option(database_path, capsys):
    assert main(["--check", f"--db.url=sqlite:///{database_path}"]) == 0
    assert "OK" in capsys.readouterr().out


def test_check_reports_samples_that_are_not_there(database_path, tmp_path, capsys):
    samples = tmp_path / "samples"
    flags = ["--check", f"--db.url=sqlite:///{database_path}", f"--samples.directory={samples}"]
    assert main(flags) == 2
    assert f"samples.directory: {samples}: No such file or directory" in capsys.readouterr().err
    samples.mkdir()
    assert main(flags) == 2
    assert "it contains samples of no job" in capsys.readouterr().err
    (samples / "17").mkdir()
    assert main(flags) == 0


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--db.url=sqlite:////nowhere/jobs.db"], "no such database"),
        (["--web.tls-cert-file=x"], "both or neither"),
        (["--web.tls-cert-file=/x", "--web.tls-key-file=/y"], "/x"),
        (["--web.listen-address=x"], "expected HOST:PORT"),
        (["--auth.trusted-peer=10.0.0.1/8"], "expected a network"),
        (["--auth.trusted-peer=10.0.0.1"], "auth.secret-file: expected"),
        (["--auth.user-header=a b"], "expected the name of a header"),
        (["--auth.user-header=X-Batchjob-Secret"], "expected another header"),
        (["--auth.secret-file=/nowhere"], "/nowhere"),
        (["--web.thread=3"], "did you mean --web.threads?"),
        (["--web.threads=0"], "at least 1"),
        (["--emissions.provider=mars:FR"], "emissions.provider"),
    ],
)
def test_invalid_settings_exit_with_2_and_one_line(flags, message, capsys, database_path):
    arguments = flags if "db.url" in flags[0] else [f"--db.url=sqlite:///{database_path}", *flags]
    assert main(arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


def test_token_command_creates_working_token(database_path, capsys, client, services):
    command = ["token", "root", "--role=admin", "--lifetime=20000d"]
    assert main([f"--db.url=sqlite:///{database_path}", *command]) == 0
    token = capsys.readouterr().out.strip()
    identity = client.get("/api/v1/me", headers={"Authorization": f"Bearer {token}"}).json()
    assert (identity["user"], identity["role"]) == ("root", "admin")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["token"], "user"),
        (["token", "a, b"], "expected the name of a user"),
        (["token", "a", "--role=god"], "--role"),
        (["token", "a", "--lifetime=x"], "expected a duration"),
        (["tokn", "a"], "tokn"),
        (["--web.listen-adress", "x"], "unknown flag --web.listen-adress; did you mean --web.list"),
        (["token", "a", "--web.threads=3"], "--web.threads must come before the command"),
    ],
)
def test_invalid_commands_exit_with_2_and_one_line(argv, message, capsys, database_path):
    assert main([f"--db.url=sqlite:///{database_path}", *argv]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


def test_short_secret_is_rejected(tmp_path, database_path, capsys):
    (tmp_path / "secret").write_text("short")
    (tmp_path / "secret").chmod(0o600)
    assert (
        main([f"--db.url=sqlite:///{database_path}", f"--auth.secret-file={tmp_path}/secret"]) == 2
    )
    assert "at least 16" in capsys.readouterr().err


def test_database_of_newer_schema_is_rejected(database_path, capsys):
    import sqlite3

    with sqlite3.connect(database_path) as db:
        db.execute("UPDATE alembic_version SET version_num = '9999'")
    db.close()
    assert main([f"--db.url=sqlite:///{database_path}"]) == 2
    assert "of a newer version" in capsys.readouterr().err


def test_server_answers_over_tls_and_stops(database_path, tmp_path):
    authority = trustme.CA()
    leaf = authority.issue_cert("127.0.0.1")
    write_key(leaf, tmp_path / "key.pem")
    for certificate in leaf.cert_chain_pems:
        certificate.write_to_path(tmp_path / "cert.pem", append=True)
    (port,) = free_ports(1)
    (tmp_path / "server.yml").write_text(
        f"db: {{url: 'sqlite:///{database_path}'}}\n"
        f"web:\n  listen-address: 127.0.0.1:{port}\n"
        f"  tls-cert-file: {tmp_path}/cert.pem\n  tls-key-file: {tmp_path}/key.pem\n"
    )
    argv = [sys.executable, "-m", "batchjob_stats_server", f"--config.file={tmp_path}/server.yml"]
    server = subprocess.Popen(argv, stderr=subprocess.PIPE, text=True)
    try:
        context = ssl.create_default_context()
        authority.configure_trust(context)
        url = f"https://127.0.0.1:{port}/-/ready"

        def is_ready():
            try:
                with urllib.request.urlopen(url, context=context, timeout=scaled(5)) as answer:
                    return answer.read() == b"ok\n"
            except OSError:
                return False

        until(lambda: server.poll() is not None or is_ready(), "ready", 60)
        assert server.poll() is None, server.stderr.read()
        second = run(argv)
        assert (second.returncode, "in use" in second.stderr) == (1, True)
    finally:
        server.send_signal(signal.SIGTERM)
        _, log = server.communicate(timeout=scaled(30))
    assert server.returncode in (0, -signal.SIGTERM)
    assert "Traceback" not in log
    shutil.rmtree(tmp_path, ignore_errors=True)
