"""A provider of emission factors on 127.0.0.1: documents by path, errors and delays."""

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        provider = self.server.provider
        provider.requests.append((self.path, dict(self.headers)))
        time.sleep(provider.delay)
        body = provider.documents.get(self.path.partition("?")[0], provider.otherwise)
        body = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(provider.status)
        for name, value in provider.headers.items():
            self.send_header(name, value)
        if provider.length:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if not provider.drip:
            self.wfile.write(body)
        for byte in body if provider.drip else b"":
            self.wfile.write(bytes((byte,)))
            time.sleep(provider.drip)

    def log_message(self, *_):
        pass


class Provider:
    """Answers `documents`, or `otherwise` for every path."""

    def __init__(self, documents=None, otherwise=b"{}"):
        self.documents = documents or {}
        self.otherwise = otherwise
        self.status = 200
        self.headers = {}
        self.length = True
        self.delay = self.drip = 0.0
        self.requests = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        self._server.provider = self
        self._server.daemon_threads = True
        self._server.handle_error = lambda *_: None  # clients that hang up are part of the tests
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def close(self):
        self.delay = self.drip = 0.0
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
