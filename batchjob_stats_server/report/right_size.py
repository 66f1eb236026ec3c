"""What to request next time: the highest need of a job and of its earlier runs, plus a fifth.

Requests of less rest on what was measured to the end of jobs that completed: on the memory peak of
the kernel, on the curve of the CPUs in use, and on GPUs of which each was observed all the time.
None means that too little is known, or that the request should stay as it is. At the end: the
submit line with that request, and what it saves.
"""

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace

from batchjob.judgements import (
    CURVE_TOLERANCE,
    REQUEST_MARGIN,
    SLOWER_AT_MOST,
    UNUSED_GPU_BYTES,
    UNUSED_GPU_SECONDS,
)
from batchjob.runtime.formatting import format_clock, format_count, size
from batchjob.schedulers import registry
from batchjob.schedulers.states import JobState
from batchjob.schedulers.submission import NextRequest, Submission
from batchjob_stats_server.report import explain
from batchjob_stats_server.report.model import ReportInput, Resubmission, Row

_LEAST_MEMORY_STEP = 64 << 20
_LEAST_SECONDS = 600


def round_memory(needed: float) -> int:
    """Memory to request: a fifth more than needed, rounded up by an eighth at most."""
    amount = needed * REQUEST_MARGIN
    step = max(_LEAST_MEMORY_STEP, 1 << max(0, int(amount).bit_length() - 4))
    return math.ceil(amount / step) * step


def round_seconds(needed: float) -> int:
    """Time to request: a fifth more than needed, rounded up, at least ten minutes."""
    amount = needed * REQUEST_MARGIN
    step = 600 if amount <= 7200 else 1800 if amount <= 6 * 3600 else 3600
    return max(_LEAST_SECONDS, math.ceil(amount / step) * step)


def node_memory_need(inputs: ReportInput) -> float | None:
    """The most that a node of this or an earlier run needed, in bytes.

    A run that was killed for lack of memory needed more than it had.
    """
    if not explain.is_memory_final(inputs.job):
        return None
    had = (_node_memory(run) for run in _ended(inputs, JobState.OUT_OF_MEMORY))
    return _highest((*map(_node_memory_peak, (inputs.job, *inputs.similar)), *had))


def node_memory_to_request(inputs: ReportInput) -> int | None:
    """Memory of each node for the highest need, in bytes."""
    need = node_memory_need(inputs)
    return None if need is None else round_memory(need)


def _node_memory_peak(job: Row) -> float | None:
    """The peak of one node, or the mean over nodes if larger; a lower bound of the need."""
    peak = job["memory_used_bytes"]
    return _highest(
        (job["usage_memory_peak_node_bytes"], None if peak is None else peak / _nodes(job))
    )


def _node_memory(job: Row) -> float | None:
    allocated = job["allocated_memory_bytes"]
    return allocated and float(allocated / _nodes(job))


def node_memory_after_kill(inputs: ReportInput) -> float | None:
    """Memory for each node after a run that needed more than it had, in bytes.

    What larger runs of the name needed, else twice what was too little. No more than the largest
    node of the cluster has, if that is known: None if the job had as much.
    """
    killed = (inputs.job, *_ended(inputs, JobState.OUT_OF_MEMORY))
    too_little = _highest(map(_node_memory, killed))
    if too_little is None:
        return None
    known = _highest(map(_node_memory_peak, inputs.similar)) or 0.0
    request = round_memory(known) if known > too_little else 2 * too_little
    largest = inputs.largest_node_bytes or math.inf
    return min(request, largest) if largest > too_little else None


def seconds_after_timeout(inputs: ReportInput) -> float | None:
    """A time limit after a run that reached its own: what longer runs took, else twice as much.

    No more than jobs of the partition had, which it surely allows: None if none had more.
    """
    limits = [run["time_limit_seconds"] for run in (inputs.job, *_ended(inputs, JobState.TIMEOUT))]
    too_little = _highest(limits)
    if too_little is None:
        return None
    known = _highest(explain.elapsed_seconds(run, inputs.now) for run in inputs.similar) or 0.0
    request = round_seconds(known) if known > too_little else 2 * too_little
    longest = inputs.longest_limit_seconds or math.inf
    return min(request, longest) if longest > too_little else None


def seconds_to_request(inputs: ReportInput) -> int | None:
    """A time limit for the longest of this and the earlier runs, with the CPUs to be requested."""
    longest = longest_seconds(inputs)
    if longest is None:
        return None
    cpus = node_cpus_to_request(inputs)
    return round_seconds(longest * (1.0 if cpus is None else _stretch(inputs, cpus)))


def longest_seconds(inputs: ReportInput) -> float | None:
    """The longest run time of this and the earlier runs; one that reached its limit took longer."""
    runs = (inputs.job, *inputs.similar, *_ended(inputs, JobState.TIMEOUT))
    return _highest(explain.elapsed_seconds(run, inputs.now) for run in runs)


