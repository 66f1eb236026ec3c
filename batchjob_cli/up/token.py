"""The token of a `batchjob up`: in a file that only its owner may read, and valid until it stops.

Other users may reach a loopback port too, so reaching it is not enough to be trusted. The token is
known to this process and to no database, so that it ends with the process, and no other server on
the same database accepts it.
"""

import secrets

from sqlalchemy.engine import URL

from batchjob_stats_db.database.tokens import TokenRole
from batchjob_stats_server.auth.rights import ProcessToken


def create_token(user: str, database: URL) -> ProcessToken:
    """Create a token with which all jobs can be seen, and, in an SQLite database, tokens created.

    A database on a server is a site's: a token in it would be valid for the site's server as well.
    """
    own = database.get_backend_name() == "sqlite"
    role = TokenRole.ADMIN if own else TokenRole.VIEWER
    return ProcessToken(f"bj_{secrets.token_urlsafe(32)}", user, role, can_make_tokens=own)
