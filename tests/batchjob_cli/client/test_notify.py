"""`batchjob notify` lists and changes what a user is told."""

import json
import time
from pathlib import Path

import pytest

from batchjob.runtime.settings import SettingsError
from batchjob_cli import notify
from batchjob_cli.up import records
from batchjob_stats_db.database import subscriptions
from batchjob_stats_db.database.engine import writer_engine
from batchjob_stats_db.database.subscriptions import Offer
from tests.batchjob_cli.client.local_runs import command_output


@pytest.fixture
def told(data, server, capsys):
    """Runs the command against a server whose site sends mails and to webhooks."""
    url, file = server
    engine = writer_engine(records.record_runs(Path(data)))
    offer = Offer(("mail", "webhook"), ("failure",), ("https://hooks.example.org",))
    with engine.begin() as db:
        subscriptions.write_offer(db, "local", offer, int(time.time()))
    engine.dispose()
    return lambda *arguments: command_output(
        capsys, notify, *arguments, "--server", url, "--token-file", file
    )


def test_subscribe_list_and_remove(told):
    assert told("idle=30m", "--quiet-hours=22:00-07:00") == ""
    (row,) = json.loads(told("--format=json"))
    assert (row["event"], row["quiet_hours"]) == ("idle=30m", "22:00-07:00")
    assert "idle=30m" in told()
    assert told("--remove", str(row["id"])) == ""
    assert told() == "Without a subscription for it, you are told by mail of: failure.\n"


def test_webhook_has_a_key(told):
    assert told("end", "--webhook=https://hooks.example.org/x").startswith("key of the signatures")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["end", "--ntfy=topic", "--off"], "expected one of --webhook"),
        (["end", "--ntfy=topic"], "channel: expected one of mail, webhook, off"),
        (["lunch"], "expected end, failure"),
        (["--remove=99"], "there is no such subscription"),
    ],
)
def test_errors(told, arguments, expected):
    with pytest.raises(SettingsError, match=expected):
        told(*arguments)


def test_needs_a_server(data):
    with pytest.raises(SettingsError, match="expected the URL of a server"):
        notify.run(["--data", data])
