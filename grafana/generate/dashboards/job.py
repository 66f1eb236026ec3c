"""One job by its number, entirely from the server's API."""

from grafana.generate.dashboards.parts import (
    ASKED_FOR,
    CLUSTER,
    CLUSTER_OF,
    IN_CLUSTER,
    JOB,
    NAME,
    STARTED,
    STATE,
    USED,
    USER_OF,
    WINDOW,
    heading,
)
from grafana.generate.model import PAGES, SUFFIX, ApiQuery, Dashboard, Panel, PanelColumn, Variable

# In a path, an empty text box would make the path of another query.
_JOB_PARAMS = (("jobid", "${job}"), IN_CLUSTER)


def _parts(title: str, part: str, about: str, *columns: PanelColumn) -> Panel:
    rows = ApiQuery(f"/job/{part}", columns, _JOB_PARAMS)
    return Panel(title, (rows,), about=about, kind="table", height=7)


def _report(title: str, part: str, about: str, *columns: PanelColumn, width: int = 12) -> Panel:
    rows = ApiQuery(f"/job/report/{part}", columns, _JOB_PARAMS)
    return Panel(title, (rows,), about=about, kind="table", width=width, height=7)


def _course(
    title: str, unit: str, about: str, *curves: str, value: str = "mean", stacked: bool = False
) -> Panel:
    rows = ApiQuery(
        "/job/metrics",
        (
            PanelColumn("time", kind="time"),
            PanelColumn("line"),
            PanelColumn("metric"),
            PanelColumn(value, kind="number"),
        ),
        (*_JOB_PARAMS, *(("metric", curve) for curve in curves), ("points", "300")),
    )
    line = "${__field.labels.line}"
    if len(curves) > 1:
        line = f"${{__field.labels.metric}} {line}"
    return Panel(title, (rows,), unit, about, line_name=line, stacked=stacked)


def _of_latest(name: str, key: str) -> Variable:
    rows = ApiQuery("/job", (PanelColumn(key),), _JOB_PARAMS)
    return Variable(name, name, rows, hidden=True)


# This dashboard offers "All" clusters; the dashboard of a node does not.
_NODE = PanelColumn(
    "node",
    "Node",
    link="/d/batchjob-node?var-cluster=${run_cluster}&var-node=${__value.raw}&${__url_time_range}",
)


