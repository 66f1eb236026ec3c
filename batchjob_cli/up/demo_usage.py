"""Usage of the simulated cluster's jobs: sums for the database, and samples for the plots."""

import contextlib
import math
import zlib
from collections.abc import Iterator
from pathlib import Path

from sqlalchemy.engine import RowMapping

from batchjob.quantities.sample import JobSample, SampleHeader, SampleKey
from batchjob_cli.up.demo_cluster import CLUSTER, GIB, MadeJob
from batchjob_stats_db.measure.job_usage import GpuUsage, JobToMeasure, MeasuredUsage
from batchjob_stats_db.samples.folder import folder_of
from batchjob_stats_db.samples.writer import Writer
from batchjob_stats_db.timeseries.base import JobWindow

_SAMPLES = 60  # of a node
_GPU_MEMORY = 60 * GIB
_GPU_IDLE_WATTS, _GPU_SPAN_WATTS = 60.0, 320.0
_CPU_WATTS, _CPU_IDLE_WATTS = 6.0, 2.0
_GRAMS_PER_KWH = 250.0
_IDLE_NODE = 0.1  # of what the others do


def usage(job: MadeJob, row: RowMapping, now: int) -> tuple[JobToMeasure, MeasuredUsage]:
    """The usage of a started job, by its row."""
    recipe, until = job.recipe, row["end_time"] or now
    seconds = until - row["start_time"]
    nodes = [_load(job, place) for place in range(recipe.nodes)]
    cpu = sum(recipe.cpus * load * seconds for load in nodes)
    memory = sum(_memory(job, load) for load in nodes)
    gpus = _gpus(job)
    active = (_CPU_WATTS - _CPU_IDLE_WATTS) * cpu
    values: dict[str, float] = {
        "user_cpu_seconds": cpu * 0.95, "system_cpu_seconds": cpu * 0.05,
        "memory_peak_bytes": round(memory), "memory_peak_node_bytes": round(memory / recipe.nodes),
        "memory_limit_bytes": row["allocated_memory_bytes"],
        "memory_average_bytes": memory * 0.8, "working_set_average_bytes": memory * 0.7,
        "process_io_read_bytes": round(seconds * 4e6 * recipe.nodes),
        "process_io_written_bytes": round(seconds * 1e6 * recipe.nodes),
        "threads_peak": recipe.cpus * recipe.nodes, "oom_kills": int(_ran_out(job)),
        "memory_limit_hits": 40 * int(_ran_out(job)),
        "energy_host_active_joules": active,
        "energy_host_idle_joules": _CPU_IDLE_WATTS * recipe.cpus * recipe.nodes * seconds,
    }  # fmt: skip
    if gpus:
        ratio = sum(gpu.utilization_ratio or 0.0 for gpu in gpus) / len(gpus)
        values |= {
            "gpus": len(gpus), "gpu_utilization_ratio": ratio,
            "gpu_memory_peak_bytes": max(gpu.memory_peak_bytes or 0 for gpu in gpus),
            "energy_gpu_active_joules": len(gpus) * seconds * ratio * _GPU_SPAN_WATTS,
            "energy_gpu_idle_joules": len(gpus) * seconds * _GPU_IDLE_WATTS,
        }  # fmt: skip
    joules = sum(value for name, value in values.items() if name.startswith("energy_"))
    span = JobWindow(CLUSTER, row["jobid"], row["start_time"], until)
    measured = JobToMeasure(
        row["id"], CLUSTER, row["jobid"], row["username"], row["uid"], row["start_time"],
        row["end_time"], row["allocated_nodes"], row["allocated_cpus"], span,
    )  # fmt: skip
    return measured, MeasuredUsage(
        row["id"], max(seconds // 30, 1), 0, recipe.nodes, 1.0, until,
        "" if row["end_time"] else "running", values, gpus,
        {"demo": joules / 3.6e6 * _GRAMS_PER_KWH},
    )  # fmt: skip


def write_samples(job: MadeJob, samples: Path, now: int) -> None:
    """Write files like the recorder's, with a few dozen samples each; raises OSError."""
    record = job.record
    if record.start_time is None:
        return
    until = record.end_time or now
    interval = max((until - record.start_time) / _SAMPLES, 5.0)
    for place, share in enumerate(record.nodes):
        who = SampleHeader("slurm", record.jobid, record.user, share.node, interval)
        writer = Writer(folder_of(samples, record.jobid), who, record.start_time)
        with contextlib.closing(writer):
            for sample in _samples(job, place, record.start_time, until, interval):
                writer.write(sample)


def _samples(
    job: MadeJob, place: int, start: float, until: float, interval: float
) -> Iterator[JobSample]:
    """Samples whose counters grow in waves, so that plots have a shape."""
    recipe, phase = job.recipe, zlib.crc32(f"{job.record.jobid} {place}".encode()) % 628 / 100
    load = _load(job, place)
    cpu = energy = 0.0
    limit = float(recipe.memory_gib * GIB)
    count = max(int((until - start) / interval), 1)
    for number in range(count + 1):
        part = number / count
        wave = 1 + 0.12 * math.sin(9 * part + phase) + 0.06 * math.sin(41 * part + phase)
        cores = recipe.cpus * min(load * wave, 1.0)
        cpu += cores * interval if number else 0.0
        watts = _CPU_IDLE_WATTS * recipe.cpus + (_CPU_WATTS - _CPU_IDLE_WATTS) * cores
        energy += watts * interval if number else 0.0
        peak = _memory(job, load)
        memory = peak * (part if _ran_out(job) else min(1.0, 0.4 + 2 * part)) * (0.94 + 0.06 * wave)
        values = {
            "cpu_user_seconds": cpu * 0.95, "cpu_system_seconds": cpu * 0.05,
            "cpus": float(recipe.cpus), "memory_current_bytes": min(memory, limit),
            "memory_working_set_bytes": memory * 0.85, "memory_limit_bytes": limit,
            "memory_peak_bytes": peak, "threads": float(recipe.cpus), "processes": 4.0,
            "process_io_read_bytes": 4e6 * interval * number,
            "process_io_written_bytes": 1e6 * interval * number,
        }  # fmt: skip
        keyed = {SampleKey(name): value for name, value in values.items()}
        keyed[SampleKey("energy_joules", ("host", "active"))] = energy
        for gpu, ratio in enumerate(recipe.gpu_busy):
            keyed |= _gpu_values(job, place, gpu, min(ratio * wave, 1.0))
        yield JobSample(start + number * interval, keyed)


def _gpu_values(job: MadeJob, place: int, gpu: int, ratio: float) -> dict[SampleKey, float]:
    of = (str(gpu), _uuid(job.record.nodes[place].node, gpu), "")
    return {
        SampleKey("gpu_utilization_ratio", of): ratio,
        SampleKey("gpu_memory_bytes", of): _GPU_MEMORY * ratio,
        SampleKey("gpu_power_watts", of): _GPU_IDLE_WATTS + _GPU_SPAN_WATTS * ratio,
    }


def _gpus(job: MadeJob) -> list[GpuUsage]:
    return [
        GpuUsage(
            share.node, _uuid(share.node, gpu), "", str(gpu), ratio,
            round(_GPU_MEMORY * ratio), _SAMPLES,
        )
        for share in job.record.nodes
        for gpu, ratio in enumerate(job.recipe.gpu_busy)
    ]  # fmt: skip


def _uuid(node: str, gpu: int) -> str:
    return f"GPU-{zlib.crc32(node.encode()):08x}-{gpu:04x}-4000-8000-000000000000"


def _load(job: MadeJob, place: int) -> float:
    """The fraction of a node's CPUs that a job keeps busy; `place` is the node's index."""
    idle = job.recipe.idle_node and place == job.recipe.nodes - 1
    return min(job.recipe.cpu_busy * (_IDLE_NODE if idle else 1.0), 1.0)


def _memory(job: MadeJob, load: float) -> float:
    """The peak on a node with this load."""
    whole = job.recipe.memory_gib * GIB
    if _ran_out(job):
        return float(whole)
    idle = load < job.recipe.cpu_busy
    return min(
        whole * job.recipe.memory_used * job.busy * (_IDLE_NODE if idle else 1), whole * 0.99
    )


def _ran_out(job: MadeJob) -> bool:
    return job.record.state.value == "OUT_OF_MEMORY"
