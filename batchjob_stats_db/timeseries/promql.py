"""Builds the PromQL that reads jobs' series, and decides which jobs and metrics share a query."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from batchjob.quantities.quantity import SeriesKind
from batchjob_stats_db.timeseries.base import JobWindow, SeriesQuery
from batchjob_stats_db.timeseries.prometheus_client import Endpoint
from batchjob_stats_db.timeseries.resample import Identity

# Labels that distinguish series of one job. Any other label that a site adds (replica, prometheus,
# job, pod ...) distinguishes only replicas, which `max by` merges.
IDENTITY = (
    "__name__", "cluster", "instance", "manager", "jobid", "user", "mode", "component", "kind",
    "resource", "device", "provider", "gpu", "uuid", "gpu_instance", "reason", "UUID",
    "GPU_I_ID",
)  # fmt: skip
BY_IDENTITY = f"by ({', '.join(IDENTITY)})"
_IN_CLUSTER = ", ".join(label for label in IDENTITY if label not in ("__name__", "cluster"))

_SERIES_PER_NODE = 40  # of a job on a node, approximately
_SERIES_PER_METRIC = 2  # of these, for one metric
_SERIES_AT_ONCE = 40_000  # maximum per answer, at 250 bytes each
_CHARACTERS_AT_ONCE = 15_000  # VictoriaMetrics accepts queries of up to 16 kB
# With a matcher for the cluster and more jobs than this, VictoriaMetrics 1.79 scans all series of
# the cluster to find those of the jobs. With 1000 nodes this took four times as long as everything
# else, and it grows with the number of nodes.
_FEW_JOBS = 10


def identity_of(labels: Mapping[str, str]) -> Identity:
    """The labels that identify a series, without those of replicas."""
    return tuple((label, labels[label]) for label in IDENTITY if label in labels)


class Term(NamedTuple):
    """A function over the series of some metrics; several only if it keeps their names."""

    function: str
    metrics: Sequence[str]
    above: str = ""  # filter on the values
    instant: bool = False  # reads the last samples, not those of a range

    @property
    def name(self) -> str:
        """The value of the label `asked` of its series."""
        return " ".join((self.function, *(self.metrics if len(self.metrics) == 1 else ())))


def union_queries(
    terms: Sequence[Term], batch: Sequence[JobWindow], instances: Sequence[str] = ()
) -> Iterator[str]:
    """As few queries as possible for all terms of a batch of jobs; replicas are merged.

    `instances`: only of these nodes.

    Most functions drop the metric's name, hence the label `asked`, which identifies their series.
    """
    expressions: list[str] = []
    series = characters = 0
    for term in _split_terms(terms, batch):
        period = "" if term.instant else f"[{seconds_of(batch)}s]"
        which = job_selector(term.metrics, batch, instances) + period
        applied = f"{term.function}({which}){term.above}"
        text = f'label_replace({applied}, "asked", {promql_string(term.name)}, "", "")'
        of_term = len(term.metrics) * _series_per_metric(batch)
        length = len(text.encode()) + len(" or ")
        series, characters = series + of_term, characters + length
        if expressions and (series > _SERIES_AT_ONCE or characters > _CHARACTERS_AT_ONCE):
            yield _merge_replicas(expressions)
            expressions, series, characters = [], of_term, length
        expressions.append(text)
    if expressions:
        yield _merge_replicas(expressions)


def _split_terms(terms: Sequence[Term], batch: Sequence[JobWindow]) -> Iterator[Term]:
    max_metrics = max(1, _SERIES_AT_ONCE // _series_per_metric(batch))
    for term in terms:
        for first in range(0, len(term.metrics), max_metrics):
            yield term._replace(metrics=term.metrics[first : first + max_metrics])


def _series_per_metric(batch: Sequence[JobWindow]) -> int:
    return _SERIES_PER_METRIC * sum(window.nodes for window in batch)


def _merge_replicas(expressions: Sequence[str]) -> str:
    return f"max by (asked, {', '.join(IDENTITY)}) ({' or '.join(expressions)})"


class _Batch:
    """Windows that may share a query, which covers the time of all of them."""

    def __init__(self, first: JobWindow, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self.windows: list[JobWindow] = []
        self._jobids: set[str] = set()
        self._start, self._until = first.start, first.until
        self._free_range = first.free_range
        self._samples, self._characters = 0.0, 0

    def add(self, window: JobWindow) -> bool:
        """Add the window, unless it does not fit."""
        endpoint = self._endpoint
        scrapes = 1 + (window.until - window.start) / endpoint.scrape_interval
        samples = _SERIES_PER_NODE * window.nodes * scrapes
        characters = 1 + len(escape_regex(window.jobid))
        start, until = min(self._start, window.start), max(self._until, window.until)
        free_range = (
            max(self._free_range[0], window.free_range[0]),
            min(self._free_range[1], window.free_range[1]),
        )
        if self.windows and (
            window.cluster != self.windows[0].cluster
            or window.jobid in self._jobids
            or not (free_range[0] <= start and until <= free_range[1])
            or len(self.windows) >= endpoint.batch_jobs
            or self._samples + samples > endpoint.batch_samples
            or self._characters + characters > endpoint.batch_characters
        ):
            return False
        self.windows.append(window)
        self._jobids.add(window.jobid)
        self._start, self._until, self._free_range = start, until, free_range
        self._samples += samples
        self._characters += characters
        return True


def batches(windows: Sequence[JobWindow], endpoint: Endpoint) -> Iterator[list[JobWindow]]:
    """Windows that may share a query: of different jobs, close in time, not too many samples.

    A batch's query covers the time of all its windows; that is correct for each of them since a
    job's series have no samples outside its own time, except for other runs of its jobid: no batch
    includes time of those.
    """
    found: list[_Batch] = []
    for window in sorted(windows, key=lambda each: (each.until, each.start)):
        if window.near_other_run:
            yield [window]
        elif not any(batch.add(window) for batch in found):
            found.append(_Batch(window, endpoint))
            found[-1].add(window)
    yield from (batch.windows for batch in found)


def job_selector(
    metrics: Sequence[str], windows: Sequence[JobWindow], instances: Sequence[str] = ()
) -> str:
    """A selector of the jobs' series; for many jobs, of those of other clusters as well."""
    matchers = {"__name__": metrics}
    if len(windows) <= _FEW_JOBS:
        matchers["cluster"] = [windows[0].cluster]
    matchers["jobid"] = [window.jobid for window in windows]
    if instances:
        matchers["instance"] = instances
    return _format_selector(matchers)


