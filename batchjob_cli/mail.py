"""`batchjob mail`: the MailProg of a slurm.conf, which adds the job's report to Slurm's mail.

slurmctld calls it as `MailProg -s SUBJECT ADDRESS`, tells about the job in variables SLURM_* of the
environment, and ends it after 120 seconds. Whatever happens to the report, the mail is sent.
"""

import argparse
import contextlib
import getpass
import os
import re
import shutil
import smtplib
import socket
import subprocess
import sys
from collections.abc import Mapping
from email.message import EmailMessage
from email.policy import default
from email.utils import formatdate, make_msgid, parseaddr

from batchjob.runtime.formatting import to_header
from batchjob.runtime.reason import reason
from batchjob.runtime.settings import SettingsError
from batchjob_cli.client.connect import command_parser
from batchjob_cli.client.problems import DONE, FAILED
from batchjob_cli.client.table import add_zone

_WAIT_SECONDS = 60.0
_REPORT_SECONDS = 15.0  # to start the command and to query the report, in addition to the wait
_SMTP_SECONDS = 10.0
_SENDMAIL_SECONDS = 20.0
_MAX_BODY_BYTES = 1024 * 1024
_MAX_HEADER_LENGTH = 900  # RFC 5322 allows 998; a subject that fits is not folded
_SENDMAIL_FOLDERS = "/usr/sbin:/usr/lib:/usr/bin"  # slurmctld may have no PATH
_SEFF_OPTIONS = ("server", "token_file", "cert", "key", "ca_file", "data", "cluster")
_SUBJECT = re.compile(r"slurm(?: array \w+)? job_id=(\d+)(_\*|_\d+)?(?: \((\d+)\))?", re.IGNORECASE)
_ENDED_SUBJECT = re.compile(r" (Ended|Failed), Run time ")
_ENDED, _RUNNING = ("Ended", "Failed"), "Reached "  # values of SLURM_JOB_MAIL_TYPE


def run(arguments: list[str]) -> int:
    """Send the mail, with the report if it can be had; the exit status. Raises SettingsError."""
    given = _parse(arguments)
    body = _read_body()
    report = _query_report(given, os.environ)
    errors = []
    # With a report that the relay does not take, as for its size, the mail goes without it.
    for text in ([f"{body}\n{report}".lstrip("\n")] if report else []) + [body]:
        message = _compose(given, text)
        for send in (_send_by_smtp, _send_by_sendmail) if given.smtp else (_send_by_sendmail,):
            try:
                send(given, message)
                return DONE
            except (OSError, ValueError, subprocess.SubprocessError) as error:
                errors.append(reason(error))
    print(f"batchjob: mail: not sent: {'; '.join(errors)}", file=sys.stderr)
    return FAILED


def _parse(arguments: list[str]) -> argparse.Namespace:
    """The options; the subject and the addresses, which users choose, are never taken for any."""
    parser = command_parser(
        "mail",
        "Sends a mail of Slurm with the report of its job; MailProg of a slurm.conf calls it.",
    )
    add = parser.add_argument
    add("--cluster", help="cluster of the job (default: $SLURM_CLUSTER_NAME)")
    add(
        "--smtp", default="", metavar="HOST[:PORT]",
        help="relay of the mail (default: the program sendmail of this machine)",
    )  # fmt: skip
    add("--from", dest="sender", default="", metavar="ADDRESS", help="sender of the mail")
    add(
        "--wait", type=float, default=_WAIT_SECONDS, metavar="SECONDS",
        help="wait for final figures of an ended job, but no longer than this; Slurm ends the "
        f"program after 120 (default: {_WAIT_SECONDS:g})",
    )  # fmt: skip
    add("-n", "--no-color", action="store_true", help="option of smail; the output has no colors")
    add("-s", "--subject", help="subject; addresses follow")
    add("addresses", nargs="*", metavar="ADDRESS", help="where to send the mail")
    add_zone(parser)
    if "-s" not in arguments:
        parser.parse_args(arguments)
        raise SettingsError("expected -s SUBJECT ADDRESS")
    at = arguments.index("-s")
    given: argparse.Namespace = parser.parse_args(arguments[:at])
    subject, *addresses = arguments[at + 1 :] or [""]
    given.subject = to_header(subject)
    given.addresses = [
        parseaddr(part)[1] or part.strip()
        for each in addresses
        for part in to_header(each).split(",")
        if part.strip()
    ]
    if not given.addresses:
        raise SettingsError("ADDRESS: expected an address after -s SUBJECT")
    return given


