"""The health of the monitoring itself, for operators."""

from batchjob.quantities.job import PROCESSES
from grafana.generate.dashboards.rows import EMPTY
from grafana.generate.metrics import series
from grafana.generate.model import Dashboard, Panel, PanelColumn, Promql, Thresholds, Variable
from grafana.generate.thresholds import (
    ANY,
    DOUBTED,
    ENERGY_DEVIATION,
    LITTLE_COVERED,
    POLL_AGE,
    SLOW_SCRAPE,
)

_C = 'cluster=~"$cluster"'
_UP = f'up{{job="$scrape_job",{_C}}}'


def _stat(
    title: str, about: str, expr: str, bounds: Thresholds | None = None, unit: str = "none"
) -> Panel:
    asked = (Promql(expr, title, instant=True),)
    return Panel(title, asked, unit, about, "stat", 4, 4, thresholds=bounds)


def _part(counted: str, of: str) -> str:
    """The fraction of what the poller counted in six hours, as in the alerts."""
    parts = (f"sum(increase(batchjob_stats_db_{each}_total{{{_C}}}[6h]))" for each in (counted, of))
    return "{} / ({} > 0)".format(*parts)


def _row(title: str) -> Panel:
    return Panel(title, kind="row")


DASHBOARD = Dashboard(
    "exporters",
    "Exporter health",
    "Exporters, poller and server. For operators.",
    (
        _stat("Exporters", "Targets of the scrape configuration.", f"count({_UP})"),
        _stat("Down", "The last scrape failed.", f"count({_UP} == 0) or vector(0)", ANY),
        _stat(
            "Failing collectors",
            "Over all nodes.",
            f"count(batchjob_scrape_collector_success{{{_C}}} == 0) or vector(0)",
            ANY,
        ),
        _stat(
            "Jobs not exposed",
            "Beyond the maximum, or claimed by several owners.",
            f"sum(batchjob_jobs_ignored{{{_C}}})",
            ANY,
        ),
        _stat(
            "Jobs without a name",
            "Only the uid of the owner is known.",
            "count(" + series(PROCESSES, f'{_C},user=~"[0-9]+"') + ") or vector(0)",
            ANY,
        ),
        _stat(
            "Series", "Of all exporters.", f'sum(scrape_samples_scraped{{job="$scrape_job",{_C}}})'
        ),
        _row("Exporters"),
        Panel(
            "Down",
            (Promql(f"max by (cluster, instance) ({_UP} == 0)", instant=True),),
            about="Should be empty.",
            kind="table",
            columns=(
                PanelColumn("instance", "Node"),
                PanelColumn("cluster", "Cluster"),
                PanelColumn("Value", hidden=True),
            ),
        ),
        Panel(
            "Failing collectors",
            (
                Promql(
                    "max by (cluster, instance, collector) "
                    f"(batchjob_scrape_collector_success{{{_C}}} == 0)",
                    instant=True,
                ),
            ),
            about="Should be empty. Run `batchjob doctor` on the node to find the cause.",
            kind="table",
            columns=(
                PanelColumn("instance", "Node"),
                PanelColumn("cluster", "Cluster"),
                PanelColumn("collector", "Collector"),
                PanelColumn("Value", hidden=True),
            ),
        ),
        Panel(
            "Slowest scrapes",
            (
                Promql(
                    f'topk(5, scrape_duration_seconds{{job="$scrape_job",{_C}}})', "{{instance}}"
                ),
            ),
            "s",
            "Prometheus aborts a scrape after scrape_timeout, by default 10 s.",
            thresholds=SLOW_SCRAPE,
        ),
        Panel(
            "Collectors: longest run",
            (
                Promql(
                    f"max by (collector) (batchjob_scrape_collector_duration_seconds{{{_C}}})",
                    "{{collector}}",
                ),
            ),
            "s",
        ),
        Panel(
            "Files that could not be read",
            (
                Promql(
                    "sum by (reason) (rate(batchjob_job_read_errors_total"
                    f"{{{_C}}}[$__rate_interval]))",
                    "{{reason}}",
                ),
            ),
            "ops",
        ),
        Panel(
            "Jobs not exposed",
            (Promql(f"sum by (reason) (batchjob_jobs_ignored{{{_C}}})", "{{reason}}"),),
            "none",
        ),
        Panel(
            "Age of meter readings",
            (Promql(f"max by (meter) (batchjob_meter_age_seconds{{{_C}}})", "{{meter}}"),),
            "s",
        ),
        Panel(
            "Energy attribution: deviation",
            (
                Promql(
                    f"max by (cluster) (abs(batchjob_node_energy_deviation_ratio{{{_C}}}))",
                    "{{cluster}}",
                ),
            ),
            "none",
            "A value above 1e-6 is a fault.",
            thresholds=ENERGY_DEVIATION,
        ),
        Panel(
            "CPUs used by exporters",
            (
                Promql(
                    'topk(5, rate(process_cpu_seconds_total{job="$scrape_job",'
                    f"{_C}}}[$__rate_interval]))",
                    "{{instance}}",
                ),
            ),
            "none",
        ),
        Panel(
            "Memory of exporters",
            (
                Promql(
                    f'topk(5, process_resident_memory_bytes{{job="$scrape_job",{_C}}})',
                    "{{instance}}",
                ),
            ),
            "bytes",
        ),
        _row("Poller"),
        _stat(
            "Last successful poll",
            "Time since the last successful poll of the oldest source.",
            f"max(time() - batchjob_stats_db_last_success_timestamp_seconds{{{_C}}})",
            POLL_AGE,
            "s",
        )._replace(width=8),
        _stat(
            "Coverage",
            "Fraction of the run time of jobs that is covered by samples, over the last six hours.",
            _part("covered_job_seconds", "measured_job_seconds"),
            LITTLE_COVERED,
            "percentunit",
        )._replace(width=8),
        _stat(
            "With a caveat",
            "Fraction of the jobs measured in the last six hours.",
            _part("doubtful_jobs", "measured_jobs"),
            DOUBTED,
            "percentunit",
        )._replace(width=8),
        Panel(
            "Time since the last successful poll",
            (
                Promql(
                    "time() - max by (cluster, source) "
                    f"(batchjob_stats_db_last_success_timestamp_seconds{{{_C}}})",
                    "{{cluster}} {{source}}",
                ),
            ),
            "s",
            thresholds=POLL_AGE,
        ),
        Panel(
            "Duration of polls",
            (
                Promql(
                    f"max by (cluster, source) (batchjob_stats_db_poll_duration_seconds{{{_C}}})",
                    "{{cluster}} {{source}}",
                ),
            ),
            "s",
        ),
        Panel(
            "Job records",
            (
                Promql(
                    "sum by (outcome) (rate(batchjob_stats_db_jobs_total"
                    f"{{{_C}}}[$__rate_interval]))",
                    "{{outcome}}",
                ),
            ),
            "ops",
        ),
        Panel(
            "Jobs measured",
            (
                Promql(
                    f"sum(rate(batchjob_stats_db_measured_jobs_total{{{_C}}}[$__rate_interval]))",
                    "measured",
                ),
                Promql(
                    f"sum(rate(batchjob_stats_db_doubtful_jobs_total{{{_C}}}[$__rate_interval]))",
                    "with a caveat",
                ),
            ),
            "ops",
        ),
        _row("Server"),
        Panel(
            "Requests",
            (
                Promql(
                    "sum by (status) (rate(batchjob_stats_server_requests_total"
                    "[$__rate_interval]))",
                    "{{status}}",
                ),
            ),
            "reqps",
        ),
        Panel(
            "95th percentile of response time",
            (
                Promql(
                    "histogram_quantile(0.95, sum by (le, route) (rate("
                    "batchjob_stats_server_request_duration_seconds_bucket[$__rate_interval])))",
                    "{{route}}",
                ),
            ),
            "s",
        ),
    ),
    (
        Variable(
            "scrape_job",
            "Scrape job",
            "label_values(batchjob_exporter_build_info, job)",
            about=EMPTY,
        ),
        Variable(
            "cluster",
            "Cluster",
            "label_values(batchjob_exporter_build_info, cluster)",
            every=True,
            about=EMPTY,
        ),
    ),
    refresh="1m",
)
