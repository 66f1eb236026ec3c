"""The series that a selector may match: the matchers on cluster and user of an access."""

import json
import math
import re
from collections.abc import Iterable, Sequence, Set
from typing import NamedTuple

from batchjob_stats_db.database.access import Access, UserOn
from batchjob_stats_server.promql.query_limits import NotYours, QueryWindow

_TOLD = 5  # maximum logins named in a message


class Confinement(NamedTuple):
    """Logins whose series may be read, each with its cluster; None: all series."""

    logins: tuple[UserOn, ...] | None
    # Clusters of which all series may be read; if set, logins are ignored.
    whole: tuple[str, ...] = ()

    @classmethod
    def of(cls, access: Access, clusters: Iterable[str]) -> "Confinement":
        """The confinement of an access; a login on every cluster is one on each of `clusters`.

        Accounts have no part in it: series have no account, so coordinators see those jobs
        elsewhere. Nor have the clusters of somebody with logins: one selector cannot match both.
        """
        if access.everything:
            return cls(None)
        if access.clusters and not access.users:
            return cls((), tuple(sorted(filter(None, access.clusters))))
        known = sorted(set(clusters))
        return cls(
            tuple(
                each._replace(cluster=cluster)
                for each in access.users
                for cluster in ([each.cluster] if each.cluster else known)
                # In a matcher, an empty value selects series without the label, which are not this
                # user's.
                if each.user and cluster
            )
        )

    def is_everybodys(self) -> bool:
        """Whether series of all users may be read, possibly of some clusters only."""
        return self.logins is None or bool(self.whole)

    def clusters(self) -> list[str]:
        """Those on which the caller has a login."""
        return sorted({each.cluster for each in self.logins or ()})

    def has_times(self) -> bool:
        """Whether a login is the caller's for a limited time."""
        return any(each.since is not None or each.until is not None for each in self.logins or ())

    def told(self) -> str:
        """Whose series are queried, in a sentence; empty if all are."""
        if self.logins is None:
            return ""
        whose = [f"cluster {cluster}" for cluster in self.whole] or [
            f"user {each.user} on {each.cluster}" for each in self.logins
        ]
        more = len(whose) - _TOLD
        text = ", ".join(whose[:_TOLD]) + (f" and {more} more" if more > 0 else "")
        return f"only series of {text or 'nobody: you have no login on a cluster'} were queried"

    def matchers(self, named: Set[str], reach: QueryWindow) -> list[list[str]]:
        """What to add to a selector; several lists if only several selectors can express it.

        `named`: clusters that the selector names with `=`; `reach`: times of the samples it may
        read.
        """
        if self.logins is None:
            return [[]]
        if self.whole:
            return [[_one_of("cluster", self.whole)]]
        logins = [each for each in self.logins if not named or named == {each.cluster}]
        if self.logins and not logins:
            # Another user's cluster: these matchers exclude each other, so that the answer is
            # empty.
            return [_matchers([self.logins[0].cluster], [self.logins[0].user])]
        users_on: dict[str, set[str]] = {}
        for login in logins:
            if _is_valid(login, reach):
                users_on.setdefault(login.cluster, set()).add(login.user)
        if not users_on:
            raise NotYours("you had no login on any known cluster at the time asked for")
        # One selector can only express "each of these users on each of these clusters".
        clusters_with: dict[tuple[str, ...], list[str]] = {}
        for cluster, users in sorted(users_on.items()):
            clusters_with.setdefault(tuple(sorted(users)), []).append(cluster)
        return [_matchers(clusters, users) for users, clusters in clusters_with.items()]

    def selectors(self, window: QueryWindow) -> list[str]:
        """Selectors of all series the caller may read; none if no confinement is needed."""
        if self.logins is None:
            return []
        return [braces(group) for group in self.matchers(frozenset(), window)]


def _matchers(clusters: Sequence[str], users: Sequence[str]) -> list[str]:
    return [_one_of("cluster", clusters), _one_of("user", users)]


def _is_valid(login: UserOn, reach: QueryWindow) -> bool:
    """Whether the login is the caller's during a whole period; NotYours if only during a part."""
    since = -math.inf if login.since is None else login.since
    until = math.inf if login.until is None else login.until
    if since <= reach.start and reach.end < until:
        return True
    if reach.end < since or until <= reach.start:
        return False
    raise NotYours(
        f"login {login.user} on {login.cluster} is yours from {since:.0f} until {until:.0f}: "
        f"the query reaches from {reach.start:.0f} to {reach.end:.0f}"
    )


def _one_of(label: str, values: Sequence[str]) -> str:
    if len(values) == 1:
        return f"{label}={string(values[0])}"
    return f"{label}=~{string('|'.join(map(_literal, values)))}"


def _literal(value: str) -> str:
    """A value in a regular expression of RE2, which accepts no escapes of ordinary characters."""
    return re.sub(r"([.+*?()|\[\]{}^$\\])", r"\\\1", value)


def string(value: str) -> str:
    """A PromQL string, with the same escapes as JSON."""
    return json.dumps(value, ensure_ascii=False)


def braces(matchers: Sequence[str]) -> str:
    """A selector without a name of its own."""
    return "{" + ",".join(matchers) + "}"
