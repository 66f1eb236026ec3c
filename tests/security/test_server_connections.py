"""Hundreds of connections to the real server: a legitimate request is answered meanwhile."""

import contextlib
import ipaddress
import json
import socket
import ssl
import time
import urllib.request
from functools import partial

import pytest
import trustme

from batchjob_stats_server.options import LimitOptions
from tests.batchjob_stats_server.serving import serving
from tests.helpers.waiting import scaled, until
from tests.private_keys import write_key
from tests.security.hostile_clients import hostile

KINDS = ("silent", "slow", "talking", "not-reading", "pipelining", "knocking")
REQUEST = b"GET /api/v1/me HTTP/1.1\r\nhost: testserver\r\n\r\n"


@pytest.fixture
def max_connections(long_form):
    """The maximum number of connections; a tenth of it is the maximum of one address."""
    return 1000 if long_form else 100


@pytest.fixture
def limited_services(services, max_connections, monkeypatch):
    """Services with these limits, and a short wait for clients that do not read."""
    monkeypatch.setattr("batchjob_stats_server.http.protocol.UNREAD_MILLISECONDS", 2000)
    limit = LimitOptions(connections=max_connections, peer_connections=max_connections // 10)
    settings = services.settings._replace(limit=limit)
    return services._replace(settings=settings, clock=time.time)


@pytest.fixture
def alice_headers(token_headers):
    return token_headers("alice", expiry_time=int(time.time()) + 3600)


@contextlib.contextmanager
def hostile_crowd(port, count, addresses, kind, **options):
    """Run hostile clients of a kind, which have had time to connect."""
    with hostile(kind, count, ("127.0.0.1", port), addresses=addresses, **options) as crowd:
        time.sleep(1.0)
        yield crowd


def get_json(port, path, headers, **options):
    """The answer to a request on a connection of its own."""
    scheme = "https" if options else "http"
    url = f"{scheme}://127.0.0.1:{port}{path}"
    request = urllib.request.Request(url, headers={"Host": "testserver", **headers})
    with urllib.request.urlopen(request, timeout=scaled(10), **options) as answer:
        return json.load(answer)


def assert_answers(port, headers, seconds, **options):
    """Assert that requests on new connections are answered, for some seconds."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        assert get_json(port, "/api/v1/me", headers, **options)["user"] == "alice"
        time.sleep(0.05)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("addresses", [1, 20])
def test_hostile_clients_do_not_block_others(
    limited_services, max_connections, alice_headers, kind, addresses, long_form
):
    with (
        serving(limited_services) as port,
        hostile_crowd(port, 2 * max_connections, addresses, kind),
    ):
        assert_answers(port, alice_headers, 15 if long_form else 1)


@pytest.mark.parametrize("kind", ["silent", "greeting slowly", "talking"])
def test_hostile_clients_do_not_block_others_over_tls(
    limited_services, max_connections, alice_headers, kind, tmp_path, long_form
):
    authority = trustme.CA()
    leaf = authority.issue_cert("127.0.0.1")
    write_key(leaf, tmp_path / "key.pem")
    leaf.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    web = limited_services.settings.web.__class__(
        threads=4,
        tls_cert_file=f"{tmp_path}/cert.pem",
        tls_key_file=f"{tmp_path}/key.pem",
        allowed_host=("testserver",),
    )
    context = ssl.create_default_context()
    authority.configure_trust(context)
    secured = limited_services._replace(settings=limited_services.settings._replace(web=web))
    with serving(secured) as port, hostile_crowd(port, 2 * max_connections, 20, kind, tls=True):
        assert_answers(port, alice_headers, 15 if long_form else 1, context=context)


def connect(port, source):
    return socket.create_connection(
        ("127.0.0.1", port), timeout=scaled(5), source_address=(source, 0)
    )


def is_answered(client):
    try:
        client.sendall(REQUEST)
        return has_answer(client)
    except ConnectionError:
        return False


def has_answer(client):
    try:
        return client.recv(65536).startswith(b"HTTP/1.1 ")
    except ConnectionError:
        return False


def test_longest_idle_connection_of_address_is_dropped(limited_services, max_connections):
    with serving(limited_services) as port:
        clients = [connect(port, "127.0.0.1") for _ in range(max_connections // 10)]
        assert is_answered(clients[0])  # so that the second one has been idle longest
        clients.append(connect(port, "127.0.0.1"))
        assert is_answered(clients[-1])
        assert not is_answered(clients[1])
        assert is_answered(clients[0])
        assert is_answered(clients[2])
        dropped = limited_services.metrics.registry.get_sample_value(
            "batchjob_stats_server_connections_dropped_total", {"of": "peer"}
        )
        assert dropped == 1
        for client in clients:
            client.close()


def test_trusted_peer_has_no_connection_limit(limited_services, max_connections):
    grafana = "127.0.0.9"
    auth = limited_services.settings.auth.__class__(
        trusted_peer=(ipaddress.ip_network(grafana),),
        secret_file=limited_services.settings.auth.secret_file,
    )
    trusting = limited_services._replace(settings=limited_services.settings._replace(auth=auth))
    with serving(trusting) as port:
        clients = [connect(port, grafana) for _ in range(max_connections // 5)]
        with hostile_crowd(port, 2 * max_connections, 20, "silent"):
            for client in clients:  # at once, so that no client waits for the answers to others
                client.settimeout(scaled(30))
                client.sendall(REQUEST)
            assert all(map(has_answer, clients))
        for client in clients:
            client.close()


def test_connection_count_returns_to_zero(limited_services, max_connections):
    with serving(limited_services) as port:
        value = limited_services.metrics.registry.get_sample_value
        count = partial(value, "batchjob_stats_server_connections")
        with hostile_crowd(port, 2 * max_connections, 20, "silent"):
            until(lambda: count() == max_connections, "all places are taken", 30)
        until(lambda: count() == 0, "all places are free", 30)
