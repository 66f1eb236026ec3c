"""No client, silent, slow or greedy, keeps another from its answer."""

import base64
import contextlib
import http.client
import select
import socket
import struct
import threading
import time
from http import HTTPStatus
from ipaddress import ip_network

import bcrypt
import pytest

from batchjob_exporter.web import server as server_module
from batchjob_exporter.web.addresses import is_answering, open_listeners
from batchjob_exporter.web.auth import WebAccess
from batchjob_exporter.web.connection import ClientTimeouts
from batchjob_exporter.web.message import HttpResponse, text_response
from batchjob_exporter.web.server import ConnectionLimits, HttpServer

GET = b"GET /x HTTP/1.1\r\nHost: n\r\nConnection: close\r\n\r\n"
GET_AND_STAY = b"GET /x HTTP/1.1\r\nHost: n\r\n\r\n"


def hashed(password):
    return bcrypt.hashpw(password.encode(), bcrypt.gensalt(4)).decode()


def log_in(password):
    given = base64.b64encode(f"alice:{password}".encode())
    return GET.replace(b"Host: n\r\n", b"Host: n\r\nAuthorization: Basic " + given + b"\r\n")


def body(answer):
    return answer.partition(b"\r\n\r\n")[2]


def seconds_for(ask, address):
    begin = time.perf_counter()
    assert body(ask(address, GET)) == b"/x\n"
    return time.perf_counter() - begin


def test_an_answer_and_then_another_on_the_same_connection(serve):
    client = http.client.HTTPConnection(*serve(), timeout=5)
    for path in ("/one", "/two", "/one"):
        client.request("GET", path)
        assert client.getresponse().read() == f"{path}\n".encode()
    client.close()


def test_requests_sent_at_once_are_answered_in_order(serve, ask):
    requests = b"".join(b"GET /%d HTTP/1.1\r\nHost: n\r\n\r\n" % n for n in range(500))
    answer = ask(serve(), requests + GET)
    assert [int(part.split()[0]) for part in answer.split(b"\r\n\r\n/")[1:-1]] == list(range(500))


def test_a_request_in_single_bytes(serve, connect):
    client = connect(serve())
    for byte in b"\r\n" + GET:
        client.sendall(bytes([byte]))
    assert client.recv(9) == b"HTTP/1.1 "


@pytest.mark.parametrize("sent", [b"", b"GET", b"GET / HTTP/1.1\r\nHost:"])
def test_silent_and_slow_clients_delay_nobody(serve, connect, ask, sent):
    address = serve()
    clients = [connect(address) for _ in range(20)]
    for client in clients:
        client.sendall(sent)
    assert seconds_for(ask, address) < 4


def test_a_hundred_idle_connections_cost_no_thread(serve, connect, ask):
    address = serve()
    threads = threading.active_count()
    for client in [connect(address) for _ in range(100)]:
        client.sendall(GET_AND_STAY)
        assert client.recv(9) == b"HTTP/1.1 "
    assert seconds_for(ask, address) < 4
    assert threading.active_count() == threads


def test_a_client_that_does_not_read_delays_nobody(serve, connect, ask):
    large = HttpResponse(HTTPStatus.OK, b"x" * 20_000_000)
    address = serve(
        lambda request: large if request.path == "/large" else text_response(HTTPStatus.OK, "/x")
    )
    for client in [connect(address) for _ in range(8)]:
        client.sendall(b"GET /large HTTP/1.1\r\nHost: n\r\n\r\n")
    assert seconds_for(ask, address) < 4


def test_answers_that_nobody_reads_do_not_fill_the_memory(serve, connect, ask, monkeypatch):
    monkeypatch.setattr(server_module, "MAX_UNSENT_BYTES", 45_000_000)
    large = HttpResponse(HTTPStatus.OK, b"x" * 20_000_000)
    address = serve(
        lambda request: large if request.path == "/large" else text_response(HTTPStatus.OK, "/x")
    )
    clients = [connect(address) for _ in range(6)]
    for client in clients:
        client.sendall(b"GET /large HTTP/1.1\r\nHost: n\r\nConnection: close\r\n\r\n")
        time.sleep(0.1)
    # The first ones have been given up; the last one can still be read to its end.
    assert len(http_all(clients[5])) > 20_000_000
    with contextlib.suppress(ConnectionResetError):
        assert len(http_all(clients[0])) < 20_000_000


