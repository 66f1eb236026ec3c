"""A server on loopback, and clients that speak raw HTTP."""

import socket
from contextlib import closing
from http import HTTPStatus

import pytest

from batchjob_exporter.web.addresses import open_listeners
from batchjob_exporter.web.auth import WebAccess
from batchjob_exporter.web.connection import ClientTimeouts
from batchjob_exporter.web.message import text_response
from batchjob_exporter.web.server import ConnectionLimits, HttpServer


@pytest.fixture
def serve():
    """serve(answer, limits...) starts a server; gives (host, port)."""
    started = []

    def start(
        answer=lambda request: text_response(HTTPStatus.OK, request.path), web=None, **limits
    ):
        sockets = open_listeners(("127.0.0.1:0",))
        limits.setdefault("timeouts", ClientTimeouts(head=5, idle=5, send=5, linger=2))
        server = HttpServer(sockets, web or WebAccess("", answer), ConnectionLimits(**limits))
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

    def open_one(address, host=""):
        client = socket.create_connection(address, timeout=10, source_address=(host, 0))
        opened.append(client)
        return client

    yield open_one
    for client in opened:
        with closing(client):
            pass


@pytest.fixture
def ask(connect):
    """ask(address, raw request) gives all bytes until the server closes."""

    def asked(address, request):
        client = connect(address)
        client.sendall(request)
        return read_all(client)

    return asked


def read_all(client):
    received = b""
    while data := client.recv(65536):
        received += data
    return received
