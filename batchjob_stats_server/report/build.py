"""Builds the report of a job from rows and rules."""

from collections.abc import Callable, Mapping, Sequence
from statistics import median, quantiles
from typing import TYPE_CHECKING, Any, TypeVar

from batchjob.judgements import AT_LEAST
from batchjob.runtime.times import rfc3339, to_milliseconds
from batchjob.schedulers.states import JobState
from batchjob_stats_db.queries.efficiency import ACCOUNTING, MEASURED
from batchjob_stats_server.report import explain, model
from batchjob_stats_server.report.facts import evaluate_quantities
from batchjob_stats_server.report.headline import headline
from batchjob_stats_server.report.log_links import log_links
from batchjob_stats_server.report.right_size import resubmission
from batchjob_stats_server.report.rules import AdviceRule, advise

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T", bound="DataclassInstance")

_MIN_SIMILAR_JOBS = 3  # with fewer jobs, a median means nothing

_JobValue = Callable[[model.Row, int], float | None]
_COMPARED_QUANTITIES: Mapping[str, tuple[str, _JobValue]] = {
    "elapsed time": ("seconds", explain.elapsed_seconds),
    "CPU efficiency": ("ratio", lambda job, _: job["cpu_efficiency"]),
    "peak memory": ("bytes", lambda job, _: job["memory_used_bytes"]),
    "GPU utilisation": ("ratio", lambda job, _: job["usage_gpu_utilization_ratio"]),
    "energy": ("joules", lambda job, _: job["energy_used_joules"]),
}
_COMPONENTS = ("host_active", "host_idle", "gpu_active", "gpu_idle")


def build_report(
    inputs: model.ReportInput,
    rules: Sequence[AdviceRule],
    pue: float | None = None,
    log_address: str = "",
) -> model.Report:
    """The report.

    `pue`: the site's power usage effectiveness, 1 or more; `log_address`: see `log_links`.
    """
    job, now = inputs.job, inputs.now
    quantities = evaluate_quantities(inputs)
    advice, silent = advise(rules, quantities)
    return model.Report(
        headline=headline(inputs),
        job=_job_summary(job, explain.elapsed_seconds(job, now)),
        use=_job_use(job),
        interim=JobState(job["state"]).is_live,
        basis=_basis(job),
        efficiency=tuple(explain.efficiencies(job, now)),
        nodes=tuple(inputs.nodes),
        gpus=tuple(
            _from_columns(
                model.GpuUse,
                row,
                memory_total_bytes=inputs.gpu_memory.get(row["uuid"] + row["gpu_instance"]),
            )
            for row in inputs.gpus
        ),
        energy=_job_energy(job, pue),
        emissions=tuple(
            model.Emission(row["provider"], row["grams"], row["grams"] * pue if pue else None)
            for row in inputs.emissions
        ),
        similar=_compare(inputs),
        advice=advice,
        silent=silent,
        resubmission=resubmission(inputs, [each.rule for each in advice]),
        logs=tuple(log_links(log_address, inputs)),
    )


def _job_summary(job: model.Row, elapsed: float | None) -> model.JobSummary:
    start, end = job["start_time"], job["end_time"]
    # The scheduler's word, unless the scheduler no longer knows the job.
    state_word = job["state" if job["state"] == JobState.VANISHED else "state_word"]
    return _from_columns(
        model.JobSummary, job,
        job_id=job["id"], user=job["username"], group=job["groupname"], state_word=state_word,
        submit_time=job["submit_time"] * 1000,
        start_time=to_milliseconds(start), start_time_rfc3339=rfc3339(start),
        end_time=to_milliseconds(end), end_time_rfc3339=rfc3339(end), elapsed_seconds=elapsed,
        nodes=job["allocated_nodes"], cpus=job["allocated_cpus"],
        memory_bytes=job["allocated_memory_bytes"], gpus=job["gpus_held"],
    )  # fmt: skip


def _from_columns(cls: type[T], row: model.Row, **others: Any) -> T:
    """A dataclass of the columns that have its fields' names, and of other values."""
    names = cls.__dataclass_fields__.keys() & row.keys()
    return cls(**{**{name: row[name] for name in names}, **others})


def _job_use(job: model.Row) -> model.JobUse:
    prefix = {MEASURED: "usage_", ACCOUNTING: "", AT_LEAST: ""}.get(job["cpu_basis"])
    user, system = (
        None if prefix is None else job[f"{prefix}{mode}_cpu_seconds"]
        for mode in ("user", "system")
    )
    return model.JobUse(
        job["cpu_used_seconds"], job["cpu_basis"], user, system, job["memory_used_bytes"],
        job["usage_process_io_read_bytes"], job["usage_process_io_written_bytes"],
        job["usage_io_read_bytes"], job["usage_io_written_bytes"],
        job["usage_network_received_bytes"], job["usage_network_sent_bytes"],
    )  # fmt: skip


def _basis(job: model.Row) -> model.Basis:
    if not explain.is_measured(job):
        has_accounting = job["cpu_seconds"] is not None or job["peak_memory_bytes"] is not None
        source = ACCOUNTING if has_accounting and job["end_time"] is not None else ""
        return model.Basis(source, 0, 0, None, None, bool(source), explain.caveats(job))
    return model.Basis(
        job["usage_source"], job["usage_samples"], job["usage_nodes"], job["usage_coverage"],
        to_milliseconds(job["usage_until_time"]), bool(job["usage_final"]), explain.caveats(job),
    )  # fmt: skip


def _job_energy(job: model.Row, pue: float | None) -> model.JobEnergy:
    joules_by_component = {name: job[f"usage_energy_{name}_joules"] for name in _COMPONENTS}
    components = {
        name: joules for name, joules in joules_by_component.items() if joules is not None
    }
    total, measured = job["energy_used_joules"], job["usage_energy_joules"]
    site = total * pue if total is not None and pue else None
    source = job["usage_source"] if job["energy_basis"] == MEASURED else job["energy_basis"] or ""
    missing = "" if measured is not None else explain.energy_missing(job)
    return model.JobEnergy(components, total, site, pue, source, missing)


def _compare(inputs: model.ReportInput) -> model.Similar:
    """Compare a job with its similar jobs, if there are enough of them."""
    jobs = inputs.similar
    comparisons = tuple(
        comparison
        for what, (unit, value_of) in _COMPARED_QUANTITIES.items()
        if (comparison := _comparison(what, unit, value_of, inputs))
    )
    few = f"{len(jobs)} similar jobs completed; at least {_MIN_SIMILAR_JOBS} are needed"
    return model.Similar(inputs.alike, len(jobs), comparisons, "" if comparisons else few)


def _comparison(
    what: str, unit: str, value_of: _JobValue, inputs: model.ReportInput
) -> model.SimilarComparison | None:
    values = [value for job in inputs.similar if (value := value_of(job, inputs.now)) is not None]
    if len(values) < _MIN_SIMILAR_JOBS:
        return None
    this = value_of(inputs.job, inputs.now)
    lower, _, upper = quantiles(values, n=4, method="inclusive")
    below = None if this is None else sum(value < this for value in values) / len(values)
    return model.SimilarComparison(
        what, unit, this, len(values), lower, median(values), upper, below
    )
