"""A job's submit line with the request that its report advises, and what that saves."""

from collections.abc import Collection
from dataclasses import replace

from batchjob.runtime.formatting import format_clock, format_count, size
from batchjob.schedulers import registry
from batchjob.schedulers.submission import NextRequest, Submission
from batchjob_stats_server.report import explain, right_size
from batchjob_stats_server.report.model import ReportInput, Resubmission, Row

_FEWER_CPUS = {"low-cpu", "single-threaded"}
_FEWER_GPUS = {"gpu-unused", "gpu-partly-unused"}
_PLUS = "The highest need of this {runs} plus 20 %, rounded up."
_DOUBLED = (
    "What larger or longer runs of the name needed plus 20 %, else twice what was too little."
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
        memory = right_size.node_memory_after_kill(inputs)
    elif given & {"memory-oversized", "memory-near-limit"}:
        memory = right_size.node_memory_to_request(inputs)
    if "time-limit-reached" in given:
        seconds = right_size.seconds_after_timeout(inputs)
    elif "time-limit-too-long" in given:
        seconds = right_size.seconds_to_request(inputs)
    before = _as_before(inputs.job)
    return NextRequest(
        before.nodes, before.held_cpus, before.held_memory_mib,
        right_size.node_cpus_to_request(inputs) if given & _FEWER_CPUS else None,
        None if memory is None else int(memory) >> 20,
        right_size.node_gpus_to_request(inputs) if given & _FEWER_GPUS else None,
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
