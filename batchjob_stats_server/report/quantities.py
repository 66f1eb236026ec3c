"""The named quantities of a job, of which rules speak."""

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

from batchjob.readable import clock, size
from batchjob_stats_server.report import efficiency, similar
from batchjob_stats_server.report.conditions import Value, Values
from batchjob_stats_server.report.material import Material, Row
from batchjob_stats_server.report.units import (
    worth_asking_bytes,
    worth_asking_seconds,
)

_IDLE_GPU = 0.01  # mean utilisation below which a GPU did nothing


class Quantity(NamedTuple):
    """Its unit, or "word", what it is, and where it comes from."""

    unit: str
    about: str
    of: Callable[[Material], Value]


def _of_job(column: str) -> Callable[[Material], Value]:
    return lambda material: material.job[column]


def _share(column: str, of: Callable[[Material], float | None]) -> Callable[[Material], Value]:
    """A column of usage as a part of `of`."""

    def value(material: Material) -> Value:
        used, whole = material.job[column], of(material)
        return used / whole if used is not None and whole else None

    return value


def _elapsed(material: Material) -> float | None:
    return efficiency.elapsed(material.job, material.now)


def _node_seconds(material: Material) -> float | None:
    """Time in which pressure can have been counted, summed over nodes."""
    seconds = efficiency.observed(material.job, material.now)
    return seconds and seconds * (material.job["usage_nodes"] or 0) * _coverage_of_seen(material)


def _coverage_of_seen(material: Material) -> float:
    """Part of the time of the nodes that were seen."""
    job = material.job
    nodes, seen = job["allocated_nodes"] or job["usage_nodes"], job["usage_nodes"]
    return min(1.0, job["usage_coverage"] * nodes / seen) if seen else 0.0


def _cpu_seconds_there(material: Material) -> float | None:
    return efficiency.cpu(material.job, material.now).available


def _cpus_used(material: Material) -> Value:
    found = efficiency.cpu(material.job, material.now)
    cpus: int | None = material.job["allocated_cpus"]
    return found.ratio * cpus if found.ratio is not None and cpus else None


def _cpus_to_ask(material: Material) -> Value:
    used = _cpus_used(material)
    return None if used is None else max(1, math.ceil(float(used) * 1.1))


def _coverage(material: Material) -> Value:
    job = material.job
    if efficiency.measured(job):
        return min(1.0, float(job["usage_coverage"]))
    known = job["end_time"] is not None and None not in (
        job["cpu_seconds"],
        job["peak_memory_bytes"],
    )
    return 1.0 if known else 0.0


def _node_peak(job: Row) -> float | None:
    """Most memory on one node; by accounting the mean, which is all it tells."""
    if efficiency.measured(job) and job["usage_memory_peak_node_bytes"] is not None:
        return float(job["usage_memory_peak_node_bytes"])
    peak = job["peak_memory_bytes"]
    return None if peak is None else peak / (job["allocated_nodes"] or 1)


def _node_need(material: Material) -> float | None:
    return similar.most(material, _node_peak)


def _memory_to_ask(material: Material) -> float | None:
    """Of all nodes."""
    need = _node_need(material)
    return (
        None if need is None else worth_asking_bytes(need) * (material.job["allocated_nodes"] or 1)
    )


# How a request is written, by the source of the job's record.
_REQUESTS: Mapping[str, tuple[str, str]] = {
    "sacct": ("--mem={mib}M", "--time={hms}"),
    "slurm_rest": ("--mem={mib}M", "--time={hms}"),
    "pbs_log": ("-l mem={all}mb", "-l walltime={hms}"),
    "qstat": ("-l mem={all}mb", "-l walltime={hms}"),
}


def _memory_request(material: Material) -> Value:
    need = _node_need(material)
    if need is None:
        return None
    nodes = material.job["allocated_nodes"] or 1
    asked = worth_asking_bytes(need)
    form = _REQUESTS.get(material.job["source"], ("", ""))[0]
    option = form.format(mib=asked >> 20, all=(asked >> 20) * nodes)
    return size(asked) + (" per node" if nodes > 1 else "") + (f" ({option})" if option else "")


