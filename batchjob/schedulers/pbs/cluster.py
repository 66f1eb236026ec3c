"""Queries the state of a PBS complex: pbsnodes and qstat with `-F json`, qmgr.

Facts: pbsnodes(8B), qstat(1B), pbs_server_attributes(7B), pbs_resources(7B) and output of OpenPBS
23.06. `resources_assigned` omits resources that are not in use. Times of jobs are text in the
client's zone, which is UTC here.
"""

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from batchjob.runtime.subprocesses import SchedulerError, parse_json_object, run
from batchjob.runtime.values import size_bytes
from batchjob.schedulers import cluster
from batchjob.schedulers.node import read_lines
from batchjob.schedulers.pbs.accounting.records import GPU_RESOURCES, account_of
from batchjob.schedulers.pbs.qstat_jobs import Attributes, query_qstat
from batchjob.schedulers.pbs.states import PBS
from batchjob.schedulers.states import JobState


def command_readers(options: cluster.ClusterOptions) -> cluster.ClusterReaders:
    """The queries by commands; PBS' server has no statistics of its own."""

    def read_json(*command: str) -> dict[str, Any]:
        return parse_json_object(run(options, (*command, "-F", "json")))

    def read_licenses() -> list[cluster.License]:
        resources = run(options, ("qmgr", "-c", "print server"))
        return licenses(read_json("qstat", "-B", "-f"), resources)

    return cluster.ClusterReaders(
        nodes=lambda: nodes(read_json("pbsnodes", "-a", "-v")),
        jobs=lambda: jobs(query_qstat(options, "qstat")),
        licenses=read_licenses,
    )


def nodes(answer: Mapping[str, Any]) -> list[cluster.ClusterNode]:
    """Nodes from `pbsnodes -av -F json`: one per vnode."""
    found = _mapping(answer, "nodes")
    if not found:
        raise SchedulerError("pbsnodes lists no nodes")
    return [_node(name, vnode) for name, vnode in found.items() if isinstance(vnode, dict)]


# The states of a vnode (pbs_node_attributes(7B)).
_BASE_STATES = {"down": "down", "unresponsive": "down", "state-unknown": "unknown", "stale": "down",
          "Stale": "down"}  # fmt: skip
_ALLOCATED = frozenset(("job-busy", "job-exclusive", "resv-exclusive", "busy"))
_EXCLUSIVE = frozenset(("job-exclusive", "resv-exclusive"))
_FLAGS = {"offline": "drain", "state-unknown": "not_responding", "unresponsive": "not_responding"}
_NO_FLAG = frozenset(("free", "down", "job-busy"))


def _node(name: str, vnode: Mapping[str, Any]) -> cluster.ClusterNode:
    words = [word.strip() for word in str(vnode.get("state", "")).split(",") if word.strip()]
    available = _mapping(vnode, "resources_available")
    assigned = _mapping(vnode, "resources_assigned")
    cpus = cluster.parse_count(available.get("ncpus"))
    cpus_assigned = cluster.parse_count(assigned.get("ncpus", 0))
    if _EXCLUSIVE & set(words):  # whatever its jobs asked for, nothing else can start
        assigned, cpus_assigned = available, cpus
    return cluster.ClusterNode(
        name,
        _base_state(words, cpus_assigned),
        frozenset(
            _FLAGS.get(word, word.lower().replace("-", "_"))
            for word in words
            if word not in _NO_FLAG
        ),
        tuple(filter(None, str(vnode.get("queue") or vnode.get("partition") or "").split(","))),
        cpus,
        cpus_assigned,
        _parse_bytes(available.get("mem")),
        _parse_bytes(assigned.get("mem", 0)),
        _gpus(available),
        _gpus(assigned),
        cluster.shorten_reason(str(vnode.get("comment") or "")),
        cluster.parse_count(vnode.get("last_state_change_time")) or None,
    )


def _gpus(resources: Mapping[str, Any], prefix: str = "") -> int | None:
    names = (f"{prefix}{name}" for name in GPU_RESOURCES)
    return cluster.parse_count(next((resources[name] for name in names if name in resources), 0))


def _base_state(words: list[str], cpus_assigned: int | None) -> str:
    for word in words:
        if word in _BASE_STATES:
            return _BASE_STATES[word]
    if not words:
        return "unknown"
    if _ALLOCATED & set(words):
        return "allocated"
    return "mixed" if cpus_assigned else "idle"


