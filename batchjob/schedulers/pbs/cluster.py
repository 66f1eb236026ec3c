"""Queries the state of a PBS complex: pbsnodes and qstat with `-F json`, pbs_rstat, qmgr, pbsfs.

Facts: pbsnodes(8B), qstat(1B) and output of OpenPBS 23.06. `resources_assigned` omits resources
that are not in use. Times of jobs are text in the client's zone, which is UTC here.
"""

import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from batchjob.runtime.subprocesses import SchedulerError, json_object, run
from batchjob.runtime.values import size_bytes
from batchjob.schedulers.cluster import (
    ClusterJob,
    ClusterModule,
    ClusterNode,
    ClusterOptions,
    ClusterReaders,
    DetectedCluster,
    FairShare,
    License,
    Partition,
    Reservation,
    bounded,
    count,
    printed_value,
    reason_word,
)
from batchjob.schedulers.pbs.accounting.records import account_of
from batchjob.schedulers.pbs.cluster_shares import fairshare, licenses
from batchjob.schedulers.pbs.qstat_jobs import Attributes, ask_jobs, epoch
from batchjob.schedulers.pbs.states import PBS
from batchjob.schedulers.states import JobState


def by_commands(options: ClusterOptions) -> ClusterReaders:
    """The queries by commands; PBS' server reports nothing about its own work."""
    pbsfs = shlex.split(options.pbsfs)

    def read_nodes() -> list[ClusterNode]:
        return nodes(json_object(run(options, ("pbsnodes", "-a", "-v", "-F", "json")).stdout))

    def read_jobs() -> list[ClusterJob]:
        return jobs(ask_jobs(options, "qstat"))

    def read_partitions() -> list[Partition]:
        return partitions(json_object(run(options, ("qstat", "-Q", "-f", "-F", "json")).stdout))

    def read_reservations() -> list[Reservation]:
        return reservations(run(options, ("pbs_rstat", "-f")).stdout)

    def read_licenses() -> list[License]:
        server = json_object(run(options, ("qstat", "-B", "-f", "-F", "json")).stdout)
        return licenses(server, run(options, ("qmgr", "-c", "print server")).stdout)

    def read_fairshare() -> list[FairShare]:
        return fairshare(run(options, pbsfs).stdout, options.users)

    return ClusterReaders(
        nodes=read_nodes,
        jobs=read_jobs,
        partitions=read_partitions,
        fairshare=read_fairshare if pbsfs else None,
        licenses=read_licenses,
        reservations=read_reservations,
    )


def nodes(answer: Mapping[str, Any]) -> list[ClusterNode]:
    """Nodes from `pbsnodes -av -F json`: one per vnode."""
    found = _dict(answer, "nodes")
    if not found:
        raise SchedulerError("pbsnodes lists no nodes")
    return [_node(name, vnode) for name, vnode in found.items() if isinstance(vnode, dict)]


# The states of a vnode (pbs_node_attributes(7B)).
_BASES = {"down": "down", "unresponsive": "down", "state-unknown": "unknown", "stale": "down",
          "Stale": "down"}  # fmt: skip
_ALLOCATED = frozenset(("job-busy", "job-exclusive", "resv-exclusive", "busy"))
_FLAGS = {"offline": "drain", "state-unknown": "not_responding", "unresponsive": "not_responding"}
_NO_FLAG = frozenset(("free", "down", "job-busy"))


def _node(name: str, vnode: Mapping[str, Any]) -> ClusterNode:
    words = [word.strip() for word in str(vnode.get("state", "")).split(",") if word.strip()]
    there, held = _dict(vnode, "resources_available"), _dict(vnode, "resources_assigned")
    cpus = count(there.get("ncpus"))
    cpus_held = count(held.get("ncpus", 0))
    return ClusterNode(
        name,
        _base(words, cpus_held),
        frozenset(
            _FLAGS.get(word, word.lower().replace("-", "_"))
            for word in words
            if word not in _NO_FLAG
        ),
        tuple(filter(None, str(vnode.get("queue") or vnode.get("partition") or "").split(","))),
        cpus,
        cpus_held,
        _bytes(there.get("mem")),
        _bytes(held.get("mem", 0)),
        count(there.get("ngpus", 0)),
        count(held.get("ngpus", 0)),
        bounded(str(vnode.get("comment") or "")),
        count(vnode.get("last_state_change_time")) or None,
    )


