"""Measurements in any server with the Prometheus HTTP API.

Prometheus, VictoriaMetrics, Mimir and Thanos evaluate the few functions used here alike:
`last_over_time`, `resets`, `max_over_time`, `avg_over_time`, `count_over_time`, `timestamp`, and a
bare range selector for raw samples. `increase()` and `rate()` are not among them: they return
nothing for a series of one sample, and Prometheus extrapolates where VictoriaMetrics does not.
"""

import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from batchjob.quantities.quantity import SeriesKind, Statistic
from batchjob_stats_db.timeseries import resample
from batchjob_stats_db.timeseries.base import (
    JobWindow,
    NodeQuery,
    Point,
    QuestionFailed,
    SeriesQuery,
    SeriesValue,
    TimeSeries,
    TimeSeriesError,
)
from batchjob_stats_db.timeseries.counters import CARRIED_SECONDS, fell
from batchjob_stats_db.timeseries.prometheus_answers import (
    NamedSeries,
    PartialAnswer,
    finite_points,
    instant_values,
    named_series,
    results_of,
)
from batchjob_stats_db.timeseries.prometheus_client import (
    AnswerTooLarge,
    AnswerTooSlow,
    Endpoint,
    NoAnswer,
    PrometheusClient,
)
from batchjob_stats_db.timeseries.promql import (
    BY_IDENTITY,
    Term,
    batches,
    end_of,
    identity_of,
    last_times,
    matching,
    of_cluster,
    of_target,
    seconds_of,
    selector,
    united,
)
from batchjob_stats_db.timeseries.resample import Bins, Identity, Points
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

_MOST_SAMPLES = 5000  # maximum samples read of a series; 42 h at one per 30 s
_MOST_STEPS = 500  # maximum steps of a period in which the last samples are looked for
_PROBE_SECONDS = 5.0
_LATEST_SCRAPES = 5  # an older value is not current


