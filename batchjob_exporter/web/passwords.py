"""Basic authentication against bcrypt hashes (RFC 7617)."""

import base64
import binascii
import hashlib
import secrets
from collections.abc import Mapping

from batchjob.runtime.settings import SettingsError

_LONGEST = 72  # bcrypt uses only this many bytes of a password
_REMEMBERED = 256

Credentials = tuple[str, bytes]


class Passwords:
    """Checks `Authorization` headers and caches results, since a check takes 50 ms or more."""

    def __init__(self, users: Mapping[str, str]) -> None:
        """`users`: name to bcrypt hash. Raises SettingsError without the package bcrypt."""
        try:
            import bcrypt  # needed, and installed, only if there are users
        except ImportError as error:
            raise SettingsError(
                "basic_auth_users needs bcrypt: pip install 'batchjob-monitoring[auth]'"
            ) from error
        self._bcrypt = bcrypt
        self._users = {name: hashed.encode() for name, hashed in users.items()}
        # Checking an unknown user takes as long as the slowest check of a known one.
        cost = max(int(hashed[4:6]) for hashed in self._users.values())
        self._nobody = bcrypt.hashpw(secrets.token_bytes(16), bcrypt.gensalt(cost))
        self._key = secrets.token_bytes(32)
        self._known: dict[bytes, bool] = {}

    def known(self, authorization: str) -> bool | None:
        """Whether the credentials are valid, at once; None if that has not been computed yet."""
        credentials = _credentials(authorization)
        return False if credentials is None else self._known.get(self._digest(credentials))

    def check(self, authorization: str) -> bool:
        """Compute whether the credentials are valid. For one thread at a time."""
        credentials = _credentials(authorization)
        if credentials is None:
            return False
        digest = self._digest(credentials)
        known = self._known.get(digest)
        return self._remember(digest, self._matches(*credentials)) if known is None else known

    def _digest(self, credentials: Credentials) -> bytes:
        return hashlib.blake2b(repr(credentials).encode(), key=self._key).digest()

    def _matches(self, name: str, password: bytes) -> bool:
        hashed = self._users.get(name, self._nobody)
        # bcrypt raises an exception for longer passwords.
        matches = self._bcrypt.checkpw(password[:_LONGEST], hashed)
        return matches and name in self._users and len(password) <= _LONGEST

    def _remember(self, digest: bytes, matches: bool) -> bool:
        if len(self._known) >= _REMEMBERED:
            # Wrong passwords are removed first, because attacks fill the cache with them.
            wrong = next((key for key, value in self._known.items() if not value), None)
            self._known.pop(wrong if wrong is not None else next(iter(self._known)))
        self._known[digest] = matches
        return matches


def _credentials(authorization: str) -> Credentials | None:
    scheme, _, encoded = authorization.partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        name, colon, password = base64.b64decode(encoded.strip(), validate=True).partition(b":")
        return (name.decode(), password) if colon else None
    except (binascii.Error, UnicodeDecodeError, ValueError):
        return None
