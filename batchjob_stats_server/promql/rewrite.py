"""Confines users' PromQL to their own series.

A query is parsed and rewritten from its syntax tree, in the language that Prometheus 2.42 and
VictoriaMetrics share; every selector is written with additional matchers on `cluster` and `user`,
which can only narrow it. Anything unknown to the writer below is refused, so an extension of the
language (VictoriaMetrics' `or` matchers and WITH templates, Prometheus' info(), which reads series
that no selector names) is excluded until it has been reviewed.

The parser's own printing is not used: it writes strings without escapes.
"""

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import promql_parser as ast

from batchjob_stats_db.timeseries.promql import promql_string
from batchjob_stats_server.promql.confinement import Confinement, LeftOut, format_selector
from batchjob_stats_server.promql.query_limits import (
    Growth,
    Malformed,
    NotYours,
    QueryError,
    QueryLimits,
    QueryWindow,
    TooLarge,
    check_points,
    quote,
)
from batchjob_stats_server.promql.scan import ScannedQuery, Selector, label_name, scan

# What the gate accepts: functions and operators that read only their arguments.
_OPERATOR_NAMES = "+ - * / % ^ == != > < >= <= and or unless atan2"

_AGGREGATION_NAMES = """
sum avg count min max group stddev stdvar topk bottomk count_values quantile
"""

# Functions of Prometheus 2 and 3, except info(), which reads series that no selector names.
_FUNCTION_NAMES = """
abs absent absent_over_time acos acosh asin asinh atan atanh avg_over_time ceil changes clamp
clamp_max clamp_min cos cosh count_over_time day_of_month day_of_week day_of_year days_in_month
deg delta deriv exp floor histogram_avg histogram_count histogram_fraction histogram_quantile
histogram_stddev histogram_stdvar histogram_sum double_exponential_smoothing hour
idelta increase irate label_join label_replace last_over_time ln log10 log2 mad_over_time
max_over_time min_over_time minute month pi predict_linear present_over_time quantile_over_time
rad rate resets round scalar sgn sin sinh sort sort_desc sort_by_label sort_by_label_desc sqrt
stddev_over_time stdvar_over_time sum_over_time tan tanh time timestamp vector year
"""

_OPERATORS = frozenset(_OPERATOR_NAMES.split())
_AGGREGATIONS = frozenset(_AGGREGATION_NAMES.split())
_FUNCTIONS = frozenset(_FUNCTION_NAMES.split())
_LABEL_FUNCTIONS = frozenset({"label_join", "label_replace"})


def confine(
    query: str, confinement: Confinement, window: QueryWindow, limits: QueryLimits
) -> tuple[str, LeftOut]:
    """The query to send instead of one evaluated over `window`, and what of it is left out.

    Raises QueryError.
    """
    with _parser_errors():
        scanned = scan(query, limits)
        writer = _Writer(scanned, confinement, limits)
        return writer.write(ast.parse(scanned.text), window, 0), writer.left_out


def confine_selector(query: str, confinement: Confinement, limits: QueryLimits) -> list[str]:
    """Selectors for match[] instead of one; together they match the caller's part of it."""
    with _parser_errors():
        scanned = scan(query, limits)
        node = ast.parse(scanned.text)
        if not isinstance(node, ast.VectorSelector) or node.offset or node.at:
            raise Malformed(f"match[]: expected a series selector alone, got {quote(query)}")
        selector = Selector.read(node, scanned, Growth(limits))
        groups = [[]] if selector.is_public() else confinement.matchers(selector.clusters)
        return [format_selector([*selector.matchers, *group]) for group in groups]


@contextlib.contextmanager
def _parser_errors() -> Iterator[None]:
    try:
        yield
    except QueryError:
        raise
    except (ValueError, OverflowError) as error:
        raise Malformed(f"not PromQL: {quote(str(error))}") from error
    except BaseException as error:
        # The parser panicked, e.g. for times beyond 2**64 s or before 1970 after `@`. pyo3 creates
        # the exception's class itself: it is not a subclass of Exception, and cannot be imported.
        if type(error).__name__ != "PanicException":
            raise
        raise Malformed("not PromQL: a number is out of range") from error


