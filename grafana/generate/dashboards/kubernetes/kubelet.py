"""The kubelets: start times of pods, container runtime, volumes and probes."""

from grafana.generate.dashboards.parts import (
    ANY,
    NEAR_LIMIT,
    C,
    figure,
    lines,
    of_kubernetes,
    p99,
    rate,
)

_UP = f'up{{job="kubelet",{C}}}'
_LEGEND = "{{instance}}"


def _rated(metric: str, by: str, more: str = "") -> str:
    return f"sum by ({by}) ({rate(f'{metric}{{{C}{more}}}')})"


DASHBOARD = of_kubernetes(
    "kubelet",
    "Kubelet",
    "The kubelet of each node. For operators.",
    (
        figure("Kubelets", f"count({_UP})"),
        figure("Down", f"count({_UP} == 0) or vector(0)", "none", "The last scrape failed.", ANY),
        figure("Pods", f"sum(kubelet_running_pods{{{C}}})"),
        figure("Containers", f'sum(kubelet_running_containers{{{C},container_state="running"}})'),
        figure(
            "Fullest volume",
            f"max(kubelet_volume_stats_used_bytes{{{C}}}"
            f" / kubelet_volume_stats_capacity_bytes{{{C}}})",
            "percentunit",
            "Of the volumes claimed by pods.",
            NEAR_LIMIT,
        ),
        figure(
            "Evictions, last hour",
            f"sum(increase(kubelet_evictions{{{C}}}[1h])) or vector(0)",
            "none",
            "Pods evicted because of memory or disk pressure.",
            ANY,
        ),
        lines(
            "Pod start: 99th percentile",
            "s",
            "From the time at which the kubelet first sees the pod until it runs; “alone”: "
            "without image pulls and init containers.",
            (p99(f"kubelet_pod_start_duration_seconds_bucket{{{C}}}", "cluster"), "{{cluster}}"),
            (
                p99(f"kubelet_pod_start_sli_duration_seconds_bucket{{{C}}}", "cluster"),
                "{{cluster}} alone",
            ),
        ),
        lines(
            "Pod updates: 99th percentile",
            "s",
            "By operation.",
            (
                p99(f"kubelet_pod_worker_duration_seconds_bucket{{{C}}}", "operation_type"),
                "{{operation_type}}",
            ),
        ),
        lines(
            "Runtime operations",
            "ops",
            "By operation.",
            (_rated("kubelet_runtime_operations_total", "operation_type"), "{{operation_type}}"),
        ),
        lines(
            "Failed runtime operations",
            "ops",
            "By operation.",
            (
                _rated("kubelet_runtime_operations_errors_total", "operation_type"),
                "{{operation_type}}",
            ),
        ),
        lines(
            "Runtime operations: 99th percentile",
            "s",
            "By operation.",
            (
                p99(f"kubelet_runtime_operations_duration_seconds_bucket{{{C}}}", "operation_type"),
                "{{operation_type}}",
            ),
        ),
        lines(
            "PLEG relist: 99th percentile",
            "s",
            "The kubelet's inspection of all containers. If it takes minutes, the node "
            "becomes not ready.",
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
