"""The most memory that each job had on each GPU, from all changes that the driver showed."""

from collections.abc import Iterable, Mapping

from collectors.gpu.devices import units_of
from collectors.gpu.reading import GpuProcess, GpuReading
from collectors.jobs.view import JobName

JobMemoryPeaks = Mapping[tuple[JobName, str, str], float]
"""Bytes by job, the GPU's UUID, and the MIG instance ("": the whole GPU)."""


def add_peaks(
    peaks: JobMemoryPeaks,
    changes: Iterable[tuple[str, tuple[GpuProcess, ...]]],
    readings: Mapping[str, GpuReading],
    job_of_process: Mapping[tuple[str, int], JobName],
    exposed: Iterable[JobName],
) -> JobMemoryPeaks:
    """The peaks with these changes, each of which has a GPU's UUID and its processes then.

    A process whose memory is unknown leaves its job without a peak at that moment. Jobs that are
    not exposed any more are left out.
    """
    kept = set(exposed)
    found = {key: peak for key, peak in peaks.items() if key[0] in kept}
    now = ((uuid, reading.processes or ()) for uuid, reading in readings.items())
    for uuid, processes in (*changes, *now):
        if uuid not in readings:
            continue
        reading = readings[uuid]._replace(processes=processes)
        for unit in units_of(reading.gpu):
            sums: dict[JobName, float | None] = {}
            for each in reading.processes_on(unit) or ():
                job = job_of_process.get((uuid, each.pid))
                if job in kept:
                    sums[job] = _add(sums.get(job, 0.0), each.memory_bytes)
            for job, total in sums.items():
                key = job, uuid, unit.gpu_instance
                if total is not None:
                    found[key] = max(total, found.get(key, 0.0))
    return found


def _add(total: float | None, more: float | None) -> float | None:
    return None if total is None or more is None else total + more
