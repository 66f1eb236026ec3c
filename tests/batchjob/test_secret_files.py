"""A secret that everybody may read is none, and is refused before it is used."""

import os

import pytest

from batchjob.secret_files import SecretFileError, read_key, read_secret, secret_file
from batchjob_cli.main import main as batchjob
from batchjob_exporter.main import main as exporter
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
        (0o644, r"every user of this machine may read this secret \(mode 0644\); `chmod o= "),
        (0o602, "may write this secret"),
        (0o666, "may read and write this secret"),
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
    assert f"{flag.lstrip('-')}: {file}: every user of this machine may read" in told
    assert told.count("\n") == 1
