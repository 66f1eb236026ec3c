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


PrometheusParams = Mapping[str, Any]
"""Parameters by name, each given once; `match[]` is a tuple, since it may be repeated."""


def parse_params(pairs: Iterable[tuple[str, str]], allowed: frozenset[str]) -> PrometheusParams:
    """Raises Malformed for a parameter that is unknown, repeated, or invalid."""
    values: dict[str, Any] = {"match[]": ()}
    for name, text in pairs:
        if name not in allowed:
            raise Malformed(f"parameter {quote(name)} is not known here")
        if name == "match[]":
            values[name] += (text,)
            continue
        if name in values:
            raise Malformed(f"{name}: expected once")
        try:
            values[name] = PARAMETERS[name][0](text)
        except (ValueError, OverflowError) as error:
            raise Malformed(f"{name}: {error}") from error
    return values


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


Parameter = tuple[Callable[[str], Any], str, str]
"""How a parameter is parsed, its description for clients, and its type."""

PARAMETERS: Mapping[str, Parameter] = {
    "query": (str, "PromQL.", "string"),
    "time": (_time, "Unix seconds or RFC 3339; default: now.", "string"),
    "start": (_time, "Unix seconds or RFC 3339.", "string"),
    "end": (_time, "Unix seconds or RFC 3339, not before `start`.", "string"),
    "step": (_duration, "Seconds, or a duration such as 1m.", "string"),
    "timeout": (_duration, "Seconds or a duration; limited by the server.", "string"),
    "limit": (_count, "Maximum number of results; limited by the server.", "integer"),
    "limit_per_metric": (_count, "Maximum number per metric.", "integer"),
    "metric": (str, "Only this metric.", "string"),
    "match[]": (str, "Series selectors; may be repeated.", "array"),
}


def openapi_parameters(
    allowed: frozenset[str], required: frozenset[str], form: bool
) -> dict[str, Any]:
    """The parameters for an OpenAPI document: of the URL, or of a form."""
    schemas: dict[str, dict[str, Any]] = {
        name: {"type": kind, "description": description}
        | ({"items": {"type": "string"}} if kind == "array" else {})
        for name, (_, description, kind) in PARAMETERS.items()
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


ConfinedForm = tuple[Form, LeftOut]
"""A form to send, and what of the original its query leaves out."""


class PrometheusEndpoint(NamedTuple):
    """One of the API's endpoints: its parameters, and the form to send."""

    parameters: frozenset[str]
    form: Callable[[PrometheusParams, Confinement, float, QueryLimits], ConfinedForm]
    required: frozenset[str] = frozenset()

    def openapi(self, form: bool = False) -> dict[str, Any]:
        return openapi_parameters(self.parameters, self.required, form)


def _query(
    params: PrometheusParams, confinement: Confinement, now: float, limits: QueryLimits
) -> ConfinedForm:
    at = params.get("time", now)
    window = QueryWindow(at, at)
    text, left_out = confine(_required(params, "query"), confinement, window, limits)
    return [("query", text), ("time", _seconds(at))], left_out


def _query_range(
    params: PrometheusParams, confinement: Confinement, _now: float, limits: QueryLimits
) -> ConfinedForm:
    window = QueryWindow(*(_required(params, name) for name in ("start", "end", "step")))
    _check_window(window, limits)
    check_points(window, limits)
    text, left_out = confine(_required(params, "query"), confinement, window, limits)
    form = [("query", text), *_window_form(window), ("step", _seconds(window.step))]
    return form, left_out


def _series(
    params: PrometheusParams, confinement: Confinement, now: float, limits: QueryLimits
) -> ConfinedForm:
    if not params["match[]"]:
        raise Malformed("match[]: expected at least one")
    return _labels(params, confinement, now, limits)


def _labels(
    params: PrometheusParams, confinement: Confinement, now: float, limits: QueryLimits
) -> ConfinedForm:
    end = params.get("end", now)  # Prometheus would use all times
    window = QueryWindow(params.get("start", end - _DEFAULT_WINDOW_SECONDS), end)
    _check_window(window, limits)
    if (
        len(params["match[]"]) > limits.selectors
        or sum(map(len, params["match[]"])) > LONGEST_QUERY
    ):
        raise TooLarge(
            f"match[]: at most {limits.selectors}, and {LONGEST_QUERY} characters in all"
        )
    selectors = [
        selector
        for each in params["match[]"]
        for selector in confine_selector(each, confinement, limits)
    ]
    match = [("match[]", each) for each in selectors or confinement.selectors()]
    return [*match, *_window_form(window)], LeftOut.OTHERS_SERIES


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
    if name not in params:
        raise Malformed(f"{name}: expected")
    return params[name]


def _check_window(window: QueryWindow, limits: QueryLimits) -> None:
    if window.end < window.start:
        raise Malformed("end: expected a time not before start")
    if window.end - window.start > limits.window_seconds:
        raise TooLarge(f"start, end: at most {format_days(limits.window_seconds)} apart")


def _window_form(window: QueryWindow) -> Form:
    return [("start", _seconds(window.start)), ("end", _seconds(window.end))]


def _seconds(value: float) -> str:
    return f"{value:.3f}"
