"""The summary of a job that jobstats stores in Slurm's AdminComment, from the database.

`JS1:` and base64 of gzipped JSON: the elapsed time, the number of GPUs, and by node CPUs, CPU
seconds, memory and limit in bytes, and percent and memory of each GPU (jobstats 1.0, jobstats.py).
reportseff and job_defense_shield read it too.
"""

import base64
import gzip
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy.engine import Connection

from batchjob.judgements import SEEN_TO_END
from batchjob.schedulers.node_names import short_name
from batchjob_stats_db.database.access import Access
from batchjob_stats_db.queries.jobs import parts_of

_PREFIX = "JS1:"
_SHORT_SECONDS = 60  # jobstats needs two samples, 30 s apart

_Row = Mapping[Any, Any]


class NoSummaryError(Exception):
    """A job has no summary yet, or lacks a figure of it; the text is for people."""


def jobstats_summary(db: Connection, access: Access, job: _Row) -> str:
    """The summary of a run with the columns of a list; raises NoSummaryError."""
    if job["end_time"] is None or not job["usage_final"]:
        raise NoSummaryError("its final figures are not stored")
    if job["usage_coverage"] is None or job["usage_coverage"] < SEEN_TO_END:
        raise NoSummaryError("it was not measured up to its end on all nodes")
    elapsed = int(job["end_time"] - job["start_time"])
    if elapsed < _SHORT_SECONDS:
        return f"{_PREFIX}Short"
    parts = parts_of(db, access, job["id"]) or {}
    nodes = _nodes(parts.get("node-usage", ()), parts.get("nodes", ()), job["allocated_nodes"])
    for name, figures in _gpus_by_node(parts.get("gpus", ())).items():
        nodes.get(name, {}).update(figures)
    summary = {"nodes": nodes, "total_time": elapsed, "gpus": job["allocated_gpus"] or 0}
    text = json.dumps(summary, separators=(",", ":")).encode()
    return _PREFIX + base64.b64encode(gzip.compress(text, mtime=0)).decode()


def _nodes(
    used: Sequence[_Row], shares: Sequence[_Row], expected: int | None
) -> dict[str, dict[str, Any]]:
    """CPUs and memory of each node; of one without a limit, what was allocated there."""
    if not used or (expected and len(used) != expected):
        raise NoSummaryError("not all of its nodes were measured")
    share_of = {short_name(row["node"]): row for row in shares}
    nodes = {}
    for row in used:
        share = share_of.get(short_name(row["node"]), {"cpus": None, "memory_bytes": None})
        figures = {
            "total_memory": row["memory_limit_bytes"] or share["memory_bytes"],
            "used_memory": row["memory_without_cache_bytes"],
            "total_time": row["cpu_seconds"],
            "cpus": row["cpus"] or share["cpus"],
        }
        if missing := [name for name, value in figures.items() if value is None]:
            raise NoSummaryError(f"{missing[0]} of {row['node']} is not known")
        figures["total_time"] = round(figures["total_time"], 1)
        nodes[row["node"]] = figures
    return nodes


def _gpus_by_node(gpus: Sequence[_Row]) -> Mapping[str, Mapping[str, Mapping[str, float]]]:
    """Figures of the GPUs of nodes of which all are known: readers take a missing one for zero."""
    found: dict[str, dict[str, dict[str, Any]]] = defaultdict(lambda: defaultdict(dict))
    for row in gpus:
        number = row["gpu"] + (f".{row['gpu_instance']}" if row["gpu_instance"] else "")
        ratio = row["utilization_ratio"]
        figures = found[row["node"]]
        figures["gpu_utilization"][number] = None if ratio is None else round(100 * ratio, 1)
        figures["gpu_used_memory"][number] = row["memory_peak_bytes"]
        figures["gpu_total_memory"][number] = row["memory_total_bytes"]
    return {
        node: figures
        for node, figures in found.items()
        if not any(None in values.values() for values in figures.values())
    }
