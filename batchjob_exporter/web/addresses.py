"""Addresses to listen on: `:10910`, `192.0.2.1:10910`, `[::1]:10910`, `unix:/run/x.sock`."""

import contextlib
import ipaddress
import os
import socket
import stat
from typing import Any

from batchjob.runtime.settings import SettingsError, listen_error
from batchjob.runtime.values import Network, address, with_metavar

_BACKLOG = 1024  # the kernel must still accept new connections during a flood
_FIRST_DESCRIPTOR = 3  # sd_listen_fds(3)


@with_metavar("ADDRESS")
def listen_address(value: Any) -> str:
    """Check the text of `--web.listen-address`; raises ValueError."""
    if isinstance(value, str) and value.startswith("unix:/"):
        return value
    with contextlib.suppress(ValueError):
        host = address(value).host
        if not host or host.replace("-", "").replace(".", "").isalnum():
            return str(value)
        ipaddress.ip_address(host.partition("%")[0])
        return str(value)
    raise ValueError(
        f"expected :PORT, HOST:PORT, [IPV6]:PORT or unix:/PATH with a port up to 65535, "
        f"got {value!r}"
    )


def open_listeners(addresses: tuple[str, ...]) -> list[socket.socket]:
    """Open all addresses. Raises SettingsError naming the one that is not available."""
    opened: list[socket.socket] = []
    for each in addresses:
        try:
            opened.append(_open_listener(each))
        except OSError as error:
            for listener in opened:
                listener.close()
            raise listen_error(each, error) from error
    return opened


def _open_listener(where: str) -> socket.socket:
    if where.startswith("unix:"):
        return _open_unix_listener(where.removeprefix("unix:"))
    host, port = address(where)
    if not host:  # all addresses of the machine, IPv4 and IPv6 if available
        dual_stack = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if dual_stack else socket.AF_INET
        return socket.create_server(
            ("", port), family=family, backlog=_BACKLOG, dualstack_ipv6=dual_stack
        )
    family, *_, socket_address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    return socket.create_server(socket_address[:2], family=family, backlog=_BACKLOG)


def _open_unix_listener(path: str) -> socket.socket:
    """A socket file; one left by a process that has ended is replaced."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if _is_stale_socket(path):
            os.unlink(path)
        listener.bind(path)
        listener.listen(_BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def remove_socket_files(addresses: tuple[str, ...]) -> None:
    for each in addresses:
        if each.startswith("unix:"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(each.removeprefix("unix:"))


def _is_stale_socket(path: str) -> bool:
    try:
        if not stat.S_ISSOCK(os.stat(path).st_mode):
            return False
    except FileNotFoundError:
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            return True
    return False


def open_systemd_listener() -> socket.socket:
    """The socket that systemd opened (socket activation, sd_listen_fds(3))."""
    environ = os.environ
    if (environ.get("LISTEN_PID"), environ.get("LISTEN_FDS")) != (str(os.getpid()), "1"):
        raise SettingsError("--listen: expected a path, since systemd has passed no socket")
    os.set_inheritable(_FIRST_DESCRIPTOR, False)
    return socket.socket(fileno=_FIRST_DESCRIPTOR)


def format_address(listener: socket.socket) -> str:
    name = listener.getsockname()
    if listener.family == socket.AF_UNIX:
        return f"unix:{name}"
    host = f"[{name[0]}]" if listener.family == socket.AF_INET6 else name[0]
    return f"{host}:{name[1]}"


def is_reachable_remotely(listener: socket.socket) -> bool:
    if listener.family == socket.AF_UNIX:
        return False
    return not ipaddress.ip_address(listener.getsockname()[0].partition("%")[0]).is_loopback


def is_allowed(peer: str, networks: tuple[Network, ...]) -> bool:
    """Whether a client with this address is allowed; no networks: everybody is."""
    if not networks or not peer:  # clients of a UNIX socket have no address
        return True
    ip = _client_ip(peer)
    return any(ip in network for network in networks)


def client_key(peer: str) -> str:
    """The client of a connection: an IPv4 address, or the /64 network of an IPv6 one (RFC 4291).

    "" for all clients of a unix socket.
    """
    if not peer:
        return ""
    ip = _client_ip(peer)
    if ip.version == 4:
        return str(ip)
    return str(ipaddress.IPv6Network((int(ip), 64), strict=False))


def _client_ip(peer: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """The address of a client; IPv4 if it was mapped by a socket for both families."""
    ip = ipaddress.ip_address(peer.partition("%")[0])
    return getattr(ip, "ipv4_mapped", None) or ip


def is_answering(listener: socket.socket, seconds: float) -> bool:
    """Whether a listener reacts to a request within `seconds`.

    Any answer counts, also a refusal: a TLS server's, or that of `allow_from` to this machine.
    """
    with socket.socket(listener.family, socket.SOCK_STREAM) as client:
        client.settimeout(seconds)
        try:
            client.connect(listener.getsockname())  # the unspecified address connects to loopback
            client.sendall(b"GET /-/healthy HTTP/1.0\r\n\r\n")
            client.recv(1)
        except ConnectionResetError:
            return True
        except OSError:
            return False
    return True
