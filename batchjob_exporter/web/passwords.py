"""Basic authentication against bcrypt hashes (RFC 7617)."""

import base64
import binascii
import hashlib
import secrets
from collections.abc import Mapping

from batchjob.runtime.settings import SettingsError

_MAX_PASSWORD_BYTES = 72  # bcrypt uses only this many bytes of a password
_CACHE_SIZE = 256

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
        self._dummy_hash = bcrypt.hashpw(secrets.token_bytes(16), bcrypt.gensalt(cost))
        self._key = secrets.token_bytes(32)
        self._cached_results: dict[bytes, bool] = {}

    def cached_result(self, authorization: str) -> bool | None:
        """Whether the credentials are valid, at once; None if that has not been computed yet."""
        credentials = _parse_credentials(authorization)
        return False if credentials is None else self._cached_results.get(self._digest(credentials))

    def check(self, authorization: str) -> bool:
        """Compute whether the credentials are valid. For one thread at a time."""
        credentials = _parse_credentials(authorization)
        if credentials is None:
            return False
        digest = self._digest(credentials)
        cached = self._cached_results.get(digest)
        if cached is not None:
            return cached
        return self._cache_result(digest, self._check_password(*credentials))

    def _digest(self, credentials: Credentials) -> bytes:
        return hashlib.blake2b(repr(credentials).encode(), key=self._key).digest()

    def _check_password(self, name: str, password: bytes) -> bool:
        hashed = self._users.get(name, self._dummy_hash)
        # bcrypt raises an exception for longer passwords.
        matches = self._bcrypt.checkpw(password[:_MAX_PASSWORD_BYTES], hashed)
        return matches and name in self._users and len(password) <= _MAX_PASSWORD_BYTES

    def _cache_result(self, digest: bytes, matches: bool) -> bool:
        if len(self._cached_results) >= _CACHE_SIZE:
            # Wrong passwords are removed first, because attacks fill the cache with them.
            wrong = next((key for key, value in self._cached_results.items() if not value), None)
            oldest = next(iter(self._cached_results))
            self._cached_results.pop(oldest if wrong is None else wrong)
        self._cached_results[digest] = matches
        return matches


def _parse_credentials(authorization: str) -> Credentials | None:
    scheme, _, encoded = authorization.partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        name, colon, password = base64.b64decode(encoded.strip(), validate=True).partition(b":")
        return (name.decode(), password) if colon else None
    except (binascii.Error, UnicodeDecodeError, ValueError):
        return None
