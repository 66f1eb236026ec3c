import contextlib

import promql_parser
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchjob_stats_db.database.access import (
    EVERYTHING,
    NOTHING,
    Access,
    ClusterAccount,
    ClusterLogin,
)
from batchjob_stats_server.promql.confinement import Confinement
from batchjob_stats_server.promql.query_limits import (
    Malformed,
    NotYours,
    QueryError,
    QueryLimits,
    QueryWindow,
    TooLarge,
)
from batchjob_stats_server.promql.rewrite import confine, confine_selector
from tests.batchjob_stats_server.promql.expressions import EXPRESSIONS

T = 1_700_000_000.0
NOW = QueryWindow(T, T)
LIMITS = QueryLimits()
ALICE = Confinement.of(Access((ClusterLogin("c1", "alice"),)), ())
MINE = 'cluster="c1",user="alice"'
PARENTHESES = str.maketrans("", "", "()")
FACTOR = "batchjob_emission_factor_grams_per_kilowatt_hour"


def asked(query, own=ALICE, window=NOW, limits=LIMITS):
    return confine(query, own, window, limits)


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("up", f'{{__name__="up",{MINE}}}'),
        ("a{x='1'}[5m]", f'{{__name__="a",x="1",{MINE}}}[300000ms]'),
        ("-a offset -5m", f'-{{__name__="a",{MINE}}} offset -300000ms'),
        ("a @ 12 offset 1h", f'{{__name__="a",{MINE}}} @ 12.000 offset 3600000ms'),
        ("(a)[1h:]", f'({{__name__="a",{MINE}}})[3600000ms:60000ms]'),
        ("sum by (x) (rate(a[1m]))", f'sum by (x) (rate({{__name__="a",{MINE}}}[60000ms]))'),
        (
            "a / on (instance, jobid) group_left (y) b",
            f'{{__name__="a",{MINE}}} / on (instance, jobid) group_left (y) '
            f'{{__name__="b",{MINE}}}',
        ),
        ("2 ^ -a", f'2.0 ^ (-{{__name__="a",{MINE}}})'),
        ("a # }\n > bool 1", f'{{__name__="a",{MINE}}} > bool 1.0'),
        ("1 + 1", "1.0 + 1.0"),
        (FACTOR, f'{{__name__="{FACTOR}"}}'),
        (f'{{__name__="{FACTOR}", zone="FR"}}', f'{{__name__="{FACTOR}",zone="FR"}}'),
    ],
)
def test_query_is_written_anew_with_the_callers_matchers(query, expected):
    assert asked(query) == expected


@pytest.mark.parametrize(
    "query",
    [
        'a{user="bob"}',
        'a{user=~".*"}',
        'a{user!="alice"}',
        '{__name__=~".+"}',
        f'{{__name__=~"{FACTOR}|a"}}',
        f'{{__name__=~"{FACTOR}"}}',
        f'{{__name__!="{FACTOR}", x="1"}}',
        f'{{job="{FACTOR}"}}',
        '{"a", user="bob"}',
        'absent(a{user="bob"})',
        'a{x="} or {user=\\"bob\\""}',
        'a{x="\\"} or {user=\\"bob\\"} #"}',
        "a{x='\"} or b{'}",
        "max_over_time((a)[1h:1m] @ end() offset -1h)",
        'label_replace(a, "user", "bob", "x", "}")',
    ],
)
def test_what_looks_like_an_escape_is_only_narrowed(query):
    check_confined(asked(query))


