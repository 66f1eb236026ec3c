"""Columns and variables that several dashboards share."""

from grafana.generate.model import SUFFIX, ApiQuery, PanelColumn, Variable

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
    PanelColumn("wait_seconds", "Waited", "s", "number"),
    PanelColumn("usage_doubt", "Doubt"),
)

CLUSTER = Variable("cluster", "Cluster", ApiQuery("/clusters", (PanelColumn("name"),)), every=True)
IN_CLUSTER = ("cluster", "${cluster}")
DAYS = (("since", "${__from}"), ("until", "${__to}"))
EMPTY = "Without choices: the series of nodes are shown to operators (viewers and admins) alone."
