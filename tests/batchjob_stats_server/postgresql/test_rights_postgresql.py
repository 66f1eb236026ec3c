"""What a token may do follows its maker: on PostgreSQL."""

from tests.batchjob_stats_server.auth.test_rights import *  # noqa: F403
