"""The server of tests/batchjob_stats_server, for attacks on it."""

from tests.batchjob_stats_server.conftest import (  # noqa: F401
    database_path,
    database_template,
    database_url,
    services,
    site_authority,
    token_headers,
)