def test_a_public_name_frees_no_other_selector():
    assert asked(f"{FACTOR} or a") == f'{{__name__="{FACTOR}"}} or {{__name__="a",{MINE}}}'


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ('a{x="1" or user="bob"}', "joined by `or`"),
        ('a{user="bob" or cluster="c1",user="alice"}', "joined by `or`"),
        ('a{or="1"}', "'or' is not allowed"),
        ('a{OR="1"}', "'OR' is not allowed"),
        ('{__graphite__="*.bob", x="1"}', "__graphite__"),
        ('a{__tenant_id__="bob"}', "__tenant_id__"),
        ('a{vm_account_id="1"}', "vm_account_id"),
        ('a{"x y"="1"}', "expected letters"),
        ('sum by ("x) (b{} or c") (a)', "expected letters"),
        ("info(a)", "info"),
        ("info(a, {__name__=~'.+'})", "info"),
        ("limitk(1, a)", "limitk"),
        ("a + fill(0) b", "fill"),
        ("WITH (x = a) x", "not PromQL"),
        ("union(a, b)", "not PromQL"),
        ("rate(a)", "not PromQL"),
        ("a keep_metric_names", "not PromQL"),
        ("a; b", "not PromQL"),
        ("", "not PromQL"),
        ("{}", "not PromQL"),
        ("a{", "not PromQL"),
        ("a\x00", "not PromQL"),
        ("'; DROP TABLE job; --", "not PromQL"),
        ("a[1e300]", "out of range"),
        ("a @ -5", "out of range"),
        ("a @ 1e20", "not PromQL"),
        ("a offset 1e15", "not PromQL"),
    ],
)
def test_what_the_gate_does_not_know_is_refused(query, says):
    with pytest.raises(Malformed, match=says) as raised:
        asked(query)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("a" * 10_000_000, "10000000 characters"),
        ("+".join("a" * 2000), "1999 operators"),
        ("+".join(["a"] * 40), "more than 32 selectors"),
        ("(" * 100 + "a" + ")" * 100, "nested deeper than 64"),
        ("abs(" * 70 + "a" + ")" * 70, "nested deeper than 64"),
        ("a[101d]", "to 100 days"),
        ("(a)[101d:1h]", "to 100 days"),
        ("(a)[30d:1s]", "points: at most 11000"),
        ("((a)[1h:1s])[1h:]", "not PromQL"),
        ("max_over_time(max_over_time(a[1h:1s])[90d:1h])", "points: at most 11000"),
    ],
)
def test_what_costs_too_much_is_refused(query, says):
    with pytest.raises(QueryError, match=says):
        asked(query)


def test_subqueries_are_bounded_over_the_whole_range_of_a_range_query():
    asked("max_over_time((a)[1h:1s])")
    with pytest.raises(TooLarge, match="points"):
        asked("max_over_time((a)[1h:1s])", window=QueryWindow(T - 86400, T))


def test_several_logins_in_one_selector():
    own = Confinement.of(Access((ClusterLogin("", "a.b"), ClusterLogin("", "al"))), ("c2", "c1"))
    assert asked("up", own) == r'{__name__="up",cluster=~"c1|c2",user=~"a\\.b|al"}'


def test_a_cluster_of_others_gives_matchers_that_exclude_each_other():
    assert asked('up{cluster="c9"}') == '{__name__="up",cluster="c9",cluster="c1",user="alice"}'


def test_logins_that_differ_between_clusters_never_make_a_cross_product():
    own = Confinement.of(Access((ClusterLogin("c1", "alice"), ClusterLogin("c2", "asmith"))), ())
    with pytest.raises(NotYours, match='such as cluster="c1"'):
        asked("up", own)
    assert asked('up{cluster="c2"}', own) == (
        '{__name__="up",cluster="c2",cluster="c2",user="asmith"}'
    )
    assert confine_selector("up", own, NOW, QueryLimits()) == [
        '{__name__="up",cluster="c1",user="alice"}',
        '{__name__="up",cluster="c2",user="asmith"}',
    ]
    assert own.selectors(NOW) == [
        '{cluster="c1",user="alice"}',
        '{cluster="c2",user="asmith"}',
    ]


@pytest.mark.parametrize(
    "query",
    ["a offset 1h", "a[1h]", "(a)[1h:]", "a @ 1699998000", "max_over_time(rate(a[10m])[15m:1m])"],
)
def test_a_login_given_anew_does_not_show_its_former_holder(query):
    own = Confinement.of(Access((ClusterLogin("c1", "alice", since=int(T) - 1800),)), ())
    asked("a[10m] offset 5m", own)
    with pytest.raises(NotYours, match=r"1699998200|no login"):
        asked(query, own)
    with pytest.raises(NotYours):
        asked("a", own, QueryWindow(T - 600, T, 1800))


