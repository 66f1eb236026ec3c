"""The usage of a job, from its past measurements.

Totals are those of counters (see `Statistic.TOTAL`), peaks and averages those of samples;
`coverage` is the part of the job's time that they cover. Values of several nodes are added up.
Results that may be wrong are marked by the words in CAVEATS, and nothing is filled in.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from batchjob.judgements import COMPLETE_COVERAGE, MORE_CPU, exceeds_cpus
from batchjob.quantities import job as of_job
from batchjob.quantities.energy import EMISSIONS_GRAMS, ENERGY_JOULES
from batchjob.quantities.job import CPU_SECONDS, END_TIME, MEMORY_CURRENT, MEMORY_PEAK
from batchjob.quantities.quantity import Statistic
from batchjob.quantities.usage import ENERGY_COLUMNS, USAGE_COLUMNS
from batchjob.schedulers.node_names import NodeNames
from batchjob_stats_db.database.gate import MAX_KEY_LENGTH, broken_rule, limits
from batchjob_stats_db.measure import node_usage
from batchjob_stats_db.measure.coverage import (
    MeasuredTime,
    NodeSamples,
    coverage,
    has_ended_everywhere,
    has_gaps,
    has_gpu_gaps,
    measured_until,
)
from batchjob_stats_db.queries.efficiency import ENDED_ON_NODES, ENERGY_MISSING
from batchjob_stats_db.timeseries.base import JobWindow, SeriesValue, TimeSeriesStore

NOT_ANSWERED, NOT_STORABLE = "not answered", "not storable"
OTHER_NODES = "other nodes"
NOT_A_NUMBER = "not a number"
RUNNING, GAPS = "running", "gaps in samples"
PEAK_SAMPLED, THREADS_SAMPLED = "peak sampled", "threads sampled"
NO_SAMPLES = "no samples"
CPU_AT_LEAST = "cpu time at least"
VALUES_MISSING = "values of some nodes missing"
CAVEATS = {
    RUNNING: "measured while the job ran, not up to its end",
    ENDED_ON_NODES: "all its nodes have seen it end, and the scheduler has not said yet how",
    NO_SAMPLES: "nothing was measured while it ran",
    "nodes missing": "more than 5 % of the job's time on its nodes was not measured; "
    "CPU time, IO and energy may be too low",
    GAPS: "samples are missing for more than 5 % of the time; averages and peaks may miss some "
    "usage, totals do not",
    "more nodes than allocated": "measurements came from more nodes than were allocated",
    "user unknown": "the job ended before its user was seen; all series with its id are counted",
    "user differs": "series of another user with this job id are left out",
    NOT_A_NUMBER: "values that cannot be true, such as NaN or more energy than nodes can draw, are "
    "left out",
    MORE_CPU: "more CPU time was measured than the allocated CPUs can provide",
    PEAK_SAMPLED: "the kernel recorded no memory peak on a node; its largest sample is used, and "
    "the peak may have been higher",
    THREADS_SAMPLED: "the kernel counted no peak of threads on a node; the most that was seen at "
    "once is used, and there may have been more",
    VALUES_MISSING: "some nodes have no value of a kind, such as the IO of processes; those of the "
    "others are not added up",
    ENERGY_MISSING: "some nodes have no energy of this job; its parts are of the others only, and "
    "its total is unknown",
    OTHER_NODES: "series with this job id from nodes that were not allocated to the job are left "
    "out",
    CPU_AT_LEAST: "accounting lacks the CPU time of processes that nobody waited for; the job used "
    "at least what is shown",
    NOT_STORABLE: "a measured value is beyond what can be stored; the job is measured again later",
    NOT_ANSWERED: "the time series database did not answer for this job; it is asked again later",
}
"""Each with what is missing, and what that means for the numbers."""


class JobToMeasure(NamedTuple):
    """A job to be measured, as accounting has it."""

    id: int
    cluster: str
    jobid: str
    user: str
    uid: int | None
    start: int
    end: int | None  # None: the job is running
    nodes: int | None
    cpus: int | None
    window: JobWindow
    failed_before: bool = False  # its last measurement failed
    tool: str = ""  # set for tracked work, which is part of a program and unknown to exporters
    allocated: NodeNames = NodeNames(())  # its nodes; none: unknown
    returned: tuple[tuple[str, int], ...] = ()  # those that it gave back, and when
    cluster_nodes: NodeNames = NodeNames(())  # all of its cluster that are known
    gpus: tuple[tuple[str, int], ...] = ()  # allocated on its nodes; see gpu_usages()


def returned_at(job: JobToMeasure, instance: str) -> int | None:
    """When the job gave back the node of an instance; None: it did not."""
    return next((at for node, at in job.returned if instance in NodeNames([node])), None)


class MeasuredUsage(NamedTuple):
    """A row of job_usage, with its rows of job_gpu, job_emissions and job_node_usage."""

    job_id: int
    samples: int
    dropped_series: int
    nodes: int
    coverage: float
    until_time: int  # end of the measured time, in epoch seconds
    caveats: str
    values: Mapping[str, float | int]  # the other columns, if known
    devices: Sequence[node_usage.GpuUsage]
    emissions: Mapping[str, float]  # provider → grams
    refused: Sequence[str] = ()  # the gate's rules that values broke; not stored
    by_node: Sequence[node_usage.NodeUsage] = ()


PRESENCE_METRIC = CPU_SECONDS.name  # every job has it on every node
_END_TIME = END_TIME.metric.name
_CURRENT_MEMORY = MEMORY_CURRENT.metric.name
_SAMPLED_PEAKS = (
    (MEMORY_PEAK, MEMORY_CURRENT, ("memory_peak_bytes", "memory_peak_node_bytes"), PEAK_SAMPLED),
    (of_job.THREADS_PEAK, of_job.THREADS, ("threads_peak",), THREADS_SAMPLED),
)
"""Peaks of the kernel, what takes their place on nodes without, and the columns and caveats."""
_EMISSIONS = EMISSIONS_GRAMS.metric.name
_ENERGY = ENERGY_JOULES.metric.name
_MEAN_GPU_UTILIZATION = (Statistic.MEAN, node_usage.UTILIZATION)

_COLUMNS = (*USAGE_COLUMNS, *ENERGY_COLUMNS)


def _metrics(statistic: Statistic, *more: str) -> tuple[str, ...]:
    """The metrics of the columns of a statistic, those of GPUs, and more of them."""
    of_columns = (each.quantity.metric.name for each in _COLUMNS if each.statistic is statistic)
    return tuple(dict.fromkeys((*of_columns, *node_usage.GPU_METRICS.get(statistic, ()), *more)))


_TOTALS = _metrics(Statistic.TOTAL, _EMISSIONS)
_MEANS = _metrics(Statistic.MEAN)

METRICS: Mapping[Statistic, tuple[str, ...]] = {
    Statistic.TOTAL: _TOTALS,
    Statistic.PEAK: _metrics(
        Statistic.PEAK,
        _END_TIME,
        _CURRENT_MEMORY,
        of_job.THREADS.metric.name,
        *node_usage.NODE_PEAKS,
    ),
    Statistic.MEAN: _MEANS,
    Statistic.COUNT: (PRESENCE_METRIC, *_MEANS),
    Statistic.LATEST: (PRESENCE_METRIC, _CURRENT_MEMORY),
    Statistic.RESET: _TOTALS,
}
"""The metrics from which a job's usage is computed."""

