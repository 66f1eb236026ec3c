import pytest

from batchjob_stats_server.promql.confinement import Confinement
from batchjob_stats_server.promql.endpoints import LABELS, parse_params
from batchjob_stats_server.promql.query_limits import Malformed, QueryLimits

ALL = frozenset({"query", "time", "start", "end", "step", "timeout", "limit", "match[]"})


def test_values_are_parsed():
    params = parse_params(
        [
            ("query", "up"),
            ("time", "2023-11-14T22:13:20.5Z"),
            ("start", "1700000000.25"),
            ("step", "1m30s"),
            ("timeout", "5"),
            ("limit", "7"),
            ("match[]", "a"),
            ("match[]", "b"),
        ],
        ALL,
    )
    assert params == {
        "query": "up",
        "time": 1700000000.5,
        "start": 1700000000.25,
        "step": 90.0,
        "timeout": 5.0,
        "limit": 7,
        "match[]": ("a", "b"),
    }


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("time", ""),
        ("time", "now"),
        ("time", "nan"),
        ("time", "-1"),
        ("time", "1e300"),
        ("start", "inf"),
        ("start", "2023-11-14T22:13:20"),
        ("end", "1700000000&extra_label=user=bob"),
        ("step", "0"),
        ("step", "-1m"),
        ("step", "5m; drop"),
        ("step", "9" * 400 + "m"),
        ("step", "999999999y"),
        ("timeout", "inf"),
        ("limit", "-1"),
        ("limit", "٣"),
        ("limit", "1" * 5000),
    ],
)
def test_invalid_value_is_rejected_by_name(name, text):
    with pytest.raises(Malformed, match=f"^{name}: expected") as raised:
        parse_params([(name, text)], ALL)
    assert len(str(raised.value)) < 250


@pytest.mark.parametrize(
    "name",
    ["extra_label", "extra_filters[]", "dedup", "nocache", "match", "Query", "query ", "stats", ""],
)
def test_unknown_parameter_is_rejected(name):
    with pytest.raises(Malformed, match="not known here"):
        parse_params([(name, "1")], ALL)


def test_repeated_parameter_is_rejected():
    with pytest.raises(Malformed, match="query: expected once"):
        parse_params([("query", "a"), ("query", "a")], ALL)


def test_window_defaults():
    def times(*pairs):
        fields, _ = LABELS.form(parse_params(pairs, ALL), Confinement(None), 1e6, QueryLimits())
        return [value for name, value in fields if name in ("start", "end")]

    assert times() == ["913600.000", "1000000.000"]
    assert times(("end", "500000")) == ["413600.000", "500000.000"]
