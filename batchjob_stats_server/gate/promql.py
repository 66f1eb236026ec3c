"""PromQL of users, confined to what is theirs.

A query is parsed and written anew from its syntax tree, in the language Prometheus 2.42 and
VictoriaMetrics share; every selector is written with matchers on `cluster` and `user` added, which
can only narrow it. What the writer below doesn't know is refused, so an extension of the language
(VictoriaMetrics' `or` matchers and WITH templates, Prometheus' info(), which reads series no
selector names) stays outside until somebody has thought about it.

The parser's own printing is not used: it writes strings without escapes.
"""

import contextlib
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

import promql_parser as ast

from batchjob_stats_server.gate.bounds import (
    LONGEST_QUERY,
    Limits,
    Malformed,
    NotYours,
    QueryError,
    TooLarge,
    Window,
    days,
    points,
    shown,
)
from batchjob_stats_server.gate.confinement import Confinement, braces, string
from batchjob_stats_server.gate.language import AGGREGATIONS, FUNCTIONS, OPERATORS, PUBLIC


def confine(query: str, own: Confinement, window: Window, limits: Limits) -> str:
    """What to ask in place of a query evaluated over `window`; QueryError if nothing."""
    with _parser_errors():
        return _Writer(own, window, limits).write(_parse(query, limits), window, 0)


def confine_selector(query: str, own: Confinement, window: Window, limits: Limits) -> list[str]:
    """Selectors for match[] in place of one; together they mean the caller's part of it."""
    with _parser_errors():
        node = _parse(query, limits)
        if not isinstance(node, ast.VectorSelector) or node.offset or node.at:
            raise Malformed(f"match[]: expected a series selector alone, got {shown(query)}")
        fixed = _matchers(node)
        groups = [[]] if _is_public(node) else own.matchers(_named_clusters(node), window)
        return [braces([*fixed, *group]) for group in groups]


def _parse(query: str, limits: Limits) -> ast.Expr:
    longest = min(limits.query_characters, LONGEST_QUERY)
    if len(query) > longest:
        raise TooLarge(f"query of {len(query)} characters: at most {longest}")
    parsed: ast.Expr = ast.parse(query)
    return parsed


@contextlib.contextmanager
def _parser_errors() -> Iterator[None]:
    """Make Malformed of what the parser and the parts of its tree raise."""
    try:
        yield
    except QueryError:
        raise
    except (ValueError, OverflowError) as error:
        raise Malformed(f"not PromQL: {shown(str(error))}") from error
    except BaseException as error:
        # A panic of the parser, as for times beyond 2**64 s or before 1970 after `@`; pyo3 makes
        # its class anew, no Exception, and importable from nowhere.
        if type(error).__name__ != "PanicException":
            raise
        raise Malformed("not PromQL: a number is out of range") from error


