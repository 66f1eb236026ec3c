"""Where a job lies among its user's jobs like it."""

from collections.abc import Callable, Mapping
from statistics import median, quantiles

from batchjob_stats_server.report import efficiency
from batchjob_stats_server.report.material import Material, Row
from batchjob_stats_server.report.model import Comparison, Similar

FEWEST = 3  # fewer jobs have no median worth the name


def energy(job: Row) -> float | None:
    """Joules, measured or by accounting."""
    parts = [job[f"usage_energy_{name}_joules"] for name in COMPONENTS]
    if any(part is not None for part in parts):
        return float(sum(part or 0 for part in parts))
    return None if job["energy_joules"] is None else float(job["energy_joules"])


COMPONENTS = ("host_active", "host_idle", "gpu_active", "gpu_idle")

_Of = Callable[[Row, int], float | None]
_COMPARED: Mapping[str, tuple[str, _Of]] = {
    "elapsed time": ("seconds", lambda job, now: efficiency.elapsed(job, now)),
    "CPU efficiency": ("ratio", lambda job, now: efficiency.cpu(job, now).ratio),
    "peak memory": ("bytes", lambda job, _: efficiency.peak_memory(job)),
    "GPU utilisation": ("ratio", lambda job, _: job["usage_gpu_utilization_ratio"]),
    "energy": ("joules", lambda job, _: energy(job)),
}


def compare(material: Material) -> Similar:
    """The comparison, as far as there are jobs to compare with."""
    jobs = material.similar
    made = tuple(
        found
        for what, (unit, of) in _COMPARED.items()
        if (found := _comparison(what, unit, of, material))
    )
    missing = "" if made else f"{len(jobs)} similar jobs ended well; at least {FEWEST} are needed"
    return Similar(material.alike, len(jobs), made, missing)


def _comparison(what: str, unit: str, of: _Of, material: Material) -> Comparison | None:
    values = [value for job in material.similar if (value := of(job, material.now)) is not None]
    if len(values) < FEWEST:
        return None
    this = of(material.job, material.now)
    lower, _, upper = quantiles(values, n=4, method="inclusive")
    below = None if this is None else sum(value < this for value in values) / len(values)
    return Comparison(what, unit, this, len(values), lower, median(values), upper, below)


def most(material: Material, of: Callable[[Row], float | None]) -> float | None:
    """The largest of this job and those like it."""
    values = [of(job) for job in (material.job, *material.similar)]
    return max((value for value in values if value is not None), default=None)