def test_a_large_answer_arrives_whole(serve, ask):
    address = serve(lambda _: HttpResponse(HTTPStatus.OK, bytes(5_000_000)))
    assert len(body(ask(address, GET))) == 5_000_000


def test_kept_alive_requests_are_fast(serve):
    client = http.client.HTTPConnection(*serve(), timeout=5)
    taken = []
    for _ in range(50):
        begin = time.perf_counter()
        client.request("GET", "/x")
        client.getresponse().read()
        taken.append(time.perf_counter() - begin)
    client.close()
    # With Nagle's algorithm against delayed acknowledgements it would be 40 ms each.
    assert min(taken) < 0.02


SHORT_TIMEOUTS = ClientTimeouts(head=0.1, idle=0.1, send=0.1, linger=0.05)


def test_who_never_asks_is_dropped_without_a_word(serve, ask):
    assert ask(serve(timeouts=SHORT_TIMEOUTS), b"") == b""


def test_half_a_request_gets_408(serve, ask):
    answer = ask(serve(timeouts=SHORT_TIMEOUTS), b"GET / HTTP/1.1\r\n")
    assert answer.startswith(b"HTTP/1.1 408 ")


def test_a_trickle_of_header_lines_does_not_stretch_the_time(serve, connect):
    client = connect(serve(timeouts=SHORT_TIMEOUTS))
    client.sendall(b"GET / HTTP/1.1\r\n")
    begin = time.perf_counter()
    client.settimeout(0.02)
    received = b""
    while not received and time.perf_counter() - begin < 5:
        try:
            received = client.recv(100)
        except TimeoutError:
            client.sendall(b"a: b\r\n")
    assert received.startswith(b"HTTP/1.1 408 ")
    assert time.perf_counter() - begin < 5


def test_an_idle_connection_is_closed_in_the_end(serve, connect):
    client = connect(serve(timeouts=SHORT_TIMEOUTS))
    client.sendall(GET_AND_STAY)
    assert http_all(client).startswith(b"HTTP/1.1 200 ")


def test_who_does_not_read_is_dropped(serve, connect):
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
def test_the_reason_of_a_refusal_arrives(serve, ask, request_bytes, status):
    answer = ask(serve(), request_bytes)
    assert answer.startswith(b"HTTP/1.1 %d " % status)
    assert b"Connection: close" in answer


def test_an_answer_that_fails_is_500_and_the_worker_lives(serve, ask, caplog):
    def fail(request):
        raise RuntimeError("no luck")

    address = serve(fail)
    for _ in range(10):
        assert ask(address, GET).startswith(b"HTTP/1.1 500 ")
    assert "no luck" in caplog.text


def test_more_requests_than_allowed_are_turned_away(serve, connect, ask):
    entered, go = threading.Semaphore(0), threading.Event()

    def answer(request):
        entered.release()
        assert go.wait(10)
        return text_response(HTTPStatus.OK, "late")

    address = serve(answer, requests=3)
    waiting = [connect(address) for _ in range(3)]
    for client in waiting:
        client.sendall(GET)
        assert entered.acquire(timeout=10)
    refused = ask(address, GET)
    assert refused.startswith(b"HTTP/1.1 503 ")
    assert b"Retry-After: " in refused
    # Whoever has sent many requests ahead is told once, and is sent away.
    assert ask(address, GET_AND_STAY * 500 + GET).count(b"HTTP/1.1 503 ") == 1
    go.set()
    for client in waiting:
        assert b"late" in http_all(client)


def http_all(client):
    received = []
    while data := client.recv(1 << 20):
        received.append(data)
    return b"".join(received)


def test_only_the_allowed_networks_are_served(serve, ask, caplog):
    assert body(ask(serve(allow_from=(ip_network("127.0.0.0/8"),)), GET)) == b"/x\n"
    address = serve(allow_from=(ip_network("192.0.2.0/24"),))
    for _ in range(3):
        with contextlib.suppress(ConnectionResetError):
            assert ask(address, GET) == b""
    assert caplog.messages == ["refused 127.0.0.1: not in --web.allow-from"]


def test_with_too_many_connections_the_longest_waiting_one_goes(serve, connect, ask, monkeypatch):
    monkeypatch.setattr(server_module, "MAX_CONNECTIONS", 5)
    address = serve()
    clients = [connect(address) for _ in range(6)]
    assert seconds_for(ask, address) < 4
    assert clients[0].recv(1) == b""
    clients[5].sendall(GET)
    assert clients[5].recv(9) == b"HTTP/1.1 "


