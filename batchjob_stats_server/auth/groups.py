"""Groups of users: those of this host, and those that the identity provider named."""

import contextlib
import grp
import os
import pwd
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from sqlalchemy.engine import Engine

from batchjob_stats_db.database import sessions
from batchjob_stats_server.options import AuthOptions

_CACHE_SECONDS = 60.0  # how long a login's groups are cached
_MAX_CACHED_LOGINS = 10_000


def _nss_groups(user: str) -> frozenset[str]:
    """The groups of a login from NSS, thus also from LDAP and SSSD; none for an unknown one."""
    try:
        ids = os.getgrouplist(user, pwd.getpwnam(user).pw_gid)
    except (KeyError, OSError):
        return frozenset()
    groups = set()
    for number in ids:
        with contextlib.suppress(KeyError):  # a group id without a name
            groups.add(grp.getgrgid(number).gr_name)
    return frozenset(groups)


class Groups:
    """Looks up groups if any option depends on them; otherwise nobody has any."""

    def __init__(
        self,
        auth: AuthOptions,
        reader: Engine | None,
        remember_seconds: float,
        clock: Callable[[], float],
        while_waiting: Callable[[], AbstractContextManager[None]] = nullcontext,
        look_up: Callable[[str], frozenset[str]] = _nss_groups,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`reader`: of the database with log-ins; None: no provider is configured.

        `while_waiting`: a context manager entered while a thread waits for a directory service,
        which `look_up` asks.
        """
        self._is_needed = bool(auth.admin_group or auth.viewer_group or auth.account_group)
        self._unix_groups = auth.unix_groups
        self._reader = reader
        self._remember_seconds = remember_seconds
        self._clock = clock
        self._while_waiting = while_waiting
        self._look_up = look_up
        self._monotonic = monotonic
        self._cache: dict[str, tuple[float, frozenset[str]]] = {}
        self._lock = threading.Lock()

    def of(self, user: str) -> frozenset[str]:
        """Names of the groups of a login."""
        if not self._is_needed:
            return frozenset()
        groups = self._of_host(user) if self._unix_groups else frozenset()
        if self._reader is not None:
            since = int(self._clock() - self._remember_seconds)
            with self._reader.connect() as db:
                groups |= sessions.groups_of(db, user, since)
        return groups

    def _of_host(self, user: str) -> frozenset[str]:
        """The groups on this host, cached for a short time."""
        now = self._monotonic()
        with self._lock:
            until, groups = self._cache.get(user, (0.0, frozenset()))
        if until > now:
            return groups
        with self._while_waiting():
            groups = self._look_up(user)
        with self._lock:
            if len(self._cache) >= _MAX_CACHED_LOGINS:
                self._cache.clear()
            self._cache[user] = now + _CACHE_SECONDS, groups
        return groups
