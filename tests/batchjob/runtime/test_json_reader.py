"""The one reader of JSON."""

import ast
import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchjob.runtime.json_reader import MAX_DEPTH, first_json_value, parse_json

ROOT = Path(__file__).parents[3]
PACKAGES = (
    "batchjob", "batchjob_cli", "batchjob_exporter", "batchjob_stats_db", "batchjob_stats_server",
    "collectors",
)  # fmt: skip
READER = ROOT / "batchjob/runtime/json_reader.py"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b'{"a": 1, "a": 2}', "each name once, got 'a' twice"),
        (b'[{"b": {"a": 1, "c": 0, "a": 2}}]', "'a' twice"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"a":' * 100_000, "nested too deeply"),
        (b"", "Expecting value"),
        (b"1 2", "Extra data"),
        (b'"\xff', "Unterminated"),
    ],
)
def test_text_that_is_not_one_value_is_refused(text, reason):
    with pytest.raises(ValueError, match=reason):
        parse_json(text)


def nested(depth, inner="1"):
    """Lists and objects in turn."""
    return (
        '[{"a":' * (depth // 2)
        + "[" * (depth % 2)
        + inner
        + "]" * (depth % 2)
        + "}]" * (depth // 2)
    )


@pytest.mark.parametrize("parse", [parse_json, first_json_value])
@pytest.mark.parametrize("around", ["%s", '{"a": [[]], "b": [[1, "x"], [2, "["], %s, [3, "]"]]}'])
def test_depth_is_limited_whatever_else_the_text_holds(parse, around):
    depth = MAX_DEPTH - (2 if "b" in around else 0)
    assert parse(around % nested(depth))
    for deeper in (1, 2, 50, 800):
        with pytest.raises(ValueError, match="nested too deeply"):
            parse(around % nested(depth + deeper))


def test_brackets_in_a_text_are_no_depth():
    assert parse_json(f'"{"[" * 1000}"') == "[" * 1000
    assert parse_json(f'[["{"{" * 1000}"]]') == [["{" * 1000]]


def test_text_over_the_limit_is_refused():
    assert parse_json(b"[1,2]", 5) == [1, 2]
    with pytest.raises(ValueError, match="at most 4 bytes, got 5"):
        parse_json(b"[1,2]", 4)


@pytest.mark.parametrize("text", ["[NaN]", "[Infinity]", '{"a": -Infinity}'])
def test_numbers_that_are_not_finite_are_refused_where_they_must_be(text):
    parse_json(text)
    with pytest.raises(ValueError, match="finite number"):
        parse_json(text, finite=True)


def test_name_that_stands_twice_in_a_schedulers_answer_has_no_value():
    """qstat prints several limits of a queue under one name."""
    answer = '{"Queue": {"q": {"max": "[o:A=1]", "on": true, "max": "[u:B=2]"}}} and more'
    assert first_json_value(answer) == {"Queue": {"q": {"on": True}}}


def test_numbers_as_they_are_written():
    assert first_json_value("[1e5, 1.50, NaN]", numbers_as_text=True) == ["1e5", "1.50", "NaN"]


@given(st.binary() | st.from_regex(r'[\[{"a:,1\]}\\]*').map(str.encode))
def test_anything_is_parsed_or_refused(data):
    with contextlib.suppress(ValueError):
        parse_json(data)


DECODERS = ("load", "loads", "JSONDecoder", "decode", "Decoder")  # of json and of msgspec.json


def decoders(path):
    """Names that decode JSON without the reader, in one module."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute) and isinstance(node.value, (ast.Name, ast.Attribute)):
            owner = node.value.id if isinstance(node.value, ast.Name) else node.value.attr
            if owner == "json" and node.attr in (
                "load",
                "loads",
                "JSONDecoder",
                "decode",
                "Decoder",
            ):
                yield f"{path.relative_to(ROOT)}:{node.lineno}"
        if isinstance(node, ast.ImportFrom) and node.module in ("json", "json.decoder"):
            yield f"{path.relative_to(ROOT)}:{node.lineno}"


def test_no_other_module_decodes_json():
    found = [
        each
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
        if path != READER
        for each in decoders(path)
    ]
    assert found == []
    assert list(decoders(READER))
