"""Hosts, from node_exporter: all workers of a cluster with their load, and one host."""

from grafana.generate.dashboards.parts import (
    ANY,
    EMPTY,
    NEAR_LIMIT,
    C,
    figure,
    lines,
    of_kubernetes,
    rate,
)
from grafana.generate.model import Panel, PanelColumn, Promql, Variable


def _filled(selector: str) -> str:
    """The used fraction of a file system."""
    return (
        f"1 - node_filesystem_avail_bytes{{{selector}}} / node_filesystem_size_bytes{{{selector}}}"
    )


_BY = "by (cluster, instance)"
_IDLE = f'node_cpu_seconds_total{{{C},mode="idle"}}'
_BUSY = f"1 - avg {_BY} ({rate(_IDLE)})"
_LOAD = f"max {_BY} (node_load1{{{C}}}) / count {_BY} ({_IDLE})"
_MEMORY = (
    f"1 - max {_BY} (node_memory_MemAvailable_bytes{{{C}}})"
    f" / max {_BY} (node_memory_MemTotal_bytes{{{C}}})"
)
_NOT_IN_MEMORY = f'{C},fstype!~"tmpfs|ramfs|squashfs|overlay|nfs.*"'
_DISK = f"max {_BY} ({_filled(_NOT_IN_MEMORY)})"
_WIRES = f'{C},device!="lo"'
_PODS = f"max {_BY} (kubelet_running_pods{{{C}}})"
_JOBS = f"sum {_BY} (batchjob_jobs{{{C}}})"
_LEGEND = "{{instance}}"


def _traffic(direction: str) -> str:
    return f"sum {_BY} ({rate(f'node_network_{direction}_bytes_total{{{_WIRES}}}')})"


WORKERS = of_kubernetes(
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

_H = f'{C},instance="$node"'
_LOCAL = f'{_H},fstype!~"tmpfs|ramfs|squashfs|overlay"'


def _rated(metric: str, more: str = "") -> str:
    return rate(f"node_{metric}{{{_H}{more}}}")


HOST = of_kubernetes(
    "host",
    "Host",
    "One host, from node_exporter. For operators.",
    (
        figure("CPUs", f'count(node_cpu_seconds_total{{{_H},mode="idle"}})'),
        figure("Load", f"max(node_load1{{{_H}}})", "none", "Over the last minute."),
        figure("Memory", f"max(node_memory_MemTotal_bytes{{{_H}}})", "bytes"),
        figure(
            "Fullest disk",
            f"max({_filled(_LOCAL)})",
            "percentunit",
            "All file systems except those in memory.",
            NEAR_LIMIT,
        ),
        figure("Uptime", f"max(time() - node_boot_time_seconds{{{_H}}})", "s"),
        figure(
            "OOM kills",
            f"sum(increase(node_vmstat_oom_kill{{{_H}}}[1d]))",
            "none",
            "Processes that the OOM killer terminated in the last day.",
            ANY,
        ),
        lines(
            "CPUs by mode",
            "none",
            "",
            (f"sum by (mode) ({_rated('cpu_seconds_total')})", "{{mode}}"),
        )._replace(stacked=True),
        lines(
            "Memory",
            "bytes",
            "",
            (f"node_memory_MemTotal_bytes{{{_H}}}", "installed"),
            (f"node_memory_MemAvailable_bytes{{{_H}}}", "available"),
            (f"node_memory_SwapTotal_bytes{{{_H}}} - node_memory_SwapFree_bytes{{{_H}}}", "swap"),
        ),
        lines(
            "Disks",
            "Bps",
            "",
            (_rated("disk_read_bytes_total"), "{{device}} read"),
            (_rated("disk_written_bytes_total"), "{{device}} written"),
        ),
        lines(
            "Disks: utilisation",
            "percentunit",
            "",
            (_rated("disk_io_time_seconds_total"), "{{device}}"),
        )._replace(maximum=1),
        lines(
            "File systems",
            "percentunit",
            "Fraction used.",
            (_filled(_LOCAL), "{{mountpoint}}"),
        )._replace(maximum=1),
        lines(
            "Network",
            "Bps",
            "",
            (_rated("network_receive_bytes_total", ',device!="lo"'), "{{device}} received"),
            (_rated("network_transmit_bytes_total", ',device!="lo"'), "{{device}} sent"),
        ),
        lines(
            "Network: drops and errors",
            "pps",
            "Packets dropped or with errors.",
            (_rated("network_receive_drop_total"), "{{device}} received, dropped"),
            (_rated("network_transmit_drop_total"), "{{device}} sent, dropped"),
            (_rated("network_receive_errs_total"), "{{device}} received, errors"),
            (_rated("network_transmit_errs_total"), "{{device}} sent, errors"),
        ),
        lines(
            "Waiting",
            "percentunit",
            "Fraction of time in which at least one task waited (PSI).",
            (_rated("pressure_cpu_waiting_seconds_total"), "CPU"),
            (_rated("pressure_memory_waiting_seconds_total"), "memory"),
            (_rated("pressure_io_waiting_seconds_total"), "storage"),
        )._replace(maximum=1),
    ),
    "node_load1",
    Variable(
        "node", "Node", 'label_values(node_load1{cluster=~"$cluster"}, instance)', about=EMPTY
    ),
)
