"""The PromQL gate before a fake time series database."""

import pytest

from batchjob_stats_db.timeseries.prometheus_client import Endpoint
from batchjob_stats_server.promql.backend import PromqlBackend
from tests.simulated import tsdb

GATE = "/api/v1/prometheus/api/v1"


@pytest.fixture
def database():
    """A simulated time series database, which records the requests it receives."""
    with tsdb.serving() as simulated:
        yield simulated


@pytest.fixture
def services(services, database):
    gate_services = services._replace(
        tsdb=PromqlBackend(Endpoint(database.url, token="ours", answer_bytes=1000), 2)
    )
    yield gate_services
    gate_services.tsdb.close()


@pytest.fixture
def query_gate(proxy_client):
    """Query the gate as a user, with parameters as pairs."""

    def get(what, *pairs, user="alice", **more):
        return proxy_client(user).get(f"{GATE}/{what}", params=list(pairs), **more)

    return get
