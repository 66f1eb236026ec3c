"""GPUs: held, used, idle."""

from grafana.generate.dashboards.rows import (
    CLUSTER,
    CLUSTER_OF,
    DAYS,
    IN_CLUSTER,
    JOB_NOW,
    USER_OF,
)
from grafana.generate.model import Column, Dashboard, Panel, Promql, Rows

_C = 'cluster=~"$cluster"'
_USE = f"batchjob_job_gpu_utilization_ratio{{{_C}}}"
_BY_JOB = "cluster, manager, jobid, user"


def _stat(title: str, about: str, expr: str, unit: str = "none") -> Panel:
    return Panel(title, (Promql(expr, title, instant=True),), unit, about, "stat", 6, 4)


DASHBOARD = Dashboard(
    "gpus",
    "GPU use",
    "Which GPUs are held, how much they are used, and by whom not at all.",
    (
        _stat(
            "GPUs",
            "In nodes that answer. For operators.",
            f'count(count by (uuid) (batchjob_gpu_info{{{_C},gpu_instance=""}}))',
        ),
        _stat(
            "Held",
            "By jobs that you may see.",
            f"count(count by (uuid) (batchjob_job_gpu_info{{{_C}}}))",
        ),
        _stat(
            "Held and idle",
            "Without any kernel for half an hour.",
            "count(max by (uuid) (max_over_time("
            f"batchjob_job_gpu_utilization_ratio{{{_C}}}[30m])) < 0.01) or vector(0)",
        ),
        _stat(
            "Use of those held",
            "Mean over GPUs, of the last half hour.",
            f"avg(avg_over_time({_USE}[30m]))",
            "percentunit",
        ),
        Panel(
            "GPUs over time",
            (
                Promql(
                    f'count(count by (uuid) (batchjob_gpu_info{{{_C},gpu_instance=""}}))', "all"
                ),
                Promql(f"count(count by (uuid) (batchjob_job_gpu_info{{{_C}}}))", "held"),
                Promql(f"sum({_USE})", "in use, as if each were used wholly or not at all"),
            ),
            "none",
        ),
        Panel(
            "Use by user",
            (Promql(f"avg by (user) ({_USE})", "{{user}}"),),
            "percentunit",
            "Mean over the GPUs that the user's jobs hold.",
            most=1,
        ),
        Panel(
            "Jobs by their GPUs",
            (
                Promql(f"count by ({_BY_JOB}) (batchjob_job_gpu_info{{{_C}}})", instant=True),
                Promql(f"avg by ({_BY_JOB}) (avg_over_time({_USE}[30m]))", instant=True),
                Promql(f"min by ({_BY_JOB}) (max_over_time({_USE}[30m]))", instant=True),
                Promql(f"sum by ({_BY_JOB}) (batchjob_job_gpu_memory_bytes{{{_C}}})", instant=True),
            ),
            about="Now. A least used GPU at 0 % was idle for half an hour.",
            kind="table",
            width=24,
            height=9,
            sort_by="GPUs",
            columns=(
                Column(
                    "jobid",
                    "Job",
                    link="/d/batchjob-job-live?"
                    "var-cluster=${__data.fields.cluster}&var-job=${__data.fields.jobid}",
                ),
                Column("user", "User"),
                Column("cluster", "Cluster"),
                Column("manager", "Scheduler"),
                Column("Value #A", "GPUs", "none"),
                Column("Value #B", "Mean use", "percentunit"),
                Column("Value #C", "Highest use of the least used", "percentunit"),
                Column("Value #D", "Memory", "bytes"),
            ),
        ),
        Panel(
            "Idle, as last measured",
            (
                Rows(
                    "/stats/idle-gpus",
                    (
                        JOB_NOW,
                        USER_OF,
                        Column("account", "Account"),
                        CLUSTER_OF,
                        Column("allocated_gpus", "GPUs", "none", "number"),
                        Column("idle_gpus", "Idle", "none", "number"),
                        Column("gpu_utilization_ratio", "Mean use", "percentunit", "number"),
                        Column("idle_gpu_seconds", "Idle GPU time", "s", "number"),
                    ),
                    (IN_CLUSTER,),
                ),
            ),
            about="Running jobs with GPUs that were not used since the job's start, for half an "
            "hour at least; from the job database.",
            kind="table",
            width=24,
            height=6,
            sort_by="Idle GPU time",
        ),
        Panel(
            "GPU time by account",
            (
                Rows(
                    "/usage",
                    (
                        Column("account", "Account"),
                        Column("cluster", "Cluster"),
                        Column("gpu_allocated_seconds", "Held", "s", "number"),
                        Column("measured_gpu_allocated_seconds", "of it measured", "s", "number"),
                        Column("gpu_seconds", "Used", "s", "number"),
                        Column("energy_gpu_joules", "Energy", "joule", "number"),
                    ),
                    (IN_CLUSTER, ("by", "account,cluster"), *DAYS),
                ),
            ),
            about="Time used is to be compared with the time held by measured jobs.",
            kind="table",
            sort_by="Held",
        ),
        Panel(
            "GPU time a day",
            (
                Rows(
                    "/usage",
                    (
                        Column("day", "Day", kind="time"),
                        Column("gpu_allocated_seconds", "held", kind="number"),
                        Column("gpu_seconds", "used", kind="number"),
                    ),
                    (IN_CLUSTER, ("by", "day"), *DAYS),
                ),
            ),
            "s",
            bars=True,
        ),
        Panel(
            "Temperature",
            (
                Promql(
                    f"max by (instance) (batchjob_gpu_temperature_celsius{{{_C}}})", "{{instance}}"
                ),
            ),
            "celsius",
            "Hottest of a node. For operators.",
        ),
        Panel(
            "Clocks held down",
            (
                Promql(
                    "sum by (reason) (rate(batchjob_gpu_throttle_seconds_total"
                    f"{{{_C}}}[$__rate_interval]))",
                    "{{reason}}",
                ),
            ),
            "none",
            "GPUs whose clocks were held down, by reason; reasons overlap. For operators.",
        ),
        Panel(
            "Memory errors",
            (
                Promql(
                    f"sum by (instance, gpu, kind) (batchjob_gpu_ecc_errors_total{{{_C}}}) > 0",
                    "{{instance}} {{gpu}} {{kind}}",
                ),
            ),
            "none",
            "In the life of the board. For operators.",
        ),
        Panel(
            "Contradictions",
            (Promql(f"sum by (kind) (batchjob_gpu_map_disagreements_total{{{_C}}})", "{{kind}}"),),
            "none",
            "Met while finding out who holds which GPU. For operators.",
        ),
    ),
    (CLUSTER,),
    since="now-24h",
    refresh="1m",
)
