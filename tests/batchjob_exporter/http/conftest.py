"""A server on loopback, and clients that speak raw HTTP."""

import socket
from contextlib import closing
from http import HTTPStatus

import pytest

from batchjob_exporter.http.addresses import listeners
from batchjob_exporter.http.connection import Patience
from batchjob_exporter.http.message import text
from batchjob_exporter.http.server import Limits, Server


@pytest.fixture
def serve():
    """serve(answer, limits...) starts a server; gives (host, port)."""
    started = []

    def start(answer=lambda request: text(HTTPStatus.OK, request.path), wrap=None, **limits):
        sockets = listeners(("127.0.0.1:0",))
        limits.setdefault("patience", Patience(head=5, idle=5, send=5, linger=2))
        more = {"wrap": wrap} if wrap else {}
        server = Server(sockets, answer, Limits(**limits), **more)
        address = sockets[0].getsockname()
        server.start()
        started.append(server)
        return address

    yield start
    for server in started:
        server.stop()


@pytest.fixture
def connect():
    """connect(address) opens a raw connection, closed at the end."""
    opened = []

    def open_one(address):
        client = socket.create_connection(address, timeout=10)
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