class _Writer:
    """Writes one expression, counting its parts."""

    def __init__(
        self, scanned: ScannedQuery, confinement: Confinement, limits: QueryLimits
    ) -> None:
        self._scanned, self._confinement, self._limits = scanned, confinement, limits
        self._growth = Growth(limits)
        self._selectors = 0
        self.left_out = LeftOut.NOTHING

    def write(self, node: ast.Expr, window: QueryWindow, depth: int) -> str:
        if depth > self._limits.depth:
            raise TooLarge(f"expression is nested deeper than {self._limits.depth}")
        writer = _WRITERS.get(type(node))
        if writer is None:
            raise Malformed(f"{type(node).__name__} is not allowed here")
        return writer(self, node, window, depth + 1)

    def selector(self, node: ast.VectorSelector, _window: QueryWindow, _depth: int) -> str:
        return self._series(node, "")

    def matrix(self, node: Any, window: QueryWindow, _depth: int) -> str:
        seconds = node.range.total_seconds()
        self._growth.check_range(seconds, window)
        return self._series(node.vector_selector, f"[{_duration(seconds)}]")

    def _series(self, node: ast.VectorSelector, brackets: str) -> str:
        self._selectors += 1
        if self._selectors > self._limits.selectors:
            raise TooLarge(f"more than {self._limits.selectors} selectors")
        selector = Selector.read(node, self._scanned, self._growth)
        matchers = list(selector.matchers)
        if not selector.is_public():
            groups = self._confinement.matchers(selector.clusters)
            if len(groups) > 1:
                raise NotYours(
                    "your login differs between clusters: say in each selector which you mean, "
                    f'such as cluster="{self._confinement.clusters()[0]}"'
                )
            matchers += groups[0]
            self.left_out = max(self.left_out, self._confinement.left_out(selector))
        return format_selector(matchers) + brackets + _time_modifiers(node)

    def subquery(self, node: ast.SubqueryExpr, window: QueryWindow, depth: int) -> str:
        assert node.range is not None, "the grammar has no subquery without a range"
        seconds = node.range.total_seconds()
        step = node.step.total_seconds() if node.step else self._limits.subquery_step_seconds
        start = window.start if node.at is None else window.end  # `@`: one time
        subquery_window = QueryWindow(start - seconds, window.end, step)
        check_points(subquery_window, self._limits)
        self._growth.check_subquery(seconds, step, window)
        # VictoriaMetrics starts this much earlier, and ends at the next whole step.
        before = step + self._limits.lookback_seconds
        inner = QueryWindow(subquery_window.start - before, subquery_window.end + step, step)
        text = self._operand(node.expr, inner, depth)
        return f"{text}[{_duration(seconds)}:{_duration(step)}]{_time_modifiers(node)}"

    def call(self, node: Any, window: QueryWindow, depth: int) -> str:
        if node.func.name not in _FUNCTIONS:
            raise Malformed(f"function {node.func.name}() is not allowed here")
        if node.func.name in _LABEL_FUNCTIONS:
            self._growth.check_label_function(node.func.name, self._literals(node.args[1:]))
        return f"{node.func.name}({self._list(node.args, window, depth)})"

    def aggregate(self, node: ast.AggregateExpr, window: QueryWindow, depth: int) -> str:
        name = _operator(node.op, _AGGREGATIONS)
        grouping = ""
        if node.modifier is not None:
            by = node.modifier.type == ast.AggModifierType.By
            labels = self._labels(node.modifier.labels)
            grouping = f" {'by' if by else 'without'} ({', '.join(labels)}) "
        if name == "count_values":
            self._growth.check_count_values(window)
        parts = [node.expr] if node.param is None else [node.param, node.expr]
        return f"{name}{grouping}({self._list(parts, window, depth)})"

    def binary(self, node: ast.BinaryExpr, window: QueryWindow, depth: int) -> str:
        left = self._operand(node.lhs, window, depth)
        right = self._operand(node.rhs, window, depth)
        operator = _operator(node.op, _OPERATORS)
        return " ".join([left, operator, *self._matching(node), right])

    def unary(self, node: ast.UnaryExpr, window: QueryWindow, depth: int) -> str:
        return f"-{self._operand(node.expr, window, depth)}"

    def parenthesis(self, node: ast.ParenExpr, window: QueryWindow, depth: int) -> str:
        return f"({self.write(node.expr, window, depth)})"

    def number(self, node: ast.NumberLiteral, _window: QueryWindow, _depth: int) -> str:
        if math.isnan(node.val):
            return "NaN"
        if math.isinf(node.val):
            return "Inf" if node.val > 0 else "(-Inf)"
        return repr(node.val) if node.val >= 0 else f"({node.val!r})"

    def text(self, node: ast.StringLiteral, _window: QueryWindow, _depth: int) -> str:
        return promql_string(self._scanned.string(node.val))

    def _operand(self, node: ast.Expr, window: QueryWindow, depth: int) -> str:
        text = self.write(node, window, depth)
        compound = isinstance(node, ast.BinaryExpr | ast.UnaryExpr)
        return f"({text})" if compound else text

    def _list(self, nodes: Sequence[ast.Expr], window: QueryWindow, depth: int) -> str:
        return ", ".join([self.write(node, window, depth) for node in nodes])

    def _literals(self, nodes: Sequence[ast.Expr]) -> list[str]:
        texts = [node.val for node in nodes if isinstance(node, ast.StringLiteral)]
        if len(texts) < len(nodes):
            raise Malformed("label_replace, label_join: expected plain strings")
        return [self._scanned.string(text) for text in texts]

    def _labels(self, labels: Iterable[str]) -> list[str]:
        return [label_name(self._scanned.string(label)) for label in labels]

    def _matching(self, node: ast.BinaryExpr) -> list[str]:
        modifier = node.modifier
        if modifier is None:
            return []
        fill = modifier.fill_values
        if fill is not None and (fill.lhs is not None or fill.rhs is not None):
            raise Malformed("fill() is not allowed here")
        words = ["bool"] if modifier.return_bool else []
        matched_on: list[str] = []
        if modifier.matching is not None:
            on = modifier.matching.type == ast.LabelModifierType.Include
            labels = self._labels(modifier.matching.labels)
            matched_on = labels if on else []
            words.append(f"{'on' if on else 'ignoring'} ({', '.join(labels)})")
        for word, cardinality, labelled_side in _GROUP_MODIFIERS:
            if modifier.card == cardinality:
                copied = self._labels(modifier.group_labels or [])
                words.append(f"{word} ({', '.join(copied)})")
                if copied:
                    self._growth.check_copied_labels(
                        matched_on, self._is_named(labelled_side(node))
                    )
        return words

    def _is_named(self, node: ast.Expr) -> bool:
        """Whether it is a selector of one metric's series."""
        while isinstance(node, ast.ParenExpr):
            node = node.expr
        if not isinstance(node, ast.VectorSelector):
            return False
        return bool(Selector.read(node, self._scanned, Growth(self._limits)).names)


