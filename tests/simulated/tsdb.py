"""A time series database that records requests and returns a configured answer.

with tsdb.serving() as database:
    database.answer = (200, b'{"status":"success","data":[]}')
    ...
    database.requests[0].form
"""

import contextlib
import threading

from tests.helpers import http_server
from tests.helpers.http_server import Response


class RecordingTsdb:
    def __init__(self):
        self.url = ""
        self.requests = []
        self.answer = (200, b'{"status":"success","data":[]}')  # or a function of the request
        self.wait_seconds = 0  # before an answer
        self.pause_seconds = 0  # before each byte of it
        self.closing = threading.Event()  # ends the waits

    def respond(self, request):
        status, body = self.answer(request) if callable(self.answer) else self.answer
        self.closing.wait(self.wait_seconds)
        return Response(body, status, pause=self.pause_seconds)


@contextlib.contextmanager
def serving():
    database = RecordingTsdb()
    with http_server.serving(database.respond) as server:
        database.url, database.requests = server.url, server.requests
        try:
            yield database
        finally:
            database.closing.set()
