"""Requests are read strictly; answers are complete."""

import contextlib
import gzip
from http import HTTPStatus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchjob_exporter.web.message import (
    HttpResponse,
    RequestRefused,
    compress,
    parse_request,
    render_response,
    text_response,
)


def test_parse_request():
    request = parse_request(
        b"GET /metrics?collect%5B%5D=jobs&x=a+b HTTP/1.1\r\nHost: n1\r\nACCEPT: */*"
    )
    assert request.method == "GET"
    assert request.path == "/metrics"
    assert request.query == (("collect[]", "jobs"), ("x", "a b"))
    assert request.headers == {"host": "n1", "accept": "*/*"}
    assert request.keep_alive


@pytest.mark.parametrize(
    ("head", "keep_alive"),
    [
        (b"GET / HTTP/1.1\r\nHost: n", True),
        (b"GET / HTTP/1.1\r\nHost: n\r\nConnection: Close", False),
        (b"GET / HTTP/1.0", False),
        (b"POST / HTTP/1.1\r\nHost: n\r\nContent-Length: 3", False),
        (b"POST / HTTP/1.1\r\nHost: n\r\nTransfer-Encoding: chunked", False),
    ],
)
def test_keep_alive(head, keep_alive):
    assert parse_request(head).keep_alive is keep_alive


@pytest.mark.parametrize(
    ("target", "path"),
    [
        (b"/a%20b", "/a b"),
        (b"http://n1:10910/metrics", "/metrics"),
        (b"http://n1", "/"),
        (b"/?", "/"),
    ],
)
def test_request_path(target, path):
    assert parse_request(b"GET " + target + b" HTTP/1.0").path == path


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"", 400),
        (b"GET", 400),
        (b"GET /", 400),
        (b"GET  / HTTP/1.1\r\nHost: n", 400),
        (b"GET / HTTP/1.1", 400),  # no Host
        (b"GET / HTTP/x", 400),
        (b"G\x00T / HTTP/1.0", 400),
        (b"GET metrics HTTP/1.0", 400),
        (b"GET / HTTP/1.0\r\nno colon", 400),
        (b"GET / HTTP/1.0\r\nspace : before colon", 400),
        (b"GET / HTTP/1.0\r\nA: b\r\n folded", 400),
        (b"GET / HTTP/1.0\r\nA: b\x00c", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nHost: b", 400),
        (b"GET / HTTP/1.0\r\nAuthorization: a\r\nAuthorization: b", 400),
        (b"GET / HTTP/1.0\r\nContent-Length: 5", 400),
        (b"GET / HTTP/1.0\r\nTransfer-Encoding: chunked", 400),
        (b"PRI * HTTP/2.0", 505),
        (b"GET / HTTP/1.0" + b"\r\nA: b" * 101, 431),
        (b"GET /?" + b"a=b&" * 101 + b" HTTP/1.0", 400),
    ],
)
def test_invalid_requests_are_refused(head, status):
    with pytest.raises(RequestRefused) as refused:
        parse_request(head)
    assert refused.value.status == status


@given(st.binary(max_size=200) | st.binary(max_size=50).map(lambda b: b"GET /" + b + b" HTTP/1.0"))
def test_arbitrary_bytes_raise_no_other_error(head):
    with contextlib.suppress(RequestRefused):
        parse_request(head)


def test_render_response():
    wire = render_response(
        text_response(HTTPStatus.NOT_FOUND, "nothing", ("X-A", "b")), keep_alive=True, now=0
    )
    assert wire == (
        b"HTTP/1.1 404 Not Found\r\n"
        b"Date: Thu, 01 Jan 1970 00:00:00 GMT\r\n"
        b"Content-Length: 8\r\n"
        b"Connection: keep-alive\r\n"
        b"Content-Type: text/plain; charset=utf-8\r\n"
        b"X-A: b\r\n"
        b"\r\n"
        b"nothing\n"
    )


def test_head_response_has_length_and_no_body():
    wire = render_response(
        text_response(HTTPStatus.OK, "nothing"), keep_alive=False, with_body=False
    )
    assert b"Content-Length: 8\r\nConnection: close\r\n" in wire
    assert wire.endswith(b"\r\n\r\n")


LONG = HttpResponse(HTTPStatus.OK, b"batchjob " * 1000)


@pytest.mark.parametrize(
    "accept", ["gzip", "deflate, gzip;q=0.5", "*", "GZIP", "gzip;q=1.0, *;q=0", "br;q=1, *;q=.1"]
)
def test_gzip_is_used_when_accepted(accept):
    packed = compress(LONG, accept)
    assert ("Content-Encoding", "gzip") in packed.headers
    assert gzip.decompress(packed.body) == LONG.body


@pytest.mark.parametrize("accept", ["", "identity", "gzip;q=0", "*;q=0", "br", "gzip;q=x"])
def test_gzip_is_not_used_when_not_accepted(accept):
    assert compress(LONG, accept) is LONG


def test_short_responses_are_not_compressed():
    short = text_response(HTTPStatus.OK, "healthy")
    assert compress(short, "gzip") is short
