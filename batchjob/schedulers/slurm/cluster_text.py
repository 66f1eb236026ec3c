"""The state of a cluster from the text output of Slurm's commands, if they have no `--json`.

Facts: output of 22.05.8 and 24.11.5. All commands run in UTC, in which every hour exists.
"""

import calendar
import re
import time
from collections.abc import Iterator, Mapping

from batchjob.runtime.pairs import unique_pairs
from batchjob.runtime.subprocesses import SchedulerError
from batchjob.schedulers.cluster import (
    ClusterJob,
    ClusterNode,
    Controller,
    FairShare,
    License,
    Rpc,
    parse_count,
    reason_word,
    shorten_reason,
)
from batchjob.schedulers.slurm.cluster_json import (
    MEGABYTE,
    eligible_time,
    first_partition,
    node_gpus,
    node_state,
)
from batchjob.schedulers.slurm.formats import job_gpus, parse_tres
from batchjob.schedulers.slurm.states import live_state, running_phase
from batchjob.schedulers.states import JobState

# Suffixes of a node's state (sinfo(1), "NODE STATE CODES").
_STATE_SUFFIXES = {
    "*": "not_responding", "~": "powered_down", "#": "powering_up", "!": "power_down",
    "%": "powering_down", "$": "maintenance", "@": "reboot_requested", "^": "reboot_issued",
    "-": "planned",
}  # fmt: skip
_STATE_WORD = re.compile(r"[A-Z_]+|[*~#!%$@^-]")
_PAIR = re.compile(r"(\S+?)=(\S*)")
# Written before what a person wrote (Reason, Comment, Extra), which may contain any of them.
_LEADING = (
    "NodeName", "CPUAlloc", "CPUEfctv", "CPUTot", "Gres", "GresUsed", "RealMemory", "AllocMem",
    "State", "Partitions", "LicenseName", "Total", "Used",
)  # fmt: skip
_REASON = re.compile(r" Reason=(.*?)(?: \[[^\]@]*@([^\]]*)\])?(?: +Comment=.*)?$")


def nodes(output: bytes) -> list[ClusterNode]:
    """Nodes from `scontrol -o -d show nodes`; there is at least one."""
    found = [_node(line) for line in _lines(output) if line.startswith("NodeName=")]
    if not found:
        raise SchedulerError("scontrol lists no nodes")
    return found


def _lines(output: bytes) -> list[str]:
    return [line.strip() for line in output.decode("utf-8", "replace").splitlines()]


def _parse_pairs(line: str) -> dict[str, str]:
    return unique_pairs(_PAIR.findall(line), _LEADING)


def _node(line: str) -> ClusterNode:
    values = _parse_pairs(line)
    words = _STATE_WORD.findall(values.get("State", ""))
    base, flags = node_state(tuple(_STATE_SUFFIXES.get(word, word) for word in words))
    reason = _REASON.search(line)
    memory, allocated = parse_count(values.get("RealMemory")), parse_count(values.get("AllocMem"))
    gpus, gpus_allocated, models = node_gpus(values.get("Gres", ""), values.get("GresUsed"))
    return ClusterNode(
        values["NodeName"],
        base,
        flags,
        tuple(filter(None, values.get("Partitions", "").split(","))),
        parse_count(values.get("CPUEfctv")) or parse_count(values.get("CPUTot")),
        parse_count(values.get("CPUAlloc")),
        None if memory is None else memory * MEGABYTE,
        None if allocated is None else allocated * MEGABYTE,
        gpus,
        gpus_allocated,
        shorten_reason(reason[1]) if reason else "",
        _parse_time(reason[2] or "") if reason else None,
        gpu_models=models,
    )


def jobs(output: bytes) -> list[ClusterJob]:
    """Jobs from `squeue -O` with columns separated by `|`, and a header even without jobs."""
    return [_job(row) for row in _parse_table(output, "JOBID", "squeue")]


def _parse_table(output: bytes, column: str, command: str) -> Iterator[dict[str, str]]:
    lines = _lines(output)
    names: list[str] = []
    for line in lines:
        cells = [cell.strip() for cell in line.split("|")]
        if names and len(cells) == len(names):
            yield dict(zip(names, cells, strict=True))
        elif column in cells:
            names = cells
    if not names:
        raise SchedulerError(f"{command}: expected a table with the column {column}")


def _job(row: Mapping[str, str]) -> ClusterJob:
    words = (row.get("STATE", ""),)
    state = live_state(words)
    eligible = _parse_time(row.get("ELIGIBLE_TIME", ""))
    return ClusterJob(
        row["JOBID"],
        first_partition(row.get("PARTITION", "")),
        state,
        reason_word(row.get("REASON", "")),
        1,
        parse_count(row.get("CPUS")),
        _gpus(row),
        eligible_time(state, words, row.get("REASON", ""), eligible),
        None if state is JobState.PENDING else _parse_time(row.get("START_TIME", "")),
        row.get("ACCOUNT", ""),
        row.get("USER", ""),
        running_phase(words),
    )


