"""One host by node_exporter."""

from grafana.generate.dashboards.kubernetes.shape import C, dashboard, figure, filled, lines, rate
from grafana.generate.dashboards.rows import EMPTY
from grafana.generate.model import Variable
from grafana.generate.thresholds import ANY, NEAR_LIMIT

_H = f'{C},instance="$node"'
_LOCAL = f'{_H},fstype!~"tmpfs|ramfs|squashfs|overlay"'


def _rated(metric: str, more: str = "") -> str:
    return rate(f"node_{metric}{{{_H}{more}}}")


DASHBOARD = dashboard(
    "host",
    "Host",
    "One host, from node_exporter. For operators.",
    (
        figure("CPUs", f'count(node_cpu_seconds_total{{{_H},mode="idle"}})'),
        figure("Load", f"max(node_load1{{{_H}}})", "none", "Over the last minute."),
        figure("Memory", f"max(node_memory_MemTotal_bytes{{{_H}}})", "bytes"),
        figure(
            "Fullest disk",
            f"max({filled(_LOCAL)})",
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
            "Disks: utilization",
            "percentunit",
            "",
            (_rated("disk_io_time_seconds_total"), "{{device}}"),
        )._replace(most=1),
        lines(
            "File systems",
            "percentunit",
            "Fraction used.",
            (filled(_LOCAL), "{{mountpoint}}"),
        )._replace(most=1),
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
        )._replace(most=1),
    ),
    "node_load1",
    Variable(
        "node", "Node", 'label_values(node_load1{cluster=~"$cluster"}, instance)', about=EMPTY
    ),
)
