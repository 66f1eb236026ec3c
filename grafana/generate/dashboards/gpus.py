"""GPUs: held, used, idle."""

from batchjob.judgements import thresholds
from batchjob.quantities.gpu import (
    GPU_ECC_ERRORS,
    GPU_TEMPERATURE,
    JOB_GPU_INFO,
    JOB_GPU_MEMORY,
    JOB_GPU_PROFILE,
    JOB_GPU_UTILIZATION,
    PROFILE_RATIOS,
    PROFILED_SECONDS,
)
from grafana.generate.dashboards.parts import (
    ANY,
    CLUSTER,
    CLUSTER_OF,
    DAYS,
    IN_CLUSTER,
    JOB_NOW,
    LITTLE_USED,
    USER_OF,
    C,
    figure,
)
from grafana.generate.model import ApiQuery, Dashboard, Panel, PanelColumn, Promql
from grafana.generate.promql import rate_of_jobs, series, unit

_USE = series(JOB_GPU_UTILIZATION, C)
# An unconfirmed GPU is only what the environment of the job's own processes says.
_HELD = series(JOB_GPU_INFO, f'{C},confirmed="true"')
_BY_JOB = "cluster, manager, jobid, user"


DASHBOARD = Dashboard(
    "gpus",
    "GPU use",
    "Allocated GPUs, their utilisation, and users whose GPUs are idle.",
    (
        figure(
            "GPUs",
            f'count(count by (uuid) (batchjob_gpu_info{{{C},gpu_instance=""}}))',
            "none",
            "On nodes that respond. For operators.",
        )._replace(width=6),
        figure(
            "Held", f"count(count by (uuid) ({_HELD}))", "none", "By jobs that you may see."
        )._replace(width=6),
        figure(
            "Allocated but idle",
            "count(max by (uuid) (max_over_time("
            f"{series(JOB_GPU_UTILIZATION, C)}[30m])) < {thresholds().idle_gpu:g}) or vector(0)",
            "none",
            "No kernel ran for half an hour.",
            ANY,
        )._replace(width=6),
        figure(
            "Utilisation of allocated GPUs",
            f"avg(avg_over_time({_USE}[30m]))",
            "percentunit",
            "Mean over GPUs, last half hour.",
            LITTLE_USED,
        )._replace(width=6),
        Panel(
            "GPUs over time",
            (
                Promql(f'count(count by (uuid) (batchjob_gpu_info{{{C},gpu_instance=""}}))', "all"),
                Promql(f"count(count by (uuid) ({_HELD}))", "held"),
                Promql(f"sum({_USE})", "in use, in units of fully used GPUs"),
            ),
            unit(JOB_GPU_INFO),
        ),
        Panel(
            "How well held GPUs are used",
            tuple(
                Promql(
                    f"sum({rate_of_jobs(JOB_GPU_PROFILE[f'{name}_seconds'], C)})"
                    f" / sum({rate_of_jobs(JOB_GPU_PROFILE[PROFILED_SECONDS], C)})",
                    name.replace("_", " ").replace("sm", "SM").replace("dram", "memory"),
                )
                for name in PROFILE_RATIOS
            ),
            "percentunit",
            "Parts of multiprocessors, warps, tensor cores and memory bandwidth, while one job "
            "holds the GPU. Hopper and later.",
            maximum=1,
        ),
        Panel(
            "Use by user",
            (Promql(f"avg by (user) ({_USE})", "{{user}}"),),
            "percentunit",
            "Mean over the GPUs allocated to the user's jobs.",
            maximum=1,
        ),
        Panel(
            "Jobs with GPUs",
            (
                Promql(f"count by ({_BY_JOB}) ({_HELD})", instant=True),
                Promql(f"avg by ({_BY_JOB}) (avg_over_time({_USE}[30m]))", instant=True),
                Promql(f"min by ({_BY_JOB}) (max_over_time({_USE}[30m]))", instant=True),
                Promql(f"sum by ({_BY_JOB}) ({series(JOB_GPU_MEMORY, C)})", instant=True),
            ),
            about="Current jobs. If the least used GPU is at 0 %, it was idle for half an hour.",
            kind="table",
            width=24,
            height=9,
            sort_by="GPUs",
            columns=(
                PanelColumn(
                    "jobid",
                    "Job",
                    link="/d/batchjob-job-live?"
                    "var-cluster=${__data.fields.cluster}&var-job=${__data.fields.jobid}",
                ),
                PanelColumn("user", "User"),
                PanelColumn("cluster", "Cluster"),
                PanelColumn("manager", "Scheduler"),
                PanelColumn("Value #A", "GPUs", "none"),
                PanelColumn("Value #B", "Mean use", "percentunit"),
                PanelColumn("Value #C", "Maximum utilisation of the least used", "percentunit"),
                PanelColumn("Value #D", "Memory", "bytes"),
            ),
        ),
        Panel(
            "Idle since start",
            (
                ApiQuery(
                    "/stats/idle-gpus",
                    (
                        JOB_NOW,
                        USER_OF,
                        PanelColumn("account", "Account"),
                        CLUSTER_OF,
                        PanelColumn("allocated_gpus", "GPUs", "none", "number"),
                        PanelColumn("idle_gpus", "Idle", "none", "number"),
                        PanelColumn("gpu_utilization_ratio", "Mean use", "percentunit", "number"),
                        PanelColumn("idle_gpu_seconds", "Idle GPU time", "s", "number"),
                    ),
                    (IN_CLUSTER,),
                ),
            ),
            about="Running jobs with GPUs that have not been used since the start of "
            "the job, at least half an hour ago; from the job database.",
            kind="table",
            width=24,
            height=6,
            sort_by="Idle GPU time",
        ),
        Panel(
            "GPU time by account",
            (
                ApiQuery(
                    "/usage",
                    (
                        PanelColumn("account", "Account"),
                        PanelColumn("cluster", "Cluster"),
                        PanelColumn("gpu_allocated_seconds", "Held", "s", "number"),
                        PanelColumn(
                            "measured_gpu_allocated_seconds", "of which measured", "s", "number"
                        ),
                        PanelColumn("gpu_seconds", "Used", "s", "number"),
                        PanelColumn("energy_gpu_joules", "Energy", "joule", "number"),
                    ),
                    (IN_CLUSTER, ("by", "account,cluster"), *DAYS),
                ),
            ),
            about="Compare the time used with the time allocated to measured jobs.",
            kind="table",
            sort_by="Held",
        ),
        Panel(
            "GPU time by day",
            (
                ApiQuery(
                    "/usage",
                    (
                        PanelColumn("day", "Day", kind="time"),
                        PanelColumn("gpu_allocated_seconds", "held", kind="number"),
                        PanelColumn("gpu_seconds", "used", kind="number"),
                    ),
                    (IN_CLUSTER, ("by", "day"), *DAYS),
                ),
            ),
            "s",
            bars=True,
        ),
        Panel(
            "Temperature",
            (Promql(f"max by (cluster, instance) ({series(GPU_TEMPERATURE, C)})", "{{instance}}"),),
            "celsius",
            "Hottest GPU of each node. For operators.",
        ),
        Panel(
            "Throttled clocks",
            (
                Promql(
                    "sum by (reason) (rate(batchjob_gpu_throttle_seconds_total"
                    f"{{{C}}}[$__rate_interval]))",
                    "{{reason}}",
                ),
            ),
            "none",
            "GPUs whose clocks were throttled, by reason; reasons overlap. For operators.",
        ),
        Panel(
            "Memory errors",
            (
                Promql(
                    f"sum by (cluster, instance, gpu, kind) ({series(GPU_ECC_ERRORS, C)}) > 0",
                    "{{instance}} {{gpu}} {{kind}}",
                ),
            ),
            unit(GPU_ECC_ERRORS),
            "Over the lifetime of the board. For operators.",
            thresholds=ANY,
        ),
        Panel(
            "Contradictions",
            (Promql(f"sum by (kind) (batchjob_gpu_map_disagreements_total{{{C}}})", "{{kind}}"),),
            "none",
            "Found while mapping GPUs to jobs. For operators.",
        ),
    ),
    (CLUSTER,),
    since="now-24h",
    refresh="1m",
)
