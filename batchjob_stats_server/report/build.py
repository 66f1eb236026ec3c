"""The report of a job, from rows and rules alone."""

from collections.abc import Sequence
from datetime import UTC, datetime

from batchjob.states import JobState
from batchjob_stats_server.report import efficiency, similar
from batchjob_stats_server.report.material import Material, Row
from batchjob_stats_server.report.model import (
    Basis,
    Emission,
    Energy,
    GpuUse,
    Job,
    Report,
)
from batchjob_stats_server.report.quantities import UNITS, values
from batchjob_stats_server.report.rules import Rule, advise


def report(material: Material, rules: Sequence[Rule], pue: float | None = None) -> Report:
    """What there is to say; `pue` is the site's power usage effectiveness, 1 or more."""
    job, now = material.job, material.now
    advice, silent = advise(rules, values(material), UNITS)
    gpu = efficiency.gpu(job)
    return Report(
        job=_job(job, efficiency.elapsed(job, now)),
        interim=JobState(job["state"]).live,
        basis=_basis(job),
        efficiency=(
            efficiency.cpu(job, now),
            efficiency.memory(job),
            *([gpu] if gpu else []),
            efficiency.time(job, now),
        ),
        nodes=tuple(material.nodes),
        gpus=tuple(
            GpuUse(
                row["node"], row["gpu"], row["uuid"], row["gpu_instance"],
                row["utilization_ratio"], row["memory_peak_bytes"],
                _whole(material.gpu_memory.get(row["uuid"] + row["gpu_instance"])),
            )
            for row in material.gpus
        ),
        energy=_energy(job, pue),
        emissions=tuple(
            Emission(row["provider"], row["grams"], row["grams"] * pue if pue else None)
            for row in material.emissions
        ),
        similar=similar.compare(material),
        advice=advice,
        silent=silent,
    )  # fmt: skip


def _job(job: Row, elapsed: int | None) -> Job:
    start, end = job["start_time"], job["end_time"]
    return Job(
        cluster=job["cluster"], jobid=job["jobid"], job_id=job["id"], user=job["username"],
        account=job["account"], partition=job["partition"], name=job["name"],
        state=job["state"], state_word=job["state_word"],
        submit_time=job["submit_time"] * 1000,
        start_time=_milliseconds(start), start_time_rfc3339=_rfc3339(start),
        end_time=_milliseconds(end), end_time_rfc3339=_rfc3339(end),
        elapsed_seconds=elapsed, time_limit_seconds=job["time_limit_seconds"],
        exit_code=job["exit_code"], exit_signal=job["exit_signal"],
        nodes=job["allocated_nodes"], cpus=job["allocated_cpus"],
        memory_bytes=job["allocated_memory_bytes"], gpus=job["allocated_gpus"],
    )  # fmt: skip


def _basis(job: Row) -> Basis:
    if not efficiency.measured(job):
        known = job["cpu_seconds"] is not None or job["peak_memory_bytes"] is not None
        source = efficiency.ACCOUNTING if known and job["end_time"] is not None else ""
        return Basis(source, 0, 0, None, None, efficiency.doubts(job))
    return Basis(
        job["usage_source"], job["usage_samples"], job["usage_nodes"], job["usage_coverage"],
        _milliseconds(job["usage_until_time"]), efficiency.doubts(job),
    )  # fmt: skip


def _energy(job: Row, pue: float | None) -> Energy:
    found = {name: job[f"usage_energy_{name}_joules"] for name in similar.COMPONENTS}
    components = {name: joules for name, joules in found.items() if joules is not None}
    total = similar.energy(job)
    site = total * pue if total is not None and pue else None
    source = job["usage_source"] if components else efficiency.ACCOUNTING
    return Energy(components, total, site, pue, source if total is not None else "")


def _whole(number: float | None) -> int | None:
    return None if number is None else round(number)


def _milliseconds(seconds: int | None) -> int | None:
    return None if seconds is None else seconds * 1000


def _rfc3339(seconds: int | None) -> str | None:
    try:
        moment = datetime.fromtimestamp(seconds, UTC) if seconds is not None else None
    except (OverflowError, ValueError):
        return None
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ") if moment else None
