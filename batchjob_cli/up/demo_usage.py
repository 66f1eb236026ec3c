"""Usage of the simulated cluster's jobs: sums for the database, and samples for the plots."""

import math
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from sqlalchemy.engine import RowMapping

from batchjob.quantities.sample import JobSample, SampleHeader, SampleKey
from batchjob_cli.up.demo_cluster import CLUSTER, GIB, DemoJob
from batchjob_stats_db.measure.job_usage import GpuUsage, JobToMeasure, MeasuredUsage
from batchjob_stats_db.samples.folder import folder_of
from batchjob_stats_db.samples.writer import Writer
from batchjob_stats_db.timeseries.base import JobWindow

GPU_MEMORY, GPU_MEMORY_TOTAL = 60 * GIB, 80 * GIB  # used by a busy GPU; installed
_SAMPLES = 60  # samples per node
_INTERVAL = 30.0  # seconds between samples of a running job, as measurements expect
_GPU_IDLE_WATTS, _GPU_SPAN_WATTS = 60.0, 320.0
_CPU_WATTS, _CPU_IDLE_WATTS = 6.0, 2.0
_GRAMS_PER_KWH = 250.0
_IDLE_NODE_FACTOR = 0.1  # relative to the other nodes
_PROVIDER = "demo"
_AMPLITUDE = 0.18  # of a curve around its mean, relative


