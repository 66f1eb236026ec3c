"""The series that a selector may match: the matchers on cluster and user of an access."""

from collections.abc import Iterable, Sequence, Set
from enum import IntEnum
from typing import NamedTuple

from batchjob_stats_db.database.access import Access, ClusterLogin
from batchjob_stats_db.timeseries.promql import matcher
from batchjob_stats_server.promql.query_limits import NotYours
from batchjob_stats_server.promql.scan import Selector

_MAX_LOGINS_NAMED = 5  # maximum logins named in a message


class LeftOut(IntEnum):
    """What a confined query may leave out of the original's answer."""

    NOTHING = 0
    OTHERS_JOB = 1  # a job, which is the caller's if it has series at all
    OTHERS_SERIES = 2


class Confinement(NamedTuple):
    """Logins whose series may be read, each with its cluster; None: all series."""

    logins: tuple[ClusterLogin, ...] | None
    # Clusters of which all series may be read; if set, logins are ignored.
    whole_clusters: tuple[str, ...] = ()

    @classmethod
    def of(cls, access: Access, clusters: Iterable[str]) -> "Confinement":
        """The confinement of an access; a login on every cluster is one on each of `clusters`.

        Accounts are ignored, since series have no account: coordinators see those jobs
        elsewhere. So are the clusters of somebody with logins: one selector cannot match both.
        """
        if access.everything:
            return cls(None)
        if access.clusters and not access.users:
            return cls((), tuple(sorted(filter(None, access.clusters))))
        all_clusters = sorted(set(clusters))
        return cls(
            tuple(
                each._replace(cluster=cluster)
                for each in access.users
                for cluster in ([each.cluster] if each.cluster else all_clusters)
                # In a matcher, an empty value selects series without the label, which are not this
                # user's.
                if each.user and cluster
            )
        )

    def clusters(self) -> list[str]:
        """Those on which the caller has a login."""
        return sorted({each.cluster for each in self.logins or ()})

    def left_out(self, selector: Selector) -> LeftOut:
        """What its matchers take from a selector; ids of jobs are unique on a cluster."""
        if self.logins is None:
            return LeftOut.NOTHING
        if len(selector.clusters) == 1:
            names = {(each.cluster, each.user) for each in self.logins}
            if {(*selector.clusters, user) for user in selector.users} & names:
                return LeftOut.NOTHING
            if selector.jobids:
                return LeftOut.OTHERS_JOB
        return LeftOut.OTHERS_SERIES

    def describe(self) -> str:
        """A sentence that says whose series are queried; empty if all are."""
        if self.logins is None:
            return ""
        whose = [f"cluster {cluster}" for cluster in self.whole_clusters] or [
            f"user {each.user} on {each.cluster}" for each in self.logins
        ]
        more = len(whose) - _MAX_LOGINS_NAMED
        text = ", ".join(whose[:_MAX_LOGINS_NAMED]) + (f" and {more} more" if more > 0 else "")
        return f"only series of {text or 'nobody: you have no login on a cluster'} were queried"

    def matchers(self, selected_clusters: Set[str]) -> list[list[str]]:
        """What to add to a selector; several lists if only several selectors can express it.

        `selected_clusters`: clusters that the selector names with `=`.
        """
        if self.logins is None:
            return [[]]
        if self.whole_clusters:
            return [[matcher("cluster", self.whole_clusters)]]
        logins = [
            each
            for each in self.logins
            if not selected_clusters or selected_clusters == {each.cluster}
        ]
        if not self.logins:
            raise NotYours("you have no login on any known cluster")
        if not logins:
            # Another user's cluster: these matchers exclude each other, so that the answer is
            # empty.
            return [_matchers([self.logins[0].cluster], [self.logins[0].user])]
        users_on: dict[str, set[str]] = {}
        for login in logins:
            users_on.setdefault(login.cluster, set()).add(login.user)
        # One selector can only express "each of these users on each of these clusters".
        clusters_with: dict[tuple[str, ...], list[str]] = {}
        for cluster, users in sorted(users_on.items()):
            clusters_with.setdefault(tuple(sorted(users)), []).append(cluster)
        return [_matchers(clusters, users) for users, clusters in clusters_with.items()]

    def selectors(self) -> list[str]:
        """Selectors of all series the caller may read; none if no confinement is needed."""
        if self.logins is None:
            return []
        return [format_selector(group) for group in self.matchers(frozenset())]


def _matchers(clusters: Sequence[str], users: Sequence[str]) -> list[str]:
    return [matcher("cluster", clusters), matcher("user", users)]


def format_selector(matchers: Sequence[str]) -> str:
    """A selector without a name of its own."""
    return "{" + ",".join(matchers) + "}"
