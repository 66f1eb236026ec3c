"""A cluster: its nodes, queues and scheduler, and the state of its sources."""

from grafana.generate.dashboards.parts import ANY, CLUSTER, CLUSTER_OF, FAILED, C, figure
from grafana.generate.model import ApiQuery, Dashboard, Panel, PanelColumn, Promql

_ENDED = "batchjob_stats_db_ended_jobs_total"
_ALSO_FAILED = ',result="failed"'


def _sum(metric: str, by: str = "") -> str:
    inner = f"batchjob_cluster_{metric}{{{C}}}"
    return f"sum by ({by}) ({inner})" if by else f"sum({inner})"


def _ended(more_matchers: str = "") -> str:
    """Jobs that ended in the last hour; increase() would not count the first one of a node."""
    ended = f"{_ENDED}{{{C}{more_matchers}}}"
    return f"(increase({ended}[1h]) and max_over_time({ended}[1h] offset 1h)) or {ended}"


def _shares(what: str, title: str, unit: str) -> Panel:
    return Panel(
        title,
        (
            Promql(_sum(f"node_{what}_allocated"), "allocated to jobs"),
            Promql(_sum(f"node_{what}_idle"), "free"),
            Promql(_sum(f"node_{what}"), "all"),
        ),
        unit,
        "The rest belongs to nodes that accept no jobs.",
        width=8,
    )


DASHBOARD = Dashboard(
    "cluster",
    "Cluster status",
    "Nodes, queues and scheduler of a cluster, from the collector `cluster` of one exporter.",
    (
        figure("Nodes", _sum("nodes"), "none", "All nodes of the cluster.")._replace(width=3),
        figure(
            "Nodes that accept no jobs",
            f"count(max by (cluster, node) (batchjob_cluster_node_unavailable_info{{{C}}}))"
            f" or 0 * {_sum('nodes')}",
            "none",
            "Down, drained, or not answering; the table below has the reasons.",
            ANY,
        )._replace(width=3),
        figure(
            "Running jobs",
            f'sum(batchjob_cluster_jobs{{{C},state="RUNNING"}})',
            "none",
            "Each task of an array counts.",
        )._replace(width=3),
        figure(
            "Pending jobs",
            f'sum(batchjob_cluster_jobs{{{C},state="PENDING"}})',
            "none",
            "Each task of an array counts.",
        )._replace(width=3),
        figure(
            "CPUs requested", _sum("pending_cpus"), "none", "Requested by pending jobs."
        )._replace(width=3),
        figure(
            "GPUs requested", _sum("pending_gpus"), "none", "Requested by pending jobs."
        )._replace(width=3),
        figure(
            "Longest wait",
            f"max(batchjob_cluster_pending_longest_wait_seconds{{{C}}})",
            "s",
            "Since the longest waiting job became eligible.",
        )._replace(width=3),
        figure(
            "Failed jobs",
            f"(sum({_ended(_ALSO_FAILED)}) or vector(0)) / (sum({_ended()}) > 0)",
            "percentunit",
            "Fraction of the jobs that ended in the last hour, from the poller.",
            FAILED,
        )._replace(width=3),
        Panel(
            "Nodes by state", (Promql(_sum("nodes", "state"), "{{state}}"),), "none", stacked=True
        ),
        Panel("Jobs by state", (Promql(_sum("jobs", "state"), "{{state}}"),), "none", stacked=True),
        _shares("cpus", "CPUs", "none"),
        Panel(
            "Memory",
            (
                Promql(_sum("node_memory_allocated_bytes"), "allocated to jobs"),
                Promql(_sum("node_memory_idle_bytes"), "free"),
                Promql(_sum("node_memory_bytes"), "all"),
            ),
            "bytes",
            "As allocated by the scheduler.",
            width=8,
        ),
        _shares("gpus", "GPUs", "none"),
        Panel(
            "Pending jobs by partition",
            (
                Promql(
                    f'sum by (partition) (batchjob_cluster_jobs{{{C},state="PENDING"}})',
                    "{{partition}}",
                ),
            ),
            "none",
        ),
        Panel(
            "Pending jobs by reason",
            (Promql(_sum("jobs_pending", "reason"), "{{reason}}"),),
            "none",
        ),
        Panel(
            "Median wait",
            (
                Promql(
                    "histogram_quantile(0.5, sum by (le, partition) "
                    f"(increase(batchjob_cluster_job_wait_seconds_bucket{{{C}}}[1h])))",
                    "{{partition}}",
                ),
            ),
            "s",
            "Time from eligible to start, of jobs that started in the previous hour.",
        ),
        Panel(
            "Nodes that accept no jobs",
            (
                Promql(
                    "max by (cluster, node, reason) "
                    f"(batchjob_cluster_node_unavailable_info{{{C}}})",
                    instant=True,
                ),
            ),
            about="With the reason given in the scheduler.",
            kind="table",
            columns=(PanelColumn("node", "Node"), CLUSTER_OF, PanelColumn("reason", "Reason")),
        ),
        Panel(
            "Fair share of accounts",
            (
                Promql(
                    f"max by (cluster, account) (batchjob_cluster_account_fairshare_level{{{C}}})",
                    instant=True,
                ),
            ),
            "none",
            "Shares divided by usage: above 1 the account has used less than its share.",
            "table",
            columns=(PanelColumn("account", "Account"), CLUSTER_OF, PanelColumn("Value", "Level")),
        ),
        Panel(
            "Licences",
            (
                Promql(_sum("licenses_used", "license"), "{{license}} used"),
                Promql(_sum("licenses", "license"), "{{license}} total"),
            ),
            "none",
        ),
        Panel(
            "Scheduler: duration of a cycle",
            (
                Promql(
                    f"max by (scheduler) (batchjob_cluster_controller_last_cycle_seconds{{{C}}})",
                    "{{scheduler}}",
                ),
            ),
            "s",
        ),
        Panel(
            "Controller: queues",
            (
                Promql(_sum("controller_agent_queue"), "messages to nodes"),
                Promql(_sum("controller_database_queue"), "messages to accounting"),
                Promql(_sum("controller_threads"), "threads"),
            ),
            "none",
        ),
        Panel(
            "Sources of job records",
            (
                ApiQuery(
                    "/clusters",
                    (
                        PanelColumn("name", "Cluster"),
                        PanelColumn("source", "Source"),
                        PanelColumn("success_time", "Last read", kind="time"),
                        PanelColumn("error_time", "Last failure", kind="time"),
                    ),
                ),
            ),
            about="Sources of the job database, with the time of the last successful poll.",
            kind="table",
            width=24,
            height=6,
        ),
    ),
    (CLUSTER,),
    refresh="1m",
)