def usage(job: DemoJob, row: RowMapping, now: int) -> tuple[JobToMeasure, MeasuredUsage]:
    """The usage of a started job, by its row."""
    recipe, until = job.recipe, row["end_time"] or now
    seconds = until - row["start_time"]
    cores = [recipe.cpus * _busy_ratio(job, node_index) for node_index in range(recipe.nodes)]
    peaks = [_memory_peak_bytes(job, node_index) for node_index in range(recipe.nodes)]
    cpu, memory, gpus = sum(cores) * seconds, sum(peaks), _gpu_usages(job)
    values: dict[str, float] = {
        "user_cpu_seconds": cpu * 0.95, "system_cpu_seconds": cpu * 0.05,
        "memory_peak_bytes": round(memory), "memory_peak_node_bytes": round(max(peaks)),
        "memory_limit_bytes": row["allocated_memory_bytes"],
        "memory_average_bytes": memory * 0.8, "working_set_average_bytes": memory * 0.7,
        "process_io_read_bytes": round(seconds * 4e6 * recipe.nodes),
        "process_io_written_bytes": round(seconds * 1e6 * recipe.nodes),
        "threads_peak": recipe.cpus * recipe.nodes, "oom_kills": int(_ran_out_of_memory(job)),
        "memory_limit_hits": 40 * int(_ran_out_of_memory(job)),
    }  # fmt: skip
    if gpus:
        ratio = sum(gpu.utilization_ratio or 0.0 for gpu in gpus) / len(gpus)
        values |= {
            "gpus": len(gpus), "gpu_utilization_ratio": ratio,
            "gpu_memory_peak_bytes": max(gpu.memory_peak_bytes or 0 for gpu in gpus),
        }  # fmt: skip
    joules = 0.0
    for (component, kind), watts in power_watts(
        recipe.cpus * recipe.nodes, sum(cores), [gpu.utilization_ratio or 0.0 for gpu in gpus]
    ).items():
        values[f"energy_{component}_{kind}_joules"] = watts * seconds
        joules += watts * seconds
    span = JobWindow(CLUSTER, row["jobid"], row["start_time"], until)
    measured = JobToMeasure(
        row["id"], CLUSTER, row["jobid"], row["username"], row["uid"], row["start_time"],
        row["end_time"], row["allocated_nodes"], row["allocated_cpus"], span,
    )  # fmt: skip
    return measured, MeasuredUsage(
        row["id"], max(seconds // 30, 1), 0, recipe.nodes, 1.0, until,
        "" if row["end_time"] else "running", values, gpus,
        {_PROVIDER: joules / 3.6e6 * _GRAMS_PER_KWH},
    )  # fmt: skip


class SampleFiles:
    """A job's files, like the recorder's, a file for each node.

    A job that has ended has a few dozen samples a node. One that runs has as many as would be
    taken, or its measurements would have gaps.
    """

    def __init__(self, job: DemoJob, samples: Path, now: int) -> None:
        """Of a job as it will have ended; raises OSError."""
        record, start, until = job.record, job.record.start_time, job.record.end_time
        assert start is not None
        assert until is not None
        interval = max((until - start) / _SAMPLES, 5.0)
        if until > now:
            interval = min(interval, _INTERVAL)
        self._nodes: list[_NodeFile] = []
        for node_index, share in enumerate(record.nodes):
            who = SampleHeader("slurm", record.jobid, record.user, share.node, interval)
            writer = Writer(folder_of(samples, record.jobid), who, start)
            self._nodes.append(_NodeFile(writer, _samples(job, node_index, start, until, interval)))

    def advance(self, now: float) -> bool:
        """Write the samples until then; whether more will come. Raises OSError."""
        return sum(node.advance(now) for node in self._nodes) > 0


class _NodeFile:
    def __init__(self, writer: Writer, samples: Iterator[JobSample]) -> None:
        self._writer = writer
        self._samples = samples
        self._next = next(samples, None)

    def advance(self, now: float) -> bool:
        while self._next is not None and self._next.at <= now:
            self._writer.write(self._next)
            self._next = next(self._samples, None)
            if self._next is None:
                self._writer.close()
        return self._next is not None


class DemoLoad(NamedTuple):
    """What a job uses on one of its nodes at a moment."""

    cores: float
    memory_bytes: float
    gpu_ratios: list[float]  # utilization of each GPU of the node


def load_at(job: DemoJob, node_index: int, part: float) -> DemoLoad:
    """The load after `part` (0..1) of the job's time, in waves, so that plots have a shape."""
    phase = zlib.crc32(f"{job.record.jobid} {node_index}".encode()) % 628 / 100
    wave = (2 * math.sin(9 * part + phase) + math.sin(41 * part + phase)) / 3
    grown = part if _ran_out_of_memory(job) else min(1.0, 0.4 + 2 * part)
    return DemoLoad(
        job.recipe.cpus * _oscillate(_busy_ratio(job, node_index), wave),
        _memory_peak_bytes(job, node_index) * grown * (0.95 + 0.05 * wave),
        [_oscillate(ratio, wave) for ratio in _gpu_ratios(job)],
    )


def _samples(
    job: DemoJob, node_index: int, start: float, until: float, interval: float
) -> Iterator[JobSample]:
    recipe = job.recipe
    count = max(int((until - start) / interval), 1)
    cpu = peak = 0.0
    joules = dict.fromkeys((("host", "active"), ("host", "idle")), 0.0)
    for number in range(count + 1):
        now, seconds = load_at(job, node_index, number / count), interval if number else 0.0
        cpu += now.cores * seconds
        for key, watts in power_watts(recipe.cpus, now.cores, now.gpu_ratios).items():
            joules[key] = joules.get(key, 0.0) + watts * seconds
        peak = max(peak, now.memory_bytes)
        values = {
            "cpu_user_seconds": cpu * 0.95, "cpu_system_seconds": cpu * 0.05,
            "cpus": float(recipe.cpus), "memory_current_bytes": now.memory_bytes,
            "memory_working_set_bytes": now.memory_bytes * 0.85,
            "memory_limit_bytes": float(recipe.memory_gib * GIB), "memory_peak_bytes": peak,
            "threads": float(recipe.cpus), "processes": 4.0,
            "oom_kills": float(_ran_out_of_memory(job) and number == count),
            "process_io_read_bytes": 4e6 * interval * number,
            "process_io_written_bytes": 1e6 * interval * number,
        }  # fmt: skip
        keyed = {SampleKey(name): value for name, value in values.items()}
        keyed |= {SampleKey("energy_joules", key): value for key, value in joules.items()}
        grams = sum(joules.values()) / 3.6e6 * _GRAMS_PER_KWH
        keyed[SampleKey("emissions_grams", (_PROVIDER,))] = grams
        for gpu, ratio in enumerate(now.gpu_ratios):
            keyed |= _gpu_values(job, node_index, gpu, ratio)
        yield JobSample(start + number * interval, keyed)


def _oscillate(level: float, wave: float) -> float:
    """A level in 0..1 at a point of a wave in -1..1; its mean stays, and it stays in 0..1."""
    return level + wave * min(_AMPLITUDE * level, 1.0 - level)


def power_watts(cpus: int, cores: float, gpus: list[float]) -> dict[tuple[str, str], float]:
    """Power by component and kind."""
    watts = {
        ("host", "active"): (_CPU_WATTS - _CPU_IDLE_WATTS) * cores,
        ("host", "idle"): _CPU_IDLE_WATTS * cpus,
    }
    if gpus:
        watts["gpu", "active"] = _GPU_SPAN_WATTS * sum(gpus)
        watts["gpu", "idle"] = _GPU_IDLE_WATTS * len(gpus)
    return watts


def gpu_watts(ratio: float) -> float:
    """Power of a GPU of this utilization."""
    return _GPU_IDLE_WATTS + _GPU_SPAN_WATTS * ratio


def _gpu_values(job: DemoJob, node_index: int, gpu: int, ratio: float) -> dict[SampleKey, float]:
    of = (str(gpu), uuid(job.record.nodes[node_index].node, gpu), "")
    return {
        SampleKey("gpu_utilization_ratio", of): ratio,
        SampleKey("gpu_memory_bytes", of): GPU_MEMORY * ratio,
        SampleKey("gpu_memory_total_bytes", of): float(GPU_MEMORY_TOTAL),
        SampleKey("gpu_power_watts", of): gpu_watts(ratio),
    }


def _gpu_usages(job: DemoJob) -> list[GpuUsage]:
    return [
        GpuUsage(
            share.node, uuid(share.node, gpu), "", str(gpu), ratio,
            round(GPU_MEMORY * ratio), _SAMPLES,
        )
        for share in job.record.nodes
        for gpu, ratio in enumerate(_gpu_ratios(job))
    ]  # fmt: skip


def _gpu_ratios(job: DemoJob) -> list[float]:
    return [ratio * job.effort for ratio in job.recipe.gpu_busy]


def uuid(node: str, gpu: int) -> str:
    """The UUID of a GPU of a node."""
    return f"GPU-{zlib.crc32(node.encode()):08x}-{gpu:04x}-4000-8000-000000000000"


def _busy_ratio(job: DemoJob, node_index: int) -> float:
    """The fraction of the CPUs of one of its nodes that a job keeps busy."""
    factor = _IDLE_NODE_FACTOR if _is_idle_node(job, node_index) else 1.0
    return job.recipe.cpu_busy * job.effort * factor


def _is_idle_node(job: DemoJob, node_index: int) -> bool:
    return job.recipe.idle_node and node_index == job.recipe.nodes - 1


def _memory_peak_bytes(job: DemoJob, node_index: int) -> float:
    """The peak on one of the job's nodes."""
    whole = job.recipe.memory_gib * GIB
    if _ran_out_of_memory(job):
        return float(whole)
    part = (
        job.recipe.memory_used
        * job.time_factor
        * (_IDLE_NODE_FACTOR if _is_idle_node(job, node_index) else 1)
    )
    return whole * min(part, 0.99)


def _ran_out_of_memory(job: DemoJob) -> bool:
    return job.record.state.value == "OUT_OF_MEMORY"
