"""Limits of connections, requests, memory and guesses: greedy clients shut out no other."""

import base64
import contextlib
import select
import socket
import threading
from http import HTTPStatus
from ipaddress import ip_network

import bcrypt

from batchjob_exporter.web import server as server_module
from batchjob_exporter.web.auth import WebAccess
from batchjob_exporter.web.message import HttpResponse, text_response
from tests.batchjob_exporter.web.raw_http import (
    GET,
    GET_KEEP_ALIVE,
    body,
    read_all,
    request_seconds,
)
from tests.helpers.waiting import scaled


def password_hash(password):
    return bcrypt.hashpw(password.encode(), bcrypt.gensalt(4)).decode()


def get_with_password(password):
    given = base64.b64encode(f"alice:{password}".encode())
    return GET.replace(b"Host: n\r\n", b"Host: n\r\nAuthorization: Basic " + given + b"\r\n")


def test_memory_of_unread_responses_is_limited(serve, connect, send_request, monkeypatch):
    monkeypatch.setattr(server_module, "MAX_UNSENT_BYTES", 45_000_000)
    large = HttpResponse(HTTPStatus.OK, b"x" * 20_000_000)
    address = serve(
        lambda request: large if request.path == "/large" else text_response(HTTPStatus.OK, "/x")
    )
    clients = [connect(address) for _ in range(6)]
    for client in clients:
        client.sendall(b"GET /large HTTP/1.1\r\nHost: n\r\nConnection: close\r\n\r\n")
        client.recv(1, socket.MSG_PEEK)  # its response has begun
    # The first ones have been closed; the last one can still be read to its end.
    assert len(read_all(clients[5])) > 20_000_000
    with contextlib.suppress(ConnectionResetError):
        assert len(read_all(clients[0])) < 20_000_000


def test_requests_above_the_limit_get_503(serve, connect, send_request):
    handler_entered, go = threading.Semaphore(0), threading.Event()

    def answer(request):
        handler_entered.release()
        assert go.wait(scaled(10))
        return text_response(HTTPStatus.OK, "late")

    address = serve(answer, max_requests=3)
    waiting = [connect(address) for _ in range(3)]
    for client in waiting:
        client.sendall(GET)
        assert handler_entered.acquire(timeout=scaled(10))
    refused = send_request(address, GET)
    assert refused.startswith(b"HTTP/1.1 503 ")
    assert b"Retry-After: " in refused
    # A client that has pipelined many requests gets one 503, and its connection is closed.
    assert send_request(address, GET_KEEP_ALIVE * 500 + GET).count(b"HTTP/1.1 503 ") == 1
    go.set()
    for client in waiting:
        assert b"late" in read_all(client)


def get(path):
    return f"GET {path} HTTP/1.1\r\nHost: n\r\nConnection: close\r\n\r\n".encode()


def test_health_is_answered_while_scrapes_hang(serve, connect, send_request):
    """The watchdog of the unit asks for it: an exporter that answers must not be restarted."""
    hanging, go = threading.Semaphore(0), threading.Event()

    def answer(request):
        if request.path == "/metrics":
            hanging.release()
            assert go.wait(scaled(10))
        return text_response(HTTPStatus.OK, request.path)

    address = serve(answer)
    scrapers = [connect(address) for _ in range(8)]
    for client in scrapers:
        client.sendall(get("/metrics"))
    for _ in range(4):
        assert hanging.acquire(timeout=scaled(10))
    assert body(send_request(address, get("/-/healthy"))) == b"/-/healthy\n"
    assert body(send_request(address, get("/-/ready"))) == b"/-/ready\n"
    go.set()
    assert all(b"/metrics" in read_all(client) for client in scrapers)


def test_pipelined_requests_for_health_do_not_keep_others_waiting(serve, connect, send_request):
    address = serve()
    greedy = connect(address)
    greedy.sendall(get("/-/healthy").replace(b"Connection: close\r\n", b"") * 1000)
    assert body(send_request(address, get("/-/healthy"))) == b"/-/healthy\n"
    greedy.sendall(get("/-/healthy"))
    assert read_all(greedy).count(b"HTTP/1.1 200 ") == 1001


def test_only_allowed_networks_are_served(serve, send_request, caplog):
    assert body(send_request(serve(allow_from=(ip_network("127.0.0.0/8"),)), GET)) == b"/x\n"
    address = serve(allow_from=(ip_network("192.0.2.0/24"),))
    for _ in range(3):
        with contextlib.suppress(ConnectionResetError):
            assert send_request(address, GET) == b""
    assert caplog.messages == ["refused 127.0.0.1: not in --web.allow-from"]


def test_longest_waiting_connection_is_closed_above_the_limit(
    serve, connect, send_request, monkeypatch
):
    monkeypatch.setattr(server_module, "MAX_CONNECTIONS", 5)
    address = serve()
    clients = [connect(address) for _ in range(6)]
    assert request_seconds(send_request, address) < scaled(4)
    assert clients[0].recv(1) == b""
    clients[5].sendall(GET)
    assert clients[5].recv(9) == b"HTTP/1.1 "


