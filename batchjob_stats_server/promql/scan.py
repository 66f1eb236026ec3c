"""Limits the length and the parts of a query before it is parsed, and reads its selectors after.

The parser compiles each regular expression, and copies the text read so far at each operator, while
no other request is served. So it is given a text with few operators and brackets, without comments,
and with numbers in place of the strings: nothing written by a user is compiled here.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

import promql_parser as ast

from batchjob_stats_db.timeseries.promql import promql_string
from batchjob_stats_server.promql.query_limits import (
    Growth,
    Malformed,
    QueryLimits,
    TooLarge,
    quote,
)

_TOKEN = re.compile(
    r"""
      (?P<blank> (?: [ \t\r\n] | \#[^\r\n]* )+ )
    | (?P<string> "(?:[^"\\\n]|\\.)*" | '(?:[^'\\\n]|\\.)*' | `[^`]*` )
    | (?P<word> [A-Za-z0-9_:.]+ )
    | (?P<open> [(\[{] )
    | (?P<close> [)\]}] )
    | (?P<operator> [=!]~ | [=!<>]= | [-+*/%^<>=] )
    | (?P<other> [,@] )
    """,
    re.VERBOSE | re.DOTALL | re.ASCII,
)
SMOOTHING = "double_exponential_smoothing"
# The parser knows Prometheus 3's name of the function only.
_RENAMED_FUNCTIONS = {"holt_winters": SMOOTHING}
_CALL = re.compile(r"(?:[ \t\r\n]|#[^\r\n]*)*\(")
_QUOTES = frozenset("\"'`")
_WORD_OPERATORS = frozenset({"and", "or", "unless", "atan2"})


class ScannedQuery(NamedTuple):
    """A query as the parser gets it, and its strings."""

    text: str
    strings: Sequence[str]

    def string(self, written: str) -> str:
        """The string or quoted name for what the parser has read; otherwise a plain name."""
        return self.strings[int(written)] if written.isdigit() else written


def scan(query: str, limits: QueryLimits) -> ScannedQuery:
    """Raises TooLarge beyond a limit, Malformed for text that cannot be in a query."""
    if len(query) > limits.query_characters:
        raise TooLarge(
            f"query of {len(query)} characters: at most {limits.query_characters} are allowed"
        )
    pieces: list[str] = []
    strings: list[str] = []
    operators = depth = at = 0
    while at < len(query):
        token = _TOKEN.match(query, at)
        if token is None:
            raise _syntax_error(query, at)
        kind, text = token.lastgroup, token.group()
        if kind == "string":
            strings.append(text)
            text = f'"{len(strings) - 1}"' if len(text) > 2 else '""'
        elif text in _RENAMED_FUNCTIONS and _CALL.match(query, token.end()):
            text = _RENAMED_FUNCTIONS[text]
        depth += (kind == "open") - (kind == "close")
        operators += kind == "operator" or text.lower() in _WORD_OPERATORS
        if depth > limits.depth:
            raise TooLarge(f"expression is nested deeper than {limits.depth}")
        pieces.append(" " if kind == "blank" else text)
        at = token.end()
    if max(operators, len(strings)) > limits.operators:
        raise TooLarge(
            f"{operators} operators and matchers, {len(strings)} strings: "
            f"at most {limits.operators} of each are allowed"
        )
    return ScannedQuery("".join(pieces), [_parse_string(literal) for literal in strings])


def _syntax_error(query: str, at: int) -> Malformed:
    if query[at] in _QUOTES:
        return Malformed(f"not PromQL: unterminated string at character {at + 1} is not closed")
    return Malformed(f"not PromQL: {quote(query[at])} at character {at + 1}")


def _parse_string(literal: str) -> str:
    """The value of a string, from the parser, which compiles nothing for a string alone.

    Between backquotes there are no escapes, but the parser expects them.
    """
    if literal[0] == "`":
        return literal[1:-1]
    parsed = ast.parse(literal)
    if not isinstance(parsed, ast.StringLiteral):
        raise Malformed(f"not PromQL: {quote(literal)}")
    return parsed.val


# Pairs, since members of the parser's enums are not hashable.
_OPERATORS = (
    (ast.MatchOp.Equal, "="),
    (ast.MatchOp.NotEqual, "!="),
    (ast.MatchOp.Re, "=~"),
    (ast.MatchOp.NotRe, "!~"),
)
# Metrics that belong to no user and reveal nothing about jobs.
PUBLIC_METRICS = frozenset(
    {"batchjob_emission_factor_grams_per_kilowatt_hour", "batchjob_emission_factor_age_seconds"}
)

_LABEL = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
# `or` joins matchers in VictoriaMetrics; the other two select a tenant of its cluster version.
_RESERVED = frozenset({"or", "vm_account_id", "vm_project_id"})


class Selector(NamedTuple):
    """Its matchers in PromQL; its name is one of them, since a name may be a keyword."""

    matchers: tuple[str, ...]
    names: frozenset[str]  # metric names that it selects with `=`
    clusters: frozenset[str]  # the same of the label `cluster`
    users: frozenset[str]
    jobids: frozenset[str]

    @classmethod
    def read(cls, node: ast.VectorSelector, scanned: ScannedQuery, growth: Growth) -> "Selector":
        """Raises Malformed for labels and matchers that are not allowed, TooLarge for a regex."""
        if node.matchers.or_matchers:
            raise Malformed("matchers joined by `or` are not allowed: use `or` between selectors")
        found = [("__name__", "=", scanned.string(node.name))] if node.name else []
        for each in node.matchers.matchers:
            operator = next(text for op, text in _OPERATORS if op == each.op)
            value = scanned.string(each.value)
            if operator in ("=~", "!~"):
                growth.check_regex(value)
            found.append((_check_label(scanned.string(each.name)), operator, value))
        return cls(
            tuple(f"{label}{operator}{promql_string(value)}" for label, operator, value in found),
            *(
                frozenset(value for *matched, value in found if matched == [label, "="])
                for label in ("__name__", "cluster", "user", "jobid")
            ),
        )

    def is_public(self) -> bool:
        """Whether it matches only public families: matchers can only narrow it."""
        return not self.names.isdisjoint(PUBLIC_METRICS)


def _check_label(name: str) -> str:
    # Some servers interpret __graphite__, __tenant_id__ and the like as commands, not as labels.
    if name != "__name__" and (name.startswith("__") or name.lower() in _RESERVED):
        raise Malformed(f"label {quote(name)} is not allowed in a selector")
    return label_name(name)


def label_name(label: str) -> str:
    """A label name that every server can write; raises Malformed."""
    if not _LABEL.fullmatch(label):
        raise Malformed(f"label {quote(label)}: expected letters, digits and _")
    return label
