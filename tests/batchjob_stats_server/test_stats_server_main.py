"""The command: settings, TLS, start and stop."""

import shutil
import signal
import ssl
import subprocess
import sys
import time
import urllib.request

import pytest
import trustme

from batchjob_stats_server.main import main
from tests.private_keys import write_key


def test_check(path, capsys):
    assert main(["--check", f"--db.url=sqlite:///{path}"]) == 0
    assert "OK" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--db.url=sqlite:////nowhere/jobs.db"], "no such database"),
        (["--web.tls-cert-file=x"], "both or neither"),
        (["--web.tls-cert-file=/x", "--web.tls-key-file=/y"], "/x"),
        (["--web.listen-address=x"], "expected HOST:PORT"),
        (["--auth.trusted-peer=10.0.0.1/8"], "expected a network"),
        (["--auth.trusted-peer=10.0.0.1"], "auth.secret-file: expected"),
        (["--auth.user-header=a b"], "expected the name of a header"),
        (["--auth.user-header=X-Batchjob-Secret"], "two different headers"),
        (["--auth.secret-file=/nowhere"], "/nowhere"),
        (["--web.thread=3"], "did you mean --web.threads?"),
        (["--web.threads=0"], "at least 1"),
        (["--emissions.provider=mars:FR"], "emissions.provider"),
    ],
)
def test_wrong_settings_are_one_line(flags, words, capsys, path):
    given = flags if "db.url" in flags[0] else [f"--db.url=sqlite:///{path}", *flags]
    assert main(given) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert words in line


def test_the_first_token_comes_from_the_command(path, capsys, client, services):
    argv = [f"--db.url=sqlite:///{path}", "token", "root", "--role=admin", "--lifetime=20000d"]
    assert main(argv) == 0
    text = capsys.readouterr().out.strip()
    known = client.get("/api/v1/me", headers={"Authorization": f"Bearer {text}"}).json()
    assert (known["user"], known["role"]) == ("root", "admin")


@pytest.mark.parametrize(
    ("argv", "words"),
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
def test_wrong_commands_are_one_line(argv, words, capsys, path):
    assert main([f"--db.url=sqlite:///{path}", *argv]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert words in line


def test_a_short_secret_is_refused(tmp_path, path, capsys):
    (tmp_path / "secret").write_text("short")
    (tmp_path / "secret").chmod(0o600)
    assert main([f"--db.url=sqlite:///{path}", f"--auth.secret-file={tmp_path}/secret"]) == 2
    assert "at least 16" in capsys.readouterr().err


def test_a_database_of_another_schema_is_refused(path, capsys):
    import sqlite3

    with sqlite3.connect(path) as db:
        db.execute("UPDATE alembic_version SET version_num = '9999'")
    db.close()
    assert main([f"--db.url=sqlite:///{path}"]) == 2
    assert "of a newer version" in capsys.readouterr().err


def test_serves_over_tls_and_stops(path, tmp_path):
    authority = trustme.CA()
    leaf = authority.issue_cert("127.0.0.1")
    write_key(leaf, tmp_path / "key.pem")
    for part in leaf.cert_chain_pems:
        part.write_to_path(tmp_path / "cert.pem", append=True)
    (tmp_path / "server.yml").write_text(
        f"db: {{url: 'sqlite:///{path}'}}\n"
        "web:\n  listen-address: 127.0.0.1:18911\n"
        f"  tls-cert-file: {tmp_path}/cert.pem\n  tls-key-file: {tmp_path}/key.pem\n"
    )
    argv = [sys.executable, "-m", "batchjob_stats_server", f"--config.file={tmp_path}/server.yml"]
    server = subprocess.Popen(argv, stderr=subprocess.PIPE, text=True)
    try:
        context = ssl.create_default_context()
        authority.configure_trust(context)
        url = "https://127.0.0.1:18911/-/ready"
        for _ in range(600):
            try:
                with urllib.request.urlopen(url, context=context, timeout=5) as answer:
                    assert answer.read() == b"ok\n"
                    break
            except OSError:
                assert server.poll() is None, server.stderr.read()
                time.sleep(0.1)
        else:
            pytest.fail("no answer")
        second = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)
        assert (second.returncode, "in use" in second.stderr) == (1, True)
    finally:
        server.send_signal(signal.SIGTERM)
        _, said = server.communicate(timeout=30)
    assert server.returncode in (0, -signal.SIGTERM)
    assert "Traceback" not in said
    shutil.rmtree(tmp_path, ignore_errors=True)