DASHBOARD = Dashboard(
    "job",
    "Job",
    "One job over its whole run time. Enter its id above, then follow “Time of this job”.",
    (
        Panel(
            "Runs",
            (
                ApiQuery(
                    "/job",
                    (
                        JOB,
                        CLUSTER_OF,
                        USER_OF,
                        NAME,
                        STATE,
                        STARTED,
                        PanelColumn("end_time", "Ended", kind="time"),
                        *USED,
                        *ASKED_FOR,
                        PanelColumn("node_list", "Node list"),
                        PanelColumn("exit_code", "Exit code", "none", "number"),
                        *WINDOW,
                    ),
                    _JOB_PARAMS,
                ),
            ),
            about="All runs of the job, the latest first: a job id may be reused, or "
            "used on another cluster. Follow the id to set the dashboard to the time "
            "of that run.",
            kind="table",
            width=24,
            height=6,
        ),
        _report(
            "Advice",
            "advice",
            "Findings of the report of the latest run, with numbers and a next step.",
            PanelColumn("severity", "Severity"),
            PanelColumn("title", "What"),
            PanelColumn("reason", "Why"),
            PanelColumn("step", "Next step"),
            width=24,
        ),
        _report(
            "Efficiency",
            "efficiency",
            "CPU, memory, GPU and time, each with its formula, or the reason why it is unknown.",
            PanelColumn("what", "Of"),
            PanelColumn("ratio", "Use", "percentunit", "number"),
            PanelColumn("used", "Used", "sishort", "number"),
            PanelColumn("available", "Held", "sishort", "number"),
            PanelColumn("unit", "Unit"),
            PanelColumn("formula", "Formula"),
            PanelColumn("missing", "Reason if unknown"),
        ),
        _report(
            "Compared with similar jobs",
            "comparisons",
            "Earlier completed jobs of the same user that are similar to this one.",
            PanelColumn("what", "What"),
            PanelColumn("this", "This job", "sishort", "number"),
            PanelColumn("lower_quartile", "25th percentile", "sishort", "number"),
            PanelColumn("median", "Median", "sishort", "number"),
            PanelColumn("upper_quartile", "75th percentile", "sishort", "number"),
            PanelColumn("unit", "Unit"),
            PanelColumn("jobs", "Jobs", "none", "number"),
        ),
        heading("CPU"),
        _course(
            "CPUs in use",
            "none",
            "By node, with the CPUs allocated to the job.",
            "cpu",
            "cpus",
        ),
        _course(
            "Time throttled by CPU quota",
            "percentunit",
            "Per second, summed over CPUs; if the exporter exposes the group `throttling`.",
            "cpu_throttled",
        ),
        heading("Memory"),
        _course(
            "Memory",
            "bytes",
            "Memory charged to the job including page cache, anonymous memory, and "
            "the limit, by node.",
            "memory",
            "memory_anonymous",
            "memory_limit",
            value="max",
        ),
        _course(
            "Swap and major page faults",
            "short",
            "Swap in bytes; page faults per second that waited for storage.",
            "swap",
            "major_faults",
        ),
        heading("Input and output"),
        _course(
            "All file systems",
            "Bps",
            "By the job's processes, including network file systems.",
            "file_read",
            "file_write",
        ),
        _course(
            "Block devices of the nodes", "Bps", "Below the page cache.", "io_read", "io_write"
        ),
        heading("Waiting"),
        _course(
            "Some task waited",
            "percentunit",
            "Fraction of time in which at least one task waited for a CPU, memory or "
            "storage (PSI).",
            "pressure_cpu",
            "pressure_memory",
            "pressure_io",
        ),
        _course(
            "All tasks waited",
            "percentunit",
            "Fraction of time in which all tasks of the job waited (PSI).",
            "stalled_cpu",
            "stalled_memory",
            "stalled_io",
        ),
        _course("Processes and threads", "none", "By node.", "processes", "threads"),
        heading("GPU"),
        _course(
            "GPU use",
            "percentunit",
            "Fraction of time in which any kernel ran, independent of how much of "
            "the GPU it occupied.",
            "gpu_utilization",
        ),
        _course("GPU memory", "bytes", "Of the job's processes.", "gpu_memory", value="max"),
        heading("Energy"),
        _course(
            "Power",
            "watt",
            "The job's share of the power of its nodes, including idle power.",
            "power",
            stacked=True,
        ),
        _parts(
            "Emissions",
            "emissions",
            "By provider of the emission factor; figures of different providers must "
            "not be added up.",
            PanelColumn("provider", "Provider"),
            PanelColumn("grams", "Grams of CO2e", "massg", "number"),
        ),
        heading("Parts"),
        _report(
            "Log of its nodes",
            "logs",
            "The lines that the nodes wrote during the job, in the site's log database.",
            PanelColumn("nodes", "Nodes", link="${__data.fields.url:raw}"),
            PanelColumn("url", hidden=True),
            width=24,
        ),
        _report(
            "Rules that could not be evaluated",
            "silent",
            "With the reason.",
            PanelColumn("rule", "Rule"),
            PanelColumn("reason", "Reason"),
        ),
        _parts(
            "Nodes",
            "nodes",
            "Nodes of the job, with the resources allocated on each.",
            _NODE,
            PanelColumn("cpus", "CPUs", "none", "number"),
            PanelColumn("memory_bytes", "Memory", "bytes", "number"),
            PanelColumn("gpus", "GPUs", "none", "number"),
        ),
        _parts(
            "GPUs",
            "gpus",
            "GPUs of the job, over its whole run time.",
            _NODE,
            PanelColumn("gpu", "GPU"),
            PanelColumn("uuid", "UUID"),
            PanelColumn("utilization_ratio", "Use", "percentunit", "number"),
            PanelColumn("memory_peak_bytes", "Memory peak", "bytes", "number"),
        ),
        _parts(
            "Steps",
            "steps",
            "Steps from the scheduler's accounting.",
            PanelColumn("step", "Step"),
            PanelColumn("name", "Name"),
            PanelColumn("state", "State"),
            PanelColumn("elapsed_seconds", "Run time", "s", "number"),
            PanelColumn("cpu_seconds", "CPU time", "s", "number"),
            PanelColumn("peak_task_memory_bytes", "Peak task memory", "bytes", "number"),
        ),
    ),
    (
        CLUSTER,
        Variable("job", "Job"),
        _of_latest("run_cluster", "cluster"),
        _of_latest("window_from", "window_from"),
        _of_latest("window_to", "window_to"),
    ),
    links=(
        (
            "Time of this job",
            f"/d/batchjob-job{SUFFIX}?var-cluster=${{cluster}}&var-job=${{job:percentencode}}"
            "&from=${window_from}&to=${window_to}",
        ),
        (
            "Page of this job",
            f"{PAGES}/jobs/${{job:percentencode}}?cluster=${{cluster:percentencode}}",
        ),
    ),
)
