"""The table of all schedulers, one row each; there is no other list of them.

A row names the modules of its scheduler, which are imported on demand: compute nodes do not
load accounting, HTTP and TLS, which take megabytes.
"""

import importlib
from collections.abc import Mapping
from functools import cache, lru_cache
from types import ModuleType
from typing import TYPE_CHECKING, NamedTuple, cast

if TYPE_CHECKING:
    from batchjob.schedulers.accounting import AccountingModule
    from batchjob.schedulers.cluster import ClusterModule, DetectedCluster
    from batchjob.schedulers.layout import Layout
    from batchjob.schedulers.node import JobManager
    from batchjob.schedulers.submission import Submission


class SourceEntry(NamedTuple):
    """A source of job records: its name in the configuration, its module, and a description."""

    name: str
    module: str
    description: str
    has_associations: bool = False  # an AssociationsSource instead of an AccountingSource

    def load(self) -> "AccountingModule":
        return cast("AccountingModule", importlib.import_module(self.module).ACCOUNTING)


class Scheduler(NamedTuple):
    name: str
    node: str  # the module that recognizes its jobs on a compute node
    sources: tuple[SourceEntry, ...] = ()
    other_sources: tuple[str, ...] = ()  # values of JobRecord.source besides its sources' names
    reasons_module: str = ""  # the module that puts its reasons into words
    submission: str = ""  # the module that knows its options for submit lines and scripts
    cluster: str = ""  # the module that queries the state of its cluster
    command: str = ""  # if this command exists, the cluster can be queried from this host
    address_option: str = ""  # the option of ClusterOptions to query it without a command
    memory_sampling_seconds: int = 0  # interval at which its accounting samples memory; 0: unknown

    @property
    def record_sources(self) -> tuple[str, ...]:
        return (*self.other_sources, *(entry.name for entry in self.sources))

    def load_cluster_module(self) -> "ClusterModule":
        return cast("ClusterModule", importlib.import_module(self.cluster).CLUSTER)


_PACKAGE = "batchjob.schedulers"

# fmt: off
SCHEDULERS: tuple[Scheduler, ...] = (
    Scheduler("slurm", f"{_PACKAGE}.slurm.node",
        (
            SourceEntry("sacct", f"{_PACKAGE}.slurm.accounting.sacct",
                "Slurm accounting, by the command sacct"),
            SourceEntry("slurm_rest", f"{_PACKAGE}.slurm.accounting.slurm_rest",
                "Slurm accounting, by slurmrestd"),
            SourceEntry("sacctmgr", f"{_PACKAGE}.slurm.accounting.sacctmgr",
                "Slurm's accounts and people", has_associations=True),
        ),
        other_sources=("squeue", "scontrol"), reasons_module=f"{_PACKAGE}.slurm.states",
        submission=f"{_PACKAGE}.slurm.submission",
        cluster=f"{_PACKAGE}.slurm.cluster", command="scontrol", address_option="slurmrestd_url",
        memory_sampling_seconds=30),  # slurm.conf: the default of JobAcctGatherFrequency
    Scheduler("pbs", f"{_PACKAGE}.pbs.node",
        (
            SourceEntry("pbs_log", f"{_PACKAGE}.pbs.accounting.pbs_log",
                "PBS and Torque accounting logs"),
            SourceEntry("qstat", f"{_PACKAGE}.pbs.accounting.qstat",
                "PBS jobs and history, by qstat -x -f -F json"),
        ),
        reasons_module=f"{_PACKAGE}.pbs.states",
        submission=f"{_PACKAGE}.pbs.submission",
        cluster=f"{_PACKAGE}.pbs.cluster", command="pbsnodes"),
    Scheduler("lsf", f"{_PACKAGE}.lsf.node",
        (
            SourceEntry("lsb_acct", f"{_PACKAGE}.lsf.accounting.lsb_acct", "LSF's lsb.acct"),
            SourceEntry("lsb_stream", f"{_PACKAGE}.lsf.accounting.lsb_stream",
                "LSF's lsb.stream with JOB_FINISH2"),
            SourceEntry("bjobs", f"{_PACKAGE}.lsf.accounting.bjobs",
                "LSF's recent jobs, by bjobs -json"),
        ),
        reasons_module=f"{_PACKAGE}.lsf.states",
        submission=f"{_PACKAGE}.lsf.submission",
        cluster=f"{_PACKAGE}.lsf.cluster", command="bhosts"),
    Scheduler("local", "batchjob.local_runs.node",
        (SourceEntry("runs", "batchjob.local_runs.accounting", "local runs of this machine"),)),
    Scheduler("containers", f"{_PACKAGE}.containers"),
    Scheduler("others", f"{_PACKAGE}.others",
        (SourceEntry("jsonl", f"{_PACKAGE}.json_lines", "JSON lines from anything else"),)),
)
# fmt: on

