"""VictoriaMetrics: the store, and the agents that write to it."""

from grafana.generate.dashboards.parts import ANY, C, figure, lines, of_kubernetes, rate

# Only VictoriaMetrics' own processes.
_ITS = f"and on (cluster, job, instance) vm_app_start_timestamp{{{C}}}"
_LEGEND = "{{job}} {{instance}}"


def _rated(metric: str, by: str = "job, instance", more: str = "") -> str:
    return f"sum by ({by}) ({rate(f'{metric}{{{C}{more}}}')})"


DASHBOARD = of_kubernetes(
    "victoriametrics",
    "VictoriaMetrics",
    "The time series database and the agents that scrape. For operators.",
    (
        figure(
            "Series",
            f'sum(vm_cache_entries{{{C},type="storage/hour_metric_ids"}})',
            "none",
            "With samples in the last hour.",
        ),
        figure("Samples per second", f"sum({rate(f'vm_rows_inserted_total{{{C}}}')})"),
        figure("Samples stored", f'sum(vm_rows{{{C},type=~"storage/.*"}})'),
        figure("On disk", f"sum(vm_data_size_bytes{{{C}}})", "bytes"),
        figure(
            "Targets down",
            f'sum(vm_promscrape_targets{{{C},status="down"}})',
            "none",
            "Of all scrape jobs.",
            ANY,
        ),
        figure(
            "Waiting to be sent",
            f"sum(vmagent_remotewrite_pending_data_bytes{{{C}}})",
            "bytes",
            "On the agents' disks.",
        ),
        lines("Samples per second", "ops", "", (_rated("vm_rows_inserted_total"), _LEGEND)),
        lines(
            "New series",
            "ops",
            "Many new series indicate a label whose value changes.",
            (_rated("vm_new_timeseries_created_total"), _LEGEND),
        ),
        lines(
            "Slow inserts",
            "percentunit",
            "Fraction of the samples whose series were not in memory.",
            (
                f"{_rated('vm_slow_row_inserts_total')} / {_rated('vm_rows_inserted_total')}",
                _LEGEND,
            ),
        ),
        lines(
            "Free on disk",
            "bytes",
            "Below the limit the database is read-only.",
            (f"min by (job, instance) (vm_free_disk_space_bytes{{{C}}})", _LEGEND),
            (
                f"max by (job, instance) (vm_free_disk_space_limit_bytes{{{C}}})",
                f"{_LEGEND} limit",
            ),
        ),
        lines(
            "Questions",
            "reqps",
            "By path.",
            (
                _rated(
                    "vm_http_requests_total",
                    "path",
                    ',path=~".*/api/v1/(query|query_range|series|labels)"',
                ),
                "{{path}}",
            ),
        ),
        lines(
            "Failed and slow queries",
            "reqps",
            "",
            (_rated("vm_http_request_errors_total", "path"), "{{path}}"),
            (_rated("vm_slow_queries_total"), f"{_LEGEND} slow"),
        ),
        lines(
            "Agents: failed scrapes",
            "ops",
            "",
            (_rated("vm_promscrape_scrapes_failed_total"), _LEGEND),
        ),
        lines(
            "Agents: sent",
            "reqps",
            "By status; all except 2xx are retried.",
            (_rated("vmagent_remotewrite_requests_total", "status_code"), "{{status_code}}"),
        ),
        lines(
            "CPUs in use",
            "none",
            "",
            (f"{rate(f'process_cpu_seconds_total{{{C}}}')} {_ITS}", _LEGEND),
        ),
        lines("Memory", "bytes", "", (f"process_resident_memory_bytes{{{C}}} {_ITS}", _LEGEND)),
    ),
    "vm_app_start_timestamp",
)._replace(on_nodes=False)
