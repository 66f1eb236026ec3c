"""The example site of the server's tests, for attacks on it."""

from tests.batchjob_stats_server.conftest import (  # noqa: F401
    database_url,
    filled,
    path,
    services,
    site_authority,
    token,
)
