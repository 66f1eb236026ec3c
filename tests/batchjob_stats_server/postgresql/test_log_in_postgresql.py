"""Log-in sessions and their end: on PostgreSQL."""

from tests.batchjob_stats_server.auth.test_oidc import (  # noqa: F401
    current_time,
    make_browser,
    provider,
    services,
    test_back_channel_log_out_ends_session,
    test_callback_works_once,
    test_log_in,
    test_session_expires,
    test_sign_out_ends_all_sessions_of_the_user,
    test_token_role_follows_groups_of_the_last_log_in,
)
