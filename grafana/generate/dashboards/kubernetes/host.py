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
    "One host by node_exporter. For operators.",
    (
        figure("CPUs", f'count(node_cpu_seconds_total{{{_H},mode="idle"}})'),
        figure("Load", f"max(node_load1{{{_H}}})", "none", "Of the last minute."),
        figure("Memory", f"max(node_memory_MemTotal_bytes{{{_H}}})", "bytes"),
        figure(
            "Fullest disk",
            f"max({filled(_LOCAL)})",
            "percentunit",
            "Of all file systems but those in memory.",
            NEAR_LIMIT,
        ),
        figure("Up for", f"max(time() - node_boot_time_seconds{{{_H}}})", "s"),
        figure(
            "Killed for memory",
            f"sum(increase(node_vmstat_oom_kill{{{_H}}}[1d]))",
            "none",
            "Processes that the kernel ended in a day.",
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
            "Disks: part of the time at work",
            "percentunit",
            "",
            (_rated("disk_io_time_seconds_total"), "{{device}}"),
        )._replace(most=1),
        lines(
            "File systems",
            "percentunit",
            "Part that is used.",
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
            "Network: lost",
            "pps",
            "Packets that were dropped or damaged.",
            (_rated("network_receive_drop_total"), "{{device}} received, dropped"),
            (_rated("network_transmit_drop_total"), "{{device}} sent, dropped"),
            (_rated("network_receive_errs_total"), "{{device}} received, damaged"),
            (_rated("network_transmit_errs_total"), "{{device}} sent, damaged"),
        ),
        lines(
            "Waiting",
            "percentunit",
            "Part of the time in which something waited (PSI).",
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
