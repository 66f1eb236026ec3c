"""Basic authentication against bcrypt hashes (RFC 7617)."""

import base64
import binascii
import hashlib
import secrets
import threading
from collections.abc import Mapping
from http import HTTPStatus

from batchjob.settings import SettingsError
from batchjob_exporter.http.message import Response, text

UNAUTHORIZED = text(
    HTTPStatus.UNAUTHORIZED,
    "user name and password, please",
    ("WWW-Authenticate", 'Basic realm="batchjob_exporter", charset="UTF-8"'),
)
_BUSY = text(HTTPStatus.TOO_MANY_REQUESTS, "too many log-ins at once", ("Retry-After", "1"))

_LONGEST = 72  # bytes of a password that bcrypt looks at
_REMEMBERED = 256
# Log-ins that may compute or wait for it; fewer than the server's workers, so that whoever is
# remembered never waits for somebody who guesses.
_AT_ONCE = 3


class Passwords:
    """Checks `Authorization` headers. A result is remembered: one check takes 50 ms and more."""

    def __init__(self, users: Mapping[str, str]) -> None:
        """`users`: name to bcrypt hash. Raises SettingsError without the package bcrypt."""
        try:
            import bcrypt  # not needed, and not installed, where nobody has a password
        except ImportError as error:
            raise SettingsError(
                "basic_auth_users needs bcrypt: pip install 'batchjob-monitoring[auth]'"
            ) from error
        self._bcrypt = bcrypt
        self._users = {name: hashed.encode() for name, hashed in users.items()}
        # Users who do not exist cost what the dearest of the others costs.
        cost = max(int(hashed[4:6]) for hashed in self._users.values())
        self._nobody = bcrypt.hashpw(secrets.token_bytes(16), bcrypt.gensalt(cost))
        self._key = secrets.token_bytes(32)
        self._known: dict[bytes, bool] = {}
        self._room = threading.BoundedSemaphore(_AT_ONCE)
        self._computing = threading.Lock()

    def refusal(self, authorization: str) -> Response | None:
        """The answer for who may not come in; None: come in."""
        credentials = _credentials(authorization)
        if credentials is None:
            return UNAUTHORIZED
        name, password = credentials
        digest = hashlib.blake2b(repr(credentials).encode(), key=self._key).digest()
        known = self._known.get(digest)
        if known is None:
            if not self._room.acquire(blocking=False):
                return _BUSY
            try:
                with self._computing:
                    known = self._remember(digest, self._matches(name, password))
            finally:
                self._room.release()
        return None if known else UNAUTHORIZED

    def _matches(self, name: str, password: bytes) -> bool:
        hashed = self._users.get(name, self._nobody)
        # bcrypt raises where a password is longer than what it can tell apart.
        matches = self._bcrypt.checkpw(password[:_LONGEST], hashed)
        return matches and name in self._users and len(password) <= _LONGEST

    def _remember(self, digest: bytes, matches: bool) -> bool:
        if len(self._known) >= _REMEMBERED:
            # Wrong guesses make room first: they are what fills the memory.
            wrong = next((key for key, value in self._known.items() if not value), None)
            self._known.pop(wrong if wrong is not None else next(iter(self._known)))
        self._known[digest] = matches
        return matches


def _credentials(authorization: str) -> tuple[str, bytes] | None:
    scheme, _, encoded = authorization.partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        name, colon, password = base64.b64decode(encoded.strip(), validate=True).partition(b":")
        return (name.decode(), password) if colon else None
    except (binascii.Error, UnicodeDecodeError, ValueError):
        return None
