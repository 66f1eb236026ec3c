"""The table of all schedulers, one row each; there is no other list of them.

A row names the modules of its scheduler, which are imported on demand: compute nodes do without
accounting, HTTP and TLS, which are megabytes.
"""

import importlib
from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING, NamedTuple, cast

if TYPE_CHECKING:
    from batchjob.schedulers.accounting import AccountingModule
    from batchjob.schedulers.cluster import ClusterModule, DetectedCluster
    from batchjob.schedulers.layout import Layout
    from batchjob.schedulers.node import NodeSide


class SourceEntry(NamedTuple):
    """A source of job records: its name in the configuration, its module, and a description."""

    name: str
    module: str
    description: str
    people: bool = False  # an AssociationsSource instead of an AccountingSource

    def load(self) -> "AccountingModule":
        """Import the module."""
        return cast("AccountingModule", importlib.import_module(self.module).ACCOUNTING)


class RequestSyntax(NamedTuple):
    """How to request memory and time, for `str.format`."""

    memory: str  # {mib}: MiB of each node, {all}: of all nodes together
    time: str  # {hms}: [H]H:MM:SS


class Scheduler(NamedTuple):
    """A row of the table."""

    name: str
    node: str  # the module for its traces on a compute node
    sources: tuple[SourceEntry, ...] = ()
    marks: tuple[str, ...] = ()  # further values of JobRecord.source, besides its sources' names
    reasons: str = ""  # the module whose `explained()` puts its reasons into words
    request: RequestSyntax = RequestSyntax("", "")
    cluster: str = ""  # the module that queries the state of its cluster
    command: str = ""  # if this command exists, the cluster can be queried from this host
    address: str = ""  # the option of ClusterOptions to query it without a command
    memory_sampling_seconds: int = 0  # interval at which its accounting samples memory; 0: unknown

    @property
    def record_marks(self) -> tuple[str, ...]:
        """The values of JobRecord.source that its jobs may have."""
        return (*self.marks, *(entry.name for entry in self.sources))

    def cluster_module(self) -> "ClusterModule":
        """Import the module that queries the state of its cluster."""
        return cast("ClusterModule", importlib.import_module(self.cluster).CLUSTER)


_HERE = "batchjob.schedulers"

SCHEDULERS: tuple[Scheduler, ...] = (
    Scheduler(
        "slurm",
        f"{_HERE}.slurm.node",
        (
            SourceEntry(
                "sacct", f"{_HERE}.slurm.accounting.sacct", "Slurm accounting, by the command sacct"
            ),
            SourceEntry(
                "slurm_rest",
                f"{_HERE}.slurm.accounting.slurm_rest",
                "Slurm accounting, by slurmrestd",
            ),
            SourceEntry(
                "sacctmgr",
                f"{_HERE}.slurm.accounting.sacctmgr",
                "Slurm's accounts and people",
                people=True,
            ),
        ),
        marks=("squeue", "scontrol"),
        reasons=f"{_HERE}.slurm.reasons",
        request=RequestSyntax("--mem={mib}M", "--time={hms}"),
        cluster=f"{_HERE}.slurm.cluster",
        command="scontrol",
        address="slurmrestd_url",
        memory_sampling_seconds=30,  # slurm.conf: the default of JobAcctGatherFrequency
    ),
    Scheduler(
        "pbs",
        f"{_HERE}.pbs.node",
        (
            SourceEntry(
                "pbs_log", f"{_HERE}.pbs.accounting.pbs_log", "PBS and Torque accounting logs"
            ),
            SourceEntry(
                "qstat",
                f"{_HERE}.pbs.accounting.qstat",
                "PBS jobs and history, by qstat -x -f -F json",
            ),
        ),
        reasons=f"{_HERE}.pbs.reasons",
        request=RequestSyntax("-l mem={all}mb", "-l walltime={hms}"),
        cluster=f"{_HERE}.pbs.cluster",
        command="pbsnodes",
    ),
    Scheduler(
        "lsf",
        f"{_HERE}.lsf.node",
        (
            SourceEntry("lsb_acct", f"{_HERE}.lsf.accounting.lsb_acct", "LSF's lsb.acct"),
            SourceEntry(
                "lsb_stream",
                f"{_HERE}.lsf.accounting.lsb_stream",
                "LSF's lsb.stream with JOB_FINISH2",
            ),
            SourceEntry(
                "bjobs", f"{_HERE}.lsf.accounting.bjobs", "LSF's recent jobs, by bjobs -json"
            ),
        ),
        reasons=f"{_HERE}.lsf.reasons",
        cluster=f"{_HERE}.lsf.cluster",
        command="bhosts",
    ),
    Scheduler(
        "local",
        "batchjob.local_runs.node",
        (SourceEntry("runs", "batchjob.local_runs.accounting", "local runs of this machine"),),
    ),
    Scheduler(
        "others",
        f"{_HERE}.others",
        (SourceEntry("jsonl", f"{_HERE}.json_lines", "JSON lines from anything else"),),
    ),
)

SOURCES: Mapping[str, SourceEntry] = {
    entry.name: entry for scheduler in SCHEDULERS for entry in scheduler.sources
}
CLUSTERS: Mapping[str, Scheduler] = {
    scheduler.name: scheduler for scheduler in SCHEDULERS if scheduler.cluster
}
"""Those whose clusters can be asked for their state."""


@cache
def nodes() -> Mapping[str, "NodeSide"]:
    """The node side of each job manager, by name."""
    modules = (importlib.import_module(scheduler.node) for scheduler in SCHEDULERS)
    return {side.manager: side for module in modules for side in module.NODES}


@cache
def node_side(manager: str) -> "NodeSide":
    """The node side of one manager; for a site's own manager, only its layouts are known."""
    from batchjob.schedulers.node import NodeSide

    return nodes().get(manager) or NodeSide(manager)


@cache
def layouts() -> tuple["Layout", ...]:
    """The built-in cgroup layouts of all managers."""
    return tuple(row for side in nodes().values() for row in side.layouts)


_BY_MARK: Mapping[str, Scheduler] = {
    mark: scheduler for scheduler in SCHEDULERS for mark in scheduler.record_marks
}


def of_record(source: str) -> Scheduler | None:
    """The scheduler of a job with this JobRecord.source."""
    return _BY_MARK.get(source)


def explained(source: str, reason: str) -> str:
    """A scheduler's reason in words; "" if there is none or it is not known.

    Records from elsewhere most often have Slurm's reasons, so its words are the default.
    """
    scheduler = of_record(source)
    module = (scheduler and scheduler.reasons) or SCHEDULERS[0].reasons
    explain = cast(Callable[[str], str], importlib.import_module(module).explained)
    return explain(reason)


def detect(local: str) -> "DetectedCluster | None":
    """The cluster whose commands exist and answer; None on a machine without a scheduler.

    `local` is the name of the machine's own cluster, which the scheduler's cluster must not have.
    """
    for scheduler in CLUSTERS.values():
        found = scheduler.cluster_module().detect()
        if found is not None:
            same = found.cluster == local
            return found._replace(cluster=f"{local}-{found.title.lower()}") if same else found
    return None
