"""Addresses to listen on, and which clients are allowed."""

import os
import socket
from ipaddress import ip_network

import pytest

from batchjob.runtime.settings import SettingsError
from batchjob_exporter.web.addresses import (
    client_key,
    format_address,
    is_allowed,
    is_reachable_remotely,
    listen_address,
    open_listeners,
    open_systemd_listener,
)
from tests.helpers.waiting import scaled


@pytest.mark.parametrize(
    "text", [":10910", "127.0.0.1:1", "[::1]:0", "localhost:80", "node-1.x.org:80", "unix:/run/x"]
)
def test_valid_listen_addresses(text):
    assert listen_address(text) == text


@pytest.mark.parametrize(
    "text", ["", "10910", "::1:80", ":65536", ":-1", "a b:80", "[::1]", 10910, None, "unix:x", ":٣"]
)
def test_invalid_listen_addresses(text):
    with pytest.raises(ValueError, match="expected :PORT"):
        listen_address(text)


@pytest.mark.parametrize(
    ("peer", "networks", "allowed"),
    [
        ("10.1.2.3", [], True),
        ("10.1.2.3", ["10.0.0.0/8"], True),
        ("::ffff:10.1.2.3", ["10.0.0.0/8"], True),
        ("11.1.2.3", ["10.0.0.0/8", "2001:db8::/32"], False),
        ("2001:db8::5", ["10.0.0.0/8", "2001:db8::/32"], True),
        ("fe80::1%eth0", ["fe80::/64"], True),
        ("", ["10.0.0.0/8"], True),  # unix socket: its file's permissions decide
    ],
)
def test_allowed_networks(peer, networks, allowed):
    assert is_allowed(peer, tuple(map(ip_network, networks))) is allowed


@pytest.mark.parametrize(
    ("peer", "client"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::1", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", ""),
    ],
)
def test_client_key(peer, client):
    assert client_key(peer) == client


def test_wildcard_address_is_reachable_over_ipv4():
    (listener,) = open_listeners((":0",))
    with listener:
        port = listener.getsockname()[1]
        assert is_reachable_remotely(listener)
        socket.create_connection(("127.0.0.1", port), timeout=scaled(5)).close()


def test_loopback_and_unix_sockets_are_not_reachable_remotely(tmp_path):
    for listener in open_listeners(("127.0.0.1:0", f"unix:{tmp_path}/s")):
        with listener:
            assert not is_reachable_remotely(listener)
            assert format_address(listener).startswith(("127.0.0.1:", "unix:/"))


def test_address_in_use_is_named_and_others_are_closed(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(SettingsError, match=f"cannot listen on 127.0.0.1:{port}: Address"):
            open_listeners((f"unix:{tmp_path}/s", f"127.0.0.1:{port}"))


def test_stale_socket_file_is_replaced_and_used_one_is_not(tmp_path):
    path = f"{tmp_path}/s"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(path)
    (listener,) = open_listeners((f"unix:{path}",))
    with listener, pytest.raises(SettingsError, match="in use"):
        open_listeners((f"unix:{path}",))


def test_regular_file_is_not_replaced(tmp_path):
    (tmp_path / "s").write_text("precious")
    with pytest.raises(SettingsError, match="in use"):
        open_listeners((f"unix:{tmp_path}/s",))
    assert (tmp_path / "s").read_text() == "precious"


@pytest.mark.parametrize(
    "environment",
    [{}, {"LISTEN_PID": "1", "LISTEN_FDS": "1"}, {"LISTEN_PID": "self", "LISTEN_FDS": "x"}],
)
def test_systemd_listeners_require_socket_activation(monkeypatch, environment):
    for name in ("LISTEN_PID", "LISTEN_FDS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, str(os.getpid()) if value == "self" else value)
    with pytest.raises(SettingsError, match="no socket"):
        open_systemd_listener()
