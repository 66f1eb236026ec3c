"""Files with secrets: one that every user can read is rejected before the program starts."""

import os

import pytest
import trustme

from batchjob.secret_files import (
    SecretFileError,
    check_private_key,
    key_file,
    read_key,
    read_secret,
    secret_file,
)
from batchjob_cli.main import main as batchjob
from batchjob_exporter.main import main as exporter
from batchjob_stats_db.admin.migrate import migrate
from batchjob_stats_db.database.engine import parse_url, writer_engine
from batchjob_stats_db.main import main as poller
from batchjob_stats_server.main import main as server


@pytest.fixture
def secret_path(tmp_path):
    """A file with a secret, readable by its owner only."""
    path = tmp_path / "secret"
    path.touch(0o600)
    path.write_text("correct horse battery staple\n")
    return path


@pytest.mark.parametrize("mode", [0o600, 0o400, 0o640, 0o440])
def test_secret_readable_by_owner_and_group_is_accepted(secret_path, mode):
    secret_path.chmod(mode)
    assert read_secret(secret_file(str(secret_path))) == "correct horse battery staple"


@pytest.mark.parametrize(
    ("mode", "message"),
    [
        (
            0o644,
            r"every user of this machine can read this secret \(mode 0644\); restrict it with",
        ),
        (0o602, "can write this secret"),
        (0o666, "can read and write this secret"),
    ],
)
def test_secret_accessible_to_other_users_is_rejected(secret_path, mode, message):
    secret_path.chmod(mode)
    for read in (read_secret, read_key, secret_file):
        with pytest.raises(SecretFileError, match=message):
            read(str(secret_path))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"one\ntwo\n", "expected one line"),
        (b"\xff", "not UTF-8"),
        (b"x" * 70_000, "at most 65536 bytes"),
    ],
)
def test_invalid_secret_is_rejected(secret_path, content, message):
    secret_path.write_bytes(content)
    with pytest.raises(SecretFileError, match=message):
        read_secret(str(secret_path))


def test_missing_file_is_reported_when_read(tmp_path):
    path = secret_file(str(tmp_path / "none"))
    with pytest.raises(SecretFileError, match="none: No such file"):
        read_secret(path)


def test_mode_of_pipe_is_ignored():
    reading, writing = os.pipe()
    os.write(writing, b"from a pipe\n")
    os.close(writing)
    try:
        assert read_secret(secret_file(f"/dev/fd/{reading}")) == "from a pipe"
    finally:
        os.close(reading)


@pytest.mark.parametrize(
    ("program", "flag", "more_flags"),
    [
        (server, "--auth.secret-file", ["--check"]),
        (server, "--db.password-file", ["--check"]),
        (server, "--tsdb.token-file", ["--check"]),
        (server, "--emissions.watttime-password-file", ["--check"]),
        (poller, "--db.password-file", ["--check"]),
        (poller, "--tsdb.password-file", ["--check"]),
        (exporter, "--collector.ipmi.password-file", ["--check"]),
        (exporter, "--collector.redfish.password-file", ["--check"]),
        (exporter, "--collector.cluster.slurmrestd-token-file", ["--check"]),
        (exporter, "--collector.emissions.electricity-maps-token-file", ["--check"]),
        (batchjob, "--token-file", ["--server=http://127.0.0.1:1"]),
    ],
)
def test_program_rejects_world_readable_secret(
    program, flag, more_flags, secret_path, capsys, tmp_path
):
    secret_path.chmod(0o644)
    command = {"--db.password-file": ["up"], "--token-file": ["jobs"]}.get(flag, [])
    argv = [*(command if program is batchjob else []), f"{flag}={secret_path}", *more_flags]
    assert program(argv) == 2
    error = capsys.readouterr().err
    assert f"{flag.lstrip('-')}: {secret_path}: every user of this machine can read" in error
    assert error.count("\n") == 1


@pytest.fixture
def pem_folder(tmp_path):
    """A certificate (cert.pem), its world-readable key (key.pem), and both (both.pem)."""
    leaf = trustme.CA().issue_cert("127.0.0.1")
    leaf.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    leaf.private_key_pem.write_to_path(tmp_path / "key.pem")
    leaf.private_key_and_cert_chain_pem.write_to_path(tmp_path / "both.pem")
    for name in ("cert", "key", "both"):
        (tmp_path / f"{name}.pem").chmod(0o644)
    return tmp_path


def test_private_key_is_secret_and_certificate_is_not(pem_folder):
    check_private_key(str(pem_folder / "cert.pem"))
    assert key_file(str(pem_folder / "none.pem")) == str(pem_folder / "none.pem")
    for name in ("key.pem", "both.pem"):
        with pytest.raises(SecretFileError, match=f"{name}: every user of this machine can read"):
            key_file(str(pem_folder / name))
        (pem_folder / name).chmod(0o640)
        check_private_key(str(pem_folder / name))


def write_web_config(folder):
    """Write a web configuration that names the key file; returns its flag."""
    text = "tls_server_config: {cert_file: cert.pem, key_file: key.pem}"
    (folder / "web.yml").write_text(text)
    return f"--web.config.file={folder}/web.yml"


def create_database(folder):
    """Create an empty database; returns its flag."""
    url = parse_url(f"sqlite:///{folder}/jobs.db")
    engine = writer_engine(url, create=True)
    migrate(engine)
    engine.dispose()
    return f"--db.url=sqlite:///{folder}/jobs.db"


@pytest.mark.parametrize(
    ("program", "flags", "message"),
    [
        (exporter, lambda folder: ["--check", write_web_config(folder)], "key.pem"),
        (
            server,
            lambda folder: [
                "--check",
                create_database(folder),
                f"--web.tls-cert-file={folder}/cert.pem",
                f"--web.tls-key-file={folder}/key.pem",
            ],
            "web.tls-key-file: ",
        ),
        (
            batchjob,
            lambda folder: [
                "up",
                f"--data={folder}/data",
                "--listen-address=127.0.0.1:0",
                f"--web.tls-cert-file={folder}/cert.pem",
                f"--web.tls-key-file={folder}/key.pem",
            ],
            "web.tls-key-file: ",
        ),
        (
            batchjob,
            lambda folder: ["jobs", "--server=https://127.0.0.1:1", f"--cert={folder}/both.pem"],
            "--cert: ",
        ),
        (
            batchjob,
            lambda folder: [
                "jobs",
                "--server=https://127.0.0.1:1",
                f"--cert={folder}/cert.pem",
                f"--key={folder}/key.pem",
            ],
            "--key: ",
        ),
        (
            poller,
            lambda folder: ["--check", f"--tsdb.key-file={folder}/key.pem"],
            "tsdb.key-file: ",
        ),
        (
            poller,
            lambda folder: ["--check", f"--tsdb.cert-file={folder}/both.pem"],
            "tsdb.cert-file: ",
        ),
    ],
)
def test_program_rejects_world_readable_key(program, flags, message, pem_folder, capsys):
    assert program(flags(pem_folder)) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "every user of this machine can read this secret (mode 0644)" in error
    assert error.count("\n") == 1
