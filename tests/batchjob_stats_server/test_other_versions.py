"""The server with clients and a database of other versions, as during an upgrade.

A newer server is a relay that adds keys to the answers of this one; a newer client uses parameters
that this server does not have.
"""

import contextlib
import json
import sqlite3
import urllib.request
from dataclasses import replace

import pytest

from batchjob.runtime.settings import SettingsError
from batchjob_cli import jobs as jobs_command
from batchjob_cli import stats as stats_command
from batchjob_cli.client.answer import require_success
from batchjob_cli.client.problems import NotFoundError
from batchjob_cli.client.remote import Server
from batchjob_stats_db.database.tokens import TokenRole
from tests.batchjob_stats_server.serving import serving
from tests.helpers import http_server
from tests.helpers.http_server import Response
from tests.helpers.waiting import scaled

API = "/api/v1"
PATHS = ("jobs?since=0", "jobs/1?cluster=c1", "usage?since=0&by=user", "clusters", "accounts")


def migrate_to_newer_version(path):
    """Change the schema while a server has the file open."""
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        db.execute("ALTER TABLE job ADD COLUMN something_new TEXT")
        db.execute("CREATE TABLE something_new (job_id BIGINT PRIMARY KEY)")
        db.execute("UPDATE alembic_version SET version_num = '9999'")


def test_running_server_answers_after_database_upgrade(proxy_client, client, database_path):
    def answers():
        return [proxy_client("vera").get(f"{API}/{path}").json() for path in PATHS]

    before = answers()
    assert client.get("/-/ready").status_code == 200
    migrate_to_newer_version(database_path)
    assert answers() == before
    assert client.get("/-/ready").status_code == 503  # so that a proxy uses an upgraded server


@pytest.fixture
def server_url_and_token(services, token_headers):
    """The URL of a running server, and a token for it."""
    web = replace(services.settings.web, allowed_host=())
    services_on_loopback = services._replace(settings=services.settings._replace(web=web))
    token = token_headers("vera", TokenRole.VIEWER)["Authorization"].removeprefix("Bearer ")
    with serving(services_on_loopback) as port:
        yield f"http://127.0.0.1:{port}", token


def with_unknown_keys(answer):
    """The same answer with two more keys in each object."""
    if isinstance(answer, list):
        return [with_unknown_keys(item) for item in answer]
    if isinstance(answer, dict):
        same = {key: with_unknown_keys(value) for key, value in answer.items()}
        return {"something_new": {"a": [1]}, **same, "something_newer": None}
    return answer


@contextlib.contextmanager
def newer_server(url):
    """The URL of a relay to the server, which adds unknown keys to each answer."""

    def relay(request):
        asked = urllib.request.Request(url + request.target, headers=request.headers)
        with urllib.request.urlopen(asked, timeout=scaled(60)) as answer:
            body = json.dumps(with_unknown_keys(json.load(answer))).encode()
        return Response(body, headers=(("Content-Type", "application/json"),))

    with http_server.serving(relay) as server:
        yield server.url


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        # Ended jobs: the run time of a running job may grow by a second between the two answers.
        (jobs_command, ["--utc", "--state=completed"]),
        (jobs_command, ["--utc", "--state=completed", "--columns=jobid,user,elapsed_seconds"]),
        (stats_command, ["--by=user", "--since=2026-01-01"]),
    ],
    ids=lambda each: " ".join(each) if isinstance(each, list) else each.__name__,
)
def test_client_ignores_unknown_keys_of_newer_server(
    server_url_and_token, command, arguments, monkeypatch, capsys
):
    url, token = server_url_and_token
    monkeypatch.setenv("BATCHJOB_TOKEN", token)

    def output_of(server_url):
        assert command.run(["--server", server_url, *arguments]) == 0
        return capsys.readouterr().out

    with newer_server(url) as newer_url:
        output, newer_output = output_of(url), output_of(newer_url)
    assert output
    assert newer_output == output


@pytest.mark.parametrize(
    ("path", "parameters", "error", "message"),
    [
        ("jobs", {"fields": "jobid,something_new"}, SettingsError, "unknown key 'something_new'"),
        ("jobs", {"something_new": 1}, SettingsError, "something_new: unknown parameter"),
        ("jobs", {"sort": "something_new"}, SettingsError, "sort"),
        ("something-new", {}, NotFoundError, "status 404"),
    ],
)  # fmt: skip
def test_newer_client_gets_error_for_unknown_parameter(
    server_url_and_token, path, parameters, error, message
):
    """No parameter is ignored silently: without its filter, a list would have all jobs."""
    url, token = server_url_and_token
    with pytest.raises(error, match=message):
        require_success(Server(url, token)(path, parameters))