class HaltingWeb(WebAccess):
    """Halts the thread of the sockets at a request: what comes meanwhile is one batch."""

    armed, halted, go_on = threading.Event(), threading.Event(), threading.Event()

    def take_token(self):
        if self.armed.is_set() and not self.halted.is_set():
            self.halted.set()
            self.go_on.wait(10)
        return super().take_token()


def test_who_was_dropped_to_make_room_may_have_an_event_in_the_same_batch(serve, connect, ask,
                                                                          monkeypatch):  # fmt: skip
    monkeypatch.setattr(server_module, "MAX_CONNECTIONS", 8)
    web = HaltingWeb("", lambda request: text_response(HTTPStatus.OK, request.path))
    address = serve(web=web)
    clients = [connect(address) for _ in range(8)]
    for client in clients:  # whom the server has all let in, then
        client.sendall(GET_AND_STAY)
        assert client.recv(4096).endswith(b"/x\n")
    web.armed.set()
    clients[0].sendall(GET_AND_STAY)
    assert web.halted.wait(10)
    for _ in range(4):
        connect(address)  # which come in before the events of those who have to go for them
    for client in clients[1:]:
        client.sendall(b"G")
    web.go_on.set()
    assert seconds_for(ask, address) < 4


def test_a_crowd_loses_its_own_connections_only(serve, connect, monkeypatch, caplog):
    monkeypatch.setattr(server_module, "MAX_CONNECTIONS", 5)
    address = serve()
    modest = connect(address)
    for _ in range(20):
        connect(address, "127.0.0.2")
    time.sleep(0.1)
    modest.sendall(GET)
    assert body(http_all(modest)) == b"/x\n"
    assert caplog.messages == [
        "too many connections: those of 127.0.0.2 that have waited longest are closed"
    ]


def test_a_crowd_does_not_take_the_places_of_all_requests(serve, connect, ask):
    entered, go = threading.Semaphore(0), threading.Event()

    def answer(request):
        entered.release()
        assert request.path != "/wait" or go.wait(10)
        return text_response(HTTPStatus.OK, request.path)

    address = serve(answer, requests=2)
    crowd = [connect(address, "127.0.0.2") for _ in range(3)]
    for client in crowd[:2]:
        client.sendall(GET.replace(b"/x", b"/wait"))
        assert entered.acquire(timeout=10)
    crowd[2].sendall(GET)
    assert http_all(crowd[2]).startswith(b"HTTP/1.1 503 ")
    assert body(ask(address, GET)) == b"/x\n"
    go.set()
    assert body(http_all(crowd[0])) == b"/wait\n"


def test_who_has_broken_off_is_not_answered(serve, connect, ask):
    entered, go, asked = threading.Semaphore(0), threading.Event(), []

    def answer(request):
        asked.append(request.path)
        entered.release()
        assert request.path != "/wait" or go.wait(10)
        return text_response(HTTPStatus.OK, request.path)

    address = serve(answer)
    for _ in range(4):
        connect(address).sendall(GET.replace(b"/x", b"/wait"))
        assert entered.acquire(timeout=10)
    gone = connect(address)
    gone.sendall(GET.replace(b"/x", b"/gone"))
    time.sleep(0.1)
    gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    gone.close()  # with a reset
    time.sleep(0.1)
    go.set()
    assert body(ask(address, GET)) == b"/x\n"
    assert asked == ["/wait"] * 4 + ["/x"]


def test_who_takes_most_memory_for_unread_answers_loses_first(serve, connect, monkeypatch):
    monkeypatch.setattr(server_module, "MAX_UNSENT_BYTES", 45_000_000)
    address = serve(lambda _: HttpResponse(HTTPStatus.OK, b"x" * 20_000_000))
    slow = connect(address)
    slow.sendall(GET)
    time.sleep(0.1)
    for _ in range(4):
        connect(address, "127.0.0.2").sendall(GET)
        time.sleep(0.1)
    assert len(http_all(slow)) > 20_000_000


class Broken(WebAccess):
    """A web configuration that fails for every second client."""

    clients = 0

    def wrap(self, client):
        self.clients += 1
        if self.clients % 2:
            raise RuntimeError("no luck")
        return super().wrap(client)


def test_a_client_that_cannot_be_served_ends_nothing(serve, ask):
    address = serve(web=Broken("", lambda request: text_response(HTTPStatus.OK, request.path)))
    for _ in range(3):
        with contextlib.suppress(ConnectionResetError):
            assert ask(address, GET) == b""
        assert body(ask(address, GET)) == b"/x\n"


