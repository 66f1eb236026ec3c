"""Credentials, certificates and HTTP methods of queries, against a small HTTPS server."""

import ssl

import pytest
import trustme

from batchjob.runtime.settings import SettingsError
from batchjob_stats_db.timeseries.base import TimeSeriesError
from batchjob_stats_db.timeseries.prometheus_client import Endpoint
from batchjob_stats_db.timeseries.prometheus_store import Prometheus
from tests.helpers.http_server import Response, serving


@pytest.fixture
def authority():
    return trustme.CA()


@pytest.fixture
def store(authority):
    """A server that requires a client certificate of its authority."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    authority.configure_trust(context)
    context.verify_mode = ssl.CERT_REQUIRED
    answer = Response(b'{"status": "success", "data": {"result": []}}')
    with serving(lambda _: answer, host="localhost", tls=context) as server:
        yield server


@pytest.fixture
def endpoint(store, authority, tmp_path):
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    client_cert = authority.issue_cert("poller.example")
    client_cert.private_key_and_cert_chain_pem.write_to_path(tmp_path / "client.pem")

    def make(**options):
        settings = {"ca_file": tmp_path / "ca.pem", "cert_file": tmp_path / "client.pem", **options}
        url = f"{store.url}/prometheus/"
        return Endpoint(url, **{name: str(value) for name, value in settings.items()})

    return make


def test_long_query_is_sent_by_post(store, endpoint):
    client = Prometheus(endpoint())
    for query in ("up", "up + " * 1000 + "up"):
        assert client.ask("query", query=query) == []
    client.session.close()
    short, long = store.requests
    assert short.method == "GET"
    assert short.target.startswith("/prometheus/api/v1/query?query=up&timeout=60000ms&")
    assert short.body == b""
    assert (long.method, long.target) == ("POST", "/prometheus/api/v1/query")
    assert long.headers["Content-Type"] == "application/x-www-form-urlencoded"
    assert long.body.startswith(b"query=up+%2B+up")


@pytest.mark.parametrize(
    ("credentials", "sent"),
    [
        ({"username": "us", "password": "pä"}, "Basic dXM6cMOk"),
        ({"token": "secret"}, "Bearer secret"),
    ],
)
def test_credentials_are_sent(store, endpoint, credentials, sent):
    client = Prometheus(endpoint(**credentials))
    client.ask("query", query="up")
    client.session.close()
    assert store.requests[0].headers["Authorization"] == sent


def test_server_of_another_authority_is_not_queried(store, endpoint, tmp_path):
    trustme.CA().cert_pem.write_to_path(tmp_path / "other.pem")
    client = Prometheus(endpoint(ca_file=tmp_path / "other.pem", token="secret"))
    with pytest.raises(TimeSeriesError, match="certificate not trusted"):
        client.ask("query", query="up")
    assert store.requests == []


@pytest.mark.parametrize("name", ["ca_file", "cert_file"])
def test_invalid_certificate_file_is_reported(endpoint, tmp_path, name):
    (tmp_path / "wrong.pem").write_text("wrong")
    for file in ("wrong.pem", "missing.pem"):
        with pytest.raises(SettingsError, match=f"{name.replace('_', '-')}: .*{file}: "):
            Prometheus(endpoint(**{name: tmp_path / file}))


def test_replaced_certificate_is_used_by_the_next_connection(store, endpoint, authority, tmp_path):
    client = Prometheus(endpoint())
    client.ask("query", query="up")
    client.session.close()
    stranger = trustme.CA().issue_cert("poller.example")
    stranger.private_key_and_cert_chain_pem.write_to_path(tmp_path / "client.pem")
    with pytest.raises(TimeSeriesError):
        client.ask("query", query="up")