class _Writer:
    """Writes one expression; counts its selectors."""

    def __init__(self, own: Confinement, whole: Window, limits: Limits) -> None:
        self._own, self._whole, self._limits = own, whole, limits
        self._selectors = 0

    def write(self, node: ast.Expr, window: Window, depth: int) -> str:
        if depth > self._limits.depth:
            raise TooLarge(f"expression nested deeper than {self._limits.depth}")
        known = _WRITERS.get(type(node))
        if known is None:
            raise Malformed(f"{type(node).__name__} is not allowed here")
        return known(self, node, window, depth + 1)

    def selector(self, node: ast.VectorSelector, window: Window, _depth: int) -> str:
        return self._series(node, window, "", 0.0)

    def matrix(self, node: Any, window: Window, _depth: int) -> str:
        seconds = self._range(node.range)
        return self._series(node.vector_selector, window, f"[{_duration(seconds)}]", seconds)

    def _series(
        self, node: ast.VectorSelector, window: Window, brackets: str, seconds: float
    ) -> str:
        self._selectors += 1
        if self._selectors > self._limits.selectors:
            raise TooLarge(f"more than {self._limits.selectors} selectors")
        shifted, modifiers = self._shifted(node, window)
        # VictoriaMetrics looks a step back where no range is given, and takes a sample before it.
        first = shifted.start - max(seconds, shifted.step) - self._limits.lookback_seconds
        fixed = _matchers(node)
        if not _is_public(node):
            groups = self._own.matchers(_named_clusters(node), Window(first, shifted.end))
            if len(groups) > 1:
                raise NotYours(
                    "your login differs between clusters: say in each selector which you mean, "
                    f'such as cluster="{self._own.clusters()[0]}"'
                )
            fixed += groups[0]
        return braces(fixed) + brackets + modifiers

    def subquery(self, node: ast.SubqueryExpr, window: Window, depth: int) -> str:
        assert node.range is not None, "the grammar has no subquery without a range"
        seconds = self._range(node.range)
        step = node.step.total_seconds() if node.step else self._limits.subquery_step_seconds
        shifted, modifiers = self._shifted(node, window)
        asked = Window(shifted.start - seconds, shifted.end, step)
        points(asked, self._limits)
        # VictoriaMetrics begins so much earlier, and ends at the next whole step.
        before = step + self._limits.lookback_seconds
        inner = Window(asked.start - before, asked.end + step, step)
        text = self._operand(node.expr, inner, depth)
        return f"{text}[{_duration(seconds)}:{_duration(step)}]{modifiers}"

    def call(self, node: Any, window: Window, depth: int) -> str:
        if node.func.name not in FUNCTIONS:
            raise Malformed(f"function {node.func.name}() is not allowed here")
        return f"{node.func.name}({self._list(node.args, window, depth)})"

    def aggregate(self, node: ast.AggregateExpr, window: Window, depth: int) -> str:
        name = _operator(node.op, AGGREGATIONS)
        grouping = ""
        if node.modifier is not None:
            by = node.modifier.type == ast.AggModifierType.By
            grouping = f" {'by' if by else 'without'} ({_names(node.modifier.labels)}) "
        parts = [node.expr] if node.param is None else [node.param, node.expr]
        return f"{name}{grouping}({self._list(parts, window, depth)})"

    def binary(self, node: ast.BinaryExpr, window: Window, depth: int) -> str:
        left = self._operand(node.lhs, window, depth)
        right = self._operand(node.rhs, window, depth)
        operator = _operator(node.op, OPERATORS)
        return " ".join([left, operator, *_matching(node.modifier), right])

    def unary(self, node: ast.UnaryExpr, window: Window, depth: int) -> str:
        return f"-{self._operand(node.expr, window, depth)}"

    def parenthesis(self, node: ast.ParenExpr, window: Window, depth: int) -> str:
        return f"({self.write(node.expr, window, depth)})"

    def number(self, node: ast.NumberLiteral, _window: Window, _depth: int) -> str:
        if math.isnan(node.val):
            return "NaN"
        if math.isinf(node.val):
            return "Inf" if node.val > 0 else "(-Inf)"
        return repr(node.val) if node.val >= 0 else f"({node.val!r})"

    def text(self, node: ast.StringLiteral, _window: Window, _depth: int) -> str:
        return string(node.val)

    def _operand(self, node: ast.Expr, window: Window, depth: int) -> str:
        text = self.write(node, window, depth)
        compound = isinstance(node, ast.BinaryExpr | ast.UnaryExpr)
        return f"({text})" if compound else text

    def _list(self, nodes: Sequence[ast.Expr], window: Window, depth: int) -> str:
        return ", ".join([self.write(node, window, depth) for node in nodes])

    def _range(self, value: timedelta) -> float:
        seconds = value.total_seconds()
        if not 0.001 <= seconds <= self._limits.range_seconds:
            raise TooLarge(
                f"range of {seconds:g} s: from 1 ms to {days(self._limits.range_seconds)}"
            )
        return seconds

    def _shifted(self, node: Any, window: Window) -> tuple[Window, str]:
        """The window that `@` and `offset` make of another, and both written."""
        text = ""
        if node.at is not None:
            at, text = self._at(node.at)
            window = Window(at, at, window.step)
        if node.offset:
            offset = node.offset.total_seconds()
            window = Window(window.start - offset, window.end - offset, window.step)
            text += f" offset {'-' if offset < 0 else ''}{_duration(abs(offset))}"
        return window, text

    def _at(self, at: ast.AtModifier) -> tuple[float, str]:
        if at.type == ast.AtModifierType.Start:
            return self._whole.start, " @ start()"
        if at.type == ast.AtModifierType.End:
            return self._whole.end, " @ end()"
        assert at.at is not None, "the third kind of @ holds a time"
        seconds = at.at.timestamp()
        return seconds, f" @ {seconds:.3f}"


