"""Connections by hundreds at the real server: a legitimate request is answered meanwhile."""

import contextlib
import ipaddress
import json
import socket
import ssl
import time
import urllib.request

import pytest
import trustme

from batchjob_stats_server.options import LimitOptions
from tests.batchjob_stats_server.serving import serving
from tests.private_keys import write_key
from tests.security.hostile_clients import hostile

KINDS = ("silent", "slow", "talking", "not-reading", "pipelining", "knocking")
REQUEST = b"GET /api/v1/me HTTP/1.1\r\nhost: testserver\r\n\r\n"


@pytest.fixture
def maximum(long_form):
    """Connections at once; of one address a tenth."""
    return 1000 if long_form else 100


@pytest.fixture
def limited(services, maximum, monkeypatch):
    """The server with these limits; who does not read would hold it for half a minute."""
    monkeypatch.setattr("batchjob_stats_server.http.protocol.UNREAD_MILLISECONDS", 2000)
    limit = LimitOptions(connections=maximum, peer_connections=maximum // 10)
    settings = services.settings._replace(limit=limit)
    return services._replace(settings=settings, clock=time.time)


@pytest.fixture
def asker(token):
    return token("alice", expiry_time=int(time.time()) + 3600)


@contextlib.contextmanager
def crowd(port, count, addresses, kind, **options):
    """So many of a kind, who have come."""
    with hostile(kind, count, ("127.0.0.1", port), addresses=addresses, **options) as made:
        time.sleep(1.0)
        yield made


def ask(port, path, headers, **options):
    """The answer to one request on a connection of its own."""
    scheme = "https" if options else "http"
    url = f"{scheme}://127.0.0.1:{port}{path}"
    request = urllib.request.Request(url, headers={"Host": "testserver", **headers})
    with urllib.request.urlopen(request, timeout=10, **options) as answer:
        return json.load(answer)


def check_answers(port, headers, seconds, **options):
    """Requests, each on a new connection, for so long."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        assert ask(port, "/api/v1/me", headers, **options)["user"] == "alice"
        time.sleep(0.05)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("addresses", [1, 20])
def test_a_crowd_does_not_keep_others_out(limited, maximum, asker, kind, addresses, long_form):
    with serving(limited) as port, crowd(port, 2 * maximum, addresses, kind):
        check_answers(port, asker, 15 if long_form else 1)


@pytest.mark.parametrize("kind", ["silent", "greeting slowly", "talking"])
def test_a_crowd_before_tls_does_not_keep_others_out(
    limited, maximum, asker, kind, tmp_path, long_form
):
    authority = trustme.CA()
    leaf = authority.issue_cert("127.0.0.1")
    write_key(leaf, tmp_path / "key.pem")
    leaf.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    web = limited.settings.web.__class__(
        threads=4,
        tls_cert_file=f"{tmp_path}/cert.pem",
        tls_key_file=f"{tmp_path}/key.pem",
        allowed_host=("testserver",),
    )
    context = ssl.create_default_context()
    authority.configure_trust(context)
    secured = limited._replace(settings=limited.settings._replace(web=web))
    with serving(secured) as port, crowd(port, 2 * maximum, 20, kind, tls=True):
        check_answers(port, asker, 15 if long_form else 1, context=context)


def connect(port, source):
    return socket.create_connection(("127.0.0.1", port), timeout=5, source_address=(source, 0))


def answered(client):
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


def test_the_longest_waiting_of_an_address_makes_room(limited, maximum):
    with serving(limited) as port:
        clients = [connect(port, "127.0.0.1") for _ in range(maximum // 10)]
        assert answered(clients[0])  # so that the second has waited longest
        clients.append(connect(port, "127.0.0.1"))
        assert answered(clients[-1])
        assert not answered(clients[1])
        assert answered(clients[0])
        assert answered(clients[2])
        dropped = limited.metrics.registry.get_sample_value(
            "batchjob_stats_server_connections_dropped_total", {"of": "peer"}
        )
        assert dropped == 1
        for client in clients:
            client.close()


def test_a_trusted_peer_has_no_maximum_and_is_not_dropped(limited, maximum):
    grafana = "127.0.0.9"
    auth = limited.settings.auth.__class__(
        trusted_peer=(ipaddress.ip_network(grafana),), secret_file=limited.settings.auth.secret_file
    )
    trusting = limited._replace(settings=limited.settings._replace(auth=auth))
    with serving(trusting) as port:
        clients = [connect(port, grafana) for _ in range(maximum // 5)]
        with crowd(port, 2 * maximum, 20, "silent"):
            for client in clients:  # at once, so that no client waits for the answers to others
                client.settimeout(30)
                client.sendall(REQUEST)
            assert all(map(has_answer, clients))
        for client in clients:
            client.close()


def test_connections_are_counted_and_given_back(limited, maximum):
    with serving(limited) as port:
        value = limited.metrics.registry.get_sample_value
        with crowd(port, 2 * maximum, 20, "silent"):
            assert value("batchjob_stats_server_connections") == maximum
        until = time.monotonic() + 10
        while value("batchjob_stats_server_connections") and time.monotonic() < until:
            time.sleep(0.05)
        assert value("batchjob_stats_server_connections") == 0
