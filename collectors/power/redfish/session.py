"""A session with a Redfish service: one login, renewed when it expires, deleted at the end.

Source: DMTF DSP0266 (Redfish specification) 1.20, section 13.3.4 "Session-based authentication";
RFC 9110, section 15.4 "Redirection".
"""

import json
import ssl
from dataclasses import dataclass
from typing import Any
from urllib.parse import urljoin, urlsplit

from batchjob.runtime import http_client
from batchjob.runtime.http_client import FetchError, HttpReply
from collectors.power.meter import BmcError, read_password
from collectors.power.redfish.power import ROOT

_SESSIONS = f"{ROOT}SessionService/Sessions"  # where the root does not tell
_MAX_BYTES = 4 << 20
_MAX_REDIRECTS = 3
_REDIRECTS = frozenset({301, 302, 303, 307, 308})


@dataclass(eq=False)
class RedfishSession:
    """Reads resources by path. For one thread; only `close()` may be called from another."""

    url: str  # without a path
    user: str
    password_file: str  # read at each login
    timeout: float
    tls: ssl.SSLContext
    token: str = ""
    location: str = ""  # URI of the session, used to delete it

    def get(self, path: str) -> dict[str, Any]:
        """A resource; logs in if necessary, and once more if the session has expired."""
        answer = self._request("GET", path) if self.token else None
        if answer is None or answer.status == 401:
            self._log_in()
            answer = self._request("GET", path)
        if answer.status == 401:
            raise BmcError("authentication", f"{path}: refused after a new login")
        if answer.status != 200:
            raise BmcError("status", f"{path}: status {answer.status}")
        document = _parse_json(answer)
        if not isinstance(document, dict):
            raise BmcError("malformed", f"{path}: expected an object")
        return document

    def close(self) -> None:
        """Delete the session: a BMC has few of them, and refuses logins when all are in use."""
        location, self.location = self.location, ""
        if not location:
            return
        try:
            self._request("DELETE", location)
        except BmcError:
            return  # the session expires after the BMC's timeout
        finally:
            self.token = ""

    def _log_in(self) -> None:
        self.close()
        login = {"UserName": self.user, "Password": read_password(self.password_file)}
        answer = self._request("POST", self._sessions_path(), json.dumps(login).encode())
        if answer.status in (400, 401, 403):
            raise BmcError("authentication", f"login refused with status {answer.status}")
        token = answer.headers.get("X-Auth-Token")
        if answer.status not in (200, 201, 204) or not token:
            raise BmcError("status", f"login: status {answer.status} without a token")
        self.token = token
        # Some services give a URL; only this service is queried.
        _, found, rest = answer.headers.get("Location", "").partition("/redfish/")
        self.location = found + rest

    def _sessions_path(self) -> str:
        """The URI of the sessions from the service root, which needs no log-in."""
        answer = self._request("GET", ROOT)
        root = _parse_json(answer) if answer.status == 200 else None
        for name in ("Links", "Sessions", "@odata.id"):
            root = root.get(name) if isinstance(root, dict) else None
        return root if isinstance(root, str) and root.startswith("/redfish/") else _SESSIONS

    def _request(self, method: str, path: str, body: bytes | None = None) -> HttpReply:
        """A request, redirected at most three times, and only to the same service."""
        for _ in range(_MAX_REDIRECTS + 1):
            answer = self._request_once(method, path, body)
            location = answer.headers.get("Location", "")
            if answer.status not in _REDIRECTS or not location:
                return answer
            target = urlsplit(urljoin(self.url + path, location))
            if _origin(target.geturl()) != _origin(self.url):
                raise BmcError("status", f"{path}: redirected to another service")
            path = target._replace(scheme="", netloc="", fragment="").geturl()
            if answer.status not in (307, 308) and method == "POST":
                method, body = "GET", None
        raise BmcError("status", f"{path}: more than {_MAX_REDIRECTS} redirects")

    def _request_once(self, method: str, path: str, body: bytes | None) -> HttpReply:
        headers = {"Accept": "application/json", "OData-Version": "4.0"}
        if body is not None:
            headers["Content-Type"] = "application/json"
        elif self.token:
            headers["X-Auth-Token"] = self.token
        try:
            return http_client.fetch(
                self.url + path,
                method=method,
                headers=headers,
                body=body,
                seconds=self.timeout,
                limit=_MAX_BYTES,
                tls=self.tls,
            )
        except FetchError as error:
            raise BmcError(error.reason, str(error)) from error


def _parse_json(answer: HttpReply) -> Any:
    try:
        return answer.json()
    except FetchError as error:
        raise BmcError(error.reason, str(error)) from error


def _origin(url: str) -> tuple[str, str | None, int]:
    """Scheme, host and port; the port is -1 if it is not a number."""
    parts = urlsplit(url)
    try:
        port = parts.port or 443
    except ValueError:
        port = -1
    return parts.scheme, parts.hostname, port
