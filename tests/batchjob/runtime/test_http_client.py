import socket
import ssl
import threading
import time

import pytest
import trustme

from batchjob.runtime.http_client import FetchError, HttpSession, fetch, tls_context
from tests.helpers.waiting import scaled


class ThreadedServer:
    """A server in a thread."""

    def __init__(self):
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def close(self):
        self._thread.join()
        self._listener.close()


class CannedResponseServer(ThreadedServer):
    """A server that sends the given responses on one connection and records the requests."""

    def __init__(self, *answers, tls=None):
        self.answers = answers
        self.received = []
        self._tls = tls
        super().__init__()

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


@pytest.fixture
def start_server():
    servers = []

    def start(*answers, tls=None):
        servers.append(CannedResponseServer(*answers, tls=tls))
        return servers[-1]

    yield start
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
def test_response_body_framings(start_server, answer):
    server = start_server(answer)
    response = fetch(f"http://127.0.0.1:{server.port}/a?b=c", headers={"X-Token": "t"})
    assert (response.status, response.json()) == (200, {})
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
def test_invalid_response_raises_fetch_error(start_server, answer, reason):
    server = start_server(answer)
    with pytest.raises(FetchError, match=str(server.port)) as caught:
        fetch(f"http://127.0.0.1:{server.port}/", limit=8)
    assert caught.value.reason == reason


@pytest.mark.parametrize("body", [b"<html>", b"", b"[" * 100_000, b"\xff"])
def test_invalid_json_error_message_is_short(start_server, body):
    server = start_server(b"HTTP/1.0 200 OK\r\n\r\n" + body)
    response = fetch(f"http://127.0.0.1:{server.port}/")
    with pytest.raises(FetchError, match="expected JSON, got") as caught:
        response.json()
    assert len(str(caught.value)) < 100


def test_invalid_utf_8_byte_in_json_is_replaced(start_server):
    server = start_server(b'HTTP/1.0 200 OK\r\n\r\n{"name": "caf\xe9"}')
    assert fetch(f"http://127.0.0.1:{server.port}/").json() == {"name": "caf\ufffd"}


@pytest.mark.parametrize("url", ["ftp://h/", "h", "http://", "file:///etc/passwd", ""])
def test_url_other_than_http_is_rejected(url):
    with pytest.raises(ValueError, match="expected an http or https URL"):
        fetch(url)


def test_https_proxy_from_environment_is_used_with_connect(start_server, monkeypatch):
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("grid.example").configure_cert(context)
    proxy = start_server(
        b"HTTP/1.1 200 Connection established\r\n\r\n",
        "tls",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]",
        tls=context,
    )
    monkeypatch.setenv("https_proxy", f"http://us%40er:pw@127.0.0.1:{proxy.port}")
    monkeypatch.delenv("no_proxy", raising=False)
    client_context = tls_context()
    authority.configure_trust(client_context)
    assert fetch("https://grid.example/x", tls=client_context, proxies=True).json() == []
    connect, get = proxy.received
    assert connect.startswith(b"CONNECT grid.example:443 HTTP/1.1\r\n")
    assert b"Proxy-Authorization: Basic dXNAZXI6cHc=\r\n" in connect
    assert b"Proxy-Authorization" not in get


def test_proxy_error_status_is_reported(start_server, monkeypatch):
    proxy = start_server(b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n")
    monkeypatch.setenv("https_proxy", f"127.0.0.1:{proxy.port}")
    monkeypatch.delenv("no_proxy", raising=False)
    with pytest.raises(FetchError, match="returned status 407"):
        fetch("https://grid.example/", proxies=True)


def test_no_proxy_variable_is_honoured(start_server, monkeypatch):
    server = start_server(b"HTTP/1.0 200 OK\r\n\r\n{}")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    assert fetch(f"http://127.0.0.1:{server.port}/", proxies=True).status == 200


class SlowByteServer(ThreadedServer):
    """A server that sends a beginning and then one byte at a time, endlessly."""

    def __init__(self, beginning):
        self._beginning = beginning
        super().__init__()

    def _serve(self):
        connection, _ = self._listener.accept()
        with connection:
            connection.recv(65536)
            try:
                connection.sendall(self._beginning)
                while True:
                    connection.sendall(b"a")
                    time.sleep(0.01)
            except OSError:
                return


@pytest.mark.parametrize(
    ("beginning", "response_begun"),
    [
        (b"HTTP/1.1 200 OK\r\nX-A: ", False),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n", True),
        (b"HTTP/1.1 200 OK\r\n\r\n", True),
    ],
    ids=["head", "body", "body without an end"],
)
def test_slow_response_ends_at_deadline(beginning, response_begun):
    server = SlowByteServer(beginning)
    before = time.monotonic()
    with pytest.raises(FetchError, match="timed out") as caught:
        fetch(f"http://127.0.0.1:{server.port}/", seconds=0.3)
    assert time.monotonic() - before < scaled(5)
    assert (caught.value.reason, caught.value.response_begun) == ("deadline", response_begun)
    server.close()


def test_slow_tls_handshake_ends_at_deadline():
    record = b"\x16\x03\x03\x40\x00"  # the head of a TLS record of 16 kB
    server = SlowByteServer(record)
    with pytest.raises(FetchError, match="timed out"):
        fetch(f"https://127.0.0.1:{server.port}/", seconds=0.3)
    server.close()


OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


def send_get(server, path="/"):
    return server.request("GET", path, seconds=scaled(5.0), limit=100)


def test_session_reuses_connection(start_server):
    served = start_server(OK, OK)  # accepts one connection only
    server = HttpSession(f"http://127.0.0.1:{served.port}", {"X-Scope-OrgID": "site"})
    assert [send_get(server, path).json() for path in ("/a", "/b")] == [{}, {}]
    assert served.received[1].startswith(b"GET /b HTTP/1.1\r\n")
    assert b"X-Scope-OrgID: site\r\n" in served.received[1]
    server.close()


class ConnectionClosingServer(ThreadedServer):
    """A server that closes each connection: before the next request, or when it arrives."""

    def __init__(self, when):
        self._when = when
        self.closed = threading.Semaphore(0)
        super().__init__()

    def _serve(self):
        for _ in range(2):
            connection, _ = self._listener.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(OK)
                if self._when == "next request":
                    connection.recv(65536)
            self.closed.release()


@pytest.mark.parametrize("when", ["idle", "next request"])
def test_session_reconnects_after_server_closed_connection(when):
    served = ConnectionClosingServer(when)
    server = HttpSession(f"http://127.0.0.1:{served.port}")
    assert send_get(server).status == 200
    if when == "idle":
        served.closed.acquire()
    assert send_get(server).status == 200
    server.close()
    served.close()


def test_rest_of_too_large_response_is_not_read_by_next_request(start_server):
    served = start_server(b"HTTP/1.1 200 OK\r\nContent-Length: 300\r\n\r\n" + b"a" * 300)
    server = HttpSession(f"http://127.0.0.1:{served.port}")
    with pytest.raises(FetchError, match="more than 100 bytes"):
        send_get(server)
    with pytest.raises(FetchError, match=str(served.port)):
        server.request("GET", "/", seconds=0.5, limit=100)
    server.close()
