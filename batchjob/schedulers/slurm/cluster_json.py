"""The state of a cluster from Slurm's JSON, by `--json` or slurmrestd, of any release.

Facts: answers of 22.05 (v0.0.38) and 24.11 (v0.0.42), and the OpenAPI documents that slurmrestd
serves. Times of sdiag are in microseconds, memory is in megabytes.
"""

import re
from collections.abc import Mapping
from typing import Any

from batchjob.schedulers import cluster
from batchjob.schedulers.slurm.formats import gres_gpus
from batchjob.schedulers.slurm.json_format import (
    SlurmJsonError,
    count_job_gpus,
    epoch,
    parse_count,
    raise_for_errors,
    rows,
    state_words,
    unwrap_numbers,
)
from batchjob.schedulers.slurm.states import HELD_STATES, is_eligible, live_state, running_phase
from batchjob.schedulers.states import JobState

_MEGABYTE = 1024**2


def nodes(answer: Any) -> list[cluster.ClusterNode]:
    """Nodes from `scontrol show nodes --json` or /slurm/.../nodes; there is at least one."""
    found = [node(row) for row in _checked_rows(answer, "nodes") if row.get("name")]
    if not found:
        raise SlurmJsonError("Slurm lists no nodes")
    return found


def node(row: Mapping[str, Any]) -> cluster.ClusterNode:
    words = (*state_words(row.get("state")), *state_words(row.get("state_flags")))
    base, *flags = [word.lower() for word in words if word] or ["unknown"]
    memory, allocated = parse_count(row.get("real_memory")), parse_count(row.get("alloc_memory"))
    used = str(row["gres_used"] or "") if "gres_used" in row else None
    partitions = row.get("partitions")
    gpus, gpus_allocated, models = node_gpus(str(row.get("gres") or ""), used)
    return cluster.ClusterNode(
        str(row["name"]),
        base,
        frozenset(flags) - {"invalid"},
        tuple(map(str, partitions)) if isinstance(partitions, list) else (),
        # Without the CPUs of specialised cores, which no job gets (23.02 and later).
        parse_count(row.get("effective_cpus")) or parse_count(row.get("cpus")),
        parse_count(row.get("alloc_cpus")),
        None if memory is None else memory * _MEGABYTE,
        None if allocated is None else allocated * _MEGABYTE,
        gpus,
        gpus_allocated,
        cluster.shorten_reason(str(row.get("reason") or "")),
        epoch(row.get("reason_changed_at")),
        gpu_models=models,
    )


def node_gpus(gres: str, used: str | None) -> tuple[int, int | None, tuple[cluster.GpuModel, ...]]:
    """A node's GPUs in total, those allocated, and both for each model that Slurm names.

    By its GRES, and those in use (None if Slurm does not report them).
    """
    total_by_model, allocated_by_model = gres_gpus(gres), None if used is None else gres_gpus(used)
    total = sum(total_by_model.values())
    models = tuple(
        cluster.GpuModel(
            model, number, None if allocated_by_model is None else allocated_by_model[model]
        )
        for model, number in sorted(total_by_model.items())
        if model
    )
    if allocated_by_model is None:
        return total, None if total else 0, models
    return total, sum(allocated_by_model.values()), models


def jobs(answer: Any) -> list[cluster.ClusterJob]:
    """Jobs from `squeue --json` or /slurm/.../jobs, with those that ended within MinJobAge."""
    return [job(row) for row in _checked_rows(answer, "jobs")]


def job(row: Mapping[str, Any]) -> cluster.ClusterJob:
    words = state_words(row.get("job_state"))
    state = live_state(words)
    is_pending = state is JobState.PENDING
    reason = str(row.get("state_reason") or "")
    is_held = is_pending and not (HELD_STATES.isdisjoint(words) and is_eligible(reason))
    waiting = str(row.get("array_task_string") or "") if is_pending else ""
    tasks, is_cut = array_tasks(waiting)
    return cluster.ClusterJob(
        str(row.get("job_id")),
        # A job that waits for several partitions is counted once.
        str(row.get("partition") or "").partition(",")[0],
        state,
        cluster.reason_word(reason),
        tasks,
        parse_count(row.get("cpus")),
        _gpus(row),
        # Slurm gives a job that is requeued and held an eligible time two minutes later.
        None if is_held else epoch(row.get("eligible_time")),
        None if is_pending else epoch(row.get("start_time")),
        str(row.get("account") or ""),
        str(row.get("user_name") or ""),
        running_phase(words),
        is_cut=is_cut,
    )


def _gpus(row: Mapping[str, Any]) -> int | None:
    try:
        return count_job_gpus(row, str(row.get("tres_req_str") or ""))
    except ValueError:  # how many is not known; the other jobs count
        return None


_TASK_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?(?::(\d{1,9}))?")


