"""Cookies, and the session of a browser that signed in with a token.

Scripts cannot read the cookies, other sites cannot send that of a session, and it is worthless
anywhere else.

Browsers send a cookie to every port of a host, and so to the servers of other users of a shared
machine. So it holds the token encrypted, with a key that only this process has. It is no bearer
token, it allows only what `identity.py` says, and it ends with the process.

In `batchjob up`, which other users of the machine can reach, it is accepted only from the user who
runs the server, or root, and from the address that signed in.
"""

import ipaddress
import os
import sys
from typing import Any

from cryptography.fernet import Fernet, InvalidToken
from starlette.requests import HTTPConnection
from starlette.responses import Response

from batchjob_stats_server.auth import peers
from batchjob_stats_server.http.problems import Problem

_CIPHER = Fernet(Fernet.generate_key())
_PREFIX = "bw_"
_LONGEST_SECONDS = 7 * 86400
_PENDING_SECONDS = 600  # of an unfinished log-in
_TABLES = ("/proc/net/tcp", "/proc/net/tcp6")  # proc_net(5)
_ESTABLISHED = "01"  # include/net/tcp_states.h; an orphan of another state belongs to uid 0


def cookie_name(connection: HTTPConnection) -> str:
    """The name of the cookie with a session; it contains the port, since cookies ignore ports."""
    if connection.url.scheme == "https":
        return "__Host-batchjob"
    return f"batchjob-{(connection.scope.get('server') or ('', 0))[1]}"


def session_cookie(connection: HTTPConnection) -> str:
    """The cookie with a session, or ""; raises Problem for two of the name.

    A page of another port of the host can set a second one for some paths.
    """
    wanted = cookie_name(connection)
    pairs = [each for line in connection.headers.getlist("cookie") for each in line.split(";")]
    if sum(pair.partition("=")[0].strip() == wanted for pair in pairs) > 1:
        raise Problem(400, f"expected one cookie {wanted}; delete the cookies of this host")
    return connection.cookies.get(wanted, "")


def set_session(connection: HTTPConnection, answer: Response, session: str) -> None:
    """Set the cookie with a session, which is deleted when the browser is closed."""
    _set_cookie(answer, cookie_name(connection), session, samesite="strict")


def pending_name(connection: HTTPConnection) -> str:
    return f"{cookie_name(connection)}-log-in"


def set_pending(connection: HTTPConnection, answer: Response, text: str) -> None:
    """Set the cookie of a log-in, which the browser sends when the provider redirects back."""
    _set_cookie(answer, pending_name(connection), text, samesite="lax", max_age=_PENDING_SECONDS)


def _set_cookie(answer: Response, name: str, text: str, **options: Any) -> None:
    secure = name.startswith("__Host-")
    answer.set_cookie(name, text, httponly=True, secure=secure, **options)


def delete_cookie(answer: Response, name: str) -> None:
    answer.delete_cookie(name, httponly=True, secure=name.startswith("__Host-"))


BrowserSession = tuple[str, str]
"""What the cookie holds: a token, and the address of the browser, or of the proxy before it."""


def seal(token: str, connection: HTTPConnection) -> str:
    """The text of the cookie."""
    peer = connection.client.host if connection.client else ""
    data = f"{peer} {token}".encode()
    return _PREFIX + _CIPHER.encrypt(data).decode("ascii").rstrip("=")


def unseal(text: str) -> BrowserSession | None:
    """The session of a cookie; None if this process did not begin it, or it is a week old."""
    sealed = text.removeprefix(_PREFIX)
    if sealed == text or not sealed.isascii():
        return None
    try:
        data = _CIPHER.decrypt(sealed + "=" * (-len(sealed) % 4), ttl=_LONGEST_SECONDS).decode()
    except InvalidToken:
        return None
    peer, _, token = data.partition(" ")
    return token, peer


def is_from_own_user(session: BrowserSession, connection: HTTPConnection) -> bool:
    """Whether a session is used by the user who runs this server, from where it began."""
    client, server = connection.client, connection.scope.get("server")
    address = peers.address(connection.scope)
    if client is None or server is None or address is None:
        return False
    uid = local_uid(address, client.port, int(server[1]))
    if uid is not None:
        return uid in (0, os.geteuid())
    return client.host == session[1] and not address.is_loopback


def local_uid(address: peers.Address, port: int, server_port: int) -> int | None:
    """The owner of the socket at the other end of a connection; None: not on this machine."""
    for path in _TABLES:
        try:
            with open(path, encoding="ascii") as table:
                for line in table:
                    own, peer, state, *_, uid = line.split(maxsplit=8)[1:8]
                    if (
                        own.endswith(f":{port:04X}")
                        and peer.endswith(f":{server_port:04X}")
                        and state == _ESTABLISHED
                        and _parse_address(own.partition(":")[0]).packed == address.packed
                    ):
                        return int(uid)
        except (OSError, ValueError):
            continue
    return None


def _parse_address(text: str) -> peers.Address:
    """An address as the kernel writes it: words of 32 bits in the byte order of the machine."""
    data = bytes.fromhex(text)
    words = (int.from_bytes(data[at : at + 4], sys.byteorder) for at in range(0, len(data), 4))
    address = ipaddress.ip_address(b"".join(word.to_bytes(4, "big") for word in words))
    return getattr(address, "ipv4_mapped", None) or address
