"""Compares a job with its user's similar jobs."""

from collections.abc import Callable, Mapping
from statistics import median, quantiles

from batchjob_stats_server.report import explain
from batchjob_stats_server.report.model import ReportInput, Row, Similar, SimilarComparison

MIN_JOBS = 3  # with fewer jobs, a median means nothing


COMPONENTS = ("host_active", "host_idle", "gpu_active", "gpu_idle")

_JobValue = Callable[[Row, int], float | None]
_COMPARED_QUANTITIES: Mapping[str, tuple[str, _JobValue]] = {
    "elapsed time": ("seconds", explain.elapsed_seconds),
    "CPU efficiency": ("ratio", lambda job, _: job["cpu_efficiency"]),
    "peak memory": ("bytes", lambda job, _: job["memory_used_bytes"]),
    "GPU utilisation": ("ratio", lambda job, _: job["usage_gpu_utilization_ratio"]),
    "energy": ("joules", lambda job, _: job["energy_used_joules"]),
}


def compare(inputs: ReportInput) -> Similar:
    """Compare a job with its similar jobs, if there are enough of them."""
    jobs = inputs.similar
    comparisons = tuple(
        comparison
        for what, (unit, value_of) in _COMPARED_QUANTITIES.items()
        if (comparison := _comparison(what, unit, value_of, inputs))
    )
    missing = (
        "" if comparisons else f"{len(jobs)} similar jobs completed; at least {MIN_JOBS} are needed"
    )
    return Similar(inputs.alike, len(jobs), comparisons, missing)


def _comparison(
    what: str, unit: str, value_of: _JobValue, inputs: ReportInput
) -> SimilarComparison | None:
    values = [value for job in inputs.similar if (value := value_of(job, inputs.now)) is not None]
    if len(values) < MIN_JOBS:
        return None
    this = value_of(inputs.job, inputs.now)
    lower, _, upper = quantiles(values, n=4, method="inclusive")
    below = None if this is None else sum(value < this for value in values) / len(values)
    return SimilarComparison(what, unit, this, len(values), lower, median(values), upper, below)


def maximum(inputs: ReportInput, value_of: Callable[[Row], float | None]) -> float | None:
    """The maximum of this job and the similar ones."""
    values = [value_of(job) for job in (inputs.job, *inputs.similar)]
    return max((value for value in values if value is not None), default=None)
