"""PromQL of the tables of quantities, with Grafana's units, in which copies of a series count once.

Two Prometheus servers that scrape the same targets write each series twice into a common store,
distinguished by a label of the site's choice; two exporters may query one scheduler. So each
selector of an expression is aggregated with `max by` the labels that our programs set.
"""

import re
from collections.abc import Mapping

from batchjob.quantities.job import START_TIME
from batchjob.quantities.quantity import ExportedMetric, Quantity, Unit
from batchjob_exporter.exporter import METRICS
from batchjob_exporter.self_metrics import SELF_METRICS
from collectors.collector import COLLECTORS

Metric = Quantity | ExportedMetric

_UNITS: dict[Unit, str] = {
    "seconds": "s", "bytes": "bytes", "count": "none", "cpus": "none", "ratio": "percentunit",
    "joules": "joule", "grams": "massg", "watts": "watt", "celsius": "celsius", "hertz": "hertz",
}  # fmt: skip
_UNITS_PER_SECOND: dict[Unit, str] = {
    "seconds": "percentunit", "bytes": "Bps", "count": "ops", "joules": "watt",
}  # fmt: skip


def series(metric: Metric, selector: str) -> str:
    """The metric's series with these labels: `series(CPUS, 'jobid="1"')`."""
    exported = metric.metric if isinstance(metric, Quantity) else metric
    return f"{exported.name}{{{selector}}}"


def rate_of_jobs(metric: Metric, selector: str) -> str:
    """The increase per second of a counter of jobs, over two minutes, for sums over jobs.

    It has the first value of each series, which rate() leaves out: see prometheus/rules/jobs.yml.
    """
    counter, start = series(metric, selector), series(START_TIME, selector)
    last = f"last_over_time({counter}[2m])"
    is_young = f"last_over_time({start}[2m]) > time() - 900"
    before = (
        f"last_over_time({counter}[2m] offset 2m) <= {last}"
        f" or 0 * {last} and on (cluster, instance, manager, jobid, user) ({is_young})"
        f" or min_over_time({counter}[2m])"
    )
    return f"({last} - ({before}) >= 0) / 120"


def unit(metric: Metric) -> str:
    """Grafana's unit of the metric's values."""
    return _UNITS[_unit(metric)]


def rate_unit(metric: Metric) -> str:
    """Grafana's unit of the increase of a counter per second."""
    return _UNITS_PER_SECOND[_unit(metric)]


def _unit(metric: Metric) -> Unit:
    return (metric.metric if isinstance(metric, Quantity) else metric).unit


_TARGET = ("cluster", "instance")
_SCRAPED = (*_TARGET, "job")
# Metrics that are not exposed by our own exporters.
_OTHERS: Mapping[str, tuple[str, ...]] = {
    "up": _SCRAPED,
    "scrape_duration_seconds": _SCRAPED,
    "scrape_samples_scraped": _SCRAPED,
    "process_cpu_seconds_total": _SCRAPED,
    "process_resident_memory_bytes": _SCRAPED,
    "batchjob_stats_db_jobs_total": (*_TARGET, "outcome"),
    "batchjob_stats_db_last_success_timestamp_seconds": (*_TARGET, "source"),
    "batchjob_stats_db_measured_jobs_total": _TARGET,
    "batchjob_stats_db_jobs_with_caveats_total": _TARGET,
    "batchjob_stats_db_covered_job_seconds_total": _TARGET,
    "batchjob_stats_db_measured_job_seconds_total": _TARGET,
    "batchjob_stats_db_ended_jobs_total": (*_TARGET, "node", "result"),
    "batchjob_stats_db_poll_duration_seconds": (*_TARGET, "source"),
    "batchjob_stats_server_requests_total": (*_TARGET, "method", "route", "status"),
    "batchjob_stats_server_request_duration_seconds_bucket": (*_TARGET, "route", "le"),
}
_SERIES = re.compile(
    r"""
    (?P<folded> \b(?:max|min) \s* (?:by\s*\([^)]*\)\s*)? \( )?
    (?P<over> \b[a-z_]+\( (?=[a-z_]+(?:\{[^}]*\})?\[) )?
    (?P<name> \b[a-z_]+ \b) (?P<matchers> \{[^}]*\} )? (?P<range> \[[^\]]+\] )?
    (?P<offset> \s+ offset \s+ \w+ )? (?(over) \) )
    """,
    re.VERBOSE,
)


def labels_of(name: str) -> tuple[str, ...]:
    """Labels that distinguish the series of a metric, without those of the scraper; or none."""
    return _OTHERS.get(name) or _EXPORTED.get(name, ())


def folded(expr: str) -> str:
    """The expression with each selector in `max by`, unless it is in one already."""
    return _SERIES.sub(_folded, expr)


def _folded(found: re.Match[str]) -> str:
    labels = labels_of(found["name"])
    if not labels or found["folded"]:
        return found[0]
    return f"max by ({', '.join(labels)}) ({found[0]})"


def _exported() -> dict[str, tuple[str, ...]]:
    known: dict[str, tuple[str, ...]] = {}
    for metric in (
        *(m for each in COLLECTORS for m in each.load().metrics),
        *METRICS,
        *SELF_METRICS,
    ):
        # Any of the exporters may be the one that queries the scheduler.
        target = _TARGET[:1] if metric.name.startswith("batchjob_cluster_") else _TARGET
        own = (*target, *metric.labels)
        known[metric.name] = own
        if metric.type == "histogram":
            known[f"{metric.name}_bucket"] = (*own, "le")
    return known


_EXPORTED = _exported()
