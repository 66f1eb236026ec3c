"""Every route, every role, own and others' data: on PostgreSQL, with tokens of each role."""

from tests.batchjob_stats_server.test_access_matrix import (  # noqa: F401
    services,
    test_proxy_login_of_one_cluster_sees_only_tokens_of_that_cluster,
    test_same_login_on_another_cluster_cannot_see_or_revoke_tokens,
    test_token_of_one_cluster_sees_only_that_cluster,
    test_token_rights_are_limited_to_current_rights_of_its_maker,
    test_token_with_revoked_parent_or_unprivileged_maker_is_rejected,
    test_usage_sums_of_cluster_viewer_cover_only_that_cluster,
)
