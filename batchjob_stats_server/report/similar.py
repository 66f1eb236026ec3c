"""Compares a job with its user's similar jobs."""

from collections.abc import Callable, Mapping
from statistics import median, quantiles

from batchjob_stats_server.report import explain
from batchjob_stats_server.report.model import ReportInput, Row, Similar, SimilarComparison

FEWEST = 3  # with fewer jobs, a median means nothing


COMPONENTS = ("host_active", "host_idle", "gpu_active", "gpu_idle")

_Of = Callable[[Row, int], float | None]
_COMPARED: Mapping[str, tuple[str, _Of]] = {
    "elapsed time": ("seconds", lambda job, now: explain.elapsed(job, now)),
    "CPU efficiency": ("ratio", lambda job, _: job["cpu_efficiency"]),
    "peak memory": ("bytes", lambda job, _: job["memory_used_bytes"]),
    "GPU utilisation": ("ratio", lambda job, _: job["usage_gpu_utilization_ratio"]),
    "energy": ("joules", lambda job, _: job["energy_used_joules"]),
}


def compare(material: ReportInput) -> Similar:
    """The comparison, if there are similar jobs."""
    jobs = material.similar
    made = tuple(
        found
        for what, (unit, of) in _COMPARED.items()
        if (found := _comparison(what, unit, of, material))
    )
    missing = "" if made else f"{len(jobs)} similar jobs completed; at least {FEWEST} are needed"
    return Similar(material.alike, len(jobs), made, missing)


def _comparison(what: str, unit: str, of: _Of, material: ReportInput) -> SimilarComparison | None:
    values = [value for job in material.similar if (value := of(job, material.now)) is not None]
    if len(values) < FEWEST:
        return None
    this = of(material.job, material.now)
    lower, _, upper = quantiles(values, n=4, method="inclusive")
    below = None if this is None else sum(value < this for value in values) / len(values)
    return SimilarComparison(what, unit, this, len(values), lower, median(values), upper, below)


def most(material: ReportInput, of: Callable[[Row], float | None]) -> float | None:
    """The maximum of this job and the similar ones."""
    values = [of(job) for job in (material.job, *material.similar)]
    return max((value for value in values if value is not None), default=None)
