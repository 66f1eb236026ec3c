"""Columns and variables that several dashboards have."""

from grafana.generate.model import SUFFIX, Column, Rows, Variable

# The row says when to look: a minute before its start to a minute after its end, or to now.
JOB_ADDRESS = (
    f"/d/batchjob-job{SUFFIX}?var-cluster=${{__data.fields.cluster}}"
    "&var-job=${__data.fields.jobid}"
    "&from=${__data.fields.window_from}&to=${__data.fields.window_to}"
)
JOB = Column("jobid", "Job", link=JOB_ADDRESS)
# Where rows do not say when: such as of jobs that run.
JOB_NOW = JOB._replace(
    link=f"/d/batchjob-job{SUFFIX}?var-cluster=${{__data.fields.cluster}}"
    "&var-job=${__data.fields.jobid}"
)
CLUSTER_OF = Column("cluster", "Cluster")
USER_OF = Column("user", "User")
NAME = Column("name", "Name")
STATE = Column("state", "State")
STARTED = Column("start_time", "Started", kind="time")
WINDOW = (Column("window_from", hidden=True), Column("window_to", hidden=True))

ASKED_FOR = (
    Column("partition", "Partition"),
    Column("account", "Account"),
    Column("allocated_nodes", "Nodes", "none", "number"),
    Column("allocated_cpus", "CPUs", "none", "number"),
    Column("allocated_gpus", "GPUs", "none", "number"),
    Column("allocated_memory_bytes", "Memory", "bytes", "number"),
    Column("time_limit_seconds", "Time limit", "s", "number"),
)
USED = (
    Column("elapsed_seconds", "Run time", "s", "number"),
    Column("cpu_efficiency", "CPU use", "percentunit", "number"),
    Column("memory_efficiency", "Memory use", "percentunit", "number"),
    Column("usage_gpu_utilization_ratio", "GPU use", "percentunit", "number"),
    Column("time_efficiency", "Time use", "percentunit", "number"),
    Column("usage_memory_peak_bytes", "Memory peak", "bytes", "number"),
    Column("usage_energy_joules", "Energy", "joule", "number"),
    Column("wait_seconds", "Waited", "s", "number"),
    Column("usage_doubt", "Doubt"),
)

CLUSTER = Variable("cluster", "Cluster", Rows("/clusters", (Column("name"),)), every=True)
IN_CLUSTER = ("cluster", "${cluster}")
DAYS = (("since", "${__from}"), ("until", "${__to}"))
