"""Parses answers of the Prometheus HTTP API."""

import math
from collections.abc import Iterable, Iterator
from typing import Any

from batchjob.runtime.json_reader import parse_json
from batchjob_stats_db.timeseries.base import SeriesValue, TimeSeriesError

NamedSeries = Iterator[tuple[str, dict[str, str], dict[str, Any]]]
"""Name of the metric, other labels, and the result with its `value` or `values`."""


class PartialAnswer(TimeSeriesError):
    """The server could not read all its data, so its answer is incomplete."""


def results_of(url: str, status: int, body: bytes) -> list[dict[str, Any]]:
    """The series of an answer; raises TimeSeriesError for an error or an incomplete answer."""
    try:
        answer = parse_json(body)
        if answer["status"] == "success":
            # Warnings about Prometheus' remote storage and Thanos' stores, and VictoriaMetrics'
            # flag.
            if answer.get("isPartial") or answer.get("warnings"):
                reason = "; ".join(map(str, answer.get("warnings") or ()))
                raise PartialAnswer(f"{url}: a partial answer{reason and ': '}{reason[:300]}")
            results = answer["data"]["result"]
            if isinstance(results, list):
                return results
        reason = str(answer.get("error") or "no result")
    except (ValueError, KeyError, TypeError, AttributeError):
        reason = f"not an answer of a Prometheus API: {body[:80]!r}"
    raise TimeSeriesError(f"{url}: status {status}: {reason}")


def named_series(answer: list[dict[str, Any]]) -> NamedSeries:
    """Series with their metric and labels separated."""
    for result in answer:
        labels = dict(result["metric"])
        yield labels.pop("__name__", ""), labels, result


def instant_values(answer: list[dict[str, Any]]) -> Iterator[SeriesValue]:
    """The values of an instant query."""
    for name, labels, result in named_series(answer):
        yield SeriesValue(name, labels, float(result["value"][1]))


def finite_points(pairs: Iterable[tuple[float, str]]) -> Iterator[tuple[float, float]]:
    """Time and value of numeric samples; the marker of a stale series is NaN."""
    return ((at, value) for at, text in pairs if math.isfinite(value := float(text)))