_ANY = (-1e18, 1e18)  # such as a time
_VALUES = (Statistic.TOTAL, Statistic.PEAK, Statistic.MEAN)
_LIMITS: Mapping[str, tuple[float, float]] = {
    **{each.quantity.metric.name: limits(each.name) for each in _COLUMNS},
    _EMISSIONS: limits("grams"),
    node_usage.UTILIZATION: limits("utilization_ratio"),
    **{metric: limits(metric) for metric in node_usage.NODE_PEAKS},
    **{
        metric: limits(metric.removesuffix("_total"))
        for statistic in (Statistic.TOTAL, Statistic.PEAK)
        for metric in node_usage.GPU_METRICS[statistic]
    },
}

# Of a job on one node. A GPU has at most seven instances of seven parts (MIG).
_OF_GPUS = (metric for metrics in node_usage.GPU_METRICS.values() for metric in metrics)
_MOST_OF_NODE = {**dict.fromkeys(_OF_GPUS, 1024), _EMISSIONS: 64}
_ROW_LABELS = ("provider", "uuid", "gpu_instance", "gpu")

JobSeries = dict[tuple[Statistic, str], list[SeriesValue]]
"""The values of a job's series by statistic and metric."""


def series_by_jobid(
    store: TimeSeriesStore, wanted: Mapping[Statistic, Sequence[str]], windows: Sequence[JobWindow]
) -> dict[str, JobSeries]:
    """The statistics of each job's series in its window; raises TimeSeriesError."""
    series: dict[str, JobSeries] = defaultdict(lambda: defaultdict(list))
    for statistic, samples in store.measure(wanted, windows).items():
        for sample in samples:
            series[sample.labels.get("jobid", "")][statistic, sample.metric].append(sample)
    return series


