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
INSTANT = QueryWindow(T, T)
LIMITS = QueryLimits()
ALICE = Confinement.of(Access((ClusterLogin("c1", "alice"),)), ())
MINE = 'cluster="c1",user="alice"'
PARENTHESES = str.maketrans("", "", "()")
FACTOR = "batchjob_emission_factor_grams_per_kilowatt_hour"


def confined(query, confinement=ALICE, window=INSTANT, limits=LIMITS):
    return confine(query, confinement, window, limits)[0]


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
        (r"a{x=~`n\d+\.`}", f'{{__name__="a",x=~"n\\\\d+\\\\.",{MINE}}}'),
        (r"a{x=`C:\dir\`}", f'{{__name__="a",x="C:\\\\dir\\\\",{MINE}}}'),
        ('a{x=`say "x"`}', f'{{__name__="a",x="say \\"x\\"",{MINE}}}'),
        (
            "holt_winters # old\n(a[1m], 0.5, 0.1)",
            f'double_exponential_smoothing({{__name__="a",{MINE}}}[60000ms], 0.5, 0.1)',
        ),
        ("holt_winters", f'{{__name__="holt_winters",{MINE}}}'),
        (FACTOR, f'{{__name__="{FACTOR}"}}'),
        (f'{{__name__="{FACTOR}", zone="FR"}}', f'{{__name__="{FACTOR}",zone="FR"}}'),
    ],
)
def test_query_is_rewritten_with_matchers_of_the_user(query, expected):
    assert confined(query) == expected


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
        r"a{x=`\`} or b{user=`bob\`}",
        'a{x="} or {user=\\"bob\\""}',
        'a{x="\\"} or {user=\\"bob\\"} #"}',
        "a{x='\"} or b{'}",
        "max_over_time((a)[1h:1m] @ end() offset -1h)",
        'label_replace(a, "user", "bob", "x", "}")',
    ],
)
def test_escape_attempt_is_confined(query):
    check_confined(confined(query))


def test_public_metric_does_not_exempt_other_selectors():
    assert confined(f"{FACTOR} or a") == f'{{__name__="{FACTOR}"}} or {{__name__="a",{MINE}}}'


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
def test_unsupported_syntax_is_rejected(query, says):
    with pytest.raises(Malformed, match=says) as raised:
        confined(query)
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
def test_expensive_query_is_rejected(query, says):
    with pytest.raises(QueryError, match=says):
        confined(query)


def test_subquery_limit_covers_the_whole_query_range():
    confined("max_over_time((a)[1h:1s])")
    with pytest.raises(TooLarge, match="points"):
        confined("max_over_time((a)[1h:1s])", window=QueryWindow(T - 86400, T))


def test_several_logins_give_one_selector():
    confinement = Confinement.of(
        Access((ClusterLogin("", "a.b"), ClusterLogin("", "al"))), ("c2", "c1")
    )
    assert confined("up", confinement) == r'{__name__="up",cluster=~"c1|c2",user=~"a\\.b|al"}'


def test_foreign_cluster_matcher_is_kept_beside_own():
    assert confined('up{cluster="c9"}') == '{__name__="up",cluster="c9",cluster="c1",user="alice"}'


def test_different_logins_per_cluster_are_not_combined():
    confinement = Confinement.of(
        Access((ClusterLogin("c1", "alice"), ClusterLogin("c2", "asmith"))), ()
    )
    with pytest.raises(NotYours, match='such as cluster="c1"'):
        confined("up", confinement)
    assert confined('up{cluster="c2"}', confinement) == (
        '{__name__="up",cluster="c2",cluster="c2",user="asmith"}'
    )
    assert confine_selector("up", confinement, QueryLimits()) == [
        '{__name__="up",cluster="c1",user="alice"}',
        '{__name__="up",cluster="c2",user="asmith"}',
    ]
    assert confinement.selectors() == [
        '{cluster="c1",user="alice"}',
        '{cluster="c2",user="asmith"}',
    ]


@pytest.mark.parametrize(
    "access",
    [NOTHING, Access(accounts=(ClusterAccount("c1", "physics"),)), Access((ClusterLogin("", ""),))],
)
def test_access_without_login_reads_only_public_metrics(access):
    confinement = Confinement.of(access, ("c1",))
    with pytest.raises(NotYours):
        confined("up", confinement)
    with pytest.raises(NotYours):
        confinement.selectors()
    assert confined(FACTOR, confinement)


def test_viewer_of_some_clusters_is_confined_to_them():
    confinement = Confinement.of(Access(clusters=("c2", "c1")), ("c1", "c2", "c3"))
    assert confined('a{user="bob"}', confinement) == '{__name__="a",user="bob",cluster=~"c1|c2"}'
    assert confined('rate(a{cluster="c3"}[5m])', confinement) == (
        'rate({__name__="a",cluster="c3",cluster=~"c1|c2"}[300000ms])'
    )
    assert confinement.selectors() == ['{cluster=~"c1|c2"}']
    assert confined(FACTOR, confinement) == confined(FACTOR)


def test_user_with_login_reads_only_its_series():
    """An administrator of Slurm sees the others' jobs elsewhere, as a coordinator does."""
    confinement = Confinement.of(
        Access((ClusterLogin("c1", "alice"),), clusters=("c1",)), ("c1", "c2")
    )
    assert confined("a", confinement) == '{__name__="a",cluster="c1",user="alice"}'


def test_viewer_is_limited_but_not_confined():
    confinement = Confinement.of(EVERYTHING, ())
    assert confined('a{user="bob"}', confinement) == '{__name__="a",user="bob"}'
    assert confinement.selectors() == []
    with pytest.raises(Malformed):
        confined('a{x="1" or y="2"}', confinement)


@pytest.mark.parametrize("text", ["sum(a)", "a[5m]", "a offset 5m", "a @ 1", "a or b", "1", '"a"'])
def test_match_accepts_only_a_selector(text):
    with pytest.raises(Malformed, match="selector"):
        confine_selector(text, ALICE, QueryLimits())


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
        text = confined(query)
    except TooLarge:
        return
    except Malformed:
        with pytest.raises(ValueError):  # noqa: PT011  the parser's own words are its business
            promql_parser.parse(query)
        return
    check_confined(text)
    reparsed = confined(text, Confinement.of(EVERYTHING, ()))
    assert reparsed.translate(PARENTHESES) == text.translate(PARENTHESES)


@settings(max_examples=150, deadline=None)
@given(st.text(st.sampled_from("ab{}[]()\"'`\\=~!,:@#\n 15mor_+-*"), max_size=40))
def test_arbitrary_text_raises_only_query_errors(text):
    with contextlib.suppress(QueryError):
        confined(confined(text), Confinement.of(EVERYTHING, ()))