class HaltingWebAccess(WebAccess):
    """Halts the thread of the sockets at a request: what comes meanwhile is one batch."""

    armed, halted, go_on = threading.Event(), threading.Event(), threading.Event()

    def needs_verification(self, request):
        if self.armed.is_set() and not self.halted.is_set():
            self.halted.set()
            self.go_on.wait(scaled(10))
        return super().needs_verification(request)


def test_event_of_connection_closed_in_the_same_batch_is_ignored(serve, connect, send_request,
                                                                          monkeypatch):  # fmt: skip
    monkeypatch.setattr(server_module, "MAX_CONNECTIONS", 8)
    web = HaltingWebAccess("", lambda request: text_response(HTTPStatus.OK, request.path))
    address = serve(web=web)
    clients = [connect(address) for _ in range(8)]
    for client in clients:  # until the server has accepted all of them
        client.sendall(GET_KEEP_ALIVE)
        assert client.recv(4096).endswith(b"/x\n")
    web.armed.set()
    clients[0].sendall(GET_KEEP_ALIVE)
    assert web.halted.wait(scaled(10))
    for _ in range(4):
        connect(address)  # accepted before the events of the connections that are closed for them
    for client in clients[1:]:
        client.sendall(b"G")
    web.go_on.set()
    assert request_seconds(send_request, address) < scaled(4)


def test_address_with_most_connections_loses_its_own(serve, connect, monkeypatch, caplog):
    monkeypatch.setattr(server_module, "MAX_CONNECTIONS", 5)
    address = serve()
    quiet_client = connect(address)
    crowd = [connect(address, "127.0.0.2") for _ in range(20)]
    for client in crowd[:16]:
        assert client.recv(1) == b""
    quiet_client.sendall(GET)
    assert body(read_all(quiet_client)) == b"/x\n"
    assert caplog.messages == [
        "too many connections: those of 127.0.0.2 that have waited longest are closed"
    ]


def test_one_address_cannot_use_all_request_places(serve, connect, send_request):
    handler_entered, go = threading.Semaphore(0), threading.Event()

    def answer(request):
        handler_entered.release()
        assert request.path != "/wait" or go.wait(scaled(10))
        return text_response(HTTPStatus.OK, request.path)

    address = serve(answer, max_requests=2)
    crowd = [connect(address, "127.0.0.2") for _ in range(3)]
    for client in crowd[:2]:
        client.sendall(GET.replace(b"/x", b"/wait"))
        assert handler_entered.acquire(timeout=scaled(10))
    crowd[2].sendall(GET)
    assert read_all(crowd[2]).startswith(b"HTTP/1.1 503 ")
    assert body(send_request(address, GET)) == b"/x\n"
    go.set()
    assert body(read_all(crowd[0])) == b"/wait\n"


def test_address_with_most_unread_bytes_is_closed_first(serve, connect, monkeypatch):
    monkeypatch.setattr(server_module, "MAX_UNSENT_BYTES", 45_000_000)
    address = serve(lambda _: HttpResponse(HTTPStatus.OK, b"x" * 20_000_000))
    slow = connect(address)
    slow.sendall(GET)
    slow.recv(1, socket.MSG_PEEK)  # its response has begun
    for _ in range(4):
        greedy = connect(address, "127.0.0.2")
        greedy.sendall(GET)
        with contextlib.suppress(ConnectionResetError):
            greedy.recv(1, socket.MSG_PEEK)
    assert len(read_all(slow)) > 20_000_000


def test_password_checks_are_queued_per_address(
    serve, connect, send_request, tmp_path, monkeypatch
):
    path = tmp_path / "web.yml"
    path.write_text(f"basic_auth_users:\n  alice: {password_hash('sesame')}\n")
    begun, go, checked = threading.Event(), threading.Event(), []

    def check(password, stored):
        checked.append(password)
        begun.set()
        assert go.wait(scaled(10))
        return password == b"sesame"

    address = serve(
        web=WebAccess(str(path), lambda request: text_response(HTTPStatus.OK, request.path))
    )
    monkeypatch.setattr(bcrypt, "checkpw", check)
    guesses = [connect(address, "127.0.0.2") for _ in range(10)]
    for number, guess in enumerate(guesses):
        guess.sendall(get_with_password(f"guess {number}"))
        assert begun.wait(scaled(10))
    # One is checked and eight wait; whichever is read tenth is refused.
    (refused,), _, _ = select.select(guesses, [], [], 10)
    assert read_all(refused).startswith(b"HTTP/1.1 429 ")
    right = connect(address)
    right.sendall(GET_KEEP_ALIVE)
    assert right.recv(1 << 16).startswith(b"HTTP/1.1 401 ")
    right.sendall(get_with_password("sesame"))
    late = connect(address, "127.0.0.2")  # once it is refused, the other waits for its check
    late.sendall(get_with_password("late"))
    assert read_all(late).startswith(b"HTTP/1.1 429 ")
    go.set()
    assert read_all(right).startswith(b"HTTP/1.1 200 ")
    assert checked.index(b"sesame") <= 2
    guesses.remove(refused)
    assert all(read_all(client).startswith(b"HTTP/1.1 401 ") for client in guesses)
