"""What operators look for: waste, failures, waits."""

from grafana.generate.dashboards.rows import CLUSTER, CLUSTER_OF, DAYS, IN_CLUSTER, USER_OF
from grafana.generate.model import Column, Dashboard, Panel, Rows, Variable


def _waste(what: str, title: str, unit: str, had: str, unused: str) -> Panel:
    columns = (
        USER_OF,
        Column(had, "Held", unit, "number"),
        Column(unused, "Unused", unit, "number"),
        Column(f"{what}_efficiency", "Use", "percentunit", "number"),
    )
    asked = Rows("/stats/waste", columns, (IN_CLUSTER, ("by", "user"), ("of", what), *DAYS))
    return Panel(
        title,
        (asked,),
        about="The twenty who left most unused; of measured jobs alone.",
        kind="table",
        width=8,
        height=10,
        sort_by="Unused",
    )


_WAITS = (
    Column("day", "Day", kind="time"),
    Column("partition"),
    Column("wait_p50_seconds", kind="number"),
    Column("wait_p90_seconds", kind="number"),
)
DASHBOARD = Dashboard(
    "operators",
    "Waste, failures and waits",
    "Who holds what is not used, whose jobs fail, and how long jobs wait. A coordinator sees the "
    "accounts' part of it, a user their own.",
    (
        _waste("cpu", "CPU time", "s", "measured_cpu_allocated_seconds", "cpu_unused_seconds"),
        _waste(
            "memory",
            "Memory, as bytes times seconds",
            "sishort",
            "measured_memory_allocated_byte_seconds",
            "memory_unused_byte_seconds",
        ),
        _waste("gpu", "GPU time", "s", "measured_gpu_allocated_seconds", "gpu_unused_seconds"),
        Panel(
            "Failures",
            (
                Rows(
                    "/stats/failures",
                    (
                        USER_OF,
                        Column("jobs_ended", "Ended", "none", "number"),
                        Column("jobs_failed", "Failed", "none", "number"),
                        Column("failed_ratio", "Part", "percentunit", "number"),
                    ),
                    (IN_CLUSTER, ("by", "user"), *DAYS),
                ),
            ),
            about="Also by time-out, lack of memory and nodes that failed.",
            kind="table",
            sort_by="Failed",
        ),
        Panel(
            "Jobs that wait or run",
            (
                Rows(
                    "/stats/unfinished",
                    (
                        CLUSTER_OF,
                        Column("state", "State"),
                        Column("jobs", "Jobs", "none", "number"),
                    ),
                    (IN_CLUSTER,),
                ),
            ),
            about="Now, by the job database.",
            kind="table",
        ),
        Panel(
            "Waiting time",
            (Rows("/stats/waits", _WAITS, (IN_CLUSTER, ("partition", "${partition}"), *DAYS)),),
            "s",
            "Half of the jobs that started on a day, and nine in ten, had waited less.",
            width=24,
            line_name="${__field.labels.partition} ${__field.name}",
        ),
    ),
    (CLUSTER, Variable("partition", "Partition")),
    since="now-30d",
)
