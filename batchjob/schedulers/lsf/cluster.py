"""Queries the state of an LSF cluster: bhosts and bjobs with `-json`, and lshosts.

Facts: bhosts(1), bjobs(1), lshosts(1) and LSB_BHOSTS_FORMAT in lsf.conf(5) of LSF 10.1.
Times are in the client's zone, which is UTC here. A host's CPUs are its job slots. Its memory is
lshosts' maxmem, since bhosts' total memory is the memory that is free at the moment.
"""

import contextlib
import logging
import re
import time
from collections.abc import Mapping, Sequence

from batchjob.runtime import subprocesses
from batchjob.runtime.log import LogOnce
from batchjob.runtime.values import size_bytes
from batchjob.schedulers import cluster
from batchjob.schedulers.lsf.formats import JsonRecord, lsf_time, parse_records, query_bjobs
from batchjob.schedulers.lsf.states import LSF
from batchjob.schedulers.states import JobState

log = logging.getLogger(__name__)

_HOST_FIELDS = "host_name status max njobs"
_GPU_FIELDS = f"{_HOST_FIELDS} ngpus ngpus_alloc"
_ALL_HOST_FIELDS = f"{_GPU_FIELDS} reserved_mem"
_JOB_FIELDS = (
    "jobid", "jobindex", "stat", "queue", "nreq_slot", "slots", "gpu_num", "pend_reason",
    "submit_time", "start_time", "user", "proj_name",
)  # fmt: skip


def command_readers(options: subprocesses.CommandOptions) -> cluster.ClusterReaders:
    """The queries by commands; bjobs lists ended jobs for CLEAN_PERIOD."""
    log_once = LogOnce(log)
    return cluster.ClusterReaders(
        nodes=lambda: nodes(_query_hosts(options), _query_memory(options, log_once)),
        jobs=lambda: jobs(query_bjobs(options, "bjobs", _JOB_FIELDS), int(time.time())),
    )


def _query_hosts(options: subprocesses.CommandOptions) -> list[JsonRecord]:
    """bhosts' records; fix packs added fields, and an older bhosts fails on a field it lacks."""
    for fields in (_ALL_HOST_FIELDS, _GPU_FIELDS):
        with contextlib.suppress(subprocesses.CommandFailedError, subprocesses.NotJsonError):
            return parse_records(_run_bhosts(options, fields))
    return parse_records(_run_bhosts(options, _HOST_FIELDS))


def _run_bhosts(options: subprocesses.CommandOptions, fields: str) -> bytes:
    return subprocesses.run(options, ("bhosts", "-X", "-json", "-o", fields))


def _query_memory(options: subprocesses.CommandOptions, log_once: LogOnce) -> dict[str, int]:
    """Memory of each host in bytes; empty if lshosts fails, since it is not essential."""
    try:
        found = parse_host_memory(subprocesses.run(options, ("lshosts", "-w")))
    except subprocesses.SchedulerError as error:
        log_once.warning("lshosts", "memory of LSF's hosts: %s", error)
        return {}
    log_once.forget("lshosts")
    return found


def parse_host_memory(output: bytes) -> dict[str, int]:
    """Bytes of each host in `lshosts -w`; a host whose daemon has not reported has a dash."""
    found: dict[str, int] = {}
    column = None
    for line in output.decode("utf-8", "replace").splitlines():
        words = line.split()
        if words[:1] == ["HOST_NAME"]:
            column = words.index("maxmem") if "maxmem" in words else None
        elif column is not None and len(words) > column:
            size = _parse_bytes(words[column])
            if size is not None:
                found[words[0]] = size
    return found


def nodes(
    hosts: Sequence[JsonRecord], memory_bytes: Mapping[str, int]
) -> list[cluster.ClusterNode]:
    found = [_node(record, memory_bytes) for record in hosts if record.get("HOST_NAME")]
    if not found:
        raise subprocesses.SchedulerError("bhosts lists no hosts")
    return found


_DOWN_FLAGS = {"unavail": "not_responding", "unreach": "not_responding"}


def _node(record: JsonRecord, memory_bytes: Mapping[str, int]) -> cluster.ClusterNode:
    name = record["HOST_NAME"]
    status = record.get("STATUS", "").lower()
    slots = cluster.parse_count(record.get("MAX"))
    allocated = cluster.parse_count(record.get("NJOBS"))
    flags = set()
    if status in _DOWN_FLAGS:
        flags.add(_DOWN_FLAGS[status])
    if status.startswith("closed"):
        flags.add("closed")
    if status == "closed_adm":
        flags.add("drain")
    return cluster.ClusterNode(
        name,
        _base_state(status, slots, allocated),
        frozenset(flags),
        (),
        slots,
        allocated,
        memory_bytes.get(name),
        _parse_bytes(record.get("RESERVED_MEM")),
        cluster.parse_count(record.get("NGPUS")),
        cluster.parse_count(record.get("NGPUS_ALLOC")),
    )


def _base_state(status: str, slots: int | None, allocated: int | None) -> str:
    if status in _DOWN_FLAGS:
        return "down"
    if allocated is None or not status.startswith(("ok", "closed")):
        return "unknown"
    if not allocated:
        return "idle"
    return "allocated" if slots is not None and allocated >= slots else "mixed"


def jobs(records: Sequence[JsonRecord], now: int) -> list[cluster.ClusterJob]:
    """Jobs from bjobs' records; a time without a year is the last one that is not in the future."""
    return [_job(record, now) for record in records if record.get("JOBID")]


_STATE_REASONS = {"PSUSP": "Held", "WAIT": "Waiting"}


def _job(record: JsonRecord, now: int) -> cluster.ClusterJob:
    word = record.get("STAT", "")
    state = LSF.get(word, JobState.UNKNOWN)
    pending = state is JobState.PENDING
    index = cluster.parse_count(record.get("JOBINDEX"))
    return cluster.ClusterJob(
        f"{record['JOBID']}[{index}]" if index else record["JOBID"],
        record.get("QUEUE", ""),
        state,
        _STATE_REASONS.get(word)
        or cluster.reason_word(_NUMBERS.sub("", record.get("PEND_REASON", ""))),
        1,
        cluster.parse_count(record.get("NREQ_SLOT" if pending else "SLOTS")),
        _gpus(record),
        _parse_time(record.get("SUBMIT_TIME", ""), now),
        None if pending else _parse_time(record.get("START_TIME", ""), now),
        record.get("PROJ_NAME", ""),
        record.get("USER", ""),
    )


_NUMBERS = re.compile(r"\d+")


def _gpus(record: JsonRecord) -> int | None:
    """0 for an empty field (a job without GPUs), None if the answer has no such field."""
    text = record.get("GPU_NUM")
    return 0 if text in ("", "-") else cluster.parse_count(text)


def _parse_bytes(text: str | None) -> int | None:
    """Bytes of `143M` or `7.5G`; None for a number without a unit, except 0."""
    if text in ("0", "0.0"):
        return 0
    if not text or text[-1].isdigit():
        return None
    try:
        return size_bytes(text)
    except ValueError:
        return None


def _parse_time(text: str, now: int) -> int | None:
    try:
        return lsf_time(text, now)
    except ValueError:
        return None


def detect() -> cluster.DetectedCluster | None:
    lines = cluster.read_command_lines(("lsid",))
    names = [line.split()[-1] for line in lines if line.startswith("My cluster name is")]
    return cluster.DetectedCluster("LSF", names[0], {"bjobs": {}}) if names else None


CLUSTER = cluster.ClusterModule(command_readers, detect)
