"""Measurements in any server with the Prometheus HTTP API.

Prometheus, VictoriaMetrics, Mimir and Thanos evaluate the few functions used here alike:
`last_over_time`, `resets`, `max_over_time`, `avg_over_time`, `count_over_time`, `timestamp`, and a
bare range selector for raw samples. `increase()` and `rate()` are not among them: they return
nothing for a series of one sample, and Prometheus extrapolates where VictoriaMetrics does not.
"""

import math
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from batchjob.quantities.job import CPU_SECONDS
from batchjob.quantities.quantity import SeriesKind, Statistic
from batchjob.runtime.http_client import FetchError
from batchjob_stats_db.timeseries import resample
from batchjob_stats_db.timeseries.base import (
    JobWindow,
    Point,
    QueryFailed,
    SeriesQuery,
    SeriesValue,
    TimeSeries,
    TimeSeriesError,
)
from batchjob_stats_db.timeseries.prometheus_client import (
    FORM,
    PATIENCE_SECONDS,
    Endpoint,
    NamedSeries,
    PartialAnswer,
    finite_points,
    instant_values,
    named_series,
    open_session,
    request_for,
    results_of,
    unfinished_reason,
)
from batchjob_stats_db.timeseries.promql import (
    BY_IDENTITY,
    Term,
    batches,
    cluster_query,
    cluster_resets_query,
    cluster_selector,
    end_of,
    identity_of,
    job_selector,
    last_times_query,
    seconds_of,
    series_selector,
    target_query,
    union_queries,
)
from batchjob_stats_db.timeseries.resample import (
    CARRIED_SECONDS,
    Bins,
    Identity,
    Points,
    is_reset,
    own_samples,
)
from batchjob_stats_db.timeseries.resets import reset_totals

_LAST, _RESETS, _TIME = "last_over_time", "resets", "timestamp"
_FUNCTIONS = {
    Statistic.TOTAL: _LAST,
    Statistic.PEAK: "max_over_time",
    Statistic.MEAN: "avg_over_time",
    Statistic.COUNT: "count_over_time",
    Statistic.LATEST: _TIME,
}
_STATISTICS = {function: statistic for statistic, function in _FUNCTIONS.items()}

_MAX_SAMPLES = 5000  # read of a series; 42 h at one per 30 s
_MAX_BEGINS = 8  # of a run on its nodes; more are rounded to scrapes
_MAX_STEPS = 500  # of a period that is searched for last samples
_PROBE_SECONDS = 5.0
_CURRENT_SCRAPES = 5  # a value older than this many scrape intervals is not current