def _time_to_ask(material: Material) -> float | None:
    longest = similar.most(material, lambda job: efficiency.elapsed(job, material.now))
    return None if longest is None else worth_asking_seconds(longest)


def _time_request(material: Material) -> Value:
    asked = _time_to_ask(material)
    if asked is None:
        return None
    option = _REQUESTS.get(material.job["source"], ("", ""))[1].format(hms=clock(asked))
    return clock(asked) + (f" ({option})" if option else "")


def _gpu_ratios(material: Material) -> list[float]:
    ratios = [row["utilization_ratio"] for row in material.gpus]
    return [] if None in ratios else ratios


def _idle_gpus(material: Material) -> Value:
    ratios = _gpu_ratios(material)
    return sum(ratio < _IDLE_GPU for ratio in ratios) if ratios else None


def _gpu_memory_ratio(material: Material) -> Value:
    """Of the fullest GPU."""
    ratios = [
        row["memory_peak_bytes"] / total
        for row in material.gpus
        if (total := material.gpu_memory.get(row["uuid"] + row["gpu_instance"]))
        and row["memory_peak_bytes"] is not None
    ]
    return max(ratios, default=None)


def _node_balance(material: Material) -> Value:
    """CPU time of the least busy node as a part of the mean; of all nodes, or nothing is said."""
    seconds = [node.cpu_seconds for node in material.nodes if node.cpu_seconds is not None]
    if (
        len(seconds) < 2
        or len(seconds) < (material.job["allocated_nodes"] or 0)
        or not sum(seconds)
    ):
        return None
    return min(seconds) * len(seconds) / sum(seconds)


def _idlest_node(material: Material) -> Value:
    known = [node for node in material.nodes if node.cpu_seconds is not None]
    return min(known, key=lambda node: node.cpu_seconds or 0).node if known else None


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _fewest_gpu_samples(material: Material) -> Value:
    return min((row["samples"] or 0 for row in material.gpus), default=0)


