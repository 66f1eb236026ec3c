"""A server on loopback, and clients that speak raw HTTP."""

import socket
from contextlib import closing
from http import HTTPStatus

import pytest

from batchjob_exporter.web.addresses import open_listeners
from batchjob_exporter.web.auth import WebAccess
from batchjob_exporter.web.connection import ClientTimeouts
from batchjob_exporter.web.message import text_response
from batchjob_exporter.web.server import HttpServer
from tests.batchjob_exporter.web.raw_http import read_all
from tests.helpers.waiting import scaled


@pytest.fixture
def serve():
    """serve(answer, limits...) starts a server; gives (host, port)."""
    started = []

    def start(
        answer=lambda request: text_response(HTTPStatus.OK, request.path), web=None, **limits
    ):
        sockets = open_listeners(("127.0.0.1:0",))
        limits.setdefault("timeouts", ClientTimeouts(head=5, idle=5, send=5, linger=2))
        server = HttpServer(sockets, web or WebAccess("", answer), **limits)
        address = sockets[0].getsockname()
        server.start()
        started.append(server)
        return address

    yield start
    for server in started:
        server.stop()


@pytest.fixture
def connect():
    """connect(address, host) opens a raw connection, from that host, closed at the end."""
    opened = []

    def open_connection(address, host=""):
        client = socket.create_connection(address, timeout=scaled(10), source_address=(host, 0))
        opened.append(client)
        return client

    yield open_connection
    for client in opened:
        with closing(client):
            pass


@pytest.fixture
def send_request(connect):
    """send_request(address, raw request) returns all bytes until the server closes."""

    def send(address, request):
        client = connect(address)
        client.sendall(request)
        return read_all(client)

    return send
