"""For operators: waste, failures, waits."""

from batchjob.judgements import FAILED_MEANS
from grafana.generate.dashboards.parts import (
    CLUSTER,
    CLUSTER_OF,
    DAYS,
    FAILED,
    IN_CLUSTER,
    LITTLE_USED,
    USER_OF,
)
from grafana.generate.model import ApiQuery, Dashboard, Panel, PanelColumn, Variable


def _waste(what: str, title: str, unit: str, had: str, unused: str) -> Panel:
    columns = (
        USER_OF,
        PanelColumn(had, "Held", unit, "number"),
        PanelColumn(unused, "Unused", unit, "number"),
        PanelColumn(f"{what}_efficiency", "Use", "percentunit", "number", thresholds=LITTLE_USED),
    )
    query = ApiQuery("/stats/waste", columns, (IN_CLUSTER, ("by", "user"), ("of", what), *DAYS))
    return Panel(
        title,
        (query,),
        about="The twenty users with the most unused allocations; measured jobs only.",
        kind="table",
        width=8,
        height=10,
        sort_by="Unused",
    )


_WAITS = (
    PanelColumn("day", "Day", kind="time"),
    PanelColumn("partition"),
    PanelColumn("wait_p50_seconds", kind="number"),
    PanelColumn("wait_p90_seconds", kind="number"),
)
DASHBOARD = Dashboard(
    "operators",
    "Waste, failures and waits",
    "Unused allocations, failed jobs and waiting times. Coordinators see those of their "
    "accounts, users their own.",
    (
        _waste("cpu", "CPU time", "s", "measured_cpu_allocated_seconds", "cpu_unused_seconds"),
        _waste(
            "memory",
            "Memory, in byte-seconds",
            "sishort",
            "measured_memory_peak_allocated_byte_seconds",
            "memory_unused_byte_seconds",
        ),
        _waste("gpu", "GPU time", "s", "measured_gpu_allocated_seconds", "gpu_unused_seconds"),
        Panel(
            "Failures",
            (
                ApiQuery(
                    "/stats/failures",
                    (
                        USER_OF,
                        PanelColumn("jobs_ended", "Ended", "none", "number"),
                        PanelColumn("jobs_failed", "Failed", "none", "number"),
                        PanelColumn(
                            "failed_ratio", "Part", "percentunit", "number", thresholds=FAILED
                        ),
                    ),
                    (IN_CLUSTER, ("by", "user"), *DAYS),
                ),
            ),
            about=FAILED_MEANS,
            kind="table",
            sort_by="Failed",
        ),
        Panel(
            "Pending and running jobs",
            (
                ApiQuery(
                    "/stats/unfinished",
                    (
                        CLUSTER_OF,
                        PanelColumn("state", "State"),
                        PanelColumn("jobs", "Jobs", "none", "number"),
                    ),
                    (IN_CLUSTER,),
                ),
            ),
            about="Current state, from the job database.",
            kind="table",
        ),
        Panel(
            "Waiting time",
            (ApiQuery("/stats/waits", _WAITS, (IN_CLUSTER, ("partition", "${partition}"), *DAYS)),),
            "s",
            "Median and 90th percentile of the jobs that started on each day.",
            width=24,
            line_name="${__field.labels.partition} ${__field.name}",
        ),
    ),
    (CLUSTER, Variable("partition", "Partition")),
    since="now-30d",
)
