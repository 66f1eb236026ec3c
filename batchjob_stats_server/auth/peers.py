"""Where a request comes from, and which host and origin it names.

Headers have no influence on what counts as the peer of a connection.

A page of another site can let its own name resolve to this address (DNS rebinding), and then the
browser lets it read the answers: only the Host header shows it. Other users of the machine can
open ports on loopback too, and their pages are "same site" to a browser, which ignores ports there.
"""

import functools
import ipaddress
from collections.abc import Iterable, Sequence
from ipaddress import ip_network
from urllib.parse import SplitResult

from starlette.types import Scope

from batchjob.runtime.values import LOOPBACK, Network, host_name
from batchjob_stats_server.http.problems import SAFE_METHODS, Problem
from batchjob_stats_server.options import ServerWebOptions

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def address(scope: Scope) -> Address | None:
    """The address of the peer; None without one, as on a Unix socket."""
    return _address((scope.get("client") or ("",))[0])


@functools.lru_cache(1000)
def _address(host: str) -> Address | None:
    try:
        parsed = ipaddress.ip_address(host)
    except ValueError:
        return None
    # On a dual-stack socket, an IPv4 peer has an IPv4-mapped address.
    return getattr(parsed, "ipv4_mapped", None) or parsed


def is_in(scope: Scope, networks: Iterable[Network]) -> bool:
    peer = address(scope)
    return peer is not None and any(peer in network for network in networks)


def peer_key(scope: Scope) -> object:
    """What counts as one peer: an IPv4 address, or an IPv6 network (/64)."""
    peer = address(scope)
    if isinstance(peer, ipaddress.IPv6Address):
        return ipaddress.ip_network((peer, 64), strict=False)
    return peer


def caller_of(scope: Scope, trusted: Iterable[Network]) -> object:
    """Who takes a turn as long as the user is not known; None: one that forwards many users."""
    return None if is_in(scope, trusted) else peer_key(scope)


ON_THIS_MACHINE = (ip_network("127.0.0.0/8"), ip_network("::1/128"))
_FORWARDED = b"x-forwarded-proto"
_host_name = functools.lru_cache(16)(host_name)  # nearly all requests have the same


def allowed_hosts(web: ServerWebOptions) -> frozenset[str] | None:
    """Names without ports; None: any.

    Loopback's own names are always allowed: no other site has one of them, and monitoring on the
    server's own machine (Prometheus, a health check) uses them.
    """
    if web.allowed_host:
        return LOOPBACK | {name.lower().strip("[]") for name in web.allowed_host}
    return LOOPBACK if web.listen_address[0] in LOOPBACK else None


def find_problem(scope: Scope, allowed: frozenset[str] | None) -> Problem | None:
    """Why a request is refused: it is for another host, or a page of another origin sent it."""
    hosts = _values(scope, b"host")
    if len(hosts) != 1:
        return Problem(400, "expected one Host header")
    (host,) = hosts
    if not _host_name(host):
        return Problem(400, "expected a name or an address in the Host header")
    if allowed is not None and _host_name(host) not in allowed:
        return Problem(421, "unknown Host header; see web.allowed-host")
    if scope["method"] not in SAFE_METHODS:
        # A page cannot send this header to another origin, so here it needs no trust.
        schemes = {scope["scheme"], *_values(scope, _FORWARDED)}
        origins = {f"{scheme}://{host.lower()}" for scheme in schemes}
        for name, value in scope["headers"]:
            text = value.decode("latin-1").lower()
            if name == b"origin" and text not in origins:
                return Problem(403, "cross-origin request refused")
            if name == b"sec-fetch-site" and text == "cross-site":
                return Problem(403, "cross-site request refused")
    return None


def is_https(scope: Scope, proxies: Sequence[Network], server_url: SplitResult) -> bool:
    """Whether the browser uses HTTPS, which may end at a trusted proxy.

    So the cookies behind such a proxy are bound to it, and origins can be compared. `server_url`:
    the browsers' own, if known.
    """
    if scope["scheme"] == "https":
        return True
    values = _values(scope, _FORWARDED)
    if values and is_in(scope, proxies):
        return values == ["https"]
    return server_url.scheme == "https" and _values(scope, b"host") == [server_url.netloc]


def _values(scope: Scope, wanted: bytes) -> list[str]:
    return [value.decode("latin-1") for name, value in scope["headers"] if name == wanted]
