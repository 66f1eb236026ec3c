import socket
import ssl
import threading
import time

import pytest
import trustme

from batchjob.runtime.http_client import FetchError, HttpSession, fetch, tls_context


class Listening:
    """A server in a thread."""

    def __init__(self):
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def close(self):
        self._thread.join()
        self._listener.close()


class Raw(Listening):
    """A server that sends the same bytes to everybody, and remembers what it was sent."""

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
    trusting = tls_context()
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


class Dripping(Listening):
    """A server that sends a beginning and then one byte after the other, for ever."""

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
    ("beginning", "begun"),
    [
        (b"HTTP/1.1 200 OK\r\nX-A: ", False),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n", True),
        (b"HTTP/1.1 200 OK\r\n\r\n", True),
    ],
    ids=["head", "body", "body without an end"],
)
def test_a_server_that_drips_is_left_at_the_deadline(beginning, begun):
    server = Dripping(beginning)
    before = time.monotonic()
    with pytest.raises(FetchError, match="timed out") as caught:
        fetch(f"http://127.0.0.1:{server.port}/", seconds=0.3)
    assert time.monotonic() - before < 5
    assert (caught.value.reason, caught.value.response_begun) == ("deadline", begun)
    server.close()


def test_a_handshake_that_drips_is_left_at_the_deadline():
    record = b"\x16\x03\x03\x40\x00"  # the head of a TLS record of 16 kB
    server = Dripping(record)
    with pytest.raises(FetchError, match="timed out"):
        fetch(f"https://127.0.0.1:{server.port}/", seconds=0.3)
    server.close()


OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


def asked(server, path="/"):
    return server.request("GET", path, seconds=5.0, limit=100)


def test_a_connection_is_used_again(serving):
    served = serving(OK, OK)  # accepts one connection only
    server = HttpSession(f"http://127.0.0.1:{served.port}", {"X-Scope-OrgID": "site"})
    assert [asked(server, path).json() for path in ("/a", "/b")] == [{}, {}]
    assert served.received[1].startswith(b"GET /b HTTP/1.1\r\n")
    assert b"X-Scope-OrgID: site\r\n" in served.received[1]
    server.close()


class Closing(Listening):
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
                if self._when == "asked again":
                    connection.recv(65536)
            self.closed.release()


@pytest.mark.parametrize("when", ["idle", "asked again"])
def test_a_connection_that_the_server_closed_is_made_again(when):
    served = Closing(when)
    server = HttpSession(f"http://127.0.0.1:{served.port}")
    assert asked(server).status == 200
    if when == "idle":
        served.closed.acquire()
    assert asked(server).status == 200
    server.close()
    served.close()


def test_an_answer_that_was_too_large_does_not_stay_in_the_connection(serving):
    served = serving(b"HTTP/1.1 200 OK\r\nContent-Length: 300\r\n\r\n" + b"a" * 300)
    server = HttpSession(f"http://127.0.0.1:{served.port}")
    with pytest.raises(FetchError, match="more than 100 bytes"):
        asked(server)
    with pytest.raises(FetchError, match=str(served.port)):
        server.request("GET", "/", seconds=0.5, limit=100)
    server.close()
