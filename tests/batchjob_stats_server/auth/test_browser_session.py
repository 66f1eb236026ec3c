"""The cookie of `batchjob up` is of no use to other users of the machine."""

import os
import pwd
import socket
import subprocess
from contextlib import closing

import pytest
from starlette.requests import HTTPConnection

from batchjob_stats_server.auth import browser_session, peers


def connection_of(client, server_port):
    scope = {"type": "http", "headers": [], "client": client, "server": ("127.0.0.1", server_port)}
    return HTTPConnection(scope)


LISTENERS = {
    "IPv4": ("127.0.0.1", {}),
    "IPv6": ("::1", {"family": socket.AF_INET6}),
    "both": ("::", {"family": socket.AF_INET6, "dualstack_ipv6": True}),
}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as several users")
@pytest.mark.parametrize("user", ["games", "root"])
@pytest.mark.parametrize("kind", LISTENERS)
def test_session_is_accepted_from_the_servers_user_only(kind, user):
    host, options = LISTENERS[kind]
    to = "127.0.0.1" if kind == "both" else host
    with socket.create_server((host, 0), **options) as listener:
        port = listener.getsockname()[1]
        connect = f"exec 3<>/dev/tcp/{to}/{port}; read"
        process = subprocess.Popen(["bash", "-c", connect], stdin=subprocess.PIPE, user=user)
        with process, closing(listener.accept()[0]) as accepted:
            client = accepted.getpeername()[:2]
            peer = connection_of(client, port)
            address = peers.address(peer.scope)
            uid = browser_session.local_uid(address, client[1], port)
            assert uid == pwd.getpwnam(user).pw_uid
            session = browser_session.unseal(browser_session.seal("bj_x", peer))
            assert browser_session.is_from_own_user(session, peer) is (user == "root")
            process.stdin.close()


def test_session_of_another_machine_is_bound_to_its_address():
    here, there = (connection_of((host, 5), 80) for host in ("203.0.113.5", "203.0.113.6"))
    session = browser_session.unseal(browser_session.seal("bj_x", here))
    assert browser_session.is_from_own_user(session, here)
    assert not browser_session.is_from_own_user(session, there)


def test_loopback_peer_without_a_socket_is_refused():
    peer = connection_of(("127.0.0.1", 1), 1)
    session = browser_session.unseal(browser_session.seal("bj_x", peer))
    assert not browser_session.is_from_own_user(session, peer)


@pytest.mark.parametrize(
    "text", ["", "bw_", "bw_x", "bj_" + "x" * 43, "bw_\u00e4", "bw_" + "A" * 99]
)
def test_other_texts_are_no_session(text):
    assert browser_session.unseal(text) is None
