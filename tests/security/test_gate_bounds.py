"""Hostile PromQL at the gate, before any database: refused, and in little time of the processor."""

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
from tests.security.hostile_promql import GROWING, STOPPING, nested

T = 1_700_000_000.0
MONTHS = QueryWindow(T - 10_999 * 60, T, 60.0)
ALICE = Confinement.of(Access((ClusterLogin("c1", "alice"),)), ())
MOST_SECONDS = 1.0  # of the processor, which others may use as well: 20 times what is needed


def confined(query, window=MONTHS):
    return confine(query, ALICE, window, QueryLimits())


@contextlib.contextmanager
def little_work():
    begun = time.process_time()
    yield
    assert time.process_time() - begun < MOST_SECONDS


@pytest.mark.parametrize("query", GROWING.values(), ids=GROWING)
def test_what_grows_faster_than_the_query_is_refused(query):
    with pytest.raises(TooLarge):
        confined(query)


@pytest.mark.parametrize("query", STOPPING.values(), ids=STOPPING)
def test_no_query_keeps_the_server_busy(query):
    with little_work(), contextlib.suppress(QueryError):
        confined(query)
    with little_work(), contextlib.suppress(QueryError):
        confine_selector(query, ALICE, MONTHS, QueryLimits())


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
def test_what_dashboards_ask_is_let_through(query):
    assert confined(query, QueryWindow(T - 90 * 86400, T, 90 * 86.4))


def test_count_values_at_one_time():
    at_once = QueryWindow(T, T)
    assert confined('count_values("version", a)', at_once)
    with pytest.raises(TooLarge, match="count_values"):
        confined('max_over_time(count_values("version", a)[1h:1m])', at_once)


def test_a_regular_expression_is_handed_on_as_it_is():
    for pattern in ("(", "a{2}{3", "[[:word:]]+", r"\pL\Q.*\E", "0", "é", ""):
        written = json.dumps(pattern, ensure_ascii=False)
        assert f"x=~{written}" in confined(f'a{{x=~{written},y="z"}}')


PIECES = [
    "a", "1", "(", ")", "{", "}", "[", "]", ",", "+", "-", "^", "<", ">", "==", " or ", " and ",
    " on (", "sum(", "rate(", "abs(", "[5m]", "[5m:1m]", " offset 1m", " @ 1", '"b"', '"', "'",
    "`", "\\", "#", "\n", "x=~", '"(\\\\pL{9})"', "a{b=~", '}', 'a{b=~"c.*"}', " by (x) ", "bool ",
]  # fmt: skip


@settings(max_examples=150)
@given(st.lists(st.sampled_from(PIECES), min_size=1, max_size=12), st.sampled_from(["", ")", "}"]))
def test_pieces_repeated_to_the_longest_query_are_little_work(pieces, end):
    piece = "".join(pieces)
    query = piece * (LONGEST_QUERY // len(piece))
    closed = query[: LONGEST_QUERY // 2] + end * (LONGEST_QUERY // 2)
    with little_work():
        for each in (query, closed):
            with contextlib.suppress(QueryError):
                confined(each)


OPERANDS = ['a{b=~"c.*"}', "1", "(a)", "-a", "sum by (x) (a)", "rate(a[5m])", "abs(a)"]
OPERATORS = [" + ", " or ", " ^ ", " > bool ", " * on (x) group_left () "]


@settings(max_examples=100)
@given(
    st.lists(st.tuples(st.sampled_from(OPERATORS), st.sampled_from(OPERANDS)), min_size=31,
             max_size=60),
    st.integers(0, 60),
)  # fmt: skip
def test_sound_queries_at_the_bounds_are_little_work(terms, depth):
    query = "a" + "".join(operator + operand for operator, operand in terms)
    with little_work(), contextlib.suppress(QueryError):
        confined("(" * depth + query + ")" * depth)
