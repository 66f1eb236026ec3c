"""The steps of an HTTP connection, over a scripted stream."""

import itertools
import socket
from http import HTTPStatus
from selectors import EVENT_READ, EVENT_WRITE

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchjob_exporter.web.connection import (
    ClientTimeouts,
    HttpConnection,
    RenderedResponse,
    Wait,
    WouldBlock,
)
from batchjob_exporter.web.message import HttpRequest, render_response, text_response


class ScriptedStream:
    """A stream that receives the given chunks (None: not ready), and takes `room` bytes at once."""

    def __init__(self, chunks, room=1 << 30):
        self.socket, self._other = socket.socketpair()
        self.chunks = list(chunks)
        self.room = room
        self.sent = b""
        self._full = False

    def handshake(self):
        pass

    def receive(self, size):
        if not self.chunks:
            return b""
        if (chunk := self.chunks.pop(0)) is None:
            raise WouldBlock(EVENT_READ)
        if chunk[size:]:
            self.chunks.insert(0, chunk[size:])
        return chunk[:size]

    def send(self, data):
        self._full = not self._full
        if not self._full:
            raise WouldBlock(EVENT_WRITE)
        self.sent += bytes(data[: self.room])
        return min(len(data), self.room)

    def close(self):
        self.socket.close()
        self._other.close()


def sent_bytes(chunks, **more):
    """Everything the connection sends, answering each request with its path."""
    stream = ScriptedStream(chunks, **more)
    connection = HttpConnection(stream, "", ClientTimeouts(), clock=lambda: 0.0)
    answer = None
    try:
        while True:
            step = connection.steps.send(answer)
            answer = None
            if isinstance(step, HttpRequest):
                answer = RenderedResponse(
                    render_response(
                        text_response(HTTPStatus.OK, step.path), keep_alive=True, now=0
                    ),
                    keep_alive=True,
                )
    except StopIteration:
        return stream.sent
    finally:
        connection.close()
        stream.close()


REQUESTS = b"".join(b"GET /%d HTTP/1.1\r\nHost: n\r\n\r\n" % number for number in range(4))


@given(st.lists(st.integers(0, len(REQUESTS)), max_size=12), st.booleans(), st.integers(1, 50))
def test_chunk_boundaries_do_not_change_responses(cuts, blocking, room):
    edges = [0, *sorted(cuts), len(REQUESTS)]
    chunks = [REQUESTS[a:b] for a, b in itertools.pairwise(edges) if a < b]
    if blocking:
        chunks = [piece for chunk in chunks for piece in (None, chunk)]
    assert sent_bytes(chunks, room=room) == sent_bytes([REQUESTS])


@given(st.lists(st.binary(max_size=100), max_size=10))
def test_arbitrary_bytes_get_http_response_or_none(chunks):
    sent = sent_bytes(chunk for chunk in chunks if chunk)
    assert sent == b"" or sent.startswith(b"HTTP/1.1 ")


@pytest.mark.parametrize(
    ("received", "status"), [([], b""), ([b"GET / HT"], b"HTTP/1.1 408 Request Timeout")]
)
def test_deadline_gets_408_only_within_a_request(received, status):
    stream = ScriptedStream([*received, None, b""])
    connection = HttpConnection(stream, "", ClientTimeouts(head=3.0), clock=lambda: 7.0)
    assert connection.resume() == Wait(EVENT_READ, 10.0)
    with pytest.raises(StopIteration):
        connection.steps.throw(TimeoutError())
    assert stream.sent.split(b"\r\n")[0] == status
    connection.close()
    stream.close()


def test_idle_timeout_applies_between_requests():
    now = [0.0]
    stream = ScriptedStream([b"GET / HTTP/1.1\r\nHost: n\r\n\r\n", None, b"GET", None])
    connection = HttpConnection(
        stream, "", ClientTimeouts(head=3.0, idle=100.0), clock=lambda: now[0]
    )
    assert isinstance(connection.resume(), HttpRequest)
    assert connection.steps.send(RenderedResponse(b"answer", keep_alive=True)) == Wait(
        EVENT_READ, 100.0
    )
    now[0] = 50.0
    assert connection.resume() == Wait(EVENT_READ, 53.0)
    connection.close()
    stream.close()
