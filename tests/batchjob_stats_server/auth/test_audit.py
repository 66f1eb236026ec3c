"""The audit log has one line for each access to data of others, none for own data."""

import pytest
import sqlalchemy as sa

from batchjob_stats_db.timeseries.prometheus_store import Endpoint
from batchjob_stats_server.promql.backend import PromqlBackend
from tests.batchjob_stats_server.conftest import NOW
from tests.simulated import tsdb

GATE = "/api/v1/prometheus/api/v1"
DAYS = f"since={NOW - 5 * 86400}&until={NOW}"


@pytest.fixture
def services(services):
    with tsdb.serving() as database:
        made = services._replace(tsdb=PromqlBackend(Endpoint(database.url), 2))
        yield made
        made.tsdb.close()


@pytest.fixture
def audit_lines(proxy_client, caplog):
    """The audit log lines of a request."""
    caplog.set_level("INFO", "batchjob.audit")

    def ask(user, path):
        caplog.clear()
        assert proxy_client(user).get(path).status_code == 200
        return [each.getMessage() for each in caplog.records if each.name == "batchjob.audit"]

    return ask


@pytest.mark.parametrize(
    ("address", "line"),
    [
        (f"{GATE}/query?query=up", "asked PromQL query for 'up'"),
        (f"{GATE}/series?match[]=a&match[]=b", "asked PromQL series for 'a b'"),
        (f"{GATE}/labels", "asked PromQL labels"),
        (f"{GATE}/label/user/values", "asked PromQL label/user/values"),
        ("/api/v1/usage?by=user,day", "asked for '/api/v1/usage': by='user,day'"),
        ("/api/v1/usage?account=maths", "asked for '/api/v1/usage': account='maths'"),
        ("/api/v1/usage?user=bob", "asked for '/api/v1/usage': user='bob'"),
        ("/api/v1/usage?user=vera", None),
        (
            f"/api/v1/usage/emissions?account=maths&since={NOW}",
            f"asked for '/api/v1/usage/emissions': account='maths' since='{NOW}'",
        ),
        ("/api/v1/accounts", "asked for '/api/v1/accounts'"),
        (
            "/api/v1/stats/failures?by=account&account=maths",
            "asked for '/api/v1/stats/failures': by='account' account='maths'",
        ),
        ("/api/v1/stats/waste?user=bob", "asked for '/api/v1/stats/waste': user='bob'"),
        ("/api/v1/stats/waits?partition=p1", "asked for '/api/v1/stats/waits': partition='p1'"),
        ("/api/v1/stats/unfinished?cluster=c", "asked for '/api/v1/stats/unfinished': cluster='c'"),
        ("/api/v1/jobs?user=zoe&limit=5", "asked for '/api/v1/jobs': user='zoe'"),
        ("/usage?by=account&account=maths", "asked for '/usage': by='account' account='maths'"),
    ],
)
def test_access_of_viewer_to_data_of_others_is_logged(audit_lines, address, line):
    assert audit_lines("vera", address) == ([f"vera (viewer) {line}"] if line else [])


@pytest.mark.parametrize(
    "address",
    [f"{GATE}/query?query=up", f"{GATE}/labels", "/api/v1/usage?by=user", "/api/v1/accounts",
     "/api/v1/stats/failures"],
)  # fmt: skip
def test_access_to_own_data_is_not_logged(audit_lines, address):
    assert audit_lines("alice", address) == []


def test_question_is_logged_although_the_database_does_not_answer(services, proxy_client, caplog):
    vera = proxy_client("vera")
    caplog.set_level("INFO", "batchjob.audit")
    with services.writer.begin() as db:
        db.execute(sa.text("ALTER TABLE daily_usage RENAME TO gone"))
    try:
        assert vera.get("/api/v1/usage?user=bob").status_code == 503
    finally:
        with services.writer.begin() as db:
            db.execute(sa.text("ALTER TABLE gone RENAME TO daily_usage"))
    assert "vera (viewer) asked for '/api/v1/usage': user='bob'" in caplog.messages


@pytest.mark.parametrize(
    ("user", "method", "address", "status", "line"),
    [
        ("alice", "GET", "/admin", 403,
         "alice (user) was refused GET '/admin': this page is only for users who may see all "
         "jobs of a cluster"),
        ("root", "DELETE", "/api/v1/tokens/99", 404,
         "root (admin) was refused DELETE '/api/v1/tokens/99': there is no such token"),
    ],
)  # fmt: skip
def test_refusal_is_logged(proxy_client, caplog, user, method, address, status, line):
    caplog.set_level("INFO", "batchjob.audit")
    assert proxy_client(user).request(method, address).status_code == status
    assert [each.getMessage() for each in caplog.records if each.name == "batchjob.audit"] == [line]


def test_query_is_logged_on_one_line(audit_lines):
    (line,) = audit_lines("vera", f"{GATE}/query?query=a%0A%2Bb")
    assert line == r"vera (viewer) asked PromQL query for 'a\n+b'"


def test_rejected_query_is_not_logged(proxy_client, caplog):
    caplog.set_level("INFO", "batchjob.audit")
    assert proxy_client("vera").get(f"{GATE}/query?query=(").status_code == 400
    assert not [each for each in caplog.records if each.name == "batchjob.audit"]
