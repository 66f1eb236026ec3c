"""Grafana itself: its users, its queries to data sources, and their duration."""

from grafana.generate.dashboards.parts import C, figure, lines, of_kubernetes, p99, rate

_ITS = f"and on (cluster, job, instance) grafana_build_info{{{C}}}"
_HTTP = "grafana_http_request_duration_seconds"
_ASKED = "grafana_datasource_request"
_LEGEND = "{{instance}}"


def _rated(metric: str, by: str, more: str = "") -> str:
    return f"sum by ({by}) ({rate(f'{metric}{{{C}{more}}}')})"


DASHBOARD = of_kubernetes(
    "grafana",
    "Grafana",
    "Grafana itself. For operators.",
    (
        figure("Servers", f"count(grafana_build_info{{{C}}})"),
        figure(
            "Users", f"max(grafana_stat_active_users{{{C}}})", "none", "Seen in the last 30 days."
        ),
        figure("Dashboards", f"max(grafana_stat_totals_dashboard{{{C}}})"),
        figure("Requests in flight", f"sum(grafana_http_request_in_flight{{{C}}})"),
        figure("Data source requests in flight", f"sum({_ASKED}_in_flight{{{C}}})"),
        figure(
            "Failed requests",
            f'sum({rate(f"""{_HTTP}_count{{{C},status_code=~"5.."}}""")}) or vector(0)',
            "reqps",
            "Responses with a status of 500 or higher.",
        ),
        lines(
            "Requests",
            "reqps",
            "By status.",
            (_rated(f"{_HTTP}_count", "status_code"), "{{status_code}}"),
        ),
        lines(
            "Slowest requests: mean duration",
            "s",
            "The ten slowest handlers.",
            (
                f"topk(10, {_rated(f'{_HTTP}_sum', 'handler')}"
                f" / ({_rated(f'{_HTTP}_count', 'handler')} > 0))",
                "{{handler}}",
            ),
        ),
        lines(
            "Requests to data sources",
            "reqps",
            "By data source and status.",
            (_rated(f"{_ASKED}_total", "datasource, code"), "{{datasource}} {{code}}"),
        ),
        lines(
            "Requests to data sources: 99th percentile",
            "s",
            "",
            (p99(f"{_ASKED}_duration_seconds_bucket{{{C}}}", "datasource"), "{{datasource}}"),
        ),
        lines(
            "CPUs in use",
            "none",
            "",
            (f"{rate(f'process_cpu_seconds_total{{{C}}}')} {_ITS}", _LEGEND),
        ),
        lines("Memory", "bytes", "", (f"process_resident_memory_bytes{{{C}}} {_ITS}", _LEGEND)),
    ),
    "grafana_build_info",
)._replace(on_nodes=False)
