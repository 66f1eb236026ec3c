"""Sessions of people who log in at the provider, and their end: on PostgreSQL."""

from tests.batchjob_stats_server.auth.test_oidc import (  # noqa: F401
    browser,
    moment,
    provider,
    services,
    test_a_callback_is_good_once,
    test_a_session_ends_by_itself,
    test_log_in,
    test_sign_out_ends_the_sessions_everywhere,
    test_the_provider_ends_a_session,
    test_tokens_follow_the_last_log_in,
)
