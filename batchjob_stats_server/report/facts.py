"""The named quantities of a job that rules can use."""

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

from batchjob_stats_db.queries.efficiency import ACCOUNTING
from batchjob_stats_server.report import explain, request_options, similar
from batchjob_stats_server.report.conditions import Value, Values
from batchjob_stats_server.report.model import ReportInput, Row
from batchjob_stats_server.report.units import (
    worth_asking_bytes,
    worth_asking_seconds,
)

_IDLE_GPU = 0.01  # mean utilisation below which a GPU is idle


class JobFact(NamedTuple):
    """Its unit, or "word", its meaning, and its source."""

    unit: str
    about: str
    of: Callable[[ReportInput], Value]


def _of_job(column: str) -> Callable[[ReportInput], Value]:
    return lambda material: material.job[column]


def _share(
    column: str, of: Callable[[ReportInput], float | None]
) -> Callable[[ReportInput], Value]:
    """A column of usage as a fraction of `of`."""

    def value(material: ReportInput) -> Value:
        used, whole = material.job[column], of(material)
        return used / whole if used is not None and whole else None

    return value


def _elapsed(material: ReportInput) -> float | None:
    return explain.elapsed(material.job, material.now)


def _node_seconds(material: ReportInput) -> float | None:
    """Time in which pressure can have been counted, summed over nodes."""
    seconds: float | None = material.job["observed_seconds"]
    return seconds and seconds * (material.job["usage_nodes"] or 0) * _coverage_of_seen(material)


def _coverage_of_seen(material: ReportInput) -> float:
    """Coverage of the time of the nodes that were seen."""
    job = material.job
    nodes, seen = job["allocated_nodes"] or job["usage_nodes"], job["usage_nodes"]
    return min(1.0, job["usage_coverage"] * nodes / seen) if seen else 0.0


def _cpu_seconds_there(material: ReportInput) -> float | None:
    seconds: float | None = material.job["cpu_available_seconds"]
    return seconds


def _cpus_used(material: ReportInput) -> Value:
    ratio, cpus = material.job["cpu_efficiency"], material.job["allocated_cpus"]
    return ratio * cpus if ratio is not None and cpus else None


def _cpus_to_ask(material: ReportInput) -> Value:
    used = _cpus_used(material)
    return None if used is None else max(1, math.ceil(float(used) * 1.1))


def _coverage(material: ReportInput) -> Value:
    job = material.job
    if (job["cpu_basis"], job["memory_basis"]) == (ACCOUNTING, ACCOUNTING):
        return 1.0
    return min(1.0, float(job["usage_coverage"])) if explain.measured(job) else 0.0


def _node_peak(job: Row) -> float | None:
    """The least that a job can have needed on one node."""
    peak, nodes = job["memory_used_bytes"], job["allocated_nodes"] or 1
    known = (job["usage_memory_peak_node_bytes"], None if peak is None else peak / nodes)
    return max((float(each) for each in known if each is not None), default=None)


def _node_need(material: ReportInput) -> float | None:
    """None where it may have been more; of similar jobs that does not matter."""
    if not explain.memory_final(material.job):
        return None
    return similar.most(material, _node_peak)


def _memory_to_ask(material: ReportInput) -> float | None:
    """Memory to request for all nodes."""
    need = _node_need(material)
    return (
        None if need is None else worth_asking_bytes(need) * (material.job["allocated_nodes"] or 1)
    )


def _memory_request(material: ReportInput) -> Value:
    need = _node_need(material)
    return None if need is None else request_options.memory(material.job, worth_asking_bytes(need))