def _base(words: list[str], cpus_held: int | None) -> str:
    for word in words:
        if word in _BASES:
            return _BASES[word]
    if not words:
        return "unknown"
    if _ALLOCATED & set(words):
        return "allocated"
    return "mixed" if cpus_held else "idle"


def jobs(found: Mapping[str, Attributes]) -> list[ClusterJob]:
    """Jobs from qstat: sub-jobs count, the array that contains them does not."""
    return [_job(jobid, job) for jobid, job in found.items() if "[]" not in jobid]


_TRUTH = {"True": True, "False": False}


def partitions(answer: Mapping[str, Any]) -> list[Partition]:
    """Partitions from `qstat -Q -f -F json`."""
    return [
        Partition(
            name, _TRUTH.get(str(queue.get("enabled"))), _TRUTH.get(str(queue.get("started")))
        )
        for name, queue in _dict(answer, "Queue").items()
        if isinstance(queue, dict)
    ]


def reservations(output: bytes) -> list[Reservation]:
    """Reservations from `pbs_rstat -f` (pbs_rstat(1B), pbs_resv_attributes(7B)); may be empty."""
    found: list[dict[str, str]] = []
    for line in output.decode("utf-8", "replace").splitlines():
        if line.startswith("Resv ID: "):
            found.append({"id": line.removeprefix("Resv ID: ").strip()})
        elif found and " = " in line:
            name, _, value = line.strip().partition(" = ")
            found[-1].setdefault(name, value)
    return [
        Reservation(
            row["id"],
            count(row.get("Resource_List.nodect")),
            count(row.get("Resource_List.ncpus")),
            epoch(row.get("reserve_start", "")),
            epoch(row.get("reserve_end", "")),
        )
        for row in found
    ]


_REASONS = {"H": "Held", "W": "Waiting", "T": "Transit"}
_WHY = ("Not Running: ", "Can Never Run: ")


def _job(jobid: str, job: Attributes) -> ClusterJob:
    letter = job.get("job_state", "")
    state = PBS.get(letter, JobState.UNKNOWN)
    return ClusterJob(
        jobid,
        job.get("queue", ""),
        state,
        _REASONS.get(letter) or _reason(job.get("comment", "")),
        1,
        count(job.get("Resource_List.ncpus")),
        count(job.get("Resource_List.ngpus", 0)),
        count(job.get("etime")) or count(job.get("qtime")),
        None if state is JobState.PENDING else count(job.get("start")),
        account_of(job, "account"),
        job.get("user", ""),
    )


def _reason(comment: str) -> str:
    """The scheduler's comment on a job that it skipped; other comments contain times."""
    return next((reason_word(comment[len(head) :]) for head in _WHY if comment.startswith(head)),
                "")  # fmt: skip


def _dict(answer: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = answer.get(name)
    return found if isinstance(found, dict) else {}


def _bytes(value: Any) -> int | None:
    try:
        return None if value is None else size_bytes(str(value))
    except ValueError:
        return None


CONFIGURATION = Path("/etc/pbs.conf")


def detect() -> DetectedCluster | None:
    """The server that qstat queries; its accounting logs if readable, since they contain more."""
    name = printed_value(("qstat", "-B", "-f"), "server_host")
    if not name:
        return None
    logs = _home() / "server_priv/accounting"
    if os.access(logs, os.R_OK | os.X_OK):
        return DetectedCluster("PBS", name, {"pbs_log": {"path": str(logs)}})
    return DetectedCluster("PBS", name, {"qstat": {}})


def _home() -> Path:
    try:
        lines = CONFIGURATION.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    homes = [line.partition("=")[2].strip() for line in lines if line.startswith("PBS_HOME=")]
    return Path(homes[-1] if homes else "/var/spool/pbs")


CLUSTER = ClusterModule(by_commands, detect)
