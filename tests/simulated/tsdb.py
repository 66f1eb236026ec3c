"""A time series database that records requests and returns a configured answer.

with tsdb.serving() as database:
    database.answer = (200, b'{"status":"success","data":[]}')
    ...
    database.requests[0].form
"""

import contextlib
import http.server
import threading
import time
import urllib.parse
from typing import NamedTuple


class RecordedRequest(NamedTuple):
    method: str
    path: str
    headers: dict
    form: dict  # name → list of values


class RecordingTsdb:
    def __init__(self, url):
        self.url = url
        self.requests = []
        self.answer = (200, b'{"status":"success","data":[]}')
        self.wait_seconds = 0  # before an answer
        self.pause_seconds = 0  # before each byte of it


class _Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self._record(urllib.parse.urlsplit(self.path).query)

    def do_POST(self):
        self._record(self.rfile.read(int(self.headers["Content-Length"])).decode())

    def _record(self, query):
        database = self.server.database
        form = urllib.parse.parse_qs(query, keep_blank_values=True, strict_parsing=bool(query))
        path = urllib.parse.urlsplit(self.path).path
        database.requests.append(RecordedRequest(self.command, path, dict(self.headers), form))
        status, body = database.answer
        time.sleep(database.wait_seconds)
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        pause = database.pause_seconds
        with contextlib.suppress(ConnectionError):  # the client has closed the connection
            self.end_headers()
            for piece in [body[i : i + 1] for i in range(len(body))] if pause else [body]:
                time.sleep(pause)
                self.wfile.write(piece)

    def log_message(self, *_):
        pass


@contextlib.contextmanager
def serving():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.database = RecordingTsdb(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server.database
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
