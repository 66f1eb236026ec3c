"""Rights of a token follow its creator: on PostgreSQL."""

from tests.batchjob_stats_server.auth.test_rights import *  # noqa: F403
