import socket
import ssl
import threading

import pytest
import trustme

from batchjob.runtime.http_client import FetchError, fetch, trust


class Raw:
    """A server that sends the same bytes to everybody, and remembers what it was sent."""

    def __init__(self, *answers, tls=None):
        self.answers = answers
        self.received = []
        self._tls = tls
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self):
        connection, _ = self._listener.accept()
        with connection:
            for answer in self.answers:
                if answer == "tls":
                    connection = self._tls.wrap_socket(connection, server_side=True)
                    continue
                self.received.append(connection.recv(65536))
                connection.sendall(answer)
            connection.close()

    def close(self):
        self._thread.join()
        self._listener.close()


@pytest.fixture
def serving():
    servers = []

    def serve(*answers, tls=None):
        servers.append(Raw(*answers, tls=tls))
        return servers[-1]

    yield serve
    for server in servers:
        server.close()


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
        b"HTTP/1.0 200 OK\r\n\r\n{}",
    ],
    ids=["length", "chunks", "until the end"],
)
def test_forms_of_a_body(serving, answer):
    server = serving(answer)
    got = fetch(f"http://127.0.0.1:{server.port}/a?b=c", headers={"X-Token": "t"})
    assert (got.status, got.json()) == (200, {})
    assert server.received[0].startswith(b"GET /a?b=c HTTP/1.1\r\n")
    assert b"X-Token: t\r\n" in server.received[0]


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"", "unreachable"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "malformed"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\n{}", "malformed"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n123456789", "too_large"),
    ],
    ids=["nothing", "another protocol", "cut short", "too large"],
)
def test_what_is_no_answer(serving, answer, reason):
    server = serving(answer)
    with pytest.raises(FetchError, match=str(server.port)) as caught:
        fetch(f"http://127.0.0.1:{server.port}/", limit=8)
    assert caught.value.reason == reason


@pytest.mark.parametrize("body", [b"<html>", b"", b"[" * 100_000, b"\xff"])
def test_what_is_no_json_is_shown_in_short(serving, body):
    server = serving(b"HTTP/1.0 200 OK\r\n\r\n" + body)
    got = fetch(f"http://127.0.0.1:{server.port}/")
    with pytest.raises(FetchError, match="expected JSON, got") as caught:
        got.json()
    assert len(str(caught.value)) < 100


def test_a_text_that_is_not_utf_8_costs_its_own_letter_only(serving):
    server = serving(b'HTTP/1.0 200 OK\r\n\r\n{"name": "caf\xe9"}')
    assert fetch(f"http://127.0.0.1:{server.port}/").json() == {"name": "caf\ufffd"}


@pytest.mark.parametrize("url", ["ftp://h/", "h", "http://", "file:///etc/passwd", ""])
def test_only_http(url):
    with pytest.raises(ValueError, match="expected an http or https URL"):
        fetch(url)


def test_a_proxy_of_the_environment_is_asked_for_a_way_through(serving, monkeypatch):
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("grid.example").configure_cert(context)
    proxy = serving(
        b"HTTP/1.1 200 Connection established\r\n\r\n",
        "tls",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]",
        tls=context,
    )
    monkeypatch.setenv("https_proxy", f"http://us%40er:pw@127.0.0.1:{proxy.port}")
    monkeypatch.delenv("no_proxy", raising=False)
    trusting = trust()
    authority.configure_trust(trusting)
    assert fetch("https://grid.example/x", tls=trusting, proxies=True).json() == []
    connect, get = proxy.received
    assert connect.startswith(b"CONNECT grid.example:443 HTTP/1.1\r\n")
    assert b"Proxy-Authorization: Basic dXNAZXI6cHc=\r\n" in connect
    assert b"Proxy-Authorization" not in get


def test_a_proxy_that_refuses_is_named(serving, monkeypatch):
    proxy = serving(b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n")
    monkeypatch.setenv("https_proxy", f"127.0.0.1:{proxy.port}")
    monkeypatch.delenv("no_proxy", raising=False)
    with pytest.raises(FetchError, match="returned status 407"):
        fetch("https://grid.example/", proxies=True)


def test_no_proxy_is_honoured(serving, monkeypatch):
    server = serving(b"HTTP/1.0 200 OK\r\n\r\n{}")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    assert fetch(f"http://127.0.0.1:{server.port}/", proxies=True).status == 200
