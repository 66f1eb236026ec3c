"""Whose batch scripts somebody may read: their own, and an admin those of the admin's clusters.

Scripts may contain secrets such as passwords, so viewers and account coordinators see the jobs
without them.
"""

from batchjob_stats_db.database.access import Access, UserOn
from batchjob_stats_db.database.tokens import TokenRole
from batchjob_stats_server.auth.rights import Principal


def script_access(known: Principal, access: Access) -> Access:
    """The part of what somebody may see whose scripts may be read."""
    if known.role is TokenRole.ADMIN:
        return access
    logins = tuple(UserOn(cluster, known.user) for cluster in known.clusters or ("",))
    return Access(users=access.users or logins)
