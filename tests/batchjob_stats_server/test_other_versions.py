"""The server beside clients and a database of other versions, as during an upgrade.

A newer server is a relay that adds to the answers of this one; a newer client asks for what this
server does not have.
"""

import contextlib
import http.server
import json
import sqlite3
import threading
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

API = "/api/v1"
ASKED = ("jobs?since=0", "jobs/1?cluster=c1", "usage?since=0&by=user", "clusters", "accounts")


def migrate_to_a_newer_version(path):
    """While a server has the file open."""
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        db.execute("ALTER TABLE job ADD COLUMN something_new TEXT")
        db.execute("CREATE TABLE something_new (job_id BIGINT PRIMARY KEY)")
        db.execute("UPDATE alembic_version SET version_num = '9999'")


def test_a_server_that_runs_while_the_database_is_upgraded_answers_on(proxied, client, path):
    def answers():
        return [proxied("vera").get(f"{API}/{each}").json() for each in ASKED]

    before = answers()
    assert client.get("/-/ready").status_code == 200
    migrate_to_a_newer_version(path)
    assert answers() == before
    assert client.get("/-/ready").status_code == 503  # so that a proxy goes to one of the new


@pytest.fixture
def served(services, token):
    """Address of the server on a socket, and a token for it."""
    web = replace(services.settings.web, allowed_host=())
    made = services._replace(settings=services.settings._replace(web=web))
    text = token("vera", TokenRole.VIEWER)["Authorization"].removeprefix("Bearer ")
    with serving(made) as port:
        yield f"http://127.0.0.1:{port}", text


def with_more(answer):
    """The same answer with a key more in each object."""
    if isinstance(answer, list):
        return [with_more(each) for each in answer]
    if isinstance(answer, dict):
        more = {key: with_more(value) for key, value in answer.items()}
        return {"something_new": {"a": [1]}, **more, "something_newer": None}
    return answer


@contextlib.contextmanager
def newer_server(url):
    """Address of a relay to the server."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            request = urllib.request.Request(url + self.path, headers=dict(self.headers))
            with urllib.request.urlopen(request, timeout=60) as answer:
                body = json.dumps(with_more(json.load(answer))).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


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
def test_a_client_passes_over_what_a_newer_server_says_beside(
    served, command, arguments, monkeypatch, capsys
):
    url, text = served
    monkeypatch.setenv("BATCHJOB_TOKEN", text)

    def said(at):
        assert command.run(["--server", at, *arguments]) == 0
        return capsys.readouterr().out

    with newer_server(url) as newer:
        told, more = said(url), said(newer)
    assert told
    assert more == told


@pytest.mark.parametrize(
    ("asked", "parameters", "error", "words"),
    [
        ("jobs", {"fields": "jobid,something_new"}, SettingsError, "unknown key 'something_new'"),
        ("jobs", {"something_new": 1}, SettingsError, "something_new: unknown parameter"),
        ("jobs", {"sort": "something_new"}, SettingsError, "sort"),
        ("something-new", {}, NotFoundError, "status 404"),
    ],
)  # fmt: skip
def test_a_newer_client_hears_what_this_server_does_not_have(
    served, asked, parameters, error, words
):
    """Nothing that it asked for is left out silently: a filter passed over would give all jobs."""
    url, text = served
    with pytest.raises(error, match=words):
        require_success(Server(url, text)(asked, parameters))
