"""All workers of a cluster with their load, one row each."""

from grafana.generate.dashboards.kubernetes.shape import C, dashboard, figure, filled, lines, rate
from grafana.generate.model import Panel, PanelColumn, Promql

_BY = "by (cluster, instance)"
_IDLE = f'node_cpu_seconds_total{{{C},mode="idle"}}'
_BUSY = f"1 - avg {_BY} ({rate(_IDLE)})"
_LOAD = f"max {_BY} (node_load1{{{C}}}) / count {_BY} ({_IDLE})"
_MEMORY = (
    f"1 - max {_BY} (node_memory_MemAvailable_bytes{{{C}}})"
    f" / max {_BY} (node_memory_MemTotal_bytes{{{C}}})"
)
_LOCAL = f'{C},fstype!~"tmpfs|ramfs|squashfs|overlay|nfs.*"'
_DISK = f"max {_BY} ({filled(_LOCAL)})"
_WIRES = f'{C},device!="lo"'
_PODS = f"max {_BY} (kubelet_running_pods{{{C}}})"
_JOBS = f"sum {_BY} (batchjob_jobs{{{C}}})"
_LEGEND = "{{instance}}"


def _traffic(direction: str) -> str:
    return f"sum {_BY} ({rate(f'node_network_{direction}_bytes_total{{{_WIRES}}}')})"


DASHBOARD = dashboard(
    "workers",
    "Workers",
    "All nodes of a Kubernetes cluster with their load. For operators.",
    (
        figure("Workers", f"count(node_load1{{{C}}})"),
        figure("CPUs", f"count({_IDLE})"),
        figure("CPUs in use", f"count({_IDLE}) - sum({rate(_IDLE)})"),
        figure("Memory", f"sum(node_memory_MemTotal_bytes{{{C}}})", "bytes"),
        figure("Pods", f"sum({_PODS})"),
        figure("Batch jobs", f"sum({_JOBS})", "none", "With processes on a worker."),
        Panel(
            "Workers and their load",
            tuple(
                Promql(expr, instant=True) for expr in (_BUSY, _LOAD, _MEMORY, _DISK, _PODS, _JOBS)
            ),
            about="A load per CPU above 1 means more runnable tasks than CPUs.",
            kind="table",
            width=24,
            height=10,
            sort_by="Load per CPU",
            columns=(
                PanelColumn("instance", "Worker"),
                PanelColumn("cluster", "Cluster"),
                PanelColumn("Value #A", "CPU", "percentunit"),
                PanelColumn("Value #B", "Load per CPU", "none"),
                PanelColumn("Value #C", "Memory", "percentunit"),
                PanelColumn("Value #D", "Fullest disk", "percentunit"),
                PanelColumn("Value #E", "Pods", "none"),
                PanelColumn("Value #F", "Jobs", "none"),
            ),
        ),
        lines("CPU in use", "percentunit", "Of all CPUs of the worker.", (_BUSY, _LEGEND)),
        lines("Load per CPU", "none", "Over the last minute.", (_LOAD, _LEGEND)),
        lines(
            "Memory in use",
            "percentunit",
            "Without memory that can be reclaimed.",
            (_MEMORY, _LEGEND),
        ),
        lines(
            "Waiting for a CPU",
            "percentunit",
            "Fraction of time in which at least one task waited (PSI).",
            (f"max {_BY} ({rate(f'node_pressure_cpu_waiting_seconds_total{{{C}}}')})", _LEGEND),
        ),
        lines("Received", "Bps", "All devices except loopback.", (_traffic("receive"), _LEGEND)),
        lines("Sent", "Bps", "All devices except loopback.", (_traffic("transmit"), _LEGEND)),
    ),
    "node_load1",
)
