"""A node and the effect of its jobs on it, for operators: the series have no user."""

from batchjob.quantities.gpu import (
    GPU_MEMORY_USED,
    GPU_POWER,
    GPU_TEMPERATURE,
    GPU_UTILIZATION,
    JOB_GPU_INFO,
)
from batchjob.quantities.job import MEMORY_CURRENT, PROCESSES, WAITING_SECONDS
from grafana.generate.dashboards.parts import EMPTY, heading
from grafana.generate.model import PAGES, Dashboard, Panel, PanelColumn, Promql, Variable
from grafana.generate.promql import series, unit

_N = 'cluster="$cluster",instance="$node"'


def _rate(metric: str, by: str) -> str:
    return f"sum by ({by}) (rate(batchjob_{metric}{{{_N}}}[$__rate_interval]))"


_LIVE = series(PROCESSES, _N)  # without it, ended jobs would linger
DASHBOARD = Dashboard(
    "node",
    "Node",
    "A compute node, its jobs and its meters. For operators.",
    (
        Panel(
            "Current jobs",
            (
                Promql(
                    "max by (manager, jobid, user, account, partition) "
                    f"(batchjob_job_info{{{_N}}} and on (manager, jobid, user) {_LIVE})",
                    instant=True,
                ),
            ),
            about="From the exporter of this node.",
            kind="table",
            width=24,
            height=6,
            columns=(
                PanelColumn(
                    "jobid",
                    "Job",
                    link="/d/batchjob-job-live?var-cluster=${cluster}"
                    "&var-job=${__data.fields.jobid}",
                ),
                PanelColumn("user", "User"),
                PanelColumn("account", "Account"),
                PanelColumn("partition", "Partition"),
                PanelColumn("manager", "Scheduler"),
                PanelColumn("Value", hidden=True),
            ),
        ),
        heading("CPU and memory"),
        Panel(
            "CPUs by mode",
            (Promql(_rate("node_cpu_seconds_total", "mode"), "{{mode}}"),),
            "none",
            "Of the whole node.",
            stacked=True,
        ),
        Panel(
            "CPUs by job",
            (Promql(_rate("job_cpu_seconds_total", "jobid, user"), "{{jobid}} {{user}}"),),
            "none",
            stacked=True,
        ),
        Panel(
            "Memory",
            (
                Promql(f"batchjob_node_memory_total_bytes{{{_N}}}", "installed"),
                Promql(f"batchjob_node_memory_available_bytes{{{_N}}}", "available"),
            ),
            "bytes",
        ),
        Panel(
            "Memory by job",
            (Promql(series(MEMORY_CURRENT, _N), "{{jobid}} {{user}}"),),
            unit(MEMORY_CURRENT),
            "Including page cache.",
            stacked=True,
        ),
        Panel(
            "Input and output by job",
            (
                Promql(_rate("job_process_io_read_bytes_total", "jobid"), "{{jobid}} read"),
                Promql(_rate("job_process_io_written_bytes_total", "jobid"), "{{jobid}} written"),
            ),
            "Bps",
            "All file systems.",
        ),
        Panel(
            "Waiting for storage by job",
            (
                Promql(
                    "sum by (jobid) (rate("
                    + series(WAITING_SECONDS, f'{_N},resource="io"')
                    + "[$__rate_interval]))",
                    "{{jobid}}",
                ),
            ),
            "percentunit",
            maximum=1,
        ),
        heading("GPU"),
        Panel(
            "GPU use",
            (Promql(series(GPU_UTILIZATION, _N), "{{gpu}} {{gpu_instance}}"),),
            unit(GPU_UTILIZATION),
            maximum=1,
        ),
        Panel(
            "GPU memory",
            (Promql(series(GPU_MEMORY_USED, _N), "{{gpu}} {{gpu_instance}}"),),
            unit(GPU_MEMORY_USED),
        ),
        Panel(
            "GPU temperature",
            (Promql(series(GPU_TEMPERATURE, _N), "{{gpu}}"),),
            "celsius",
        ),
        Panel(
            "GPU allocation",
            (
                Promql(
                    "max by (gpu, gpu_instance, jobid, user, source, confirmed) "
                    f"({series(JOB_GPU_INFO, _N)})",
                    instant=True,
                ),
            ),
            kind="table",
            columns=(
                PanelColumn("gpu", "GPU"),
                PanelColumn("gpu_instance", "Instance"),
                PanelColumn("jobid", "Job"),
                PanelColumn("user", "User"),
                PanelColumn("source", "Source"),
                PanelColumn("confirmed", "Confirmed"),
                PanelColumn("Value", hidden=True),
            ),
        ),
        heading("Energy"),
        Panel(
            "Power by consumer",
            (
                Promql(
                    _rate("node_energy_joules_total", "component, consumer"),
                    "{{component}} {{consumer}}",
                ),
            ),
            "watt",
            "System: not used by jobs. Unallocated: idle power of unallocated resources.",
            stacked=True,
        ),
        Panel(
            "Power by meter",
            (
                Promql(
                    _rate("rapl_energy_joules_total", "zone, package"), "RAPL {{zone}} {{package}}"
                ),
                Promql(series(GPU_POWER, _N), "GPU {{gpu}}"),
                Promql(f'batchjob_ipmi_power_watts{{{_N},statistic="current"}}', "BMC"),
                Promql(f"batchjob_redfish_power_watts{{{_N}}}", "Redfish {{chassis}}"),
                Promql(f"batchjob_hwmon_power_watts{{{_N}}}", "{{chip}} {{sensor}}"),
                Promql(f"batchjob_cray_power_watts{{{_N}}}", "Cray {{domain}}"),
            ),
            unit(GPU_POWER),
            "Zones and meters overlap and must not be added up.",
        ),
        Panel(
            "Age of readings", (Promql(f"batchjob_meter_age_seconds{{{_N}}}", "{{meter}}"),), "s"
        ),
        Panel(
            "Duration of collectors",
            (Promql(f"batchjob_scrape_collector_duration_seconds{{{_N}}}", "{{collector}}"),),
            "s",
        ),
    ),
    (
        Variable("cluster", "Cluster", "label_values(batchjob_node_cpus, cluster)", about=EMPTY),
        Variable(
            "node",
            "Node",
            'label_values(batchjob_node_cpus{cluster="$cluster"}, instance)',
            about=EMPTY,
        ),
    ),
    since="now-1h",
    refresh="30s",
    links=(
        (
            "Page of this node",
            f"{PAGES}/clusters/${{cluster:percentencode}}/nodes/${{node:percentencode}}"
            "?since=${__from}&until=${__to}",
        ),
    ),
)
