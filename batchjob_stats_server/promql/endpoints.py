"""The endpoints of the Prometheus HTTP API: their parameters, and what each sends to the store."""

import math
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, NamedTuple

from batchjob_stats_server.promql.confinement import Confinement, LeftOut
from batchjob_stats_server.promql.query_limits import (
    LONGEST_QUERY,
    Malformed,
    QueryLimits,
    QueryWindow,
    TooLarge,
    check_points,
    format_days,
    quote,
)
from batchjob_stats_server.promql.rewrite import confine, confine_selector

_MAX_TIME = 1 << 33  # the year 2242
_DURATION_PART = re.compile(r"([0-9]{1,9})(ms|[smhdwy])", re.ASCII)
_UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800, "y": 31536000}


class PrometheusParams(NamedTuple):
    """Parameters by name, each given once; only `match[]` may be repeated."""

    values: Mapping[str, Any]
    match: tuple[str, ...] = ()

    def window(self, now: float, longest_default: float) -> QueryWindow:
        """Start and end, or their defaults; Prometheus would use all times."""
        end = self.values.get("end", now)
        return QueryWindow(self.values.get("start", end - longest_default), end)


def parse_params(pairs: Iterable[tuple[str, str]], allowed: frozenset[str]) -> PrometheusParams:
    """Raises Malformed for a parameter that is unknown, repeated, or invalid."""
    values: dict[str, Any] = {}
    match: list[str] = []
    for name, text in pairs:
        if name not in allowed:
            raise Malformed(f"parameter {quote(name)} is not known here")
        if name == "match[]":
            match.append(text)
            continue
        if name in values:
            raise Malformed(f"{name}: expected once")
        try:
            values[name] = PARAMETERS[name].parse(text)
        except (ValueError, OverflowError) as error:
            raise Malformed(f"{name}: {error}") from error
    return PrometheusParams(values, tuple(match))


def _time(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = _rfc3339(text)
    if not 0 <= seconds < _MAX_TIME:
        raise ValueError(f"expected a time, Unix seconds or RFC 3339, got {quote(text)}")
    return seconds


def _rfc3339(text: str) -> float:
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError:
        return math.nan
    return math.nan if parsed.tzinfo is None else parsed.timestamp()


def _duration(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        parts = _DURATION_PART.findall(text)
        whole = "".join(number + unit for number, unit in parts) == text
        seconds = sum(int(number) * _UNITS[unit] for number, unit in parts) if whole else math.nan
    if not 0.001 <= seconds < _MAX_TIME:
        raise ValueError(f"expected a duration such as 30 or 1m, got {quote(text)}")
    return seconds


def _count(text: str) -> int:
    if text.isascii() and text.isdigit() and len(text) < 10:
        return int(text)
    raise ValueError(f"expected a whole number, got {quote(text)}")


class Parameter(NamedTuple):
    """How a parameter is parsed, and its description for clients."""

    parse: Callable[[str], Any]
    description: str
    type: str = "string"


PARAMETERS: Mapping[str, Parameter] = {
    "query": Parameter(str, "PromQL."),
    "time": Parameter(_time, "Unix seconds or RFC 3339; default: now."),
    "start": Parameter(_time, "Unix seconds or RFC 3339."),
    "end": Parameter(_time, "Unix seconds or RFC 3339, not before `start`."),
    "step": Parameter(_duration, "Seconds, or a duration such as 1m."),
    "timeout": Parameter(_duration, "Seconds or a duration; limited by the server."),
    "limit": Parameter(_count, "Maximum number of results; limited by the server.",
                       "integer"),
    "limit_per_metric": Parameter(_count, "Maximum number per metric.", "integer"),
    "metric": Parameter(str, "Only this metric."),
    "match[]": Parameter(str, "Series selectors; may be repeated.", "array"),
}  # fmt: skip


def openapi_parameters(
    allowed: frozenset[str], required: frozenset[str], form: bool
) -> dict[str, Any]:
    """The parameters for an OpenAPI document: of the URL, or of a form."""
    schemas: dict[str, dict[str, Any]] = {
        name: {"type": each.type, "description": each.description}
        | ({"items": {"type": "string"}} if each.type == "array" else {})
        for name, each in PARAMETERS.items()
        if name in allowed
    }
    if form:
        body = {"type": "object", "properties": schemas, "required": sorted(required)}
        media = {"application/x-www-form-urlencoded": {"schema": body}}
        return {"requestBody": {"content": media, "required": bool(required)}}
    return {
        "parameters": [
            {"name": name, "in": "query", "required": name in required, "schema": schema,
             "description": schema.pop("description")}
            for name, schema in schemas.items()
        ]
    }  # fmt: skip


_DEFAULT_WINDOW_SECONDS = 86400.0

Form = list[tuple[str, str]]


class ConfinedForm(NamedTuple):
    """A form to send, and what of the original its query leaves out."""

    fields: Form
    left_out: LeftOut


class PrometheusEndpoint(NamedTuple):
    """One of the API's endpoints: its parameters, and the form to send."""

    parameters: frozenset[str]
    form: Callable[[PrometheusParams, Confinement, float, QueryLimits], "ConfinedForm"]
    required: frozenset[str] = frozenset()

    def openapi(self, form: bool = False) -> dict[str, Any]:
        return openapi_parameters(self.parameters, self.required, form)


def _query(
    params: PrometheusParams, confinement: Confinement, now: float, limits: QueryLimits
) -> ConfinedForm:
    at = params.values.get("time", now)
    window = QueryWindow(at, at)
    text, left_out = confine(_required(params, "query"), confinement, window, limits)
    return ConfinedForm([("query", text), ("time", _seconds(at))], left_out)


def _query_range(
    params: PrometheusParams, confinement: Confinement, _now: float, limits: QueryLimits
) -> ConfinedForm:
    window = QueryWindow(*(_required(params, name) for name in ("start", "end", "step")))
    _check_window(window, limits)
    check_points(window, limits)
    text, left_out = confine(_required(params, "query"), confinement, window, limits)
    form = [("query", text), *_window_form(window), ("step", _seconds(window.step))]
    return ConfinedForm(form, left_out)


def _series(
    params: PrometheusParams, confinement: Confinement, now: float, limits: QueryLimits
) -> ConfinedForm:
    if not params.match:
        raise Malformed("match[]: expected at least one")
    return _labels(params, confinement, now, limits)


def _labels(
    params: PrometheusParams, confinement: Confinement, now: float, limits: QueryLimits
) -> ConfinedForm:
    window = params.window(now, _DEFAULT_WINDOW_SECONDS)
    _check_window(window, limits)
    if len(params.match) > limits.selectors or sum(map(len, params.match)) > LONGEST_QUERY:
        raise TooLarge(
            f"match[]: at most {limits.selectors}, and {LONGEST_QUERY} characters in all"
        )
    selectors = [
        selector
        for each in params.match
        for selector in confine_selector(each, confinement, limits)
    ]
    match = [("match[]", each) for each in selectors or confinement.selectors()]
    return ConfinedForm([*match, *_window_form(window)], LeftOut.OTHERS_SERIES)


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
