"""Wrong configurations of messages are named."""

import pytest

from batchjob.runtime.settings import SettingsError
from batchjob_stats_db.poller.messages.options import MessageOptions
from batchjob_stats_db.poller.options import settings

GOOD = {
    "server": "https://jobs.example.org", "token_file": "/etc/token", "smtp": "mail.example.org",
    "sender": "batchjob@example.org", "address": "{user}@example.org",
}  # fmt: skip


def test_nothing_is_sent_unless_configured():
    assert MessageOptions().offer() is None
    assert list(MessageOptions().problems()) == []
    assert list(MessageOptions(**GOOD).problems()) == []


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"server": ""}, "messages.server: expected the URL of the server"),
        ({"token_file": ""}, "messages.token-file: expected a file with a token"),
        ({"smtp": ""}, "expected at least one of smtp, webhook, ntfy"),
        ({"sender": ""}, "messages.sender: expected an address"),
        ({"address": "all@example.org"}, "messages.address: expected an address with {user}"),
        ({"smtp_user": "batchjob"}, "expected together with messages.smtp-password-file"),
        (
            {"smtp_user": "b", "smtp_password_file": "/etc/p", "smtp_tls": "none"},
            "messages.smtp-tls: expected starttls or tls",
        ),
    ],
)
def test_contradictions(changed, expected):
    assert any(expected in line for line in MessageOptions(**{**GOOD, **changed}).problems())


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("default", "lunch", "expected end, failure, started"),
        ("default", "idle=5s", "expected end, failure, started"),
        ("default", "memory=0%", "expected end, failure, started"),
        ("zone", "Mars/Olympus", "expected a time zone"),
        ("quiet-hours", "22-7", "expected hours such as"),
        ("smtp", "smtp://mail", "expected HOST or HOST:PORT"),
        ("sender", "batchjob", "expected an address such as"),
        ("server", "jobs.example.org", "expected http://HOST"),
        ("storm", "0", "expected a whole number of at least 1"),
    ],
)
def test_values(name, value, expected):
    with pytest.raises(SettingsError, match=f"messages.{name}: {expected}"):
        settings({f"messages.{name}": [value] if name == "default" else value}, "")