def series_selector(query: SeriesQuery, window: JobWindow) -> str:
    return _format_selector(
        {"__name__": [query.metric], "cluster": [window.cluster], **query.where}
    )


def cluster_selector(cluster: str, metrics: Sequence[str], instance: str = "") -> str:
    """A selector of series of the cluster's nodes and accounts, or of one target's."""
    one = {"instance": [instance]} if instance else {}
    return _format_selector({"__name__": metrics, "cluster": [cluster], **one})


def cluster_query(function: str, metric: str, cluster: str, seconds: int) -> str:
    """A function of each job's series of a metric in the last seconds; replicas are merged."""
    which = _jobs_of(metric, cluster)
    window = "" if function == "timestamp" else _window_before(seconds)
    return f"max by ({_IN_CLUSTER}) ({function}({which}{window}))"


def cluster_resets_query(metric: str, cluster: str, seconds: int) -> str:
    """The number of resets of each job's counter in the last seconds, if there were any."""
    return f"sum by (jobid) (resets({_jobs_of(metric, cluster)}{_window_before(seconds)})) > 0"


def _jobs_of(metric: str, cluster: str) -> str:
    return f'{metric}{{cluster={promql_string(cluster)}, jobid!=""}}'


def _window_before(seconds: int) -> str:
    """Without its first moment, which Prometheus before version 3 includes."""
    return f"[{seconds * 1000 - 1}ms]"


def target_query(
    query: SeriesQuery, cluster: str, instance: str, step: float, interval: float
) -> str:
    """A target's series over time, or a cluster's; the copies of replicas count once.

    A rate needs a few scrapes, whatever the step.
    """
    one = {"instance": [instance]} if instance else {}
    matchers = {"__name__": [query.metric], "cluster": [cluster], **one}
    rate = query.kind is SeriesKind.RATE
    window = max(step, 4 * interval) if rate else step
    mean = f"{'rate' if rate else 'avg_over_time'}({_format_selector({**matchers, **query.where})}"
    each = f"max by ({', '.join((*query.by, *query.summed))}) ({mean}[{round(window * 1000)}ms]))"
    return f"sum by ({', '.join(query.by)}) ({each})"


def _format_selector(matchers: Mapping[str, Sequence[str]]) -> str:
    return f"{{{', '.join(matcher(label, values) for label, values in matchers.items())}}}"


def matcher(label: str, values: Sequence[str]) -> str:
    if len(values) == 1:
        return f"{label}={promql_string(values[0])}"
    return f"{label}=~{promql_string('|'.join(map(escape_regex, values)))}"


# re.escape() also escapes characters for which RE2 needs no escape, such as "-" or "#".
_SPECIAL = re.compile(r"([.+*?()|\[\]{}^$\\])")


def escape_regex(value: str) -> str:
    return _SPECIAL.sub(r"\\\1", value)


def promql_string(value: str) -> str:
    """A PromQL string, with the same escapes as JSON."""
    return json.dumps(value, ensure_ascii=False)


def last_times_query(metrics: Sequence[str], batch: Sequence[JobWindow], step: int) -> str:
    """The times of the last samples, to this many seconds; replicas are merged."""
    times = f"timestamp({job_selector(metrics, batch)})[{seconds_of(batch)}s:{step}s]"
    labels = ", ".join(label for label in IDENTITY if label != "__name__")
    return f"max by ({labels}) (max_over_time({times}))"


def seconds_of(batch: Sequence[JobWindow]) -> int:
    """The length of the period that covers all windows of the batch."""
    return max(1, end_of(batch) - min(window.start for window in batch))


def end_of(batch: Sequence[JobWindow]) -> int:
    return max(window.until for window in batch)
