"""The token of a start: in a file that its owner alone may read, and good until the stop.

Other people may reach a port of loopback too, so having it open is not enough to be believed. The
token is known to this process and to no database, so that it ends with the process in any case, and
no other server on the same database takes it.
"""

import secrets

from sqlalchemy.engine import URL

from batchjob_stats_db.database.tokens import TokenRole
from batchjob_stats_server.auth.rights import ProcessToken


def fresh(user: str, database: URL) -> ProcessToken:
    """Who starts it sees all jobs; tokens are theirs to make in a database of their own alone.

    One behind a server is a site's: a token in it would be good for the site's server as well.
    """
    own = database.get_backend_name() == "sqlite"
    role = TokenRole.ADMIN if own else TokenRole.VIEWER
    return ProcessToken(f"bj_{secrets.token_urlsafe(32)}", user, role, makes_tokens=own)
