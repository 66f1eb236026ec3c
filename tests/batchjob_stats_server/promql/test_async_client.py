"""Replies, deadlines and limits of the client that waits in the event loop."""

import asyncio
import time

import pytest
import uvloop

from batchjob.runtime.http_client import FetchError, tls_context
from batchjob_stats_server.promql.backend import AsyncHttpSession
from tests.helpers.waiting import scaled

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def new_loop(request):
    """Makes the kind of event loop."""
    return request.param


@pytest.fixture
def talk(new_loop):
    """Run a scenario with a session and a server, whose connections `serve` handles."""

    def run(serve, scenario, scheme="http"):
        async def run_scenario():
            async def handle(reader, writer):
                try:
                    await serve(reader, writer)
                except ConnectionError:
                    pass
                finally:
                    writer.close()

            server = await asyncio.start_server(handle, "127.0.0.1", 0)
            port = server.sockets[0].getsockname()[1]
            session = AsyncHttpSession(f"{scheme}://127.0.0.1:{port}", {"X-A": "1"}, tls_context, 2)
            try:
                return await scenario(session)
            finally:
                session.close()
                server.close()

        with asyncio.Runner(loop_factory=new_loop) as runner:
            return runner.run(run_scenario())

    return run


def get(session, target="/a?b=c", form=b"", seconds=None, limit=8):
    method = "POST" if form else "GET"
    return session.request(method, target, form, seconds=seconds or scaled(20), limit=limit)


def replies(*pieces, requests=None):
    """Serve each request with the next of the pieces, and then close the connection."""

    async def serve(reader, writer):
        for piece in pieces:
            request = await reader.readuntil(b"\r\n\r\n")
            if requests is not None:
                requests.append(request)
            writer.write(piece)
            await writer.drain()

    return serve


@pytest.mark.parametrize(
    "answer",
    [
        OK,
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
        b"HTTP/1.0 200 OK\r\n\r\n{}",
        b"HTTP/1.1 100 Continue\r\n\r\n" + OK,
    ],
    ids=["length", "chunks", "until the end", "continue"],
)
def test_body_framings(talk, answer):
    requests = []
    reply = talk(replies(answer, requests=requests), get)
    assert reply == (200, b"{}")
    assert requests[0].startswith(b"GET /a?b=c HTTP/1.1\r\nHost: 127.0.0.1:")
    assert b"\r\nX-A: 1\r\n" in requests[0]


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"", "unreachable"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "malformed"),
        (b"HTTP/1.1 200 OK\r\nX-Half: ", "unreachable"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\n{}", "unreachable"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n123456789", "too_large"),
        (b"HTTP/1.1 200 OK\r\nX-Long: " + b"x" * 1_000_000, "unreachable"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\n0\r\nX-Long: "
         + b"x" * 1_000_000, "unreachable"),
    ],
    ids=["nothing", "another protocol", "cut short in the head", "cut short", "too large",
         "long head", "long trailer"],
)  # fmt: skip
def test_unusable_reply_raises_fetch_error(talk, answer, reason):
    with pytest.raises(FetchError, match=r"127\.0\.0\.1") as caught:
        talk(replies(answer), get)
    assert caught.value.reason == reason


def test_redirect_is_not_followed(talk):
    answer = b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.2/\r\nContent-Length: 0\r\n\r\n"
    assert talk(replies(answer), get) == (302, b"")


def test_connection_is_used_again(talk):
    connections = []

    async def serve(reader, writer):
        connections.append(writer)
        await replies(OK, OK, OK)(reader, writer)

    async def scenario(session):
        return [await get(session) for _ in range(3)]

    assert len(talk(serve, scenario)) == 3
    assert len(connections) == 1


def test_request_is_sent_again_if_the_server_has_closed_the_connection(talk):
    requests = []

    async def scenario(session):
        return [await get(session) for _ in range(3)]

    assert talk(replies(OK, requests=requests), scenario) == [(200, b"{}")] * 3
    assert len(requests) == 3


def test_form_is_posted(talk):
    async def serve(reader, writer):
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"POST /a HTTP/1.1\r\n")
        assert await reader.readexactly(3) == b"q=1"
        writer.write(OK)
        await writer.drain()

    assert talk(serve, lambda session: get(session, "/a", b"q=1")) == (200, b"{}")


@pytest.mark.parametrize(
    ("scheme", "beginning", "response_begun"),
    [
        ("https", b"", False),
        ("http", b"", False),
        ("http", b"HTTP/1.1 200 OK\r\n", True),
        ("http", b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n", True),
    ],
    ids=["TLS handshake", "nothing", "head", "body"],
)
def test_slow_reply_ends_at_the_deadline(talk, scheme, beginning, response_begun):
    """However often a byte arrives."""

    async def serve(reader, writer):
        await reader.read(1)
        writer.write(beginning)
        while beginning:
            await asyncio.sleep(0.01)
            writer.write(b"x")
            await writer.drain()
        await reader.read()

    begin = time.monotonic()
    with pytest.raises(FetchError, match="timed out") as caught:
        talk(serve, lambda session: get(session, seconds=0.2, limit=1000), scheme)
    assert caught.value.reason == "deadline"
    assert caught.value.response_begun == response_begun
    assert time.monotonic() - begin < scaled(10)


def test_unreachable_server(new_loop):
    session = AsyncHttpSession("http://127.0.0.1:1", {}, tls_context, 1)
    with pytest.raises(FetchError) as caught, asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(get(session))
    assert caught.value.reason == "unreachable"


def test_header_of_several_lines_is_refused():
    with pytest.raises(ValueError, match="one line"):
        AsyncHttpSession("http://h", {"Authorization": "a\r\nb: c"}, tls_context, 1)