def compute_usage(job: JobToMeasure, series: JobSeries, interval: float) -> MeasuredUsage:
    """Compute a job's usage from the samples with its id."""
    caveats: set[str] = set()
    refused: Counter[str] = Counter()
    kept, dropped = _select_trusted_samples(job, series, caveats, refused)
    _leave_out_parts(kept, caveats, refused)
    values = _column_values(kept, caveats)
    _add_sampled_peaks(kept, values, caveats)
    _leave_out_impossible(job, series, values, caveats, refused)
    nodes = samples_by_node(kept, partial(returned_at, job))
    until = job.window.until if job.end is None else job.end
    if job.end is None:
        until = max(job.start, measured_until(nodes, job.start, until, interval))
    gpus = node_usage.gpu_usages(kept, job.gpus, until - job.start, interval)
    values.update(node_usage.gpu_columns(gpus))
    time = MeasuredTime(job.start, job.end, until)
    covered = coverage(nodes, job.nodes, time, interval, [at for _, at in job.returned])
    if job.end is None:
        caveats.add(
            ENDED_ON_NODES if has_ended_everywhere(nodes, job.nodes, job.start) else RUNNING
        )
    caveats |= _find_caveats(job, values, nodes, covered)
    counts = [each.samples for each in gpus if each.shared_seconds is None and each.samples]
    if has_gaps(nodes, time, interval) or has_gpu_gaps(counts, covered, time, interval):
        caveats.add(GAPS)
    emissions: dict[str, float] = defaultdict(float)
    for sample in kept[Statistic.TOTAL, _EMISSIONS]:
        emissions[sample.labels.get("provider", "")] += sample.value
    words = ", ".join(word for word in CAVEATS if word in caveats)
    samples = sum(node.samples for node in nodes)
    return MeasuredUsage(
        job.id, samples, dropped, len(nodes), covered, until, words, values, gpus, emissions,
        tuple(refused.elements()), node_usage.node_usages(kept),
    )  # fmt: skip


def user_labels(job: JobToMeasure) -> set[str]:
    """Values of the label `user` in its series: without a name, the exporter writes the uid."""
    return {user for user in (job.user, str(job.uid or "")) if user}


def instances_with_user(series: Iterable[Mapping[str, str]]) -> set[str]:
    """Instances whose series have a user.

    A job may end before its user was seen; then series without a user, on other instances, belong
    to it.
    """
    return {labels.get("instance", "") for labels in series if labels.get("user")}