def _ended(inputs: ReportInput, state: JobState) -> Iterator[Row]:
    """Other runs of the name that ended in a state."""
    return (run for run in inputs.runs_of_name if run["state"] == state)


# CPUs.


def is_single_threaded(inputs: ReportInput) -> bool:
    """Whether one CPU was in use all the time, and no more.

    Bursts on several CPUs may have the same mean, but not with fewer threads than CPUs.
    """
    busy, highest = _node_cpus_in_use(inputs), node_cpus_peak(inputs)
    threads = inputs.job["usage_threads_peak"]
    if busy is None or highest is None or threads is None:
        return False
    return (
        abs(busy - 1) <= CURVE_TOLERANCE
        and highest <= 1 + CURVE_TOLERANCE
        and threads < inputs.job["allocated_cpus"]
    )


def node_cpus_peak(inputs: ReportInput) -> float | None:
    """The most CPUs in use on a node between two samples; None without a curve of each node."""
    peaks = inputs.cpu_peaks
    if not peaks or len(peaks) < _nodes(inputs.job):
        return None
    return max(peaks.values())


def node_cpus_to_request(inputs: ReportInput) -> int | None:
    """CPUs of each node with which the job would have taken little longer, if these are fewer.

    The curve is of means between two samples, in which all CPUs may have been busy for a moment.
    At worst its work was done on all CPUs or on none: a request is not advised with which that
    work would take a job beyond its time limit, or a quarter longer.
    """
    job, highest = inputs.job, node_cpus_peak(inputs)
    nodes, held = _nodes(job), job["allocated_cpus"]
    if highest is None or not held or held % nodes or job["resized_cpu_seconds"]:
        return None
    if job["state"] != JobState.COMPLETED or not explain.is_cpu_final(job):
        return None
    if is_single_threaded(inputs):
        return 1
    known = max((highest, *filter(None, map(_mean_node_cpus, inputs.similar))))
    limit, elapsed = job["time_limit_seconds"], explain.elapsed_seconds(job, inputs.now)
    allowed = min(SLOWER_AT_MOST, limit / elapsed) if limit and elapsed else SLOWER_AT_MOST
    for cpus in range(max(1, math.ceil(known * REQUEST_MARGIN)), int(held // nodes)):
        if _stretch(inputs, cpus) <= allowed:
            return cpus
    return None


def _mean_node_cpus(job: Row) -> float | None:
    ratio, cpus = job["cpu_efficiency"], job["allocated_cpus"]
    return None if ratio is None or not cpus else float(ratio * cpus / _nodes(job))


def _node_cpus_in_use(inputs: ReportInput) -> float | None:
    """The mean of the busiest node."""
    elapsed, mean = explain.elapsed_seconds(inputs.job, inputs.now), _mean_node_cpus(inputs.job)
    if not elapsed or mean is None:
        return None
    return max((mean, *((node.cpu_seconds or 0.0) / elapsed for node in inputs.nodes)))


def _stretch(inputs: ReportInput, cpus: int) -> float:
    """By how much a job takes longer at most, if it has only so many CPUs on each node."""
    used = _node_cpus_in_use(inputs)
    if used is None or is_single_threaded(inputs):
        return 1.0
    return 1 + used * (1 / cpus - _nodes(inputs.job) / float(inputs.job["allocated_cpus"]))


# GPUs.


def unused_gpus(inputs: ReportInput) -> int | None:
    """GPUs that were never busy for more than moments, and held no data; None: not known of all."""
    return None if (unused := _unused(inputs.gpus)) is None else sum(unused)


def _unused(gpus: Iterable[Row]) -> list[bool] | None:
    """Of each GPU whether it was not used.

    Between samples of a gauge it may have been busy: it must have been known to hold no data.
    """
    found = []
    for each in gpus:
        ratio, held = each["utilization_ratio"], each["memory_peak_bytes"]
        is_counted = each["shared_seconds"] is not None
        if ratio is None or (held is None and not is_counted):
            return None
        busy = ratio * (each["observed_seconds"] or 0.0)
        is_busy = busy > UNUSED_GPU_SECONDS if is_counted else ratio > 0
        found.append(not is_busy and (held or 0) < UNUSED_GPU_BYTES)
    return found or None


def node_gpus_to_request(inputs: ReportInput) -> int | None:
    """GPUs of each node that were used, or hold data; None: not known, or of no completed job."""
    job, unused = inputs.job, _unused(inputs.gpus)
    if unused is None or job["state"] != JobState.COMPLETED or len(unused) < job["gpus_held"]:
        return None
    used: dict[str, int] = defaultdict(int)
    for each, is_unused in zip(inputs.gpus, unused, strict=True):
        used[each["node"]] += not is_unused
    known = max(used.values())
    for run in inputs.similar:
        if gpus := run["gpus_held"]:
            ratio = run["usage_gpu_utilization_ratio"]
            needed = gpus if ratio is None else math.ceil(ratio * gpus - CURVE_TOLERANCE)
            known = max(known, math.ceil(needed / _nodes(run)))
    return known


def _nodes(job: Row) -> int:
    return int(job["allocated_nodes"] or 1)


def _highest(values: Iterable[float | None]) -> float | None:
    return max((float(value) for value in values if value is not None), default=None)


_FEWER_CPUS = {"low-cpu", "single-threaded"}
_FEWER_GPUS = {"gpu-unused", "gpu-partly-unused"}
_PLUS = "The highest need of this {runs} plus 20 %, rounded up."
_DOUBLED = (
    "What larger or longer runs needed plus 20 %, rounded up, else twice what was too little."
)


def resubmission(inputs: ReportInput, given: Collection[str]) -> Resubmission | None:
    """The request of the rules whose advice is given; None if they ask for no other one."""
    job, request = inputs.job, _request(inputs, set(given))
    submission = registry.submission_of(job["source"])
    if submission is None or request == _as_before(job):
        return None
    nodes, held_gpus = request.nodes, job["gpus_held"] or 0
    cpus = 0 if request.cpus is None else (request.held_cpus or 0) - request.cpus
    gpus = 0 if request.gpus is None else held_gpus - request.gpus * nodes
    memory = (
        0 if request.memory_mib is None else (request.held_memory_mib or 0) - request.memory_mib
    )
    limit = job["time_limit_seconds"]
    earlier = len(inputs.similar)
    runs = f"and {format_count(earlier, 'earlier run')}" if earlier else "run alone"
    return Resubmission(
        submission.corrected_line(job["submit_line"], _other_options(inputs, submission), request),
        job["source"],
        request,
        _DOUBLED if {"out-of-memory", "time-limit-reached"} & set(given)
        else _PLUS.format(runs=runs),
        earlier, cpus * nodes, gpus, (memory << 20) * nodes,
        int(limit - request.seconds) if limit and request.seconds else 0,
        _idle_joules(job, cpus / (request.held_cpus or 1), gpus / (held_gpus or 1)),
    )  # fmt: skip


def memory_words(inputs: ReportInput, node_bytes: float) -> str:
    """Memory of each node, such as `24 GiB per node (--mem=24576M)`, as it was requested before."""
    request = replace(_as_before(inputs.job), memory_mib=int(node_bytes) >> 20)
    each = " per node" if request.nodes > 1 else ""
    return f"{size(node_bytes)}{each}{_in_brackets(inputs, request)}"


def time_words(inputs: ReportInput, seconds: float) -> str:
    """A time limit, such as `4:00:00 (--time=4:00:00)`."""
    request = replace(_as_before(inputs.job), seconds=int(seconds))
    return format_clock(seconds) + _in_brackets(inputs, request)


def _in_brackets(inputs: ReportInput, request: NextRequest) -> str:
    job, submission = inputs.job, registry.submission_of(inputs.job["source"])
    if submission is None:
        return ""
    other = _other_options(inputs, submission)
    options = submission.options_for(job["submit_line"], other, request)
    return f" ({options})" if options else ""


def _other_options(inputs: ReportInput, submission: Submission) -> str:
    """What the scheduler recorded, else what is in the batch script."""
    return submission.recorded(inputs.job["requested_resources"]) or "\n".join(
        line for line in inputs.script.split("\n") if line.startswith(submission.directive)
    )


def _request(inputs: ReportInput, given: set[str]) -> NextRequest:
    memory = seconds = None
    if "out-of-memory" in given:
        memory = node_memory_after_kill(inputs)
    elif given & {"memory-oversized", "memory-near-limit"}:
        memory = node_memory_to_request(inputs)
    if "time-limit-reached" in given:
        seconds = seconds_after_timeout(inputs)
    elif "time-limit-too-long" in given:
        seconds = seconds_to_request(inputs)
    before = _as_before(inputs.job)
    return NextRequest(
        before.nodes, before.held_cpus, before.held_memory_mib,
        node_cpus_to_request(inputs) if given & _FEWER_CPUS else None,
        None if memory is None else int(memory) >> 20,
        node_gpus_to_request(inputs) if given & _FEWER_GPUS else None,
        None if seconds is None else int(seconds),
    )  # fmt: skip


def _as_before(job: Row) -> NextRequest:
    nodes, cpus, memory = (job[f"allocated_{what}"] for what in ("nodes", "cpus", "memory_bytes"))
    nodes = nodes or 1
    is_even = cpus and not cpus % nodes
    return NextRequest(
        nodes, int(cpus // nodes) if is_even else None, memory // nodes >> 20 if memory else None
    )


def _idle_joules(job: Row, cpus: float, gpus: float) -> float | None:
    """The idle energy of the job's nodes and GPUs for these parts of its CPUs and GPUs."""
    host, gpu = job["usage_energy_host_idle_joules"], job["usage_energy_gpu_idle_joules"]
    saved = float(cpus * (host or 0.0) + gpus * (gpu or 0.0))
    return saved if saved > 0 and explain.is_measured(job) else None