class Prometheus:
    """Queries one server; for one thread."""

    source = "prometheus"

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self.session = open_session(endpoint)

    def measure(
        self, wanted: Mapping[Statistic, Sequence[str]], windows: Sequence[JobWindow]
    ) -> dict[Statistic, list[SeriesValue]]:
        """See TimeSeriesStore; in as few queries as the limits of batches allow: one for a page."""
        found: dict[Statistic, list[SeriesValue]] = {statistic: [] for statistic in wanted}
        for batch in batches(windows, self._endpoint):
            for statistic, samples in self._measure_batch(wanted, batch).items():
                found[statistic] += samples
        return found

    def last_sample_times(
        self, metrics: Sequence[str], windows: Sequence[JobWindow]
    ) -> list[SeriesValue]:
        """See TimeSeriesStore; for periods longer than 500 scrapes, to 0.2 % of their length."""
        interval = self._endpoint.scrape_interval
        found = []
        for batch in batches(windows, self._endpoint):
            together = seconds_of(batch) <= _MAX_STEPS * interval
            for part in [batch] if together else [[window] for window in batch]:
                step = math.ceil(max(interval, seconds_of(part) / _MAX_STEPS))
                for metric in metrics:
                    promql = last_times_query([metric], part, step)
                    answer = self.ask("query", query=promql, time=end_of(part))
                    found += [
                        each._replace(metric=metric)
                        for each in instant_values(answer)
                        if each.labels.get("cluster", "") == batch[0].cluster
                    ]
        return found

    def job_series(self, query: SeriesQuery, window: JobWindow, bins: int) -> list[TimeSeries]:
        """See TimeSeriesStore; replicas are merged, gaps are kept."""
        intervals = resample.equal_bins(window, bins, self._endpoint.scrape_interval)
        if query.kind is SeriesKind.GAUGE:
            return self._gauge_series(query, window, intervals)
        return self._rate_series(query, window, intervals)

    def measure_cluster(
        self, wanted: Mapping[Statistic, Sequence[str]], cluster: str, since: int, until: int
    ) -> Iterator[tuple[Statistic, SeriesValue]]:
        """See TimeSeriesStore; one query for each metric, so that an answer stays small."""
        limit = self._endpoint.timeout_seconds
        deadline = time.monotonic() + limit

        def ask(promql: str, at: int) -> list[dict[str, Any]]:
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                raise TimeSeriesError(f"{self._endpoint.url}: no whole answer within {limit:g} s")
            return self._ask_within(remaining, "query", query=promql, time=at)

        for statistic, metrics in wanted.items():
            if statistic is Statistic.RESET:
                for jobid in self._reset_since(ask, metrics, cluster, since, until):
                    yield statistic, SeriesValue("", {"jobid": jobid}, 1.0)
                continue
            for metric in metrics:
                promql = cluster_query(_FUNCTIONS[statistic], metric, cluster, until - since)
                for _, labels, result in named_series(ask(promql, until)):
                    yield statistic, SeriesValue(metric, labels, float(result["value"][1]))

    def _reset_since(
        self, ask: Callable[[str, int], list[dict[str, Any]]], metrics: Sequence[str],
        cluster: str, since: int, until: int,
    ) -> Iterator[str]:  # fmt: skip
        """Ids of jobs with a counter that was reset after `since`, or at its first sample then."""
        overlap = math.ceil(_CURRENT_SCRAPES * self._endpoint.scrape_interval)
        for metric in metrics:
            promql = cluster_resets_query(metric, cluster, until - since + overlap)
            found = {e.labels["jobid"]: e.value for e in instant_values(ask(promql, until))}
            if found:
                before = ask(cluster_resets_query(metric, cluster, overlap), since)
                for each in instant_values(before):
                    found[each.labels["jobid"]] = found.get(each.labels["jobid"], 0) - each.value
            yield from (jobid for jobid, resets in found.items() if resets > 0)

    def latest(
        self, cluster: str, metrics: Sequence[str], now: float, instance: str = ""
    ) -> list[SeriesValue]:
        which = cluster_selector(cluster, metrics, instance)
        window = f"{_CURRENT_SCRAPES * self._endpoint.scrape_interval:g}s"
        answer = self.ask("query", query=f"last_over_time({which}[{window}])", time=f"{now:.3f}")
        return list(instant_values(answer))

    def scrape_ratios(
        self, cluster: str, metric: str, now: float, seconds: int
    ) -> list[SeriesValue]:
        expected = seconds / self._endpoint.scrape_interval
        which = cluster_selector(cluster, [metric])
        promql = f"max by (instance) (count_over_time({which}[{seconds}s]))"
        answer = self.ask("query", query=promql, time=f"{now:.3f}")
        return [
            SeriesValue(metric, each.labels, min(each.value / expected, 1.0))
            for each in instant_values(answer)
        ]

    def node_series(
        self, query: SeriesQuery, cluster: str, instance: str, since: int, until: int, points: int
    ) -> list[TimeSeries]:
        interval = self._endpoint.scrape_interval
        step = max((until - since) / points, interval)
        promql = target_query(query, cluster, instance, step, interval)
        times = {"start": f"{since + step:.3f}", "end": str(until), "step": f"{step:.3f}"}
        return [
            TimeSeries(
                labels, [Point(at, *(value,) * 3) for at, value in finite_points(result["values"])]
            )
            for _, labels, result in named_series(self.ask("query_range", query=promql, **times))
        ]

    def _gauge_series(self, query: SeriesQuery, window: JobWindow, bins: Bins) -> list[TimeSeries]:
        """The store's own minima, means and maxima."""
        found: dict[Identity, dict[float, list[float]]] = {}
        # Before Prometheus 3, a window included a sample exactly at its start.
        selector = f"{series_selector(query, window)}[{round(bins.seconds * 1000) - 1}ms]"
        times = {
            "start": f"{bins.end_of(0):.3f}",
            "end": f"{bins.end:.3f}",
            "step": f"{bins.seconds:.3f}",
        }
        for fold in ("min", "avg", "max"):
            promql = f"{fold} {BY_IDENTITY} ({fold}_over_time({selector}))"
            for _, labels, result in named_series(self.ask("query_range", query=promql, **times)):
                points = found.setdefault(identity_of(labels), {})
                for at, value in finite_points(result["values"]):
                    points.setdefault(at, []).append(value)
        return [
            # While a job is running, the last query may see more than the first.
            TimeSeries(
                dict(identity),
                [Point(at, *values) for at, values in sorted(points.items()) if len(values) == 3],
            )
            for identity, points in found.items()
        ]

    def _rate_series(self, query: SeriesQuery, window: JobWindow, bins: Bins) -> list[TimeSeries]:
        """Rates from all samples or, for a long period, from every n-th."""
        interval = self._endpoint.scrape_interval
        read = _window_to_read(window, 4 * interval)
        every = interval * math.ceil((read.until - read.start) / interval / _MAX_SAMPLES)
        results = (
            self._query_thinned(query, read, every)
            if every > interval
            else self._query_raw(series_selector(query, read), read)
        )
        gap = max(4 * interval, 2 * every)
        copies: dict[Identity, list[Points]] = {}
        for _, labels, result in results:
            points = list(finite_points(result["values"]))
            copies.setdefault(identity_of(labels), []).append(points)
        merged = (
            (identity, resample.merge_replicas(replicas, gap))
            for identity, replicas in copies.items()
        )
        return resample.rate_series(merged, query, window, bins, gap)

    def _query_thinned(self, query: SeriesQuery, window: JobWindow, every: float) -> NamedSeries:
        """One sample per `every` seconds, a multiple of the scrape interval."""
        promql = f"last_over_time({series_selector(query, window)}[{every:g}s])"
        seconds = window.until - window.start + (CARRIED_SECONDS if window.near_other_run else 0)
        begin = window.until - every * (seconds // every)  # so that the last sample is included
        return named_series(
            self.ask("query_range", query=promql, start=begin, end=window.until, step=f"{every:g}")
        )

    def _measure_batch(
        self, wanted: Mapping[Statistic, Sequence[str]], batch: Sequence[JobWindow]
    ) -> dict[Statistic, list[SeriesValue]]:
        found: dict[Statistic, list[SeriesValue]] = {statistic: [] for statistic in wanted}
        reset_series: set[tuple[str, Identity]] = set()
        shares_id = batch[0].near_other_run and not batch[0].continues
        begins = self._own_begins(batch[0]) if shares_id else {}
        for part, instances in _parts(batch, begins):
            for promql in union_queries(list(_terms(wanted)), part, instances):
                answer = self.ask("query", query=promql, time=end_of(batch))
                for function, sample in _results_by_function(answer, batch[0].cluster):
                    if not instances and sample.labels.get("instance", "") in begins:
                        continue
                    if function == _RESETS:
                        reset_series.add(_series_key(sample))
                    else:
                        found[_STATISTICS[function]].append(sample)
        if Statistic.TOTAL in wanted:
            totals = {_series_key(each): each for each in found[Statistic.TOTAL]}
            if batch[0].near_other_run:
                reset_series |= self._read_carried_series(wanted[Statistic.TOTAL], batch[0])
            last = {which: each.value for which, each in totals.items()}
            self._correct_totals(totals, reset_series, batch)
            found[Statistic.TOTAL] = list(totals.values())
            if Statistic.RESET in wanted:
                found[Statistic.RESET] = [
                    totals[which]._replace(value=totals[which].value - last[which])
                    for which in reset_series & totals.keys()
                    if which[0] in wanted[Statistic.RESET]
                    and is_reset(totals[which].value, last[which])
                ]
        return found

    def _own_begins(self, window: JobWindow) -> dict[str, float | None]:
        """Nodes that showed the run before this one, each with the time of its first own sample.

        None: it has none. A node shows the end of a run for a while.
        """
        until = min(window.until, window.start + CARRIED_SECONDS)
        late = until if until < window.until else None  # what lingers is gone by then
        carried: set[str] = set()
        begins: dict[str, float] = {}
        which = job_selector([CPU_SECONDS.name], [window])
        for _, labels, result in self._query_raw(which, window._replace(until=until)):
            points, instance = list(finite_points(result["values"])), labels.get("instance", "")
            if points and points[0][0] < window.start:
                carried.add(instance)
            if own := own_samples(points, window.start):
                begins[instance] = min(own[0][0], begins.get(instance, own[0][0]))
        found = {instance: begins.get(instance, late) for instance in carried}
        if len(set(found.values())) > _MAX_BEGINS:
            interval = self._endpoint.scrape_interval
            for instance, begin in found.items():
                if begin is not None:
                    steps = math.ceil((begin - window.start) / interval)
                    found[instance] = window.start + steps * interval
        return found

    def _correct_totals(
        self,
        totals: dict[tuple[str, Identity], SeriesValue],
        reset_series: set[tuple[str, Identity]],
        batch: Sequence[JobWindow],
    ) -> None:
        """Replace the last values of counters that were reset by their totals."""
        interval = self._endpoint.scrape_interval
        windows = {window.jobid: window for window in batch}
        reset: dict[tuple[str, str], list[Identity]] = defaultdict(list)
        for metric, identity in sorted(reset_series & totals.keys()):
            del totals[metric, identity]
            reset[metric, dict(identity).get("jobid", "")].append(identity)
        for (metric, jobid), identities in reset.items():
            of_job = reset_totals(self.ask, metric, windows[jobid], identities, interval)
            for identity, total in of_job:
                totals[metric, identity] = SeriesValue(metric, dict(identity), total)

    def _read_carried_series(
        self, metrics: Sequence[str], window: JobWindow
    ) -> set[tuple[str, Identity]]:
        """Series with a sample shortly before the run: their first samples may be another run's."""
        which = f"{job_selector(metrics, [window])}[{CARRIED_SECONDS}s]"
        promql = f"max {BY_IDENTITY} (last_over_time({which}))"
        answer = self.ask("query", query=promql, time=f"{window.start - 0.001:.3f}")
        return {(name, identity_of(labels)) for name, labels, _ in named_series(answer)}

    def _query_raw(self, which: str, window: JobWindow) -> NamedSeries:
        """Raw samples; if another run is near, from some time before the start."""
        seconds = max(1, window.until - window.start) + (
            CARRIED_SECONDS if window.near_other_run else 0
        )
        return named_series(self.ask("query", query=f"{which}[{seconds}s]", time=window.until))

    def ask(self, what: str, **parameters: object) -> list[dict[str, Any]]:
        """One request; raises QueryFailed if other queries may succeed."""
        return self._ask_within(self._endpoint.timeout_seconds, what, **parameters)

    def _ask_within(self, seconds: float, what: str, **parameters: object) -> list[dict[str, Any]]:
        try:
            return self._request(what, seconds, **parameters)
        except PartialAnswer:
            raise
        except TimeSeriesError as error:
            # Distinguish a server that is down from a query that is too expensive.
            self._request(
                "query", min(_PROBE_SECONDS, self._endpoint.timeout_seconds), query="vector(1)"
            )
            raise QueryFailed(str(error)) from error

    def _request(self, what: str, timeout: float, **parameters: object) -> list[dict[str, Any]]:
        # VictoriaMetrics must not answer from its cache, nor Thanos with a partial answer.
        form = {**parameters, "timeout": f"{math.ceil(timeout * 1000)}ms"}
        form |= {"nocache": "1", "partial_response": "false"}
        items = ((name, str(value)) for name, value in form.items())
        method, target, body = request_for(self._endpoint, what, items)
        url = f"{self._endpoint.url.rstrip('/')}/api/v1/{what}"
        try:
            reply = self.session.request(
                method,
                target,
                headers={"Content-Type": FORM} if body else {},
                body=body or None,
                seconds=timeout + PATIENCE_SECONDS,
                limit=self._endpoint.answer_bytes,
            )
        except FetchError as error:
            text = unfinished_reason(self._endpoint, error) or error
            raise TimeSeriesError(f"{url}: {text}") from error
        return results_of(url, reply.status, reply.body)


def _window_to_read(window: JobWindow, margin: float) -> JobWindow:
    """The window whose samples must be read to display `display_range`."""
    begin, end = window.display_range
    return window._replace(
        start=math.ceil(max(window.start, begin - margin)),
        until=math.floor(min(window.until, end + margin)),
    )


def _parts(
    batch: Sequence[JobWindow], begins: Mapping[str, float | None]
) -> Iterator[tuple[Sequence[JobWindow], list[str]]]:
    """What is queried apart: nodes whose samples begin later, and without names all others."""
    yield batch, []
    for begin in sorted({each for each in begins.values() if each is not None}):
        instances = [instance for instance, each in begins.items() if each == begin]
        yield [batch[0]._replace(start=math.floor(begin))], instances


def _terms(wanted: Mapping[Statistic, Sequence[str]]) -> Iterator[Term]:
    for statistic, metrics in wanted.items():
        if statistic is Statistic.TOTAL:
            yield from (Term(_RESETS, [metric], " > 0") for metric in metrics)
            yield Term(_LAST, metrics)
        elif statistic is Statistic.LATEST:
            yield from (Term(_TIME, [metric], instant=True) for metric in metrics)
        elif statistic is not Statistic.RESET:  # it comes with the totals
            yield from (Term(_FUNCTIONS[statistic], [metric]) for metric in metrics)


def _results_by_function(
    answer: list[dict[str, Any]], cluster: str
) -> Iterator[tuple[str, SeriesValue]]:
    """The results of `union_queries` for a cluster by function; equal labels are shared."""
    for name, labels, result in named_series(answer):
        if labels.get("cluster", "") != cluster:
            continue
        function, _, metric = labels.pop("asked").partition(" ")
        kept = {sys.intern(label): sys.intern(value) for label, value in labels.items()}
        yield function, SeriesValue(sys.intern(metric or name), kept, float(result["value"][1]))


def _series_key(sample: SeriesValue) -> tuple[str, Identity]:
    return sample.metric, identity_of(sample.labels)
