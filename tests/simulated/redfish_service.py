"""A Redfish service on 127.0.0.1 with TLS: sessions that expire, few slots, and delays."""

import contextlib
import json
import ssl
import threading

import trustme

from tests.helpers.http_server import Response, serving

ROOT = "/redfish/v1/"
SESSIONS = "/redfish/v1/SessionService/Sessions"


def collection(*paths, following=None):
    page = {"Members": [{"@odata.id": path} for path in paths]}
    return page | ({"Members@odata.nextLink": following} if following else {})


def link(path):
    return {"@odata.id": path}


def one_node(**chassis):
    """The documents of a service with one system in one chassis."""
    return {
        ROOT: {"Chassis": link("/redfish/v1/Chassis"), "Systems": link("/redfish/v1/Systems")},
        "/redfish/v1/Systems": collection("/redfish/v1/Systems/1"),
        "/redfish/v1/Chassis": collection("/redfish/v1/Chassis/1"),
        "/redfish/v1/Chassis/1": {
            "Id": "1",
            "ChassisType": "RackMount",
            "Links": {"ComputerSystems": [link("/redfish/v1/Systems/1")]},
        }
        | chassis,
    }


class RedfishService:
    """Serves `documents`; a document may be bytes, sent as they are, or a status code."""

    def __init__(self, documents, slots=2, user="power", password="geheim"):
        self.documents = documents
        self.slots = slots
        self.credentials = {"UserName": user, "Password": password}
        self.sessions = {}  # path -> token
        self.logins = 0
        self.redirects = {}  # path -> status and location
        self.delay = 0.0
        self.drip = 0.0  # seconds between two bytes
        self.authority = trustme.CA()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.authority.issue_cert("127.0.0.1").configure_cert(context)
        self._closing = threading.Event()
        self._exit_stack = contextlib.ExitStack()
        self._server = self._exit_stack.enter_context(serving(self._respond, tls=context))
        self.url = self._server.url

    @property
    def requests(self):
        """Method and path of each request."""
        return [(each.method, each.target) for each in self._server.requests]

    def _respond(self, request):
        if request.path in self.redirects:
            status, location = self.redirects[request.path]
            return self._answer(status, {}, (("Location", location),))
        if request.method == "POST":
            return self._log_in(json.loads(request.body))
        if request.method == "DELETE":
            return self._answer(204 if self.sessions.pop(request.path, None) else 404)
        self._closing.wait(self.delay)
        token = request.headers.get("X-Auth-Token")
        if request.target != ROOT and token not in self.sessions.values():
            return self._answer(401, {"error": {"code": "Base.1.0.NoValidSession"}})
        document = self.documents.get(request.target, 404)
        if isinstance(document, int):
            return self._answer(document)
        return self._answer(200, document)

    def _log_in(self, credentials):
        self.logins += 1
        if credentials != self.credentials:
            return self._answer(401)
        if len(self.sessions) >= self.slots:
            return self._answer(503)
        path = f"{SESSIONS}/{self.logins}"
        self.sessions[path] = token = f"token-{self.logins}"
        return self._answer(201, {}, (("X-Auth-Token", token), ("Location", self.url + path)))

    def _answer(self, status, document=None, headers=()):
        body = document if isinstance(document, bytes) else json.dumps(document or {}).encode()
        return Response(b"" if status == 204 else body, status, headers, pause=self.drip)

    def expire(self):
        self.sessions.clear()

    def close(self):
        self._closing.set()
        self._exit_stack.close()
