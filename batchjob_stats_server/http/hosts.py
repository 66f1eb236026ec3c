"""Checks the Host header, and the origin of requests that change something.

A page of another site can let its own name resolve to this address (DNS rebinding), and then the
browser lets it read the answers: only the Host header shows it. Other users of the machine can
open ports on loopback too, and their pages are "same site" to a browser, which ignores ports there.
"""

from urllib.parse import urlsplit

from starlette.types import ASGIApp, Receive, Scope, Send

from batchjob.runtime.values import host_name
from batchjob_stats_server.http import problems
from batchjob_stats_server.options import ServerWebOptions

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})

_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})


def allowed_hosts(web: ServerWebOptions) -> frozenset[str] | None:
    """Names without ports; None: any.

    Loopback's own names are always allowed: no other site has one of them, and monitoring on the
    server's own machine (Prometheus, a health check) uses them.
    """
    if web.allowed_host:
        return LOOPBACK | {name.lower().strip("[]") for name in web.allowed_host}
    return LOOPBACK if web.listen_address[0] in LOOPBACK else None


class TrustedHosts:
    """Refuses requests for other hosts, and changes requested by pages of other origins."""

    def __init__(self, app: ASGIApp, hosts: frozenset[str] | None) -> None:
        self._app = app
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on requests for one of the names."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        problem = self._find_problem(scope)
        if problem:
            await problems.answer(*problem)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _find_problem(self, scope: Scope) -> tuple[int, str] | None:
        hosts = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
        if len(hosts) != 1:
            return 400, "expected one Host header"
        (host,) = hosts
        if not host_name(host):
            return 400, "expected a name or an address in the Host header"
        if self._hosts is not None and host_name(host) not in self._hosts:
            return 421, "unknown Host header; see web.allowed-host"
        if scope["method"] not in _SAFE_METHODS:
            for name, value in scope["headers"]:
                if name == b"origin" and _host_of_origin(value.decode("latin-1")) != host.lower():
                    return 403, "cross-origin request refused"
        return None


def _host_of_origin(origin: str) -> str:
    """Host name and port of an origin; "" for `null`."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""