class Prometheus:
    """Queries one server; for one thread."""

    source = "prometheus"

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self.client = PrometheusClient(endpoint)

    def measure(
        self, wanted: Mapping[Statistic, Sequence[str]], spans: Sequence[JobWindow]
    ) -> dict[Statistic, list[SeriesValue]]:
        """See TimeSeriesStore; in as few queries as the limits of batches allow: one for a page."""
        found: dict[Statistic, list[SeriesValue]] = {statistic: [] for statistic in wanted}
        for batch in batches(spans, self._endpoint):
            for statistic, samples in self._of_batch(wanted, batch).items():
                found[statistic] += samples
        return found

    def last_sampled(self, metrics: Sequence[str], spans: Sequence[JobWindow]) -> list[SeriesValue]:
        """See TimeSeriesStore; for periods longer than 500 scrapes, to 0.2 % of their length."""
        interval = self._endpoint.scrape_interval
        found = []
        for batch in batches(spans, self._endpoint):
            together = seconds_of(batch) <= _MOST_STEPS * interval
            for part in [batch] if together else [[span] for span in batch]:
                step = math.ceil(max(interval, seconds_of(part) / _MOST_STEPS))
                for metric in metrics:
                    query = last_times([metric], part, step)
                    answer = self.ask("query", query=query, time=end_of(part))
                    found += [
                        each._replace(metric=metric)
                        for each in instant_values(answer)
                        if each.labels.get("cluster", "") == batch[0].cluster
                    ]
        return found

    def courses(self, asked: SeriesQuery, span: JobWindow, bins: int) -> list[TimeSeries]:
        """See TimeSeriesStore; replicas are merged, gaps are kept."""
        cut = resample.bins(span, bins, self._endpoint.scrape_interval)
        return (self._values if asked.kind is SeriesKind.GAUGE else self._rates)(asked, span, cut)

    def latest(
        self, cluster: str, metrics: Sequence[str], now: float, instance: str = ""
    ) -> list[SeriesValue]:
        """See TimeSeriesStore."""
        which = of_cluster(cluster, metrics, instance)
        window = f"{_LATEST_SCRAPES * self._endpoint.scrape_interval:g}s"
        answer = self.ask("query", query=f"last_over_time({which}[{window}])", time=f"{now:.3f}")
        return list(instant_values(answer))

    def seen(self, cluster: str, metric: str, now: float, seconds: int) -> list[SeriesValue]:
        """See TimeSeriesStore."""
        whole = seconds / self._endpoint.scrape_interval
        query = f"max by (instance) (count_over_time({of_cluster(cluster, [metric])}[{seconds}s]))"
        answer = self.ask("query", query=query, time=f"{now:.3f}")
        return [
            SeriesValue(metric, each.labels, min(each.value / whole, 1.0))
            for each in instant_values(answer)
        ]

    def of_node(
        self, asked: NodeQuery, cluster: str, instance: str, since: int, until: int, points: int
    ) -> list[TimeSeries]:
        """See TimeSeriesStore."""
        interval = self._endpoint.scrape_interval
        step = max((until - since) / points, interval)
        query = of_target(asked, cluster, instance, step, interval)
        times = {"start": f"{since + step:.3f}", "end": str(until), "step": f"{step:.3f}"}
        return [
            TimeSeries(
                labels, [Point(at, *(value,) * 3) for at, value in finite_points(result["values"])]
            )
            for _, labels, result in named_series(self.ask("query_range", query=query, **times))
        ]

    def _values(self, asked: SeriesQuery, span: JobWindow, cut: Bins) -> list[TimeSeries]:
        """The store's own minima, means and maxima."""
        found: dict[Identity, dict[float, list[float]]] = {}
        # Before Prometheus 3, a window included a sample exactly at its start.
        window = f"{matching(asked, span)}[{round(cut.seconds * 1000) - 1}ms]"
        times = {
            "start": f"{cut.ends(0):.3f}", "end": f"{cut.end:.3f}", "step": f"{cut.seconds:.3f}"
        }  # fmt: skip
        for fold in ("min", "avg", "max"):
            query = f"{fold} {BY_IDENTITY} ({fold}_over_time({window}))"
            for _, labels, result in named_series(self.ask("query_range", query=query, **times)):
                points = found.setdefault(identity_of(labels), {})
                for at, value in finite_points(result["values"]):
                    points.setdefault(at, []).append(value)
        return [
            # While a job is running, the last query may see more than the first.
            TimeSeries(
                dict(identity),
                [Point(at, *three) for at, three in sorted(points.items()) if len(three) == 3],
            )
            for identity, points in found.items()
        ]

    def _rates(self, asked: SeriesQuery, span: JobWindow, cut: Bins) -> list[TimeSeries]:
        """Rates from all samples or, over a long time, from one of several."""
        interval = self._endpoint.scrape_interval
        read = _drawn(span, 4 * interval)
        every = interval * math.ceil((read.until - read.start) / interval / _MOST_SAMPLES)
        found = (
            self._thinned(asked, read, every)
            if every > interval
            else self._raw(matching(asked, read), read)
        )
        gap = max(4 * interval, 2 * every)
        copies: dict[Identity, list[Points]] = {}
        for _, labels, result in found:
            points = list(finite_points(result["values"]))
            copies.setdefault(identity_of(labels), []).append(points)
        whole = ((identity, resample.merged(seen, gap)) for identity, seen in copies.items())
        return resample.together(whole, asked, span, cut, gap)

    def _thinned(self, asked: SeriesQuery, span: JobWindow, every: float) -> NamedSeries:
        """One sample in this many seconds, a multiple of the interval: all are equally old."""
        query = f"last_over_time({matching(asked, span)}[{every:g}s])"
        seconds = span.until - span.start + (CARRIED_SECONDS if span.alone else 0)
        begin = span.until - every * (seconds // every)  # so that the last sample is included
        return named_series(
            self.ask("query_range", query=query, start=begin, end=span.until, step=f"{every:g}")
        )

    def _of_batch(
        self, wanted: Mapping[Statistic, Sequence[str]], batch: Sequence[JobWindow]
    ) -> dict[Statistic, list[SeriesValue]]:
        found: dict[Statistic, list[SeriesValue]] = {statistic: [] for statistic in wanted}
        fallen: set[tuple[str, Identity]] = set()
        for query in united(list(_terms(wanted)), batch):
            answer = self.ask("query", query=query, time=end_of(batch))
            for function, sample in _asked(answer, batch[0].cluster):
                if function == _RESETS:
                    fallen.add(_series(sample))
                else:
                    found[_STATISTICS[function]].append(sample)
        if Statistic.TOTAL in wanted:
            totals = {_series(each): each for each in found[Statistic.TOTAL]}
            if batch[0].alone:
                fallen |= self._carried(wanted[Statistic.TOTAL], batch[0])
            last = {which: each.value for which, each in totals.items()}
            self._mend_totals(totals, fallen, batch)
            found[Statistic.TOTAL] = list(totals.values())
            if Statistic.RESET in wanted:
                found[Statistic.RESET] = [
                    totals[which]._replace(value=1.0)
                    for which in fallen & totals.keys()
                    if which[0] in wanted[Statistic.RESET]
                    and fell(totals[which].value, last[which])
                ]
        return found

    def _mend_totals(
        self,
        totals: dict[tuple[str, Identity], SeriesValue],
        fallen: set[tuple[str, Identity]],
        batch: Sequence[JobWindow],
    ) -> None:
        """Replace the last values of counters that were reset by their totals."""
        interval = self._endpoint.scrape_interval
        for (metric, jobid), identities in _by_job(fallen & totals.keys()).items():
            span = next(span for span in batch if span.jobid == jobid)
            for identity in identities:
                del totals[metric, identity]
            for identity, total in reset_totals(self.ask, metric, span, identities, interval):
                totals[metric, identity] = SeriesValue(metric, dict(identity), total)

    def _carried(self, metrics: Sequence[str], span: JobWindow) -> set[tuple[str, Identity]]:
        """The counters whose first samples may belong to another run."""
        which = f"{selector(metrics, [span])}[{CARRIED_SECONDS}s]"
        query = f"max {BY_IDENTITY} (last_over_time({which}))"
        answer = self.ask("query", query=query, time=f"{span.start - 0.001:.3f}")
        return {(name, identity_of(labels)) for name, labels, _ in named_series(answer)}

    def _raw(self, which: str, span: JobWindow) -> NamedSeries:
        """The samples themselves; for one of several runs, from some time before."""
        seconds = max(1, span.until - span.start) + (CARRIED_SECONDS if span.alone else 0)
        return named_series(self.ask("query", query=f"{which}[{seconds}s]", time=span.until))

    def ask(self, what: str, **parameters: object) -> list[dict[str, Any]]:
        """One request; raises QuestionFailed if other queries may succeed."""
        try:
            return self._answer(what, self._endpoint.timeout_seconds, **parameters)
        except PartialAnswer:
            raise
        except TimeSeriesError as error:
            # Distinguish a server that is down from a query that is too expensive.
            self._answer(
                "query", min(_PROBE_SECONDS, self._endpoint.timeout_seconds), query="vector(1)"
            )
            raise QuestionFailed(str(error)) from error

    def _answer(self, what: str, timeout: float, **parameters: object) -> list[dict[str, Any]]:
        # VictoriaMetrics must not answer from its cache, nor Thanos with a partial answer.
        form = {**parameters, "timeout": f"{timeout:g}s"}
        form |= {"nocache": "1", "partial_response": "false"}
        url = f"{self._endpoint.url.rstrip('/')}/api/v1/{what}"
        try:
            status, body = self.client.ask(
                what, ((name, str(value)) for name, value in form.items()), timeout
            )
        except (AnswerTooLarge, AnswerTooSlow) as error:
            raise TimeSeriesError(f"{url}: {error}") from error
        except NoAnswer as error:
            raise TimeSeriesError(str(error)) from error
        return results_of(url, status, body)


def _drawn(span: JobWindow, margin: float) -> JobWindow:
    """The time whose samples must be read for the part that is drawn."""
    begin, end = span.drawn
    return span._replace(
        start=math.ceil(max(span.start, begin - margin)),
        until=math.floor(min(span.until, end + margin)),
    )


def _terms(wanted: Mapping[Statistic, Sequence[str]]) -> Iterator[Term]:
    for statistic, metrics in wanted.items():
        if statistic is Statistic.TOTAL:
            yield from (Term(_RESETS, [metric], " > 0") for metric in metrics)
            yield Term(_LAST, metrics)
        elif statistic is Statistic.LATEST:
            yield from (Term(_TIME, [metric], instant=True) for metric in metrics)
        elif statistic is not Statistic.RESET:  # it comes with the totals
            yield from (Term(_FUNCTIONS[statistic], [metric]) for metric in metrics)


def _asked(answer: list[dict[str, Any]], cluster: str) -> Iterator[tuple[str, SeriesValue]]:
    """The results of `united` for a cluster by function; equal labels are shared."""
    for name, labels, result in named_series(answer):
        if labels.get("cluster", "") != cluster:
            continue
        function, _, metric = labels.pop("asked").partition(" ")
        kept = {sys.intern(label): sys.intern(value) for label, value in labels.items()}
        yield function, SeriesValue(sys.intern(metric or name), kept, float(result["value"][1]))


def _series(sample: SeriesValue) -> tuple[str, Identity]:
    return sample.metric, identity_of(sample.labels)


def _by_job(
    series: Iterable[tuple[str, Identity]],
) -> dict[tuple[str, str], list[Identity]]:
    """By metric and jobid."""
    found: dict[tuple[str, str], list[Identity]] = {}
    for metric, identity in sorted(series):
        found.setdefault((metric, dict(identity).get("jobid", "")), []).append(identity)
    return found