SOURCES: Mapping[str, SourceEntry] = {
    entry.name: entry for scheduler in SCHEDULERS for entry in scheduler.sources
}
CLUSTERS: Mapping[str, Scheduler] = {
    scheduler.name: scheduler for scheduler in SCHEDULERS if scheduler.cluster
}
"""The schedulers whose clusters can be queried."""


@cache
def job_managers() -> Mapping[str, "JobManager"]:
    modules = (importlib.import_module(scheduler.node) for scheduler in SCHEDULERS)
    return {each.manager: each for module in modules for each in module.JOB_MANAGERS}


@cache
def job_manager(manager: str) -> "JobManager":
    """The job manager of this name; of a site's own manager, only the layouts are known."""
    from batchjob.schedulers.node import JobManager

    return job_managers().get(manager) or JobManager(manager)


@cache
def layouts() -> tuple["Layout", ...]:
    return tuple(row for each in job_managers().values() for row in each.layouts)


_BY_SOURCE: Mapping[str, Scheduler] = {
    source: scheduler for scheduler in SCHEDULERS for source in scheduler.record_sources
}


def find_by_source(source: str) -> Scheduler | None:
    return _BY_SOURCE.get(source)


def submission_of(source: str) -> "Submission | None":
    """How jobs with this JobRecord.source are submitted; None: not known."""
    scheduler = find_by_source(source)
    if scheduler is None or not scheduler.submission:
        return None
    return cast("Submission", importlib.import_module(scheduler.submission).SUBMISSION)


def explain_reason(source: str, reason: str) -> str:
    """A scheduler's reason in words; "" if there is none or it is not known."""
    return cast(str, _reasons(source).explain(reason))


def explains_end(source: str, reason: str, *, has_started: bool) -> bool:
    """Whether a scheduler's reason says why a job ended, and not why it waited."""
    if not reason:
        return False
    return cast(bool, _reasons(source).explains_end(reason, has_started=has_started))


def is_eligible(source: str, reason: str, state_word: str) -> bool:
    """Whether a waiting job could start if its cluster were empty, by its scheduler's words."""
    reasons = _reasons(source)
    return state_word not in reasons.HELD_STATES and cast(bool, reasons.is_eligible(reason))


@lru_cache(64)  # pages ask for each row
def _reasons(source: str) -> ModuleType:
    """The module of a scheduler's reasons.

    Records from elsewhere most often have Slurm's reasons, so its words are the default.
    """
    scheduler = find_by_source(source)
    module = (scheduler and scheduler.reasons_module) or SCHEDULERS[0].reasons_module
    return importlib.import_module(module)


def detect(local: str) -> "DetectedCluster | None":
    """The cluster whose commands exist and answer; None on a machine without a scheduler.

    `local` is the name of the machine's own cluster, which the scheduler's cluster must not have.
    """
    for scheduler in CLUSTERS.values():
        cluster = scheduler.load_cluster_module().detect()
        if cluster is not None:
            if cluster.cluster == local:
                cluster = cluster._replace(cluster=f"{local}-{cluster.title.lower()}")
            return cluster
    return None