def array_tasks(text: str) -> tuple[int, bool]:
    """Tasks in `1-5,7,10-20:2%4`, and whether these are not all; 1 for a job that is not an array.

    slurmrestd cuts the list after 64 characters, `1,3,5,...`, unless it has SLURM_BITSTR_LEN=0.
    """
    total = 0
    for part in text.partition("%")[0].split(","):
        if match := _TASK_RANGE.fullmatch(part):
            first, last = int(match[1]), int(match[2] or match[1])
            total += max(0, (last - first) // (int(match[3] or 1) or 1) + 1)
    return max(1, total), "..." in text


# By batchjob's names: Slurm's in its JSON and, for the text of sdiag, the section and what is
# before the colon. Durations are in microseconds.
STATISTICS = {
    "threads": ("server_thread_count", "", "Server thread count"),
    "agent_queue": ("agent_queue_size", "", "Agent queue size"),
    "agents": ("agent_count", "", "Agent count"),
    "dbd_queue": ("dbd_agent_queue_size", "", "DBD Agent queue size"),
    "pending": ("jobs_pending", "", "Jobs pending"),
    "running": ("jobs_running", "", "Jobs running"),
    "submitted": ("jobs_submitted", "", "Jobs submitted"),
    "started": ("jobs_started", "", "Jobs started"),
    "completed": ("jobs_completed", "", "Jobs completed"),
    "cancelled": ("jobs_canceled", "", "Jobs canceled"),
    "failed": ("jobs_failed", "", "Jobs failed"),
    "main_cycles": ("schedule_cycle_total", "main", "Total cycles"),
    "main_queue": ("schedule_queue_length", "main", "Last queue length"),
    "main_last": ("schedule_cycle_last", "main", "Last cycle"),
    "main_longest": ("schedule_cycle_max", "main", "Max cycle"),
    "main_mean": ("schedule_cycle_mean", "main", "Mean cycle"),
    "backfill_cycles": ("bf_cycle_counter", "backfill", "Total cycles"),
    "backfill_queue": ("bf_queue_len", "backfill", "Last queue length"),
    "backfill_last": ("bf_cycle_last", "backfill", "Last cycle"),
    "backfill_longest": ("bf_cycle_max", "backfill", "Max cycle"),
    "backfill_mean": ("bf_cycle_mean", "backfill", "Mean cycle"),
    "backfill_depth": ("bf_last_depth", "backfill", "Last depth cycle"),
    "backfill_mean_depth": ("bf_depth_mean", "backfill", "Depth Mean"),
    "backfilled": (
        "bf_backfilled_jobs", "backfill", "Total backfilled jobs (since last slurm start)"),
    "backfilled_since_reset": ("bf_last_backfilled_jobs", "backfill",
        "Total backfilled jobs (since last stats cycle start)"),
    "backfilled_heterogeneous": ("bf_backfilled_het_jobs", "backfill",
        "Total backfilled heterogeneous job components"),
}  # fmt: skip
_DURATIONS = ("_last", "_longest", "_mean")


def controller(answer: Any) -> cluster.Controller:
    """Statistics from `sdiag --json` or /slurm/.../diag."""
    raise_for_errors(answer)
    statistics = unwrap_numbers(answer.get("statistics"))
    if not isinstance(statistics, dict) or "server_thread_count" not in statistics:
        raise SlurmJsonError("not an answer of Slurm: expected an object 'statistics'")
    found = {name: parse_count(statistics.get(slurm)) for name, (slurm, *_) in STATISTICS.items()}
    return cluster.Controller(
        {
            name: number / (1e6 if name.endswith(_DURATIONS) else 1)
            for name, number in found.items()
            if number is not None
        },
        _rpcs(statistics, "rpcs_by_message_type", "message_type"),
        _rpcs(statistics, "rpcs_by_user", "user"),
    )


def _rpcs(statistics: Mapping[str, Any], name: str, key: str) -> dict[str, cluster.Rpc]:
    rpcs = {}
    for row in statistics.get(name) or ():
        if isinstance(row, dict) and (calls := parse_count(row.get("count"))) is not None:
            micro = parse_count(row.get("total_time"))
            rpcs[str(row.get(key))] = cluster.Rpc(calls, None if micro is None else micro / 1e6)
    return rpcs


def fairshare(answer: Any) -> list[cluster.FairShare]:
    """Accounts from /slurm/.../shares (v0.0.40 and later)."""
    raise_for_errors(answer)
    outer = unwrap_numbers(answer.get("shares"))
    return [
        cluster.FairShare(
            str(row.get("name")),
            _number(row.get("shares_normalized")),
            _number(row.get("effective_usage")),
            _number((row.get("fairshare") or {}).get("level")),
            None,  # Fair Tree ranks users; an account has a level
        )
        for row in rows(outer, "shares")
        if "USER" not in (row.get("type") or ()) and row.get("parent")
    ]


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and value >= 0 else None


def licenses(answer: Any) -> list[cluster.License]:
    """Licences from `scontrol show licenses --json` or /slurm/.../licenses."""
    return [
        cluster.License(
            str(row.get("LicenseName")), parse_count(row.get("Total")), parse_count(row.get("Used"))
        )
        for row in _checked_rows(answer, "licenses")
    ]


def _checked_rows(answer: Any, root: str) -> list[dict[str, Any]]:
    raise_for_errors(answer)
    return [unwrap_numbers(row) for row in rows(answer, root)]
