"""Every route, every role, own and others' data: on PostgreSQL, with tokens of each role."""

from tests.batchjob_stats_server.test_access_matrix import (  # noqa: F401
    services,
    test_a_token_may_no_more_than_its_maker_may_now,
    test_logins_of_a_proxy_for_some_clusters_have_only_the_tokens_of_these,
    test_namesakes_neither_see_nor_revoke_each_other_s_tokens,
    test_sums_of_a_viewer_of_one_cluster_are_those_of_the_cluster,
    test_tokens_for_one_cluster,
    test_tokens_that_are_good_no_more,
)
