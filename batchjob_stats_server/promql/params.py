"""Parses the parameters of clients of the Prometheus HTTP API."""

import math
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, NamedTuple

from batchjob_stats_server.promql.query_limits import Malformed, QueryWindow, quote

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
        window = QueryWindow(self.values.get("start", end - longest_default), end)
        if window.end < window.start:
            raise Malformed("end: expected a time not before start")
        return window


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
}  # fmt: skip
MATCH = "Series selectors; may be repeated."


def openapi_parameters(
    allowed: frozenset[str], required: frozenset[str], form: bool
) -> dict[str, Any]:
    """The parameters for an OpenAPI document: of the URL, or of a form."""
    schemas: dict[str, dict[str, Any]] = {
        name: {"type": each.type, "description": each.description}
        for name, each in PARAMETERS.items()
        if name in allowed
    }
    if "match[]" in allowed:
        match = {"type": "array", "items": {"type": "string"}, "description": MATCH}
        schemas["match[]"] = match
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
