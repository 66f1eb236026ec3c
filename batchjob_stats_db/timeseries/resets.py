"""Totals of counters that were reset, from raw samples around the resets alone.

A period is cut into windows. If `resets()` of a window is zero, its minimum and its last value are
all that a total needs; only the other windows are read sample by sample, and of these only the
series that were reset. So neither a long job nor one of many nodes takes much memory.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from batchjob_stats_db.timeseries.base import JobWindow
from batchjob_stats_db.timeseries.prometheus_client import named_series
from batchjob_stats_db.timeseries.promql import identity_of, job_selector
from batchjob_stats_db.timeseries.resample import (
    CARRIED_SECONDS,
    Identity,
    Points,
    samples_around_resets,
    total_of,
)

Ask = Callable[..., list[dict[str, Any]]]

_WINDOW_SECONDS = 3600
_INSTANCES_AT_ONCE = 300  # 50 characters of host:port each, in a query of 16 kB
_SAMPLES_AT_ONCE = 200_000  # 25 bytes each; ten times as much when parsed
_SERIES = 8  # of a metric on an instance, approximately: modes, components, kinds and replicas

_Labels = tuple[tuple[str, str], ...]  # all labels of one replica
_Window = tuple[float, float, bool]  # of a series: its minimum and last value; whether it was reset


def reset_totals(
    ask: Ask, metric: str, window: JobWindow, reset_series: Iterable[Identity], interval: float
) -> Iterator[tuple[Identity, float]]:
    wanted = set(reset_series)
    instances = sorted({dict(identity).get("instance", "") for identity in wanted})
    for first in range(0, len(instances), _INSTANCES_AT_ONCE):
        part = instances[first : first + _INSTANCES_AT_ONCE]
        best: dict[Identity, float] = {}
        for series, points in _read_samples(ask, metric, window, part, interval).items():
            identity = identity_of(dict(series))
            total = total_of(points, window.start, window.continues)
            if identity in wanted and total is not None:
                best[identity] = max(total, best.get(identity, total))
        yield from best.items()


def _read_samples(
    ask: Ask, metric: str, window: JobWindow, instances: Sequence[str], interval: float
) -> dict[_Labels, Points]:
    """The samples of each copy that a total needs."""
    which = job_selector([metric], [window], instances)
    # Windows are counted back from the end; raw samples are read before the first whole one.
    begin = window.start + (window.until - window.start) % _WINDOW_SECONDS
    samples: dict[_Labels, Points] = defaultdict(list)
    if window.near_other_run:
        query = f"last_over_time({which}[{CARRIED_SECONDS}s])"
        answer = ask("query", query=query, time=f"{window.start - 0.001:.3f}")
        for series, result in _labelled(answer):
            samples[series].append((window.start - 1.0, float(result["value"][1])))
    if begin > window.start:
        early = _read_raw(ask, metric, window, instances, begin, begin - window.start, interval)
        for series, points in early:
            samples[series] += samples_around_resets(points)
    for end, windows in _read_windows(ask, which, begin, window.until):
        _add_window(ask, metric, window, end, windows, samples, interval)
    return samples


def _add_window(
    ask: Ask, metric: str, window: JobWindow, end: float, windows: Mapping[_Labels, _Window],
    samples: dict[_Labels, Points], interval: float,
) -> None:  # fmt: skip
    reset_instances = {
        dict(each).get("instance", "") for each, (_, _, is_reset) in windows.items() if is_reset
    }
    if reset_instances:
        whole = _read_raw(
            ask, metric, window, sorted(reset_instances), end, _WINDOW_SECONDS, interval
        )
        for series, points in whole:
            samples[series] += samples_around_resets(points)
    for series, (least, last, _) in windows.items():
        if dict(series).get("instance", "") not in reset_instances:
            samples[series] += [(end - _WINDOW_SECONDS / 2, least), (end, last)]


def _read_windows(
    ask: Ask, which: str, begin: float, until: float
) -> Iterator[tuple[float, dict[_Labels, _Window]]]:
    if begin >= until:
        return
    found: dict[float, dict[_Labels, list[float]]] = defaultdict(lambda: defaultdict(list))
    times = {"start": begin + _WINDOW_SECONDS, "end": until, "step": str(_WINDOW_SECONDS)}
    for function in ("min_over_time", "last_over_time", "resets"):
        answer = ask("query_range", query=f"{function}({which}[{_WINDOW_SECONDS}s])", **times)
        for series, result in _labelled(answer):
            for at, value in result["values"]:
                found[float(at)][series].append(float(value))
    for end, of_series in sorted(found.items()):
        # While a job is running, the last query may see more.
        whole = ((series, each) for series, each in of_series.items() if len(each) == 3)
        yield end, {series: (least, last, resets > 0) for series, (least, last, resets) in whole}


def _read_raw(
    ask: Ask, metric: str, window: JobWindow, instances: Sequence[str], end: float, seconds: float,
    interval: float,
) -> Iterator[tuple[_Labels, Points]]:  # fmt: skip
    """The samples of (end - seconds, end], some instances at a time."""
    most = max(1, int(_SAMPLES_AT_ONCE / (_SERIES * (1 + seconds / interval))))
    for first in range(0, len(instances), most):
        which = job_selector([metric], [window], instances[first : first + most])
        for series, result in _labelled(ask("query", query=f"{which}[{seconds:g}s]", time=end)):
            pairs = ((float(at), float(value)) for at, value in result["values"])
            # VictoriaMetrics returns the staleness markers of ended series as NaN.
            points = [(at, value) for at, value in pairs if not math.isnan(value)]
            if points:
                yield series, points


def _labelled(answer: list[dict[str, Any]]) -> Iterator[tuple[_Labels, dict[str, Any]]]:
    for _, labels, result in named_series(answer):
        yield tuple(sorted(labels.items())), result