def _gpus(row: Mapping[str, str]) -> int | None:
    tres = row.get("TRES_ALLOC", "")
    requests = (("JOB", 1), ("NODE", parse_count(row.get("NODES"))),
                ("TASK", parse_count(row.get("TASKS"))), ("SOCKET", None))  # fmt: skip
    try:
        values = {} if tres == "N/A" else parse_tres(tres)
        return job_gpus(values, (), ((row.get(f"TRES_PER_{of}", ""), n) for of, n in requests))
    except ValueError:  # how many is not known; the other jobs count
        return None


# (section, text before the colon) -> (batchjob's name, divisor).
_NUMBERS = {
    ("", "Server thread count"): ("threads", 1.0),
    ("", "Agent queue size"): ("agent_queue", 1.0),
    ("", "Agent count"): ("agents", 1.0),
    ("", "DBD Agent queue size"): ("dbd_queue", 1.0),
    ("", "Jobs pending"): ("pending", 1.0),
    ("", "Jobs running"): ("running", 1.0),
    ("", "Jobs submitted"): ("submitted", 1.0),
    ("", "Jobs started"): ("started", 1.0),
    ("", "Jobs completed"): ("completed", 1.0),
    ("", "Jobs canceled"): ("cancelled", 1.0),
    ("", "Jobs failed"): ("failed", 1.0),
    ("main", "Last cycle"): ("main_last", 1e6),
    ("main", "Max cycle"): ("main_longest", 1e6),
    ("main", "Mean cycle"): ("main_mean", 1e6),
    ("main", "Total cycles"): ("main_cycles", 1.0),
    ("main", "Last queue length"): ("main_queue", 1.0),
    ("backfill", "Total backfilled jobs (since last slurm start)"): ("backfilled", 1.0),
    ("backfill", "Total backfilled jobs (since last stats cycle start)"): (
        "backfilled_since_reset",
        1.0,
    ),
    ("backfill", "Total backfilled heterogeneous job components"): (
        "backfilled_heterogeneous",
        1.0,
    ),
    ("backfill", "Depth Mean"): ("backfill_mean_depth", 1.0),
    ("backfill", "Total cycles"): ("backfill_cycles", 1.0),
    ("backfill", "Last cycle"): ("backfill_last", 1e6),
    ("backfill", "Max cycle"): ("backfill_longest", 1e6),
    ("backfill", "Mean cycle"): ("backfill_mean", 1e6),
    ("backfill", "Last depth cycle"): ("backfill_depth", 1.0),
    ("backfill", "Last queue length"): ("backfill_queue", 1.0),
}
_SECTIONS = {
    "Main schedule statistics": "main",
    "Main scheduler exit": "other",
    "Backfilling stats": "backfill",
    "Backfill exit": "other",
    "Latency for": "other",
    "Remote Procedure Call statistics by message type": "types",
    "Remote Procedure Call statistics by user": "users",
    "Pending RPC": "other",
}
_RPC = re.compile(r"(\S+)\s+\(\s*\d+\)\s+count:(\d+)\s+ave_time:\d+\s+total_time:(\d+)")


def controller(output: bytes) -> Controller:
    """Statistics from `sdiag`."""
    numbers: dict[str, float] = {}
    rpcs: dict[str, dict[str, Rpc]] = {"types": {}, "users": {}}
    section = ""
    for line in _lines(output):
        section = next((new for head, new in _SECTIONS.items() if line.startswith(head)), section)
        if section in rpcs and (match := _RPC.match(line)):
            rpcs[section][match[1]] = Rpc(int(match[2]), int(match[3]) / 1e6)
        name, _, number = line.partition(":")
        known = _NUMBERS.get((section, name))
        if known and number.strip().isdecimal():
            numbers[known[0]] = int(number) / known[1]
    if "threads" not in numbers:
        raise SchedulerError("sdiag: expected a line 'Server thread count'")
    return Controller(numbers, rpcs["types"], rpcs["users"])


def fairshare(output: bytes) -> list[FairShare]:
    """Accounts from `sshare -P -l`; rows of users have a User, root has no share."""
    return [
        FairShare(
            row["Account"],
            _parse_float(row.get("NormShares")),
            _parse_float(row.get("EffectvUsage")),
            _parse_float(row.get("LevelFS")),
            _parse_float(row.get("FairShare")),
        )
        for row in _parse_table(output, "Account", "sshare")
        if not row.get("User") and row["Account"] != "root"
    ]


def licenses(output: bytes) -> list[License]:
    """Licences from `scontrol -o show licenses`."""
    rows = [_parse_pairs(line) for line in _lines(output) if line.startswith("LicenseName=")]
    return [
        License(row["LicenseName"], parse_count(row.get("Total")), parse_count(row.get("Used")))
        for row in rows
    ]


def _parse_float(text: str | None) -> float | None:
    try:
        return float(text) if text else None
    except ValueError:
        return None


def _parse_time(text: str) -> int | None:
    try:
        return calendar.timegm(time.strptime(text, "%Y-%m-%dT%H:%M:%S"))
    except ValueError:
        return None  # Unknown, N/A
