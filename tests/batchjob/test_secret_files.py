"""A secret that everybody may read is none, and is refused before it is used."""

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
def file(tmp_path):
    """A file with a secret that only its owner may read."""
    path = tmp_path / "secret"
    path.touch(0o600)
    path.write_text("correct horse battery staple\n")
    return path


@pytest.mark.parametrize("mode", [0o600, 0o400, 0o640, 0o440])
def test_its_user_or_group_may_read_it(file, mode):
    file.chmod(mode)
    assert read_secret(secret_file(str(file))) == "correct horse battery staple"


@pytest.mark.parametrize(
    ("mode", "said"),
    [
        (
            0o644,
            r"every user of this machine can read this secret \(mode 0644\); restrict it with",
        ),
        (0o602, "can write this secret"),
        (0o666, "can read and write this secret"),
    ],
)
def test_what_others_may_read_or_write_is_refused(file, mode, said):
    file.chmod(mode)
    for read in (read_secret, read_key, secret_file):
        with pytest.raises(SecretFileError, match=said):
            read(str(file))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"one\ntwo\n", "expected one line"),
        (b"\xff", "not UTF-8"),
        (b"x" * 70_000, "at most 65536 bytes"),
    ],
)
def test_what_is_no_secret_is_refused(file, content, said):
    file.write_bytes(content)
    with pytest.raises(SecretFileError, match=said):
        read_secret(str(file))


def test_a_missing_file_is_told_when_it_is_read(tmp_path):
    path = secret_file(str(tmp_path / "none"))
    with pytest.raises(SecretFileError, match="none: No such file"):
        read_secret(path)


def test_a_shell_s_pipe_has_no_mode_that_counts():
    reading, writing = os.pipe()
    os.write(writing, b"from a pipe\n")
    os.close(writing)
    try:
        assert read_secret(secret_file(f"/dev/fd/{reading}")) == "from a pipe"
    finally:
        os.close(reading)


@pytest.mark.parametrize(
    ("program", "flag", "more"),
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
        (batchjob, "--db.password-file", []),
        (batchjob, "--token-file", ["--server=http://127.0.0.1:1"]),
    ],
)
def test_every_program_refuses_it_before_it_begins(program, flag, more, file, capsys, tmp_path):
    file.chmod(0o644)
    command = {"--db.password-file": ["up"], "--token-file": ["jobs"]}.get(flag, [])
    argv = [*(command if program is batchjob else []), f"{flag}={file}", *more]
    assert program(argv) == 2
    told = capsys.readouterr().err
    assert f"{flag.lstrip('-')}: {file}: every user of this machine can read" in told
    assert told.count("\n") == 1


@pytest.fixture
def pair(tmp_path):
    """A certificate (cert.pem), its key (key.pem) that everybody may read, and both (both.pem)."""
    leaf = trustme.CA().issue_cert("127.0.0.1")
    leaf.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    leaf.private_key_pem.write_to_path(tmp_path / "key.pem")
    leaf.private_key_and_cert_chain_pem.write_to_path(tmp_path / "both.pem")
    for name in ("cert", "key", "both"):
        (tmp_path / f"{name}.pem").chmod(0o644)
    return tmp_path


def test_certificates_are_no_secret_and_keys_are(pair):
    check_private_key(str(pair / "cert.pem"))
    assert key_file(str(pair / "none.pem")) == str(pair / "none.pem")
    for name in ("key.pem", "both.pem"):
        with pytest.raises(SecretFileError, match=f"{name}: every user of this machine can read"):
            key_file(str(pair / name))
        (pair / name).chmod(0o640)
        check_private_key(str(pair / name))


def web_config(pair):
    text = "tls_server_config: {cert_file: cert.pem, key_file: key.pem}"
    (pair / "web.yml").write_text(text)
    return f"--web.config.file={pair}/web.yml"


def inline(pair):
    lines = ["tls_server_config:", "  cert_file: cert.pem", "  key: |"]
    lines += [f"    {line}" for line in (pair / "key.pem").read_text().splitlines()]
    (pair / "web.yml").write_text("\n".join(lines))
    (pair / "web.yml").chmod(0o644)
    return f"--web.config.file={pair}/web.yml"


def database(pair):
    url = parse_url(f"sqlite:///{pair}/jobs.db")
    engine = writer_engine(url, create=True)
    migrate(engine)
    engine.dispose()
    return f"--db.url=sqlite:///{pair}/jobs.db"


@pytest.mark.parametrize(
    ("program", "flags", "told"),
    [
        (exporter, lambda pair: ["--check", web_config(pair)], "key.pem"),
        (exporter, lambda pair: ["--check", inline(pair)], "web.yml"),
        (
            server,
            lambda pair: ["--check", database(pair), f"--web.tls-cert-file={pair}/cert.pem",
                          f"--web.tls-key-file={pair}/key.pem"],
            "web.tls-key-file: ",
        ),
        (
            batchjob,
            lambda pair: ["up", f"--data={pair}/data", "--listen-address=127.0.0.1:0",
                          f"--web.tls-cert-file={pair}/cert.pem",
                          f"--web.tls-key-file={pair}/key.pem"],
            "web.tls-key-file: ",
        ),
        (
            batchjob,
            lambda pair: ["jobs", "--server=https://127.0.0.1:1", f"--cert={pair}/both.pem"],
            "--cert: ",
        ),
        (
            batchjob,
            lambda pair: ["jobs", "--server=https://127.0.0.1:1", f"--cert={pair}/cert.pem",
                          f"--key={pair}/key.pem"],
            "--key: ",
        ),
        (poller, lambda pair: ["--check", f"--tsdb.key-file={pair}/key.pem"], "tsdb.key-file: "),
        (poller, lambda pair: ["--check", f"--tsdb.cert-file={pair}/both.pem"], "tsdb.cert-file: "),
    ],
)  # fmt: skip
def test_every_program_refuses_a_key_that_everybody_may_read(program, flags, told, pair, capsys):
    assert program(flags(pair)) == 2
    error = capsys.readouterr().err
    assert told in error
    assert "every user of this machine can read this secret (mode 0644)" in error
    assert error.count("\n") == 1