def test_a_login_of_another_time_is_left_out():
    logins = (ClusterLogin("c1", "alice", until=int(T) - 86400), ClusterLogin("c2", "alice"))
    own = Confinement.of(Access(logins), ())
    assert asked("a", own) == '{__name__="a",cluster="c2",user="alice"}'
    with pytest.raises(NotYours, match="reaches from"):
        asked("a offset 1d", own)


@pytest.mark.parametrize(
    "access",
    [NOTHING, Access(accounts=(ClusterAccount("c1", "physics"),)), Access((ClusterLogin("", ""),))],
)
def test_nobody_in_particular_reads_only_what_is_public(access):
    own = Confinement.of(access, ("c1",))
    with pytest.raises(NotYours):
        asked("up", own)
    with pytest.raises(NotYours):
        own.selectors(NOW)
    assert asked(FACTOR, own)


def test_a_viewer_of_some_clusters_is_confined_to_these():
    own = Confinement.of(Access(clusters=("c2", "c1")), ("c1", "c2", "c3"))
    assert asked('a{user="bob"}', own) == '{__name__="a",user="bob",cluster=~"c1|c2"}'
    assert asked('rate(a{cluster="c3"}[5m])', own) == (
        'rate({__name__="a",cluster="c3",cluster=~"c1|c2"}[300000ms])'
    )
    assert own.selectors(NOW) == ['{cluster=~"c1|c2"}']
    assert asked(FACTOR, own) == asked(FACTOR)


def test_who_has_a_login_reads_its_series_alone():
    """An administrator of Slurm sees the others' jobs elsewhere, as a coordinator does."""
    own = Confinement.of(Access((ClusterLogin("c1", "alice"),), clusters=("c1",)), ("c1", "c2"))
    assert asked("a", own) == '{__name__="a",cluster="c1",user="alice"}'


def test_a_viewer_is_bounded_but_not_confined():
    own = Confinement.of(EVERYTHING, ())
    assert asked('a{user="bob"}', own) == '{__name__="a",user="bob"}'
    assert own.selectors(NOW) == []
    with pytest.raises(Malformed):
        asked('a{x="1" or y="2"}', own)


@pytest.mark.parametrize("text", ["sum(a)", "a[5m]", "a offset 5m", "a @ 1", "a or b", "1", '"a"'])
def test_match_takes_a_selector_alone(text):
    with pytest.raises(Malformed, match="selector"):
        confine_selector(text, ALICE, NOW, QueryLimits())


def check_confined(text):
    """Every selector of a written query has the caller's matchers; read by the parser again."""
    found = []

    def visit(node):
        if isinstance(node, promql_parser.MatrixSelector):
            node = node.vector_selector
        if isinstance(node, promql_parser.VectorSelector):
            found.append(node)

    promql_parser.walk(promql_parser.parse(text), visit)
    assert found
    for node in found:
        assert not node.matchers.or_matchers
        equal = {
            (each.name, each.value)
            for each in node.matchers.matchers
            if each.op == promql_parser.MatchOp.Equal
        }
        assert {("cluster", "c1"), ("user", "alice")} <= equal


@settings(max_examples=150, deadline=None)
@given(EXPRESSIONS)
def test_every_selector_of_any_query_is_confined(query):
    try:
        text = asked(query)
    except TooLarge:
        return
    except Malformed:
        with pytest.raises(ValueError):  # noqa: PT011  the parser's own words are its business
            promql_parser.parse(query)
        return
    check_confined(text)
    again = asked(text, Confinement.of(EVERYTHING, ()))
    assert again.translate(PARENTHESES) == text.translate(PARENTHESES)


@settings(max_examples=150, deadline=None)
@given(st.text(st.sampled_from("ab{}[]()\"'`\\=~!,:@#\n 15mor_+-*"), max_size=40))
def test_no_text_is_an_error_of_ours(text):
    with contextlib.suppress(QueryError):
        asked(asked(text), Confinement.of(EVERYTHING, ()))
