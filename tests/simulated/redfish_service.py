"""A Redfish service on 127.0.0.1 with TLS: sessions that expire, few slots, and delays."""

import json
import ssl
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import trustme

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


class _Handler(BaseHTTPRequestHandler):
    @property
    def service(self):
        return self.server.service

    def do_GET(self):
        self.service.requests.append(("GET", self.path))
        time.sleep(self.service.delay)
        if self.path != ROOT and self.headers.get("X-Auth-Token") not in (
            self.service.sessions.values()
        ):
            self.reply(401, {"error": {"code": "Base.1.0.NoValidSession"}})
            return
        document = self.service.documents.get(self.path, 404)
        if isinstance(document, int):
            self.reply(document, {})
        else:
            self.reply(200, document)

    def do_POST(self):
        self.service.requests.append(("POST", self.path))
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.service.logins += 1
        if body != self.service.credentials:
            self.reply(401, {})
        elif len(self.service.sessions) >= self.service.slots:
            self.reply(503, {})
        else:
            path = f"{SESSIONS}/{self.service.logins}"
            self.service.sessions[path] = token = f"token-{self.service.logins}"
            self.reply(201, {}, {"X-Auth-Token": token, "Location": self.service.url + path})

    def do_DELETE(self):
        self.service.requests.append(("DELETE", self.path))
        found = self.service.sessions.pop(self.path, None)
        self.reply(204 if found else 404, {})

    def reply(self, status, document, headers=()):
        body = document if isinstance(document, bytes) else json.dumps(document).encode()
        self.send_response(status)
        for name, value in dict(headers).items():
            self.send_header(name, value)
        if status != 204:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if status == 204:
            return
        if not self.service.drip:
            self.wfile.write(body)
        for byte in body if self.service.drip else b"":
            self.wfile.write(bytes((byte,)))
            time.sleep(self.service.drip)

    def log_message(self, *_):
        pass


class RedfishService:
    """Serves `documents`; a document may be bytes, sent as they are, or a status code."""

    def __init__(self, documents, slots=2, user="power", password="geheim"):
        self.documents = documents
        self.slots = slots
        self.credentials = {"UserName": user, "Password": password}
        self.sessions = {}  # path -> token
        self.logins = 0
        self.requests = []
        self.delay = 0.0
        self.drip = 0.0  # seconds between two bytes
        self.authority = trustme.CA()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        self._server.service = self
        self._server.daemon_threads = True
        self._server.handle_error = lambda *_: None  # clients that hang up are part of the tests
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.authority.issue_cert("127.0.0.1").configure_cert(context)
        self._server.socket = context.wrap_socket(
            self._server.socket, server_side=True, do_handshake_on_connect=False
        )
        self.url = f"https://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def expire(self):
        self.sessions.clear()

    def close(self):
        self.delay = self.drip = 0.0
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
