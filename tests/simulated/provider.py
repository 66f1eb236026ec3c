"""A provider of emission factors on 127.0.0.1: documents by path, errors and delays."""

import contextlib
import json
import threading

from tests.helpers.http_server import Response, serving


class Provider:
    """Answers `documents`, or `otherwise` for every path."""

    def __init__(self, documents=None, otherwise=b"{}"):
        self.documents = documents or {}
        self.otherwise = otherwise
        self.status = 200
        self.headers = {}
        self.length = True
        self.delay = self.drip = 0.0  # seconds before an answer, and before each byte of it
        self._closing = threading.Event()
        self._exit_stack = contextlib.ExitStack()
        self._server = self._exit_stack.enter_context(serving(self._respond))
        self.url = self._server.url

    @property
    def requests(self):
        """Path with query, and headers of each request."""
        return [(each.target, each.headers) for each in self._server.requests]

    def _respond(self, request):
        self._closing.wait(self.delay)
        body = self.documents.get(request.path, self.otherwise)
        body = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = tuple(self.headers.items())
        return Response(body, self.status, headers, self.length, self.drip)

    def close(self):
        self._closing.set()
        self._exit_stack.close()
