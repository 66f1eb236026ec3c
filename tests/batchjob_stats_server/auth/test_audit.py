"""The audit log has one line for each access to data of others, none for own data."""

import pytest

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
        ("/api/v1/usage?by=user", "saw usage of alice, bob, carol"),
        ("/api/v1/usage?by=cluster", None),
        ("/api/v1/usage?by=cluster&user=bob", "saw usage of bob"),
        ("/api/v1/usage/emissions?by=user", None),  # there are none
        ("/api/v1/users", "saw users of alice, bob, carol"),
        ("/api/v1/accounts", None),
        ("/api/v1/stats/failures", "saw failures of alice, bob"),
        ("/api/v1/stats/waste?user=bob", "saw waste of bob"),
    ],
)
def test_access_of_viewer_to_data_of_others_is_logged(audit_lines, address, line):
    assert audit_lines("vera", address) == ([f"vera (viewer) {line}"] if line else [])


@pytest.mark.parametrize(
    "address",
    [f"{GATE}/query?query=up", f"{GATE}/labels", "/api/v1/usage?by=user", "/api/v1/users",
     "/api/v1/stats/failures"],
)  # fmt: skip
def test_access_to_own_data_is_not_logged(audit_lines, address):
    assert audit_lines("alice", address) == []


def test_query_is_logged_on_one_line(audit_lines):
    (line,) = audit_lines("vera", f"{GATE}/query?query=a%0A%2Bb")
    assert line == r"vera (viewer) asked PromQL query for 'a\n+b'"


def test_rejected_query_is_not_logged(proxy_client, caplog):
    caplog.set_level("INFO", "batchjob.audit")
    assert proxy_client("vera").get(f"{GATE}/query?query=(").status_code == 400
    assert not [each for each in caplog.records if each.name == "batchjob.audit"]
