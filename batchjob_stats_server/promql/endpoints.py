"""The endpoints of the Prometheus HTTP API: what each sends to the time series database."""

from collections.abc import Callable
from typing import Any, NamedTuple

from batchjob_stats_server.promql.confinement import Confinement
from batchjob_stats_server.promql.params import PrometheusParams, openapi_parameters
from batchjob_stats_server.promql.query_limits import (
    LONGEST_QUERY,
    Malformed,
    QueryLimits,
    QueryWindow,
    TooLarge,
    check_points,
    format_days,
)
from batchjob_stats_server.promql.rewrite import confine, confine_selector

_DEFAULT_WINDOW_SECONDS = 86400.0

Form = list[tuple[str, str]]


class GateQuery(NamedTuple):
    """A caller's query, with everything that decides what is queried instead."""

    params: PrometheusParams
    confinement: Confinement
    now: float
    limits: QueryLimits


class PrometheusEndpoint(NamedTuple):
    """One of the API's endpoints: its parameters, and the form to send."""

    parameters: frozenset[str]
    form: Callable[[GateQuery], Form]
    required: frozenset[str] = frozenset()

    def openapi(self, form: bool = False) -> dict[str, Any]:
        """For the OpenAPI document."""
        return openapi_parameters(self.parameters, self.required, form)


def _query(gate_query: GateQuery) -> Form:
    params = gate_query.params
    at = params.values.get("time", gate_query.now)
    window = QueryWindow(at, at)
    text = confine(_required(params, "query"), gate_query.confinement, window, gate_query.limits)
    return [("query", text), ("time", _seconds(at))]


def _query_range(gate_query: GateQuery) -> Form:
    params, limits = gate_query.params, gate_query.limits
    window = QueryWindow(*(_required(params, name) for name in ("start", "end", "step")))
    _check_window(window, limits)
    check_points(window, limits)
    text = confine(_required(params, "query"), gate_query.confinement, window, limits)
    form = [("query", text), *_window_form(window), ("step", _seconds(window.step))]
    # Without nocache, VictoriaMetrics adjusts start and end to its cache.
    return [*form, ("nocache", "1")] if gate_query.confinement.is_limited_in_time() else form


def _series(gate_query: GateQuery) -> Form:
    if not gate_query.params.match:
        raise Malformed("match[]: expected at least one")
    return _labels(gate_query)


def _labels(gate_query: GateQuery) -> Form:
    params, confinement, limits = gate_query.params, gate_query.confinement, gate_query.limits
    window = params.window(gate_query.now, _DEFAULT_WINDOW_SECONDS)
    _check_window(window, limits)
    if len(params.match) > limits.selectors or sum(map(len, params.match)) > LONGEST_QUERY:
        raise TooLarge(
            f"match[]: at most {limits.selectors}, and {LONGEST_QUERY} characters in all"
        )
    selectors = [
        selector
        for each in params.match
        for selector in confine_selector(each, confinement, window, limits)
    ]
    match = [("match[]", each) for each in selectors or confinement.selectors(window)]
    return [*match, *_window_form(window)]


_MATCH_PARAMETERS = frozenset({"match[]", "start", "end", "limit"})
_QUERY_PARAMETERS = frozenset({"query", "timeout", "limit"})

QUERY = PrometheusEndpoint(_QUERY_PARAMETERS | {"time"}, _query, frozenset({"query"}))
QUERY_RANGE = PrometheusEndpoint(
    _QUERY_PARAMETERS | {"start", "end", "step"},
    _query_range,
    frozenset({"query", "start", "end", "step"}),
)
SERIES = PrometheusEndpoint(_MATCH_PARAMETERS, _series, frozenset({"match[]"}))
LABELS = PrometheusEndpoint(_MATCH_PARAMETERS, _labels)


def _required(params: PrometheusParams, name: str) -> Any:
    if name not in params.values:
        raise Malformed(f"{name}: expected")
    return params.values[name]


def _check_window(window: QueryWindow, limits: QueryLimits) -> None:
    if window.end < window.start:
        raise Malformed("end: expected a time not before start")
    if window.end - window.start > limits.window_seconds:
        raise TooLarge(f"start, end: at most {format_days(limits.window_seconds)} apart")


def _window_form(window: QueryWindow) -> Form:
    return [("start", _seconds(window.start)), ("end", _seconds(window.end))]


def _seconds(value: float) -> str:
    return f"{value:.3f}"
