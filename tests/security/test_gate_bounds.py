"""Hostile PromQL at the gate, before any database: it is rejected, in little CPU time."""

import contextlib
import json
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchjob_stats_db.database.access import Access, ClusterLogin
from batchjob_stats_server.promql.confinement import Confinement
from batchjob_stats_server.promql.query_limits import (
    LONGEST_QUERY,
    QueryError,
    QueryLimits,
    QueryWindow,
    TooLarge,
)
from batchjob_stats_server.promql.rewrite import confine, confine_selector
from tests.security.hostile_promql import AMPLIFYING_QUERIES, SLOW_QUERIES, nested

T = 1_700_000_000.0
MONTHS = QueryWindow(T - 10_999 * 60, T, 60.0)
ALICE = Confinement.of(Access((ClusterLogin("c1", "alice"),)), ())
MAX_CPU_SECONDS = 1.0  # 20 times what is needed, as the tests may share the CPU


def confine_for_alice(query, window=MONTHS):
    return confine(query, ALICE, window, QueryLimits())[0]


@contextlib.contextmanager
def little_cpu_time():
    started = time.process_time()
    yield
    assert time.process_time() - started < MAX_CPU_SECONDS


@pytest.mark.parametrize("query", AMPLIFYING_QUERIES.values(), ids=AMPLIFYING_QUERIES)
def test_amplifying_query_is_rejected(query):
    with pytest.raises(TooLarge):
        confine_for_alice(query)


@pytest.mark.parametrize("query", SLOW_QUERIES.values(), ids=SLOW_QUERIES)
def test_hostile_query_takes_little_cpu_time(query):
    with little_cpu_time(), contextlib.suppress(QueryError):
        confine_for_alice(query)
    with little_cpu_time(), contextlib.suppress(QueryError):
        confine_selector(query, ALICE, QueryLimits())


@pytest.mark.parametrize(
    "query",
    [
        'label_replace(a, "node", "$1", "instance", "([^:]+):.*")',
        'label_join(a, "id", "-", "cluster", "jobid", "instance")',
        nested(5, "a", 'label_replace(%s, "x", "$1", "y", "(.*)")'),
        "a * on (cluster, instance, jobid) group_left (name, partition) batchjob_job_info",
        "batchjob_job_info * on (instance, jobid) group_right (name) (a)",
        'a * on (jobid) group_left () b{instance=~"n[0-9]{3}"}',
        "avg_over_time(a[30d])",
        "max_over_time(rate(a[5m])[1d:15m])",
        'a{instance=~"' + "|".join(f"n{number:03}" for number in range(700)) + '"}',
    ],
)  # fmt: skip
def test_dashboard_query_is_accepted(query):
    assert confine_for_alice(query, QueryWindow(T - 90 * 86400, T, 90 * 86.4))


def test_count_values_is_accepted_at_one_time_only():
    at_once = QueryWindow(T, T)
    assert confine_for_alice('count_values("version", a)', at_once)
    with pytest.raises(TooLarge, match="count_values"):
        confine_for_alice('max_over_time(count_values("version", a)[1h:1m])', at_once)


def test_regular_expression_is_passed_on_unchanged():
    for pattern in ("(", "a{2}{3", "[[:word:]]+", r"\pL\Q.*\E", "0", "é", ""):
        written = json.dumps(pattern, ensure_ascii=False)
        assert f"x=~{written}" in confine_for_alice(f'a{{x=~{written},y="z"}}')


FRAGMENTS = [
    "a", "1", "(", ")", "{", "}", "[", "]", ",", "+", "-", "^", "<", ">", "==", " or ", " and ",
    " on (", "sum(", "rate(", "abs(", "[5m]", "[5m:1m]", " offset 1m", " @ 1", '"b"', '"', "'",
    "`", "\\", "#", "\n", "x=~", '"(\\\\pL{9})"', "a{b=~", '}', 'a{b=~"c.*"}', " by (x) ", "bool ",
]  # fmt: skip


@settings(max_examples=150)
@given(
    st.lists(st.sampled_from(FRAGMENTS), min_size=1, max_size=12), st.sampled_from(["", ")", "}"])
)
def test_longest_query_of_repeated_fragments_takes_little_cpu_time(fragments, end):
    text = "".join(fragments)
    query = text * (LONGEST_QUERY // len(text))
    closed = query[: LONGEST_QUERY // 2] + end * (LONGEST_QUERY // 2)
    with little_cpu_time():
        for each in (query, closed):
            with contextlib.suppress(QueryError):
                confine_for_alice(each)


OPERANDS = ['a{b=~"c.*"}', "1", "(a)", "-a", "sum by (x) (a)", "rate(a[5m])", "abs(a)"]
OPERATORS = [" + ", " or ", " ^ ", " > bool ", " * on (x) group_left () "]


@settings(max_examples=100)
@given(
    st.lists(st.tuples(st.sampled_from(OPERATORS), st.sampled_from(OPERANDS)), min_size=31,
             max_size=60),
    st.integers(0, 60),
)  # fmt: skip
def test_valid_query_at_the_limits_takes_little_cpu_time(terms, depth):
    query = "a" + "".join(operator + operand for operator, operand in terms)
    with little_cpu_time(), contextlib.suppress(QueryError):
        confine_for_alice("(" * depth + query + ")" * depth)
