"""What several dashboards share: columns, variables, panels, and thresholds of colours.

The dashboards of `kubernetes` show what runs beside batchjob in such a cluster.
`deploy/victoriametrics/operator/scrape.yml` defines which of these series are stored. The same
queries serve hosts without Kubernetes for the parts that run there: node_exporter,
VictoriaMetrics, Grafana.
"""

from batchjob.judgements import (
    CAVEATS_PART,
    COMPLETE_COVERAGE,
    FAILED_PART,
    IDLE_CPU_PART,
    NOTABLE_LIMIT_PART,
    thresholds,
)
from grafana.generate.model import (
    SUFFIX,
    ApiQuery,
    Dashboard,
    Panel,
    PanelColumn,
    Promql,
    Thresholds,
    Variable,
)

# The time range is in the row: from a minute before the job's start to a minute after its end, or
# to now.
JOB_ADDRESS = (
    f"/d/batchjob-job{SUFFIX}?var-cluster=${{__data.fields.cluster}}"
    "&var-job=${__data.fields.jobid}"
    "&from=${__data.fields.window_from}&to=${__data.fields.window_to}"
)
JOB = PanelColumn("jobid", "Job", link=JOB_ADDRESS)
# For rows without a time range, such as those of running jobs.
JOB_NOW = JOB._replace(
    link=f"/d/batchjob-job{SUFFIX}?var-cluster=${{__data.fields.cluster}}"
    "&var-job=${__data.fields.jobid}"
)
CLUSTER_OF = PanelColumn("cluster", "Cluster")
USER_OF = PanelColumn("user", "User")
NAME = PanelColumn("name", "Name")
STATE = PanelColumn("state", "State")
STARTED = PanelColumn("start_time", "Started", kind="time")
WINDOW = (PanelColumn("window_from", hidden=True), PanelColumn("window_to", hidden=True))

ASKED_FOR = (
    PanelColumn("partition", "Partition"),
    PanelColumn("account", "Account"),
    PanelColumn("allocated_nodes", "Nodes", "none", "number"),
    PanelColumn("allocated_cpus", "CPUs", "none", "number"),
    # Of a job that was resized: the CPUs are those at last.
    PanelColumn("resized_cpu_seconds", "CPU time held beyond them", "s", "number"),
    PanelColumn("allocated_gpus", "GPUs", "none", "number"),
    PanelColumn("allocated_memory_bytes", "Memory", "bytes", "number"),
    PanelColumn("time_limit_seconds", "Time limit", "s", "number"),
)
USED = (
    PanelColumn("elapsed_seconds", "Run time", "s", "number"),
    PanelColumn("cpu_efficiency", "CPU use", "percentunit", "number"),
    PanelColumn("memory_efficiency", "Memory use", "percentunit", "number"),
    PanelColumn("usage_gpu_utilization_ratio", "GPU use", "percentunit", "number"),
    PanelColumn("time_efficiency", "Time use", "percentunit", "number"),
    PanelColumn("usage_memory_peak_bytes", "Memory peak", "bytes", "number"),
    PanelColumn("energy_used_joules", "Energy", "joule", "number"),
    PanelColumn("energy_basis", "Energy by"),  # accounting: of its whole nodes
    PanelColumn("wait_seconds", "Waited", "s", "number"),
    PanelColumn("usage_caveats", "Caveats"),
)

CLUSTER = Variable("cluster", "Cluster", ApiQuery("/clusters", (PanelColumn("name"),)), every=True)
IN_CLUSTER = ("cluster", "${cluster}")
DAYS = (("since", "${__from}"), ("until", "${__to}"))
EMPTY = "Without choices: the series of nodes are shown to operators (viewers and admins) alone."

# The values from which a figure needs attention (orange) or is bad (red). If an alert has a
# threshold, red or the only colour begins there; a test compares them.
_SITE = thresholds()
ANY = Thresholds(1)  # for things that should not exist at all
NEAR_LIMIT = Thresholds(NOTABLE_LIMIT_PART, _SITE.near_limit)  # used part of a limit or a disk
LITTLE_USED = Thresholds(_SITE.advised_use, IDLE_CPU_PART, low=True)  # part of its allocation
# Part of jobs' run time that has samples.
LITTLE_COVERED = Thresholds(COMPLETE_COVERAGE, _SITE.enough_coverage, low=True)
CAVEATS_LIMITS = Thresholds(*CAVEATS_PART)  # part of measured jobs with caveats
FAILED = Thresholds(*FAILED_PART)  # part of ended jobs that failed
POLL_AGE = Thresholds(900, 3600)  # seconds since the last successful poll
SLOW_SCRAPE = Thresholds(5, 10)  # seconds; Prometheus' default timeout is 10
ENERGY_DEVIATION = Thresholds(1e-6)  # imbalance of accounts that must balance

C = 'cluster=~"$cluster"'


def rate(series: str) -> str:
    """The increase of a counter per second."""
    return f"rate({series}[$__rate_interval])"


def p99(bucket: str, by: str) -> str:
    """The 99th percentile by the labels `by`; `bucket` is a selector of a histogram's series."""
    return f"histogram_quantile(0.99, sum by (le, {by}) ({rate(bucket)}))"


def heading(title: str) -> Panel:
    """A row of the dashboard, with the panels that follow."""
    return Panel(title, kind="row")


def figure(
    title: str, expr: str, unit: str = "none", about: str = "", bounds: Thresholds | None = None
) -> Panel:
    """One current number."""
    queries = (Promql(expr, title, instant=True),)
    return Panel(title, queries, unit, about, "stat", 4, 4, thresholds=bounds)


def lines(title: str, unit: str, about: str, *queries: tuple[str, str]) -> Panel:
    """The series of some queries, each with its legend."""
    return Panel(title, tuple(Promql(*each) for each in queries), unit, about)


def of_kubernetes(
    slug: str, title: str, about: str, panels: tuple[Panel, ...], metric: str, *more: Variable
) -> Dashboard:
    """A dashboard of `kubernetes`, for the clusters with the metric."""
    clusters = f"label_values({metric}, cluster)"
    chosen = Variable("cluster", "Cluster", clusters, every=True, about=EMPTY)
    return Dashboard(slug, title, about, panels, (chosen, *more), refresh="1m", folder="kubernetes")
