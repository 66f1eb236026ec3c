"""The state of a cluster from the text output of Slurm's commands, if they have no `--json`.

The text is read as the rows that Slurm's JSON has. Facts: output of 22.05.8 and 24.11.5. All
commands run in UTC, in which every hour exists.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from batchjob.runtime.json_reader import unique_pairs
from batchjob.runtime.subprocesses import SchedulerError
from batchjob.schedulers import cluster
from batchjob.schedulers.fields import utc_time
from batchjob.schedulers.slurm import cluster_json

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
_TIME = "%Y-%m-%dT%H:%M:%S"  # else Unknown or N/A
_REASON = re.compile(r" Reason=(.*?)(?: \[[^\]@]*@([^\]]*)\])?(?: +Comment=.*)?$")

_NODE_COUNTS = {
    "effective_cpus": "CPUEfctv", "cpus": "CPUTot", "alloc_cpus": "CPUAlloc",
    "real_memory": "RealMemory", "alloc_memory": "AllocMem",
}  # fmt: skip


def nodes(output: bytes) -> list[cluster.ClusterNode]:
    """Nodes from `scontrol -o -d show nodes`; there is at least one."""
    lines = [line for line in _lines(output) if line.startswith("NodeName=")]
    if not lines:
        raise SchedulerError("scontrol lists no nodes")
    return [cluster_json.node(_node(line)) for line in lines]


def _lines(output: bytes) -> list[str]:
    return [line.strip() for line in output.decode("utf-8", "replace").splitlines()]


def _parse_pairs(line: str) -> dict[str, str]:
    return unique_pairs(_PAIR.findall(line), _LEADING)


def _node(line: str) -> dict[str, Any]:
    values = _parse_pairs(line)
    reason = _REASON.search(line)
    words = _STATE_WORD.findall(values.get("State", ""))
    row = {name: cluster.parse_count(values.get(text)) for name, text in _NODE_COUNTS.items()} | {
        "name": values["NodeName"],
        "state": [_STATE_SUFFIXES.get(word, word) for word in words],
        "partitions": [*filter(None, values.get("Partitions", "").split(","))],
        "gres": values.get("Gres"),
        "reason": reason and reason[1],
        "reason_changed_at": reason and utc_time(reason[2] or "", _TIME),
    }
    return row | ({"gres_used": values["GresUsed"]} if "GresUsed" in values else {})


def jobs(output: bytes) -> list[cluster.ClusterJob]:
    """Jobs from `squeue -O` with columns separated by `|`, and a header even without jobs."""
    return [cluster_json.job(_job(row)) for row in _parse_table(output, "JOBID", "squeue")]


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


def _job(row: Mapping[str, str]) -> dict[str, Any]:
    tres = row.get("TRES_ALLOC", "")
    return {
        "job_id": row["JOBID"],
        "partition": row.get("PARTITION"),
        "job_state": row.get("STATE"),
        "state_reason": row.get("REASON"),
        "cpus": cluster.parse_count(row.get("CPUS")),
        "node_count": cluster.parse_count(row.get("NODES")),
        "tasks": cluster.parse_count(row.get("TASKS")),
        "tres_req_str": "" if tres == "N/A" else tres,
        **{f"tres_per_{of}": row.get(f"TRES_PER_{of.upper()}") for of in _TRES_PER},
        "eligible_time": utc_time(row.get("ELIGIBLE_TIME", ""), _TIME),
        "start_time": utc_time(row.get("START_TIME", ""), _TIME),
        "account": row.get("ACCOUNT"),
        "user_name": row.get("USER"),
    }


_TRES_PER = ("job", "node", "task", "socket")

_STATISTICS = {(section, text): name for name, section, text in cluster_json.STATISTICS.values()}
_SECTIONS = {
    "Main schedule statistics": "main",
    "Main scheduler exit": "other",
    "Backfilling stats": "backfill",
    "Backfill exit": "other",
    "Latency for": "other",
    "Remote Procedure Call statistics by message type": "rpcs_by_message_type",
    "Remote Procedure Call statistics by user": "rpcs_by_user",
    "Pending RPC": "other",
}
_RPC = re.compile(r"(\S+)\s+\(\s*\d+\)\s+count:(\d+)\s+ave_time:\d+\s+total_time:(\d+)")


def controller(output: bytes) -> cluster.Controller:
    """Statistics from `sdiag`."""
    statistics: dict[str, Any] = {"rpcs_by_message_type": [], "rpcs_by_user": []}
    section = ""
    for line in _lines(output):
        section = next((new for head, new in _SECTIONS.items() if line.startswith(head)), section)
        if section in statistics and (match := _RPC.match(line)):
            key = section.removeprefix("rpcs_by_")
            calls = {"count": int(match[2]), "total_time": int(match[3])}
            statistics[section].append({key: match[1], **calls})
        name, _, number = line.partition(":")
        if (section, name) in _STATISTICS and number.strip().isdecimal():
            statistics[_STATISTICS[section, name]] = int(number)
    if "server_thread_count" not in statistics:
        raise SchedulerError("sdiag: expected a line 'Server thread count'")
    return cluster_json.controller({"statistics": statistics})


def fairshare(output: bytes) -> list[cluster.FairShare]:
    """Accounts from `sshare -P -l`; rows of users have a User, root has no share."""
    return [
        cluster.FairShare(
            row["Account"],
            _parse_float(row.get("NormShares")),
            _parse_float(row.get("EffectvUsage")),
            _parse_float(row.get("LevelFS")),
            _parse_float(row.get("FairShare")),
        )
        for row in _parse_table(output, "Account", "sshare")
        if not row.get("User") and row["Account"] != "root"
    ]


def licenses(output: bytes) -> list[cluster.License]:
    """Licences from `scontrol -o show licenses`."""
    rows = [_parse_pairs(line) for line in _lines(output) if line.startswith("LicenseName=")]
    counted = [
        row | {name: cluster.parse_count(row.get(name)) for name in ("Total", "Used")}
        for row in rows
    ]
    return cluster_json.licenses({"licenses": counted})


def _parse_float(text: str | None) -> float | None:
    try:
        return float(text) if text else None
    except ValueError:
        return None