_WRITERS: Mapping[type, Callable[[_Writer, Any, Window, int], str]] = {
    ast.VectorSelector: _Writer.selector,
    ast.MatrixSelector: _Writer.matrix,
    ast.SubqueryExpr: _Writer.subquery,
    ast.Call: _Writer.call,
    ast.AggregateExpr: _Writer.aggregate,
    ast.BinaryExpr: _Writer.binary,
    ast.UnaryExpr: _Writer.unary,
    ast.ParenExpr: _Writer.parenthesis,
    ast.NumberLiteral: _Writer.number,
    ast.StringLiteral: _Writer.text,
}


# Pairs: the parser's enumerations have no hash.
_MATCH = (
    (ast.MatchOp.Equal, "="),
    (ast.MatchOp.NotEqual, "!="),
    (ast.MatchOp.Re, "=~"),
    (ast.MatchOp.NotRe, "!~"),
)
_LABEL = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
# `or` joins matchers in VictoriaMetrics; the other two choose a tenant of its cluster version.
_RESERVED = frozenset({"or", "vm_account_id", "vm_project_id"})


def _matchers(node: ast.VectorSelector) -> list[str]:
    """The selector's own matchers; its name as one of them, for a name may be a keyword."""
    if node.matchers.or_matchers:
        raise Malformed("matchers joined by `or` are not allowed: use `or` between selectors")
    written = [f"__name__={string(node.name)}"] if node.name else []
    for matcher in node.matchers.matchers:
        name = matcher.name
        # __graphite__, __tenant_id__ and such are commands to some servers, not labels.
        if name != "__name__" and (name.startswith("__") or name.lower() in _RESERVED):
            raise Malformed(f"label {shown(name)} is not allowed in a selector")
        operator = next(text for op, text in _MATCH if op == matcher.op)
        written.append(f"{label_name(name)}{operator}{string(matcher.value)}")
    return written


def _is_public(node: ast.VectorSelector) -> bool:
    """Whether it can match nothing but public families: matchers only ever narrow."""
    return node.name in PUBLIC or any(
        each.name == "__name__" and each.op == ast.MatchOp.Equal and each.value in PUBLIC
        for each in node.matchers.matchers
    )


def _named_clusters(node: ast.VectorSelector) -> set[str]:
    return {
        each.value
        for each in node.matchers.matchers
        if each.name == "cluster" and each.op == ast.MatchOp.Equal
    }


def _matching(modifier: ast.BinModifier | None) -> list[str]:
    if modifier is None:
        return []
    fill = modifier.fill_values
    if fill is not None and (fill.lhs is not None or fill.rhs is not None):
        raise Malformed("fill() is not allowed here")
    words = ["bool"] if modifier.return_bool else []
    if modifier.matching is not None:
        on = modifier.matching.type == ast.LabelModifierType.Include
        words.append(f"{'on' if on else 'ignoring'} ({_names(modifier.matching.labels)})")
    for side, cardinality in _SIDES:
        if modifier.card == cardinality:
            words.append(f"{side} ({_names(modifier.group_labels or [])})")
    return words


_SIDES = (
    ("group_left", ast.VectorMatchCardinality.ManyToOne),
    ("group_right", ast.VectorMatchCardinality.OneToMany),
)


def _operator(token: ast.TokenType, known: frozenset[str]) -> str:
    text = str(token)
    if text not in known:
        raise Malformed(f"{text} is not allowed here")
    return text


def _names(labels: Iterable[str]) -> str:
    return ", ".join([label_name(label) for label in labels])


def label_name(label: str) -> str:
    """The name of a label that every server knows how to write; raises Malformed."""
    if not _LABEL.fullmatch(label):
        raise Malformed(f"label {shown(label)}: expected letters, digits and _")
    return label


def _duration(seconds: float) -> str:
    return f"{round(seconds * 1000)}ms"
