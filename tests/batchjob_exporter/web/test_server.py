"""Requests, responses, timeouts and stop; slow clients delay no other."""

import contextlib
import http.client
import socket
import struct
import threading
import time
from http import HTTPStatus
from ipaddress import ip_network

import pytest

from batchjob_exporter.web.addresses import is_answering, open_listeners
from batchjob_exporter.web.auth import WebAccess
from batchjob_exporter.web.connection import ClientTimeouts
from batchjob_exporter.web.message import HttpResponse, text_response
from batchjob_exporter.web.server import HttpServer
from tests.batchjob_exporter.web.raw_http import (
    GET,
    GET_KEEP_ALIVE,
    body,
    read_all,
    request_seconds,
)
from tests.helpers.waiting import scaled


def test_connection_is_kept_alive(serve):
    client = http.client.HTTPConnection(*serve(), timeout=scaled(5))
    for path in ("/one", "/two", "/one"):
        client.request("GET", path)
        assert client.getresponse().read() == f"{path}\n".encode()
    client.close()


def test_pipelined_requests_are_answered_in_order(serve, send_request):
    requests = b"".join(b"GET /%d HTTP/1.1\r\nHost: n\r\n\r\n" % n for n in range(500))
    answer = send_request(serve(), requests + GET)
    assert [int(part.split()[0]) for part in answer.split(b"\r\n\r\n/")[1:-1]] == list(range(500))


def test_request_in_single_bytes(serve, connect):
    client = connect(serve())
    for byte in b"\r\n" + GET:
        client.sendall(bytes([byte]))
    assert client.recv(9) == b"HTTP/1.1 "


@pytest.mark.parametrize("sent", [b"", b"GET", b"GET / HTTP/1.1\r\nHost:"])
def test_silent_and_slow_clients_delay_no_other_client(serve, connect, send_request, sent):
    address = serve()
    clients = [connect(address) for _ in range(20)]
    for client in clients:
        client.sendall(sent)
    assert request_seconds(send_request, address) < scaled(4)


def test_idle_connections_use_no_threads(serve, connect, send_request):
    address = serve()
    threads = threading.active_count()
    for client in [connect(address) for _ in range(100)]:
        client.sendall(GET_KEEP_ALIVE)
        assert client.recv(9) == b"HTTP/1.1 "
    assert request_seconds(send_request, address) < scaled(4)
    assert threading.active_count() == threads


def test_clients_that_do_not_read_delay_no_other_client(serve, connect, send_request):
    large = HttpResponse(HTTPStatus.OK, b"x" * 20_000_000)
    address = serve(
        lambda request: large if request.path == "/large" else text_response(HTTPStatus.OK, "/x")
    )
    for client in [connect(address) for _ in range(8)]:
        client.sendall(b"GET /large HTTP/1.1\r\nHost: n\r\n\r\n")
    assert request_seconds(send_request, address) < scaled(4)


def test_large_response_is_complete(serve, send_request):
    address = serve(lambda _: HttpResponse(HTTPStatus.OK, bytes(5_000_000)))
    assert len(body(send_request(address, GET))) == 5_000_000


def test_keep_alive_requests_are_not_delayed_by_nagle(serve):
    client = http.client.HTTPConnection(*serve(), timeout=scaled(5))
    durations = []
    for _ in range(50):
        begin = time.perf_counter()
        client.request("GET", "/x")
        client.getresponse().read()
        durations.append(time.perf_counter() - begin)
    client.close()
    # With Nagle's algorithm against delayed acknowledgements it would be 40 ms each.
    assert min(durations) < 0.02


SHORT_TIMEOUTS = ClientTimeouts(head=0.1, idle=0.1, send=0.1, linger=0.05)


def test_silent_client_is_closed_without_response(serve, send_request):
    assert send_request(serve(timeouts=SHORT_TIMEOUTS), b"") == b""


def test_incomplete_request_gets_408(serve, send_request):
    answer = send_request(serve(timeouts=SHORT_TIMEOUTS), b"GET / HTTP/1.1\r\n")
    assert answer.startswith(b"HTTP/1.1 408 ")


def test_slow_header_lines_do_not_extend_the_timeout(serve, connect):
    client = connect(serve(timeouts=SHORT_TIMEOUTS))
    client.sendall(b"GET / HTTP/1.1\r\n")
    begin = time.perf_counter()
    client.settimeout(0.02)
    received = b""
    while not received and time.perf_counter() - begin < scaled(5):
        try:
            received = client.recv(100)
        except TimeoutError:
            client.sendall(b"a: b\r\n")
    assert received.startswith(b"HTTP/1.1 408 ")


def test_idle_connection_is_closed_after_timeout(serve, connect):
    client = connect(serve(timeouts=SHORT_TIMEOUTS))
    client.sendall(GET_KEEP_ALIVE)
    assert read_all(client).startswith(b"HTTP/1.1 200 ")


