"""The peer of a connection; headers have no influence on it."""

import functools
import ipaddress
from collections.abc import Iterable

from starlette.types import Scope

from batchjob.runtime.values import Network

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
    """Whether the peer's address is in one of the networks."""
    peer = address(scope)
    return peer is not None and any(peer in network for network in networks)


def peer_key(scope: Scope) -> object:
    """What counts as one peer: an IPv4 address, or an IPv6 network (/64)."""
    peer = address(scope)
    if isinstance(peer, ipaddress.IPv6Address):
        return ipaddress.ip_network((peer, 64), strict=False)
    return peer