def _select_trusted_samples(
    job: JobToMeasure, series: JobSeries, caveats: set[str], refused: Counter[str]
) -> tuple[JobSeries, int]:
    """The numeric samples of the job's user and nodes, and the number of other samples."""
    users = user_labels(job)
    foreign = foreign_instances(job, {_instance(each) for part in series.values() for each in part})
    with_user = instances_with_user(
        sample.labels for samples in series.values() for sample in samples
    )
    kept: JobSeries = defaultdict(list)
    dropped = 0
    for key, samples in series.items():
        for sample in samples:
            user = sample.labels.get("user", "")
            is_without_user = not user and _instance(sample) not in with_user
            if _instance(sample) in foreign:
                dropped += 1
                if not job.window.continues:  # the part before may have had the node
                    caveats.add(OTHER_NODES)
                    refused["node"] += 1
            elif user not in users and not is_without_user:
                caveats.update({"user differs"} if user else ())
                dropped += 1
            elif not _is_possible(key, sample.value):
                caveats.add(NOT_A_NUMBER)
                refused["range"] += 1
                dropped += 1
            else:
                caveats.update({"user unknown"} if is_without_user else ())
                kept[key].append(sample)
    return kept, dropped


def foreign_instances(job: JobToMeasure, instances: Collection[str]) -> set[str]:
    """Instances on nodes that were not allocated to the job, whatever they say of it.

    Nothing is refused where the allocation is unknown, or where targets have other names than the
    scheduler's nodes, such as addresses.
    """
    if not job.allocated:
        return set()
    other = {each for each in instances if each not in job.allocated}
    if len(other) < len(instances):
        return other
    return {each for each in other if each in job.cluster_nodes}


def _leave_out_parts(kept: JobSeries, caveats: set[str], refused: Counter[str]) -> None:
    """Leave out more series of a node than it can have, each of them a row, and long names."""
    for (statistic, metric), samples in kept.items():
        limit = _MOST_OF_NODE.get(metric)
        if limit is None:
            continue
        of_node, left = Counter(map(_instance, samples)), []
        for sample in samples:
            names = (sample.labels.get(name, "") for name in _ROW_LABELS)
            if of_node[_instance(sample)] > limit:
                refused["parts"] += 1
            elif any(len(name) > MAX_KEY_LENGTH for name in names):
                refused["text"] += 1
            else:
                left.append(sample)
        if len(left) < len(samples):
            kept[statistic, metric] = left
            caveats.add(NOT_A_NUMBER)


def _is_possible(key: tuple[Statistic, str], value: float) -> bool:
    """Whether a number is finite, and within the limits of its quantity."""
    statistic, metric = key
    low, high = _LIMITS.get(metric, _ANY) if statistic in _VALUES else _ANY
    return low <= value <= high


def _leave_out_impossible(
    job: JobToMeasure, series: JobSeries, values: dict[str, float | int], caveats: set[str],
    refused: Counter[str],
) -> None:  # fmt: skip
    """Leave out what is impossible for the job, and sums that lack the part of a node."""
    seconds = (job.end if job.end is not None else job.window.until) - job.start
    for column in _COLUMNS:
        value, key = values.get(column.name), (column.statistic, column.quantity.metric.name)
        if value is None:
            continue
        rule = broken_rule(column.name, value, job.nodes, seconds)
        if rule:
            refused[rule] += 1
        if rule or not all(_is_possible(key, each.value) for each in series.get(key, ())):
            del values[column.name]
            caveats.add(NOT_A_NUMBER)