def jobs(attributes: Mapping[str, Attributes]) -> list[cluster.ClusterJob]:
    """Jobs from qstat: sub-jobs count, the array that contains them does not.

    Of a job whose id stands twice, only that it exists is known.
    """
    return [_job(jobid, job) for jobid, job in attributes.items() if "[]" not in jobid]


_PBS_LICENSE = "PBS"
_COUNTS = re.compile(r"(\w+):(\d{1,18})")
_FLAG = re.compile(r"^set resource (\S+) flag = (\w+)\s*$", re.MULTILINE)


def licenses(answer: Mapping[str, Any], resources: bytes) -> list[cluster.License]:
    """Licences from `qstat -B -f -F json` and `qmgr -c "print server"`.

    A licence that jobs request is a consumable of the whole server: a resource with the flag q (and
    not h, of hosts) and a number in the server's resources_available.
    """
    flags = _FLAG.findall(resources.decode("utf-8", "replace"))
    server_resources = frozenset(name for name, flag in flags if "q" in flag and "h" not in flag)
    found = []
    for server in _mapping(answer, "Server").values():
        if isinstance(server, dict):
            found += _pbs_licenses(server)
            found += _server_licenses(server, server_resources)
    return found


def _pbs_licenses(server: Mapping[str, Any]) -> list[cluster.License]:
    """PBS' own licences. OpenPBS needs none, but reports a million free ones."""
    if not server.get("pbs_license_info"):
        return []
    counts = dict(_COUNTS.findall(str(server.get("license_count", ""))))
    names = ("Avail_Global", "Avail_Local", "Used")  # at the licence server, at PBS, in use
    if not all(name in counts for name in names):
        return []
    global_free, local_free, used = (int(counts[name]) for name in names)
    return [cluster.License(_PBS_LICENSE, global_free + local_free + used, used)]


def _server_licenses(server: Mapping[str, Any], names: frozenset[str]) -> Iterator[cluster.License]:
    assigned = _mapping(server, "resources_assigned")
    for name, value in _mapping(server, "resources_available").items():
        total = cluster.parse_count(value)
        if name in names and total is not None:
            # The server lists an amount only after a job has used some.
            yield cluster.License(name, total, cluster.parse_count(assigned.get(name, 0)))


_STATE_REASONS = {"H": "Held", "W": "Waiting", "T": "Transit"}
_SKIPPED_PREFIXES = ("Not Running: ", "Can Never Run: ")


def _job(jobid: str, job: Attributes) -> cluster.ClusterJob:
    letter = job.get("job_state", "")
    state = PBS.get(letter, JobState.UNKNOWN)
    return cluster.ClusterJob(
        jobid,
        job.get("queue", ""),
        state,
        _STATE_REASONS.get(letter) or _reason(job.get("comment", "")),
        1,
        cluster.parse_count(job.get("Resource_List.ncpus")),
        _gpus(job, "Resource_List."),
        cluster.parse_count(job.get("etime")) or cluster.parse_count(job.get("qtime")),
        None if state is JobState.PENDING else cluster.parse_count(job.get("start")),
        account_of(job, "account"),
        job.get("user", ""),
    )


def _reason(comment: str) -> str:
    """The scheduler's comment on a job that it skipped; other comments contain times."""
    for prefix in _SKIPPED_PREFIXES:
        if comment.startswith(prefix):
            return cluster.reason_word(comment.removeprefix(prefix))
    return ""


def _mapping(answer: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = answer.get(name)
    return found if isinstance(found, dict) else {}


def _parse_bytes(value: Any) -> int | None:
    try:
        return None if value is None else size_bytes(str(value))
    except ValueError:
        return None


PBS_CONF = Path("/etc/pbs.conf")


def detect() -> cluster.DetectedCluster | None:
    """The server that qstat queries; its accounting logs if readable, since they contain more."""
    name = cluster.read_command_value(("qstat", "-B", "-f"), "server_host")
    if not name:
        return None
    logs = accounting_directory()
    if os.access(logs, os.R_OK | os.X_OK):
        return cluster.DetectedCluster("PBS", name, {"pbs_log": {"path": str(logs)}})
    return cluster.DetectedCluster("PBS", name, {"qstat": {}})


def accounting_directory() -> Path:
    lines = read_lines(str(PBS_CONF))
    homes = [line.partition("=")[2].strip() for line in lines if line.startswith("PBS_HOME=")]
    return Path(homes[-1] if homes else "/var/spool/pbs") / "server_priv/accounting"


CLUSTER = cluster.ClusterModule(command_readers, detect)
