"""The kubelets: start times of pods, container runtime, volumes and probes."""

from grafana.generate.dashboards.kubernetes.shape import C, dashboard, figure, lines, p99, rate
from grafana.generate.thresholds import ANY, NEAR_LIMIT

_UP = f'up{{job="kubelet",{C}}}'
_LEGEND = "{{instance}}"


def _rated(metric: str, by: str, more: str = "") -> str:
    return f"sum by ({by}) ({rate(f'{metric}{{{C}{more}}}')})"


DASHBOARD = dashboard(
    "kubelet",
    "Kubelet",
    "The kubelet of each node. For operators.",
    (
        figure("Kubelets", f"count({_UP})"),
        figure("Down", f"count({_UP} == 0) or vector(0)", "none", "They were not scraped.", ANY),
        figure("Pods", f"sum(kubelet_running_pods{{{C}}})"),
        figure("Containers", f'sum(kubelet_running_containers{{{C},container_state="running"}})'),
        figure(
            "Fullest volume",
            f"max(kubelet_volume_stats_used_bytes{{{C}}}"
            f" / kubelet_volume_stats_capacity_bytes{{{C}}})",
            "percentunit",
            "Of the volumes that pods have claimed.",
            NEAR_LIMIT,
        ),
        figure(
            "Evictions in an hour",
            f"sum(increase(kubelet_evictions{{{C}}}[1h])) or vector(0)",
            "none",
            "Pods ended for want of memory or disk.",
            ANY,
        ),
        lines(
            "99 of 100 pods start within",
            "s",
            "From when the kubelet first sees the pod until it runs; without pulling images and "
            "init containers, where “alone” stands.",
            (p99(f"kubelet_pod_start_duration_seconds_bucket{{{C}}}", "cluster"), "{{cluster}}"),
            (
                p99(f"kubelet_pod_start_sli_duration_seconds_bucket{{{C}}}", "cluster"),
                "{{cluster}} alone",
            ),
        ),
        lines(
            "99 of 100 updates of a pod take less than",
            "s",
            "By what is done.",
            (
                p99(f"kubelet_pod_worker_duration_seconds_bucket{{{C}}}", "operation_type"),
                "{{operation_type}}",
            ),
        ),
        lines(
            "Operations of the runtime",
            "ops",
            "By what the kubelet asked for.",
            (_rated("kubelet_runtime_operations_total", "operation_type"), "{{operation_type}}"),
        ),
        lines(
            "Failed operations of the runtime",
            "ops",
            "By what the kubelet asked for.",
            (
                _rated("kubelet_runtime_operations_errors_total", "operation_type"),
                "{{operation_type}}",
            ),
        ),
        lines(
            "99 of 100 operations of the runtime take less than",
            "s",
            "By what the kubelet asked for.",
            (
                p99(f"kubelet_runtime_operations_duration_seconds_bucket{{{C}}}", "operation_type"),
                "{{operation_type}}",
            ),
        ),
        lines(
            "99 of 100 looks at all containers take less than",
            "s",
            "Where it takes minutes, the node is not ready.",
            (
                p99(f"kubelet_pleg_relist_duration_seconds_bucket{{{C}}}", "cluster, instance"),
                _LEGEND,
            ),
        ),
        lines(
            "Pods running",
            "none",
            "",
            (f"max by (cluster, instance) (kubelet_running_pods{{{C}}})", _LEGEND),
        ),
        lines(
            "Failed probes",
            "ops",
            "By container.",
            (
                _rated(
                    "prober_probe_total", "namespace, container, probe_type", ',result="failed"'
                ),
                "{{namespace}} {{container}} {{probe_type}}",
            ),
        ),
        lines(
            "CPUs used by kubelets",
            "none",
            "",
            (rate(f'process_cpu_seconds_total{{job="kubelet",{C}}}'), _LEGEND),
        ),
        lines(
            "Memory of kubelets",
            "bytes",
            "",
            (f'process_resident_memory_bytes{{job="kubelet",{C}}}', _LEGEND),
        ),
    ),
    "kubelet_running_pods",
)
