"""The health of the monitoring itself, for operators."""

from batchjob.quantities.job import PROCESSES
from grafana.generate.dashboards.parts import (
    ANY,
    CAVEATS_LIMITS,
    EMPTY,
    ENERGY_DEVIATION,
    LITTLE_COVERED,
    POLL_AGE,
    SLOW_SCRAPE,
    C,
    figure,
    heading,
)
from grafana.generate.model import Dashboard, Panel, PanelColumn, Promql, Variable
from grafana.generate.promql import series

_UP = f'up{{job="$scrape_job",{C}}}'


def _part(counted: str, of: str) -> str:
    """The fraction of what the poller counted in six hours, as in the alerts."""
    parts = (f"sum(increase(batchjob_stats_db_{each}_total{{{C}}}[6h]))" for each in (counted, of))
    return "{} / ({} > 0)".format(*parts)


DASHBOARD = Dashboard(
    "exporters",
    "Exporter health",
    "Exporters, poller and server. For operators.",
    (
        figure("Exporters", f"count({_UP})", "none", "Targets of the scrape configuration."),
        figure("Down", f"count({_UP} == 0) or vector(0)", "none", "The last scrape failed.", ANY),
        figure(
            "Failing collectors",
            f"count(batchjob_scrape_collector_success{{{C}}} == 0) or vector(0)",
            "none",
            "Over all nodes.",
            ANY,
        ),
        figure(
            "Jobs not exposed",
            f"sum(batchjob_jobs_ignored{{{C}}})",
            "none",
            "Beyond the maximum, or claimed by several owners.",
            ANY,
        ),
        figure(
            "Jobs without a name",
            "count(" + series(PROCESSES, f'{C},user=~"[0-9]+"') + ") or vector(0)",
            "none",
            "Only the uid of the owner is known.",
            ANY,
        ),
        figure(
            "Series",
            f'sum(scrape_samples_scraped{{job="$scrape_job",{C}}})',
            "none",
            "Of all exporters.",
        ),
        heading("Exporters"),
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
                    f"(batchjob_scrape_collector_success{{{C}}} == 0)",
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
            (Promql(f'topk(5, scrape_duration_seconds{{job="$scrape_job",{C}}})', "{{instance}}"),),
            "s",
            "Prometheus aborts a scrape after scrape_timeout, by default 10 s.",
            thresholds=SLOW_SCRAPE,
        ),
        Panel(
            "Collectors: longest run",
            (
                Promql(
                    f"max by (collector) (batchjob_scrape_collector_duration_seconds{{{C}}})",
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
                    f"{{{C}}}[$__rate_interval]))",
                    "{{reason}}",
                ),
            ),
            "ops",
        ),
        Panel(
            "Jobs not exposed",
            (Promql(f"sum by (reason) (batchjob_jobs_ignored{{{C}}})", "{{reason}}"),),
            "none",
        ),
        Panel(
            "Age of meter readings",
            (Promql(f"max by (meter) (batchjob_meter_age_seconds{{{C}}})", "{{meter}}"),),
            "s",
        ),
        Panel(
            "Energy attribution: deviation",
            (
                Promql(
                    f"max by (cluster) (abs(batchjob_node_energy_deviation_ratio{{{C}}}))",
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
                    f"{C}}}[$__rate_interval]))",
                    "{{instance}}",
                ),
            ),
            "none",
        ),
        Panel(
            "Memory of exporters",
            (
                Promql(
                    f'topk(5, process_resident_memory_bytes{{job="$scrape_job",{C}}})',
                    "{{instance}}",
                ),
            ),
            "bytes",
        ),
        heading("Poller"),
        figure(
            "Last successful poll",
            f"max(time() - batchjob_stats_db_last_success_timestamp_seconds{{{C}}})",
            "s",
            "Time since the last successful poll of the oldest source.",
            POLL_AGE,
        )._replace(width=8),
        figure(
            "Coverage",
            _part("covered_job_seconds", "measured_job_seconds"),
            "percentunit",
            "Fraction of the run time of jobs that is covered by samples, over the last six hours.",
            LITTLE_COVERED,
        )._replace(width=8),
        figure(
            "With a caveat",
            _part("jobs_with_caveats", "measured_jobs"),
            "percentunit",
            "Fraction of the jobs measured in the last six hours.",
            CAVEATS_LIMITS,
        )._replace(width=8),
        Panel(
            "Time since the last successful poll",
            (
                Promql(
                    "time() - max by (cluster, source) "
                    f"(batchjob_stats_db_last_success_timestamp_seconds{{{C}}})",
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
                    f"max by (cluster, source) (batchjob_stats_db_poll_duration_seconds{{{C}}})",
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
                    f"{{{C}}}[$__rate_interval]))",
                    "{{outcome}}",
                ),
            ),
            "ops",
        ),
        Panel(
            "Jobs measured",
            (
                Promql(
                    f"sum(rate(batchjob_stats_db_measured_jobs_total{{{C}}}[$__rate_interval]))",
                    "measured",
                ),
                Promql(
                    f"sum(rate(batchjob_stats_db_jobs_with_caveats_total{{{C}}}[$__rate_interval]))",
                    "with a caveat",
                ),
            ),
            "ops",
        ),
        heading("Server"),
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