_WRITERS: Mapping[type, Callable[[_Writer, Any, QueryWindow, int], str]] = {
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


# The keyword, the parser's name for it, and the side whose labels are copied.
_GROUP_MODIFIERS: tuple[
    tuple[str, ast.VectorMatchCardinality, Callable[[ast.BinaryExpr], ast.Expr]], ...
] = (
    ("group_left", ast.VectorMatchCardinality.ManyToOne, lambda node: node.rhs),
    ("group_right", ast.VectorMatchCardinality.OneToMany, lambda node: node.lhs),
)


def _operator(token: ast.TokenType, allowed: frozenset[str]) -> str:
    text = str(token)
    if text not in allowed:
        raise Malformed(f"{text} is not allowed here")
    return text


def _time_modifiers(node: Any) -> str:
    text = "" if node.at is None else f" @ {_at(node.at)}"
    if node.offset:
        offset = node.offset.total_seconds()
        text += f" offset {'-' if offset < 0 else ''}{_duration(abs(offset))}"
    return text


def _at(at: ast.AtModifier) -> str:
    if at.type == ast.AtModifierType.Start:
        return "start()"
    if at.type == ast.AtModifierType.End:
        return "end()"
    assert at.at is not None, "the third kind of @ holds a time"
    return f"{at.at.timestamp():.3f}"


def _duration(seconds: float) -> str:
    return f"{round(seconds * 1000)}ms"
