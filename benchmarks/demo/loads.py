"""What a job uses over its time, on each of its nodes."""

import math
import zlib
from typing import Any

from batchjob.schedulers.states import JobState
from benchmarks.demo.schedule import Job

_MIB_PER_GIB = 1024
_PART_SECONDS, _FEWEST, _MOST = 600, 6, 40  # of a part of the time in which a load is constant
_IDLE_NODE_FACTOR = 0.1  # relative to the other nodes
_AMPLITUDE = 0.18  # of a curve around its mean, relative


def loads(job: Job) -> list[dict[str, Any]]:
    """Busy cores, memory (MiB), and percent and MiB of each GPU, in parts of equal length."""
    if job.start is None:
        return []
    count = min(max(job.seconds // _PART_SECONDS, _FEWEST), _MOST)
    return [_on_node(job, index, node, count) for index, node in enumerate(job.nodes)]


def _on_node(job: Job, index: int, node: str, count: int) -> dict[str, Any]:
    recipe = job.recipe
    phase = zlib.crc32(f"{job.jobid} {index}".encode()) % 628 / 100
    idle = _IDLE_NODE_FACTOR if recipe.idle_node and index == recipe.nodes - 1 else 1.0
    ran_out = job.state is JobState.OUT_OF_MEMORY
    peak = job.memory_gib * min(recipe.memory_used * job.memory_factor * idle, 0.985)
    cores: list[float] = []
    memory: list[int] = []
    gpus: dict[int, tuple[list[int], list[int]]] = {gpu: ([], []) for gpu in job.gpus[node]}
    for number in range(count):
        part = (number + 0.5) / count
        wave = (2 * math.sin(9 * part + phase) + math.sin(41 * part + phase)) / 3
        busy = recipe.cpu_busy * job.effort * idle
        if recipe.phases:
            busy = min(busy * 1.9, 1.0) if 1 / 3 < part < 2 / 3 else busy * 0.3
        cores.append(round(recipe.cpus * _oscillate(busy, wave), 2))
        if ran_out:
            memory.append(round(job.memory_gib * _MIB_PER_GIB * (number + 1) / count))
        else:
            grown = min(1.0, 0.4 + 2 * part)
            memory.append(round(peak * _MIB_PER_GIB * grown * (0.95 + 0.05 * wave)))
        for gpu, level in zip(gpus, recipe.gpu_busy, strict=True):
            percent, used = gpus[gpu]
            percent.append(round(100 * _oscillate(level * job.effort, wave)))
            # What a framework holds does not follow the load; an unused GPU has a context.
            held = recipe.gpu_memory_gib if level or recipe.name == "jupyter" else 0.4
            used.append(round(held * _MIB_PER_GIB * min(1.0, 0.3 + 4 * part)))
    return {"cores": cores, "memory": memory, "gpus": gpus}


def _oscillate(level: float, wave: float) -> float:
    """A level in 0..1 at a point of a wave in -1..1; its mean stays, and it stays in 0..1."""
    return level + wave * min(_AMPLITUDE * level, 1.0 - level)