def _read_body() -> str:
    """Standard input; slurmctld gives none, but other callers of a mail program do."""
    if sys.stdin is None or sys.stdin.isatty():
        return ""
    return sys.stdin.buffer.read(_MAX_BODY_BYTES).decode(errors="replace")


def _query_report(given: argparse.Namespace, environment: Mapping[str, str]) -> str:
    """The report of the job, or "" if there is none in time, or the mail is of no single job.

    A process of its own makes it, which can be ended whatever it waits for.
    """
    subject = _SUBJECT.match(given.subject)
    jobid = environment.get("SLURM_JOB_ID") or (subject and (subject[3] or subject[1]))
    kind = environment.get("SLURM_JOB_MAIL_TYPE", "")
    if not kind and (told := _ENDED_SUBJECT.search(given.subject)):
        kind = told[1]
    is_summary = subject is not None and subject[2] == "_*"  # of all tasks of an array
    if not jobid or is_summary or not kind.startswith((*_ENDED, _RUNNING)):
        return ""
    given.cluster = given.cluster or environment.get("SLURM_CLUSTER_NAME")
    wait = given.wait if kind in _ENDED else 0.0
    options = [
        f"--{name.replace('_', '-')}={value}"
        for name in _SEFF_OPTIONS
        if (value := getattr(given, name))
    ]
    options += ["--utc"] if given.zone else []
    argv = [sys.executable, "-m", "batchjob_cli", "seff", f"--wait={wait}", *options, "--", jobid]
    try:
        answer = subprocess.run(  # noqa: S603 (options of the administrator, no shell)
            argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=wait + _REPORT_SECONDS,
            check=True, env={**environment, "PYTHONIOENCODING": "utf-8"},
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError) as error:
        told_error = getattr(error, "stderr", None) or b""
        words = told_error.decode(errors="replace").strip() or reason(error)
        print(f"batchjob: mail: without a report of job {jobid}: {words}", file=sys.stderr)
        return ""
    return answer.stdout.decode(errors="replace")


def _compose(given: argparse.Namespace, text: str) -> EmailMessage:
    message = EmailMessage(default.clone(max_line_length=_MAX_HEADER_LENGTH))
    message["Subject"] = given.subject
    # email.message refuses or fails on what is no address; the relay decides about it.
    with contextlib.suppress(Exception):
        message["To"] = ", ".join(given.addresses)
    if given.sender:
        message["From"] = given.sender
    message["Date"] = formatdate(localtime=True)
    # Not the default domain, for which the name service would be asked.
    message["Message-ID"] = make_msgid(domain=socket.gethostname())
    message["Auto-Submitted"] = "auto-generated"
    message.set_content(text)
    return message


def _send_by_smtp(given: argparse.Namespace, message: EmailMessage) -> None:
    host = socket.gethostname()
    sender = given.sender or f"{getpass.getuser()}@{host}"
    if not given.sender:
        message["From"] = sender
    with smtplib.SMTP(given.smtp, local_hostname=host, timeout=_SMTP_SECONDS) as relay:
        refused = relay.send_message(message, sender, given.addresses)
    for address, (_, answer) in refused.items():
        told = answer.decode(errors="replace")
        print(f"batchjob: mail: {address}: refused: {told}", file=sys.stderr)


def _send_by_sendmail(given: argparse.Namespace, message: EmailMessage) -> None:
    path = f"{os.environ.get('PATH', '')}:{_SENDMAIL_FOLDERS}"
    program = shutil.which("sendmail", path=path)
    if program is None:
        raise FileNotFoundError(2, "not found", "sendmail")
    sender = ["-f", given.sender] if given.sender else []
    subprocess.run(  # noqa: S603 (addresses follow --, no shell)
        [program, "-i", *sender, "--", *given.addresses],
        input=message.as_bytes(), check=True, timeout=_SENDMAIL_SECONDS,
    )  # fmt: skip
