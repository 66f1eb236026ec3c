"""`batchjob mail` as slurmctld calls it, with a real SMTP server, and a sendmail on PATH."""

import email
import email.policy
import io
import socket
import sys
from pathlib import Path

import pytest

from batchjob.local_runs import record
from batchjob.runtime.settings import SettingsError
from batchjob_cli import mail
from batchjob_cli.main import main
from tests.batchjob_cli.client.local_runs import finished_run
from tests.helpers.mail_relay import Relay

SENDMAIL = """#!/bin/sh
printf '%s\\n' "$@" > {folder}/arguments
cat > {folder}/mail
"""
BEGAN = "Slurm Job_id=7 Name=train Began, Queued time 00:00:01"
ENDED = "Slurm Job_id=7 Name=train Ended, Run time 00:01:00, COMPLETED, ExitCode 0"


@pytest.fixture
def relay():
    server = Relay()
    yield server
    server.stop()


@pytest.fixture
def sendmail(tmp_path, monkeypatch):
    """A sendmail on PATH; a function that returns its arguments and the mail, if it was called."""
    folder = tmp_path / "sendmail"
    folder.mkdir()
    program = folder / "sendmail"
    program.write_text(SENDMAIL.format(folder=folder))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")

    def read_mail():
        if not (folder / "mail").exists():
            return None, None
        parsed = email.message_from_bytes(
            (folder / "mail").read_bytes(), policy=email.policy.default
        )
        return (folder / "arguments").read_text().splitlines(), parsed

    return read_mail


@pytest.fixture
def jobid(data, monkeypatch):
    """A job of the data directory, about which slurmctld sends a mail."""
    run = finished_run("train")
    record.write(Path(data) / "runs", run)
    monkeypatch.setenv("SLURM_JOB_ID", run.jobid)
    monkeypatch.setenv("SLURM_JOB_MAIL_TYPE", "Ended")
    monkeypatch.setenv("BATCHJOB_DATA", data)
    return run.jobid


@pytest.fixture(autouse=True)
def body(monkeypatch):
    """What standard input has: of slurmctld nothing."""
    stream = io.BytesIO()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(stream))
    return stream


def test_report_is_added_by_sendmail(jobid, sendmail, body):
    body.write("Grüße\n".encode())
    body.seek(0)
    assert main(["mail", "-n", "--wait=30", "-s", ENDED, "alice@example.org"]) == 0
    arguments, sent = sendmail()
    assert arguments == ["-i", "--", "alice@example.org"]
    assert (sent["Subject"], sent["To"]) == (ENDED, "alice@example.org")
    text = sent.get_content()
    assert text.startswith(f"Grüße\n\nJob ID: {jobid}\n")
    assert "CPU Efficiency: 90.00% of 00:01:00 core-walltime" in text


def test_report_is_added_by_smtp(jobid, relay, sendmail):
    argv = ["mail", f"--smtp={relay.address}", "--from=slurm@example.org", "-s", ENDED, "al, bo@b"]
    assert main(argv) == 0
    (sent,), ((first, second),) = relay.mails, relay.recipients
    assert (first, second, sent["From"]) == ("al", "bo@b", "slurm@example.org")
    assert sent.get_content().startswith(f"Job ID: {jobid}\r\n")
    assert sendmail() == (None, None)


def test_mail_that_is_refused_with_its_report_goes_without(jobid, sendmail):
    relay = Relay(lambda sent: "552 too much" if b"Job ID:" in sent.content else None)
    sendmail_program = Path(mail.shutil.which("sendmail"))
    sendmail_program.write_text("#!/bin/sh\nexit 75\n")
    try:
        assert main(["mail", "--wait=5", f"--smtp={relay.address}", "-s", ENDED, "alice"]) == 0
    finally:
        relay.stop()
    (sent,) = relay.mails
    assert (sent["Subject"], sent.get_content().strip()) == (ENDED, "")


@pytest.mark.parametrize(
    ("environment", "subject"),
    [
        ({"SLURM_JOB_MAIL_TYPE": "Began"}, BEGAN),
        ({}, "Slurm Array Summary Job_id=7_* (7) Name=train Ended, COMPLETED, ExitCode [0-0]"),
        ({"SLURM_CLUSTER_NAME": "another"}, ENDED),
        ({"SLURM_JOB_ID": "999"}, ENDED),
        ({"BATCHJOB_SERVER": "http://127.0.0.1:1"}, ENDED),
    ],
    ids=["began", "array", "another cluster", "unknown job", "no server"],
)
def test_mail_without_report_goes_out_unchanged(jobid, sendmail, monkeypatch, environment, subject):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert main(["mail", "--wait=0", "-s", subject, "alice"]) == 0
    _, sent = sendmail()
    assert (sent["Subject"], sent.get_content().strip()) == (subject, "")


def test_server_that_hangs_does_not_hold_the_mail(jobid, sendmail, monkeypatch, capsys):
    monkeypatch.setattr(mail, "_REPORT_SECONDS", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        assert main(["mail", f"--server={url}", "--wait=0.5", "-s", ENDED, "alice"]) == 0
    assert sendmail()[1]["Subject"] == ENDED
    assert f"without a report of job {jobid}: " in capsys.readouterr().err


def test_sendmail_is_used_while_the_relay_is_down(sendmail):
    assert main(["mail", "--smtp=127.0.0.1:1", "-s", BEGAN, "alice"]) == 0
    assert sendmail()[0] == ["-i", "--", "alice"]


def test_mail_that_nobody_takes_is_an_error(monkeypatch, capsys):
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(mail, "_SENDMAIL_FOLDERS", "/nonexistent")
    assert main(["mail", "--smtp=127.0.0.1:1", "-s", BEGAN, "alice"]) == 1
    error = capsys.readouterr().err
    assert "not sent: Connection refused; not found" in error.replace("[Errno 111] ", "")


@pytest.mark.parametrize(
    "name",
    [
        "x\r\nBcc: eve@example.org\r\n\r\nbody",
        "=?utf-8?q?x=0d=0aBcc:=20eve@example.org?=",
        "x\u2028Bcc: eve\x00\x1b[2J",
        "\udcff\udcfe",
    ],
)
def test_names_cannot_add_headers(sendmail, name):
    assert main(["mail", "-s", f"Slurm Job_id=7 Name={name} Began", "alice"]) == 0
    arguments, sent = sendmail()
    assert arguments == ["-i", "--", "alice"]
    assert set(sent.keys()) == {
        "Subject", "To", "Date", "Message-ID", "Auto-Submitted", "Content-Type",
        "Content-Transfer-Encoding", "MIME-Version",
    }  # fmt: skip
    assert sent["Subject"].isprintable()
    assert sent.get_content().strip() == ""


@pytest.mark.parametrize(
    "address", ["--smtp=evil.example.org", "-oQ/tmp", "-n", '"', "a\nBcc: eve@example.org"]
)
def test_addresses_are_never_options(sendmail, address):
    assert main(["mail", "-s", BEGAN, address]) == 0
    arguments, sent = sendmail()
    assert arguments[:2] == ["-i", "--"]
    assert len(arguments) == 3
    assert "Bcc" not in sent


@pytest.mark.parametrize("arguments", [[], ["-s"], ["-s", "subject"], ["-s", "subject", " , "]])
def test_call_without_address_is_refused(arguments):
    with pytest.raises(SettingsError, match="expected"):
        mail.run(arguments)
