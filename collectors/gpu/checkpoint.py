"""The counters of GPUs and their jobs as they are published, and saved for the next exporter.

A counter that falls counts twice in Prometheus, so what is published has been saved. Samples and
tenures have stamps of the wall clock, and the driver keeps 14 s of samples, so that a short pause
misses nothing. A file is valid for the boot in which it was written.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from collectors.gpu.busy import BusyCounter, BusySample
from collectors.gpu.job_busy import FreeGpuTime, GpuSums, JobBusyCounters, Tenure
from collectors.gpu.vendor import GpuVendor
from collectors.jobs.view import JobName, parse_name

FILE = "gpu.json"
_FOREVER = float("inf")


class GpuCounters(NamedTuple):
    """What is published; GPUs are named by their UUIDs, with a GPU instance or ""."""

    jobs: Mapping[tuple[JobName, str, str], GpuSums] = MappingProxyType({})
    free: Mapping[JobName, FreeGpuTime] = MappingProxyType({})
    boards: Mapping[tuple[str, str], GpuSums] = MappingProxyType({})


def document(
    boards: Mapping[str, BusyCounter],
    jobs: JobBusyCounters,
    profiles: Mapping[tuple[str, str], GpuSums],
) -> dict[str, Any]:
    """The content of the file."""
    return {
        "boards": [
            (uuid, each.busy_seconds, each.observed_seconds, each.last_stamp, each.recent)
            for uuid, each in boards.items()
        ],
        "jobs": [(*job[:3], *unit, sums) for (job, *unit), sums in jobs.sums.items()],
        "tenures": [
            (*job[:3], uuid, each.began, None if each.ended == _FOREVER else each.ended,
             each.is_confirmed)
            for uuid, tenures in jobs.tenures.items()
            for job, each in tenures.items()
        ],
        "divided_until": jobs.divided_until,
        "under_mps": jobs.under_mps,
        "free_on_node": jobs.free_on_node,
        "free_before": [(*job[:3], *each) for job, each in jobs.free_before.items()],
        "free_at_end": [(*job[:3], *each) for job, each in jobs.free_at_end.items()],
        "profiles": [(*key, sums) for key, sums in profiles.items()],
    }  # fmt: skip


def restore(saved: Mapping[str, Any], vendor: GpuVendor, jobs: JobBusyCounters) -> None:
    """Fill new counters.

    Raises ValueError for a damaged document, of which then nothing is used.
    """
    try:
        boards = [
            (str(uuid), float(busy), float(observed), None if stamp is None else int(stamp),
             [BusySample(*map(float, each)) for each in recent])
            for uuid, busy, observed, stamp, recent in saved["boards"]
        ]  # fmt: skip
        totals = _sums_of_jobs(saved)
        tenures: dict[str, dict[JobName, Tenure]] = {}
        for *job, uuid, began, ended, confirmed in saved["tenures"]:
            life = Tenure(float(began), _FOREVER if ended is None else float(ended), confirmed)
            tenures.setdefault(str(uuid), {})[parse_name(job)] = life
        divided = {str(uuid): float(at) for uuid, at in saved["divided_until"].items()}
        mps = {str(u): (float(a), float(b)) for u, (a, b) in saved["under_mps"].items()}
        free_on_node = FreeGpuTime(*map(float, saved["free_on_node"]))
        before, at_end = (
            {parse_name(row): FreeGpuTime(*map(float, row[3:])) for row in saved[part]}
            for part in ("free_before", "free_at_end")
        )
        profiles = saved.get("profiles", ())  # older exporters had none
        whole = {(str(uuid), str(part)): _floats(sums) for uuid, part, sums in profiles}
    except (LookupError, TypeError, AttributeError, ValueError, OverflowError) as error:
        raise ValueError(f"damaged state: {type(error).__name__}: {error}") from error
    for uuid, busy, observed, stamp, recent in boards:
        vendor.busy_counter(uuid).restore(busy, observed, stamp, recent)
    jobs.sums, jobs.tenures, jobs.divided_until, jobs.under_mps = totals, tenures, divided, mps
    jobs.free_on_node, jobs.free_before, jobs.free_at_end = free_on_node, before, at_end
    vendor.profiles = whole


def _sums_of_jobs(saved: Mapping[str, Any]) -> dict[tuple[JobName, str, str], GpuSums]:
    """Those of older exporters are seconds in this order, and peaks of memory apart."""
    seconds = ("busy_seconds", "observed_seconds", "shared_seconds", "mps_seconds")
    totals: dict[tuple[JobName, str, str], GpuSums] = {}
    for row in saved["jobs"]:
        if isinstance(row[-1], Mapping):
            totals[parse_name(row), str(row[3]), str(row[4])] = _floats(row[5])
        else:
            totals[parse_name(row), str(row[3]), ""] = _floats(
                dict(zip(seconds, row[4:], strict=True))
            )
    for *job, uuid, part, peak in saved.get("memory_peaks", ()):
        key = (parse_name(job), str(uuid), str(part))
        totals[key] = {**totals.get(key, {}), "memory_peak_bytes": float(peak)}
    return totals


def _floats(sums: Mapping[str, Any]) -> dict[str, float]:
    return {str(name): float(value) for name, value in sums.items()}