QUANTITIES: Mapping[str, Quantity] = {
    "state": Quantity("word", "State of the job.", _of_job("state")),
    "ended": Quantity(
        "word", "Whether it has ended: yes, no.", lambda m: _yes(m.job["end_time"] is not None)
    ),
    "started": Quantity(
        "word", "Whether it has started: yes, no.", lambda m: _yes(m.job["start_time"] is not None)
    ),
    "measured": Quantity(
        "word",
        "Whether anything was measured: yes, no.",
        lambda m: _yes(efficiency.measured(m.job)),
    ),
    "in_array": Quantity(
        "word",
        "Whether it is a task of an array: yes, no.",
        lambda m: _yes(bool(m.job["array_jobid"])),
    ),
    "exit_code": Quantity("count", "Exit code.", _of_job("exit_code")),
    "elapsed": Quantity("seconds", "Time it ran.", _elapsed),
    "time_limit": Quantity("seconds", "Its time limit.", _of_job("time_limit_seconds")),
    "time_ratio": Quantity(
        "ratio", "Time it ran / time limit.", lambda m: efficiency.time(m.job, m.now).ratio
    ),
    "time_to_ask": Quantity(
        "seconds",
        "Longest time of this and similar jobs with a quarter more, rounded up.",
        _time_to_ask,
    ),
    "time_request": Quantity("word", "The same as the scheduler wants it written.", _time_request),
    "coverage": Quantity(
        "ratio",
        "Part of the job's node time that the numbers stand for; 1 where only accounting has them.",
        _coverage,
    ),
    "nodes": Quantity("count", "Nodes allocated.", _of_job("allocated_nodes")),
    "cpus": Quantity("count", "CPUs allocated.", _of_job("allocated_cpus")),
    "cpu_ratio": Quantity("ratio", "CPU efficiency.", lambda m: efficiency.cpu(m.job, m.now).ratio),
    "cpus_used": Quantity("count", "CPUs in use on average.", _cpus_used),
    "cpus_to_ask": Quantity("count", "The same with a tenth more, rounded up.", _cpus_to_ask),
    "cpu_throttled_ratio": Quantity(
        "ratio",
        "Time held back by the CPU quota / CPU time there was.",
        _share("usage_throttled_seconds", _cpu_seconds_there),
    ),
    "cpu_waiting_ratio": Quantity(
        "ratio",
        "Part of the time in which some task waited for a CPU.",
        _share("usage_cpu_waiting_seconds", _node_seconds),
    ),
    "threads": Quantity(
        "count", "Most threads at once, summed over nodes.", _of_job("usage_threads_peak")
    ),
    "node_balance_ratio": Quantity(
        "ratio", "CPU time of the least busy node / mean of the nodes.", _node_balance
    ),
    "idlest_node": Quantity("word", "The least busy node.", _idlest_node),
    "memory_limit": Quantity(
        "bytes",
        "Memory allocated, on the nodes measured.",
        lambda m: efficiency.limit_of_memory(m.job),
    ),
    "memory_peak": Quantity(
        "bytes",
        "Peak memory, summed over nodes; page cache included where it was measured.",
        lambda m: efficiency.peak_memory(m.job),
    ),
    "memory_ratio": Quantity(
        "ratio", "Memory efficiency.", lambda m: efficiency.memory(m.job).ratio
    ),
    "working_set": Quantity(
        "bytes",
        "Mean memory without inactive page cache.",
        _of_job("usage_working_set_average_bytes"),
    ),
    "memory_need": Quantity(
        "bytes", "Most memory on one node of this and similar jobs.", _node_need
    ),
    "memory_to_ask": Quantity(
        "bytes", "The same with a fifth more, rounded up, for all nodes.", _memory_to_ask
    ),
    "memory_request": Quantity(
        "word", "The same as the scheduler wants it written.", _memory_request
    ),
    "memory_limit_hits": Quantity(
        "count", "Times the memory limit was reached.", _of_job("usage_memory_limit_hits")
    ),
    "memory_waiting_ratio": Quantity(
        "ratio",
        "Part of the time in which some task waited for memory.",
        _share("usage_memory_waiting_seconds", _node_seconds),
    ),
    "oom_kills": Quantity(
        "count", "Processes that the kernel killed for want of memory.", _of_job("usage_oom_kills")
    ),
    "swap_peak": Quantity("bytes", "Most swap in use.", _of_job("usage_swap_peak_bytes")),
    "io_waiting_ratio": Quantity(
        "ratio",
        "Part of the time in which some task waited for storage.",
        _share("usage_io_waiting_seconds", _node_seconds),
    ),
    "gpus": Quantity(
        "count", "GPUs allocated.", lambda m: m.job["allocated_gpus"] or m.job["usage_gpus"] or 0
    ),
    "gpu_ratio": Quantity("ratio", "GPU efficiency.", _of_job("usage_gpu_utilization_ratio")),
    "gpu_samples": Quantity("count", "Samples of the GPU seen least.", _fewest_gpu_samples),
    "gpus_measured": Quantity(
        "count", "GPUs of which something was measured.", lambda m: len(m.gpus)
    ),
    "gpus_idle": Quantity("count", "GPUs with a mean utilisation below 1 %.", _idle_gpus),
    "gpus_in_use": Quantity(
        "count",
        "The other ones.",
        lambda m: None if _idle_gpus(m) is None else len(m.gpus) - float(_idle_gpus(m) or 0),
    ),
    "gpu_memory_peak": Quantity(
        "bytes", "Most memory in use on one GPU.", _of_job("usage_gpu_memory_peak_bytes")
    ),
    "gpu_memory_ratio": Quantity("ratio", "The same / memory of that GPU.", _gpu_memory_ratio),
    "short_jobs": Quantity(
        "count",
        "The user's jobs of a minute or less in the day before, array tasks left out.",
        lambda m: m.short_jobs,
    ),
    "similar_jobs": Quantity("count", "Similar jobs that ended well.", lambda m: len(m.similar)),
}

UNITS: Mapping[str, str] = {name: each.unit for name, each in QUANTITIES.items()}


def values(material: Material) -> Values:
    """All quantities of a job; None for what is not known."""
    return {name: each.of(material) for name, each in QUANTITIES.items()}
