"""Pods: their states and reasons, and their usage by namespace."""

from grafana.generate.dashboards.parts import ANY, EMPTY, C, figure, lines, of_kubernetes, rate
from grafana.generate.model import Panel, PanelColumn, Promql, Variable

_N = f'{C},namespace=~"$namespace"'
_LEGEND = "{{namespace}}"


def _phase(phase: str) -> str:
    return f'sum(kube_pod_status_phase{{{_N},phase="{phase}"}})'


def _rated(metric: str) -> str:
    return f"sum by (namespace) ({rate(f'{metric}{{{_N}}}')})"


def _requested(resource: str) -> str:
    name = f'kube_pod_container_resource_requests{{{_N},resource="{resource}"}}'
    return f"sum by (namespace) ({name})"


DASHBOARD = of_kubernetes(
    "kubernetes",
    "Kubernetes",
    "Pods of a cluster, from kube-state-metrics and cAdvisor. For operators.",
    (
        figure("Running", _phase("Running")),
        figure("Pending", _phase("Pending")),
        figure("Failed", _phase("Failed"), "none", "Counted until they are deleted.", ANY),
        figure(
            "Not ready",
            f'sum(kube_pod_status_ready{{{_N},condition="false"}}'
            f' and on (namespace, pod) (kube_pod_status_phase{{{_N},phase="Running"}} == 1))'
            " or vector(0)",
            "none",
            "Running, but failing their readiness probe.",
            ANY,
        ),
        figure(
            "Restarts, last hour",
            f"sum(increase(kube_pod_container_status_restarts_total{{{_N}}}[1h]))",
            "none",
            "Of all containers.",
        ),
        figure(
            "OOM killed",
            f'sum(kube_pod_container_status_last_terminated_reason{{{_N},reason="OOMKilled"}})'
            " or vector(0)",
            "none",
            "Containers whose last termination was an OOM kill.",
            ANY,
        ),
        lines(
            "Pods by phase",
            "none",
            "",
            (f"sum by (phase) (kube_pod_status_phase{{{_N}}})", "{{phase}}"),
        ),
        lines(
            "Waiting containers",
            "none",
            "By reason.",
            (
                f"sum by (reason) (kube_pod_container_status_waiting_reason{{{_N}}})",
                "{{reason}}",
            ),
        ),
        lines(
            "CPUs in use",
            "none",
            "By namespace, with the requests.",
            (_rated("container_cpu_usage_seconds_total"), _LEGEND),
            (_requested("cpu"), "{{namespace}} requested"),
        ),
        lines(
            "Memory in use",
            "bytes",
            "Working set by namespace, with the requests.",
            (f"sum by (namespace) (container_memory_working_set_bytes{{{_N}}})", _LEGEND),
            (_requested("memory"), "{{namespace}} requested"),
        ),
        lines(
            "Throttled by a limit",
            "percentunit",
            "Fraction of the periods in which a container had used up its CPU quota.",
            (
                f"{_rated('container_cpu_cfs_throttled_periods_total')}"
                f" / {_rated('container_cpu_cfs_periods_total')}",
                _LEGEND,
            ),
        ),
        lines(
            "Network",
            "Bps",
            "By namespace; only pods with their own network.",
            (_rated("container_network_receive_bytes_total"), "{{namespace}} received"),
            (_rated("container_network_transmit_bytes_total"), "{{namespace}} sent"),
        ),
        Panel(
            "Most restarts, last day",
            (
                Promql(
                    "topk(20, sum by (cluster, namespace, pod, container) (increase("
                    f"kube_pod_container_status_restarts_total{{{_N}}}[1d])) > 0)",
                    instant=True,
                ),
            ),
            about="Should be empty.",
            kind="table",
            width=24,
            sort_by="Restarts",
            columns=(
                PanelColumn("namespace", "Namespace"),
                PanelColumn("pod", "Pod"),
                PanelColumn("container", "Container"),
                PanelColumn("cluster", "Cluster"),
                PanelColumn("Value", "Restarts", "none"),
            ),
        ),
    ),
    "kube_pod_info",
    Variable(
        "namespace",
        "Namespace",
        'label_values(kube_pod_info{cluster=~"$cluster"}, namespace)',
        every=True,
        about=EMPTY,
    ),
)
