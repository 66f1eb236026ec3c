"""Checks the Host header, and the origin of requests that change something.

A page of another site can let its own name resolve to this address (DNS rebinding), and then the
browser lets it read the answers: only the Host header shows it. Other users of the machine can
open ports on loopback too, and their pages are "same site" to a browser, which ignores ports there.
"""

from collections.abc import Sequence
from ipaddress import ip_network
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Receive, Scope, Send

from batchjob.runtime.values import Network, host_name
from batchjob_stats_server.auth import peers
from batchjob_stats_server.http import problems
from batchjob_stats_server.options import ServerWebOptions

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})

_ON_THIS_MACHINE = (ip_network("127.0.0.0/8"), ip_network("::1/128"))
_FORWARDED = b"x-forwarded-proto"
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
        hosts = _values(scope, b"host")
        if len(hosts) != 1:
            return 400, "expected one Host header"
        (host,) = hosts
        if not host_name(host):
            return 400, "expected a name or an address in the Host header"
        if self._hosts is not None and host_name(host) not in self._hosts:
            return 421, "unknown Host header; see web.allowed-host"
        if scope["method"] not in _SAFE_METHODS:
            # A page cannot send this header to another origin, so here it needs no trust.
            schemes = {scope["scheme"], *_values(scope, _FORWARDED)}
            origins = {f"{scheme}://{host.lower()}" for scheme in schemes}
            for name, value in scope["headers"]:
                text = value.decode("latin-1").lower()
                if name == b"origin" and text not in origins:
                    return 403, "cross-origin request refused"
                if name == b"sec-fetch-site" and text == "cross-site":
                    return 403, "cross-site request refused"
        return None


class ForwardedScheme:
    """Takes the scheme of the browser's request from a trusted proxy.

    So the cookies behind a proxy that ends TLS are bound to it, and origins can be compared.
    """

    def __init__(self, app: ASGIApp, proxies: Sequence[Network], server_url: str) -> None:
        """`proxies`: none: those on this machine. `server_url`: the browsers' own, if known."""
        self._app = app
        self._proxies = proxies or _ON_THIS_MACHINE
        self._server = urlsplit(server_url)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on with the scheme that the browser used."""
        if scope["type"] == "http" and scope["scheme"] == "http" and self._is_https(scope):
            scope = {**scope, "scheme": "https"}
        await self._app(scope, receive, send)

    def _is_https(self, scope: Scope) -> bool:
        values = _values(scope, _FORWARDED)
        if values and peers.is_in(scope, self._proxies):
            return values == ["https"]
        own = [self._server.netloc]
        return self._server.scheme == "https" and _values(scope, b"host") == own


def _values(scope: Scope, wanted: bytes) -> list[str]:
    return [value.decode("latin-1") for name, value in scope["headers"] if name == wanted]