def test_client_that_does_not_read_is_closed_after_timeout(serve, connect):
    address = serve(
        lambda _: HttpResponse(HTTPStatus.OK, bytes(50_000_000)), timeouts=SHORT_TIMEOUTS
    )
    client = connect(address)
    client.sendall(GET)
    time.sleep(0.5)
    received = 0
    with contextlib.suppress(ConnectionResetError):
        while data := client.recv(1 << 20):
            received += len(data)
    assert received < 50_000_000


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: n\r\nContent-Length: 3\r\n\r\nabc", 400),
        (b"GET / HTTP/2.0\r\n\r\n", 505),
        (b"GET /" + b"x" * 20000 + b" HTTP/1.1\r\n\r\n", 431),
        (b"GET / HTTP/1.1\r\nHost: n\r\n" + b"A: b\r\n" * 5000 + b"\r\n", 431),
        (b"x" * 500_000, 431),
    ],
)
def test_invalid_request_gets_its_status(serve, send_request, request_bytes, status):
    answer = send_request(serve(), request_bytes)
    assert answer.startswith(b"HTTP/1.1 %d " % status)
    assert b"Connection: close" in answer


def test_failing_handler_gets_500_and_workers_go_on(serve, send_request, caplog):
    def fail(request):
        raise RuntimeError("no luck")

    address = serve(fail)
    for _ in range(10):
        assert send_request(address, GET).startswith(b"HTTP/1.1 500 ")
    assert "no luck" in caplog.text


def test_request_of_closed_connection_is_not_answered(serve, connect, send_request):
    handler_entered, go, answered_paths = threading.Semaphore(0), threading.Event(), []

    def answer(request):
        answered_paths.append(request.path)
        handler_entered.release()
        assert request.path != "/wait" or go.wait(scaled(10))
        return text_response(HTTPStatus.OK, request.path)

    address = serve(answer)
    for _ in range(4):
        connect(address).sendall(GET.replace(b"/x", b"/wait"))
        assert handler_entered.acquire(timeout=scaled(10))
    closed = connect(address)
    closed.sendall(GET.replace(b"/x", b"/closed"))
    # The server answers an invalid request itself, after it has read what was sent before.
    send_request(address, b"nonsense\r\n\r\n")
    closed.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    closed.close()  # with a reset
    send_request(address, b"nonsense\r\n\r\n")
    go.set()
    assert body(send_request(address, GET)) == b"/x\n"
    assert answered_paths == ["/wait"] * 4 + ["/x"]


class FailingWebAccess(WebAccess):
    """A web configuration that fails for every second client."""

    clients = 0

    def wrap(self, client):
        self.clients += 1
        if self.clients % 2:
            raise RuntimeError("no luck")
        return super().wrap(client)


def test_failing_connection_setup_does_not_stop_the_server(serve, send_request):
    address = serve(
        web=FailingWebAccess("", lambda request: text_response(HTTPStatus.OK, request.path))
    )
    for _ in range(3):
        with contextlib.suppress(ConnectionResetError):
            assert send_request(address, GET) == b""
        assert body(send_request(address, GET)) == b"/x\n"


def test_is_answering(serve, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as silent_listener:
        assert not is_answering(silent_listener, 0.1)
    for address in ("127.0.0.1:0", ":0", f"unix:{tmp_path}/socket"):
        (listener,) = open_listeners((address,))
        server = HttpServer(
            [listener], WebAccess("", lambda request: text_response(HTTPStatus.OK, "well"))
        )
        assert not is_answering(listener, 0.1)
        server.start()
        assert is_answering(listener, 10)
        server.stop()
    (listener,) = open_listeners(("127.0.0.1:0",))
    server = HttpServer(
        [listener],
        WebAccess("", lambda request: text_response(HTTPStatus.OK, "well")),
        allow_from=(ip_network("192.0.2.0/24"),),
    )
    server.start()
    assert is_answering(listener, 10)
    server.stop()


def test_head_request(serve, send_request):
    answer = send_request(serve(), GET.replace(b"GET", b"HEAD"))
    assert b"Content-Length: 3\r\n" in answer
    assert body(answer) == b""


def test_stop_finishes_running_requests_and_closes_idle_connections():
    handler_entered, go = threading.Event(), threading.Event()

    def answer(request):
        handler_entered.set()
        assert go.wait(scaled(10))
        return text_response(HTTPStatus.OK, "last")

    sockets = open_listeners(("127.0.0.1:0",))
    address = sockets[0].getsockname()
    server = HttpServer(sockets, WebAccess("", answer))
    server.start()
    assert server.responds(5)
    with (
        socket.create_connection(address, timeout=scaled(5)) as idle,
        socket.create_connection(address, timeout=scaled(5)) as busy,
    ):
        busy.sendall(GET)
        assert handler_entered.wait(scaled(5))
        stopping = threading.Thread(target=server.stop)
        stopping.start()
        assert idle.recv(1) == b""
        go.set()
        assert b"last" in read_all(busy)
        stopping.join(scaled(5))
        assert not stopping.is_alive()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address, timeout=scaled(5))
    server.stop()