def _column_values(kept: JobSeries, caveats: set[str]) -> dict[str, float | int]:
    """The columns known for the whole job; a value that one of its nodes lacks is left out."""
    all_instances = {*map(_instance, kept[Statistic.COUNT, PRESENCE_METRIC])}
    values: dict[str, float | int] = {}
    for column in _COLUMNS:
        labels = (*column.quantity.labels, *column.labels)
        samples = [
            sample
            for sample in kept[column.statistic, column.quantity.metric.name]
            if all(sample.labels.get(label) == value for label, value in labels)
        ]
        if samples and column.needs_every_node and all_instances - {*map(_instance, samples)}:
            caveats.add(VALUES_MISSING)
        elif samples:
            value = column.fold(sample.value for sample in samples)
            values[column.name] = round(value) if column.is_integer else value
    energy = kept[Statistic.TOTAL, _ENERGY]
    for component, expected in (
        ("host", all_instances),
        ("gpu", {*map(_instance, kept[_MEAN_GPU_UTILIZATION])}),
    ):
        component_samples = [
            sample for sample in energy if sample.labels.get("component") == component
        ]
        if component_samples and expected - {*map(_instance, component_samples)}:
            caveats.add(ENERGY_MISSING)
    return values


def _add_sampled_peaks(kept: JobSeries, values: dict[str, float | int], caveats: set[str]) -> None:
    """Add the largest samples of nodes whose kernels keep no peak (of memory, before 5.19)."""
    instances = {*map(_instance, kept[Statistic.COUNT, PRESENCE_METRIC])}
    for peak, sampled, columns, caveat in _SAMPLED_PEAKS:
        peaks = kept[Statistic.PEAK, peak.metric.name]
        exact = {_instance(each) for each in peaks if {*peak.labels} <= each.labels.items()}
        seen = node_usage.by_instance((*peaks, *kept[Statistic.PEAK, sampled.metric.name]))
        others = {each: value for each, value in seen.items() if each not in exact}
        if others:
            known, known_node = values.get(columns[0], 0), values.get(columns[-1], 0)
            values[columns[-1]] = max(known_node, round(max(others.values())))
            values[columns[0]] = known + round(math.fsum(others.values()))
            caveats.add(caveat)
        if instances - exact - others.keys():
            for name in columns:  # without one node's peak, the others' are not the job's
                values.pop(name, None)


def samples_by_node(
    kept: JobSeries, returned: Callable[[str], int | None] = lambda _: None
) -> list[NodeSamples]:
    """The samples of each node; `returned` says when an instance's node was given back."""
    latest = node_usage.by_instance(kept[Statistic.LATEST, PRESENCE_METRIC])
    ends = node_usage.by_instance(kept[Statistic.PEAK, _END_TIME])
    resets = node_usage.by_instance(kept[Statistic.RESET, PRESENCE_METRIC])
    gauges = node_usage.by_instance(kept[Statistic.COUNT, _CURRENT_MEMORY])
    latest_gauges = node_usage.by_instance(kept[Statistic.LATEST, _CURRENT_MEMORY])
    counted = node_usage.by_instance(kept[Statistic.COUNT, PRESENCE_METRIC])
    used = node_usage.by_instance(kept[Statistic.TOTAL, PRESENCE_METRIC], sum)
    return [
        NodeSamples(
            int(samples), latest.get(instance), ends.get(instance), instance in resets,
            int(gauges.get(instance, samples)), latest_gauges.get(instance), returned(instance),
            used.get(instance, 0.0),
        )
        for instance, samples in counted.items()
    ]  # fmt: skip


def _find_caveats(
    job: JobToMeasure, values: Mapping[str, float], nodes: Sequence[NodeSamples], covered: float
) -> set[str]:
    caveats = set()
    if not nodes:
        caveats.add(NO_SAMPLES)
    elif covered < COMPLETE_COVERAGE:
        caveats.add("nodes missing")
    if job.nodes is not None and len(nodes) > job.nodes:
        caveats.add("more nodes than allocated")
    used = values.get("user_cpu_seconds", 0) + values.get("system_cpu_seconds", 0)
    elapsed = (job.end or job.window.until) - job.start
    if job.cpus and exceeds_cpus(used, job.cpus, elapsed):
        caveats.add(MORE_CPU)
    return caveats


def _instance(sample: SeriesValue) -> str:
    return sample.labels.get("instance", "")
