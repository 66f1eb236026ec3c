"""A poller killed at any time loses no message, and sends none twice beyond SMTP's doubt."""

import contextlib
import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from batchjob_stats_db.database import schema
from tests.batchjob_stats_db.poller.message_site import answer_report
from tests.helpers.http_server import serving
from tests.helpers.mail_relay import Relay
from tests.helpers.waiting import scaled

ROOT = Path(__file__).parents[3]
PROGRAM = "tests.batchjob_stats_db.poller.message_process"


@pytest.mark.e2e
def test_killed_at_random_instants(url, rows, tmp_path, long_form):
    kills, rng = 100 if long_form else 10, random.Random(40)
    jobs = 20 * kills
    token = tmp_path / "token"
    token.write_text("bj_x")
    token.chmod(0o600)
    relay = Relay()
    with serving(answer_report) as server:
        argv = [
            sys.executable, "-m", PROGRAM, url.render_as_string(hide_password=False),
            relay.address, server.url, str(token), str(jobs),
        ]  # fmt: skip
        for _ in range(kills):
            seen = len(relay.mails)
            child = subprocess.Popen(argv, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)})
            try:
                while len(relay.mails) == seen and child.poll() is None:
                    wait_for(child)
                wait_for(child, rng.uniform(0, 0.2))
            finally:
                child.kill()
                child.wait()
        last = subprocess.run(argv, cwd=ROOT, timeout=scaled(300), check=False)
    relay.stop()
    assert last.returncode == 0
    assert len(rows(schema.job)) == jobs
    ids = Counter(mail["Message-ID"] for mail in relay.mails)
    recipients = {address for addresses in relay.recipients for address in addresses}
    assert recipients == {f"user{number}@example.org" for number in range(jobs)}
    assert len(ids) == jobs  # who got one twice got the same one
    doubled = sum(ids.values()) - jobs
    assert doubled <= kills  # each kill leaves one message in doubt at most, which may be the same
    assert {row["state"] for row in rows(schema.outbox)} == {"sent"}


def wait_for(child, seconds=0.02):
    """Wait for the process, so many seconds at most."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(seconds)