def test_the_rate_limit_and_its_headers(serve, ask, tmp_path):
    path = tmp_path / "web.yml"
    path.write_text(
        "rate_limit:\n  interval: 1h\n  burst: 2\n"
        "http_server_config:\n  headers:\n    X-Frame-Options: deny\n"
    )
    address = serve(
        web=WebAccess(str(path), lambda request: text_response(HTTPStatus.OK, request.path))
    )
    answers = [ask(address, GET) for _ in range(3)]
    assert [answer[9:12] for answer in answers] == [b"200", b"200", b"429"]
    assert all(b"X-Frame-Options: deny\r\n" in answer for answer in answers)
    assert b"Retry-After: 1\r\n" in answers[2]


def test_guesses_wait_in_a_line_of_their_address(serve, connect, ask, tmp_path, monkeypatch):
    path = tmp_path / "web.yml"
    path.write_text(f"basic_auth_users:\n  alice: {hashed('sesame')}\n")
    begun, go, checked = threading.Event(), threading.Event(), []

    def check(password, stored):
        checked.append(password)
        begun.set()
        assert go.wait(10)
        return password == b"sesame"

    address = serve(
        web=WebAccess(str(path), lambda request: text_response(HTTPStatus.OK, request.path))
    )
    monkeypatch.setattr(bcrypt, "checkpw", check)
    guesses = [connect(address, "127.0.0.2") for _ in range(10)]
    for number, guess in enumerate(guesses):
        guess.sendall(log_in(f"guess {number}"))
        assert begun.wait(10)
    # One is checked and eight wait; the tenth to be read, whichever it is, must come again.
    (refused,), _, _ = select.select(guesses, [], [], 10)
    assert http_all(refused).startswith(b"HTTP/1.1 429 ")
    right = connect(address)
    right.sendall(GET_AND_STAY)
    assert right.recv(1 << 16).startswith(b"HTTP/1.1 401 ")
    right.sendall(log_in("sesame"))
    late = connect(address, "127.0.0.2")  # once it is refused, the other waits for its check
    late.sendall(log_in("late"))
    assert http_all(late).startswith(b"HTTP/1.1 429 ")
    go.set()
    assert http_all(right).startswith(b"HTTP/1.1 200 ")
    assert checked.index(b"sesame") <= 2
    guesses.remove(refused)
    assert all(http_all(client).startswith(b"HTTP/1.1 401 ") for client in guesses)


def test_a_listener_is_asked_as_clients_ask(serve, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        assert not is_answering(deaf, 0.1)
    for where in ("127.0.0.1:0", ":0", f"unix:{tmp_path}/socket"):
        (listener,) = open_listeners((where,))
        server = HttpServer(
            [listener], WebAccess("", lambda request: text_response(HTTPStatus.OK, "well"))
        )
        assert not is_answering(listener, 0.1)
        server.start()
        assert is_answering(listener, 10)
        server.stop()
    strangers = ConnectionLimits(allow_from=(ip_network("192.0.2.0/24"),))
    (listener,) = open_listeners(("127.0.0.1:0",))
    server = HttpServer(
        [listener], WebAccess("", lambda request: text_response(HTTPStatus.OK, "well")), strangers
    )
    server.start()
    assert is_answering(listener, 10)
    server.stop()


def test_head(serve, ask):
    answer = ask(serve(), GET.replace(b"GET", b"HEAD"))
    assert b"Content-Length: 3\r\n" in answer
    assert body(answer) == b""


def test_stop_finishes_what_is_under_way_and_lets_idle_ones_go():
    entered, go = threading.Event(), threading.Event()

    def answer(request):
        entered.set()
        assert go.wait(10)
        return text_response(HTTPStatus.OK, "last")

    sockets = open_listeners(("127.0.0.1:0",))
    address = sockets[0].getsockname()
    server = HttpServer(sockets, WebAccess("", answer))
    server.start()
    assert server.responds(5)
    with (
        socket.create_connection(address, timeout=5) as idle,
        socket.create_connection(address, timeout=5) as busy,
    ):
        busy.sendall(GET)
        assert entered.wait(5)
        stopping = threading.Thread(target=server.stop)
        stopping.start()
        assert idle.recv(1) == b""
        go.set()
        assert b"last" in http_all(busy)
        stopping.join(5)
        assert not stopping.is_alive()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address, timeout=5)
    server.stop()