def _twice_the_memory(material: ReportInput) -> Value:
    had, nodes = material.job["allocated_memory_bytes"], material.job["allocated_nodes"] or 1
    return request_options.memory(material.job, 2 * had // nodes) if had else None


def _time_to_ask(material: ReportInput) -> float | None:
    longest = similar.most(material, lambda job: explain.elapsed(job, material.now))
    return None if longest is None else worth_asking_seconds(longest)


def _time_request(material: ReportInput) -> Value:
    asked = _time_to_ask(material)
    return None if asked is None else request_options.time(material.job, asked)


def _twice_the_time(material: ReportInput) -> Value:
    had = material.job["time_limit_seconds"]
    return request_options.time(material.job, 2 * had) if had else None


def _gpu_ratios(material: ReportInput) -> list[float]:
    ratios = [row["utilization_ratio"] for row in material.gpus]
    return [] if None in ratios else ratios


def _idle_gpus(material: ReportInput) -> Value:
    ratios = _gpu_ratios(material)
    return sum(ratio < _IDLE_GPU for ratio in ratios) if ratios else None


def _gpu_memory_ratio(material: ReportInput) -> Value:
    """That of the GPU with the highest ratio."""
    ratios = [
        row["memory_peak_bytes"] / total
        for row in material.gpus
        if (total := material.gpu_memory.get(row["uuid"] + row["gpu_instance"]))
        and row["memory_peak_bytes"] is not None
    ]
    return max(ratios, default=None)


def _node_balance(material: ReportInput) -> Value:
    """CPU time of the least busy node relative to the mean; None unless all nodes are known."""
    seconds = [node.cpu_seconds for node in material.nodes if node.cpu_seconds is not None]
    if (
        len(seconds) < 2
        or len(seconds) < (material.job["allocated_nodes"] or 0)
        or not sum(seconds)
    ):
        return None
    return min(seconds) * len(seconds) / sum(seconds)


def _idlest_node(material: ReportInput) -> Value:
    known = [node for node in material.nodes if node.cpu_seconds is not None]
    return min(known, key=lambda node: node.cpu_seconds or 0).node if known else None


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _fewest_gpu_samples(material: ReportInput) -> Value:
    return min((row["samples"] or 0 for row in material.gpus), default=0)


QUANTITIES: Mapping[str, JobFact] = {
    "state": JobFact("word", "State of the job.", _of_job("state")),
    "ended": JobFact(
        "word",
        "Whether the job has ended: yes or no.",
        lambda m: _yes(m.job["end_time"] is not None),
    ),
    "started": JobFact(
        "word",
        "Whether the job has started: yes or no.",
        lambda m: _yes(m.job["start_time"] is not None),
    ),
    "measured": JobFact(
        "word",
        "Whether anything was measured: yes or no.",
        lambda m: _yes(explain.measured(m.job)),
    ),
    "in_array": JobFact(
        "word",
        "Whether the job is a task of an array: yes or no.",
        lambda m: _yes(bool(m.job["array_jobid"])),
    ),
    "exit_code": JobFact("count", "Exit code.", _of_job("exit_code")),
    "elapsed": JobFact("seconds", "Run time.", _elapsed),
    "time_limit": JobFact("seconds", "Time limit.", _of_job("time_limit_seconds")),
    "time_ratio": JobFact(
        "ratio", "Run time / time limit.", lambda m: explain.time(m.job, m.now).ratio
    ),
    "time_to_ask": JobFact(
        "seconds",
        "Longest run time of this and similar jobs plus 25 %, rounded up.",
        _time_to_ask,
    ),
    "time_request": JobFact(
        "word", "`time_to_ask` in the notation of the scheduler.", _time_request
    ),
    "twice_the_time": JobFact(
        "word", "Twice the time limit in the notation of the scheduler.", _twice_the_time
    ),
    "coverage": JobFact(
        "ratio",
        "Fraction of the job's node time that the figures cover; 1 if they are from "
        "accounting only.",
        _coverage,
    ),
    "cpu_final": JobFact(
        "word",
        "Whether the CPU figures cover the whole job and are final: yes or no.",
        lambda m: _yes(explain.cpu_final(m.job)),
    ),
    "memory_final": JobFact(
        "word",
        "Whether the memory figures cover the whole job and are final: yes or no.",
        lambda m: _yes(explain.memory_final(m.job)),
    ),
    "gpu_final": JobFact(
        "word",
        "Whether the GPU figures cover the whole job and are final: yes or no.",
        lambda m: _yes(explain.measured_final(m.job)),
    ),
    "nodes_final": JobFact(
        "word",
        "Whether the figures of each node cover the whole job and are final: yes or no.",
        lambda m: _yes(explain.measured_final(m.job)),
    ),
    "nodes": JobFact("count", "Nodes allocated.", _of_job("allocated_nodes")),
    "cpus": JobFact("count", "CPUs allocated.", _of_job("allocated_cpus")),
    "cpu_ratio": JobFact("ratio", "CPU efficiency.", _of_job("cpu_efficiency")),
    "cpus_used": JobFact("count", "CPUs in use on average.", _cpus_used),
    "cpus_to_ask": JobFact("count", "`cpus_used` plus 10 %, rounded up.", _cpus_to_ask),
    "cpu_throttled_ratio": JobFact(
        "ratio",
        "Time throttled by the CPU quota / available CPU time.",
        _share("usage_throttled_seconds", _cpu_seconds_there),
    ),
    "cpu_waiting_ratio": JobFact(
        "ratio",
        "Fraction of time in which at least one task waited for a CPU.",
        _share("usage_cpu_waiting_seconds", _node_seconds),
    ),
    "threads": JobFact(
        "count", "Maximum number of threads, summed over nodes.", _of_job("usage_threads_peak")
    ),
    "node_balance_ratio": JobFact(
        "ratio", "CPU time of the least busy node / mean of the nodes.", _node_balance
    ),
    "idlest_node": JobFact("word", "The least busy node.", _idlest_node),
    "memory_limit": JobFact(
        "bytes",
        "Memory allocated, on the nodes measured.",
        lambda m: explain.memory(m.job).available,
    ),
    "memory_peak": JobFact(
        "bytes",
        "Peak memory, summed over nodes; includes page cache if it was measured.",
        _of_job("memory_used_bytes"),
    ),
    "memory_ratio": JobFact("ratio", "Memory efficiency.", _of_job("memory_efficiency")),
    "working_set": JobFact(
        "bytes",
        "Mean memory without inactive page cache.",
        _of_job("usage_working_set_average_bytes"),
    ),
    "memory_need": JobFact(
        "bytes", "Maximum memory used on one node by this and similar jobs.", _node_need
    ),
    "memory_to_ask": JobFact(
        "bytes", "`memory_need` plus 20 %, rounded up, for all nodes.", _memory_to_ask
    ),
    "memory_request": JobFact(
        "word", "`memory_to_ask` in the notation of the scheduler.", _memory_request
    ),
    "twice_the_memory": JobFact(
        "word", "Twice the allocated memory in the notation of the scheduler.", _twice_the_memory
    ),
    "memory_limit_hits": JobFact(
        "count", "Number of times the memory limit was reached.", _of_job("usage_memory_limit_hits")
    ),
    "memory_waiting_ratio": JobFact(
        "ratio",
        "Fraction of time in which at least one task waited for memory.",
        _share("usage_memory_waiting_seconds", _node_seconds),
    ),
    "oom_kills": JobFact(
        "count", "Processes that the OOM killer terminated.", _of_job("usage_oom_kills")
    ),
    "swap_peak": JobFact("bytes", "Maximum swap in use.", _of_job("usage_swap_peak_bytes")),
    "io_waiting_ratio": JobFact(
        "ratio",
        "Fraction of time in which at least one task waited for storage.",
        _share("usage_io_waiting_seconds", _node_seconds),
    ),
    "gpus": JobFact(
        "count", "GPUs allocated.", lambda m: m.job["allocated_gpus"] or m.job["usage_gpus"] or 0
    ),
    "gpu_ratio": JobFact("ratio", "GPU efficiency.", _of_job("usage_gpu_utilization_ratio")),
    "gpu_samples": JobFact(
        "count", "Number of samples of the GPU with the fewest samples.", _fewest_gpu_samples
    ),
    "gpus_measured": JobFact("count", "GPUs with measurements.", lambda m: len(m.gpus)),
    "gpus_idle": JobFact("count", "GPUs with a mean utilisation below 1 %.", _idle_gpus),
    "gpus_in_use": JobFact(
        "count",
        "GPUs with a mean utilisation of 1 % or more.",
        lambda m: None if _idle_gpus(m) is None else len(m.gpus) - float(_idle_gpus(m) or 0),
    ),
    "gpu_memory_peak": JobFact(
        "bytes", "Maximum memory in use on one GPU.", _of_job("usage_gpu_memory_peak_bytes")
    ),
    "gpu_memory_ratio": JobFact(
        "ratio", "`gpu_memory_peak` / memory of that GPU.", _gpu_memory_ratio
    ),
    "short_jobs": JobFact(
        "count",
        "Number of jobs of the user of at most a minute in the previous day, without array tasks.",
        lambda m: m.short_jobs,
    ),
    "similar_jobs": JobFact("count", "Similar jobs that completed.", lambda m: len(m.similar)),
}

UNITS: Mapping[str, str] = {name: each.unit for name, each in QUANTITIES.items()}


def values(material: ReportInput) -> Values:
    """All quantities of a job; None for unknown ones."""
    return {name: each.of(material) for name, each in QUANTITIES.items()}
