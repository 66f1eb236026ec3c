"""The named quantities of a job that rules can use."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, fields
from typing import Any, NamedTuple

from batchjob.judgements import AT_LEAST, LOST_STATES, SiteThresholds, thresholds
from batchjob.schedulers.states import JobState
from batchjob_stats_db.measure.node_usage import UNIDENTIFIED
from batchjob_stats_db.queries.efficiency import ACCOUNTING
from batchjob_stats_server.report import explain, right_size
from batchjob_stats_server.report.conditions import FactValue, FactValues
from batchjob_stats_server.report.headline import ending_signal
from batchjob_stats_server.report.model import ReportInput
from batchjob_stats_server.report.right_size import memory_words, time_words

Evaluate = Callable[[ReportInput], FactValue]


class JobFact(NamedTuple):
    """A quantity: its unit (or "word"), its description, and the function that computes it."""

    unit: str
    about: str
    evaluate: Evaluate


def _job_column(column: str) -> Evaluate:
    return lambda inputs: inputs.job[column]


def _usage_ratio(column: str, of: Callable[[ReportInput], float | None]) -> Evaluate:
    """A column of the usage divided by `of`."""

    def value(inputs: ReportInput) -> FactValue:
        used, total = inputs.job[column], of(inputs)
        return used / total if used is not None and total else None

    return value


def _elapsed(inputs: ReportInput) -> float | None:
    return explain.elapsed_seconds(inputs.job, inputs.now)


def _node_time_seconds(inputs: ReportInput) -> float | None:
    """The time in which pressure was measured, summed over the nodes that were measured at all."""
    job, seconds = inputs.job, inputs.job["observed_seconds"]
    nodes, seen = job["allocated_nodes"] or job["usage_nodes"], job["usage_nodes"]
    if not seconds or not seen:
        return None
    return float(seconds * seen * min(1.0, job["usage_coverage"] * nodes / seen))


def _cpus_used(inputs: ReportInput) -> FactValue:
    ratio, cpus = inputs.job["cpu_efficiency"], inputs.job["allocated_cpus"]
    if inputs.job["resized_cpu_seconds"]:
        return None  # it had other numbers of CPUs at other times
    return ratio * cpus if ratio is not None and cpus else None


def _coverage(inputs: ReportInput) -> FactValue:
    job = inputs.job
    by_accounting = job["cpu_basis"] in (ACCOUNTING, AT_LEAST) and (
        job["memory_basis"] == ACCOUNTING
    )
    if by_accounting and job["state"] not in LOST_STATES:
        return 1.0
    return min(1.0, float(job["usage_coverage"])) if explain.is_measured(job) else 0.0


def _times_nodes(
    of_node: Callable[[ReportInput], float | None],
) -> Evaluate:
    """An amount of each node, for all nodes."""
    return lambda inputs: (
        None
        if (amount := of_node(inputs)) is None
        else amount * (inputs.job["allocated_nodes"] or 1)
    )


def _in_words(
    write: Callable[[ReportInput, float], str], amount: Callable[[ReportInput], float | None]
) -> Evaluate:
    """An amount in the notation of the job's scheduler."""

    def value(inputs: ReportInput) -> FactValue:
        found = amount(inputs)
        return None if found is None else write(inputs, found)

    return value


def _memory_after_kill(inputs: ReportInput) -> FactValue:
    found = _in_words(memory_words, right_size.node_memory_after_kill)(inputs)
    if found is None and inputs.largest_node_bytes and inputs.job["allocated_memory_bytes"]:
        return "more nodes, or let it need less: no node of the cluster has more memory"
    return found


def _time_after_timeout(inputs: ReportInput) -> FactValue:
    found = _in_words(time_words, right_size.seconds_after_timeout)(inputs)
    if found is None and inputs.longest_limit_seconds and inputs.job["time_limit_seconds"]:
        return "more time, if the partition allows it: no recent job there had a longer limit"
    return found


def _gpus_in_use(inputs: ReportInput) -> FactValue:
    unused = right_size.unused_gpus(inputs)
    return None if unused is None else len(inputs.gpus) - unused


def _idle_gpus(inputs: ReportInput) -> FactValue:
    ratios = [row["utilization_ratio"] for row in inputs.gpus]
    if not ratios or None in ratios:
        return None
    return sum(float(ratio) < thresholds().idle_gpu for ratio in ratios)


def _half_gpu_time(inputs: ReportInput) -> FactValue:
    elapsed, ratio = _elapsed(inputs), inputs.job["usage_gpu_utilization_ratio"]
    return None if elapsed is None or ratio is None else elapsed * (1 + ratio)


def _gpu_memory_ratio(inputs: ReportInput) -> FactValue:
    """The ratio of the GPU with the highest one."""
    ratios = [
        row["memory_peak_bytes"] / total
        for row in inputs.gpus
        if (total := inputs.gpu_memory.get(row["uuid"] + row["gpu_instance"]))
        and row["memory_peak_bytes"] is not None
    ]
    return max(ratios, default=None)


def _node_balance(inputs: ReportInput) -> FactValue:
    """CPU time of the least busy node relative to the mean; None unless all nodes are known."""
    seconds = [node.cpu_seconds for node in inputs.nodes if node.cpu_seconds is not None]
    if len(seconds) < 2 or len(seconds) < (inputs.job["allocated_nodes"] or 0) or not sum(seconds):
        return None
    return min(seconds) * len(seconds) / sum(seconds)


def _idlest_node(inputs: ReportInput) -> FactValue:
    known = [node for node in inputs.nodes if node.cpu_seconds is not None]
    return min(known, key=lambda node: node.cpu_seconds or 0).node if known else None


def _yes_or_no(holds: Callable[[ReportInput], bool]) -> Evaluate:
    return lambda inputs: "yes" if holds(inputs) else "no"


def _gpu_time(column: str, choose: Callable[[list[float]], float]) -> Evaluate:
    """The least or most of a time of the GPUs, relative to the measured time."""

    def value(inputs: ReportInput) -> FactValue:
        until, start = inputs.job["usage_until_time"], inputs.job["start_time"]
        if not inputs.gpus or until is None or start is None or until <= start:
            return None
        seconds = choose([float(row[column] or 0.0) for row in inputs.gpus])
        return min(1.0, seconds / float(until - start))

    return value


def _untouched_gpus(inputs: ReportInput) -> FactValue:
    return sum(
        row["memory_peak_bytes"] is None and not row["uuid"].startswith(UNIDENTIFIED)
        for row in inputs.gpus
    )


def _threshold(field: Field[Any]) -> JobFact:
    unit = "seconds" if field.name == "idle_after" else "ratio"
    about = f"Threshold of the site (default: {field.default:g}): {field.metadata['option'].help}"
    return JobFact(unit, about, lambda _: float(getattr(thresholds(), field.name)))


THRESHOLD_FACTS: Mapping[str, JobFact] = {
    each.name: _threshold(each) for each in fields(SiteThresholds) if each.name != "gpu_weight"
}
"""The site's thresholds, so that rules and pages judge alike."""

_FACTS: Sequence[tuple[str, str, str, Evaluate]] = (
    ("state", "word", "State of the job.", _job_column("state")),
    ("ended", "word", "Whether the job has ended: yes or no.",
     _yes_or_no(lambda m: m.job["end_time"] is not None)),
    ("started", "word", "Whether the job has started: yes or no.",
     _yes_or_no(lambda m: m.job["start_time"] is not None)),
    ("measured", "word", "Whether anything was measured: yes or no.",
     _yes_or_no(lambda m: explain.is_measured(m.job))),
    ("in_array", "word", "Whether the job is a task of an array: yes or no.",
     _yes_or_no(lambda m: bool(m.job["array_jobid"]))),
    ("exit_code", "count", "Exit code.", _job_column("exit_code")),
    ("exit_signal", "count", "Signal that ended the job, or a step of it; 0: none.", ending_signal),
    ("elapsed", "seconds", "Run time.", _elapsed),
    ("time_limit", "seconds", "Time limit.", _job_column("time_limit_seconds")),
    ("time_ratio", "ratio", "Run time / time limit.",
     lambda m: explain.time_ratio(m.job, m.now).ratio),
    ("time_to_ask", "seconds", "Longest run time of this and similar jobs, with `cpus_to_ask`, "
     "plus 20 %, rounded up.", right_size.seconds_to_request),
    ("longest_time", "seconds", "Longest run time of this and similar jobs.",
     right_size.longest_seconds),
    ("time_request", "word", "`time_to_ask` in the notation of the scheduler.",
     _in_words(time_words, right_size.seconds_to_request)),
    ("time_after_timeout", "word", "What longer runs of the name took plus 20 %, else twice the "
     "longest time limit that was too short, in the notation of the scheduler; no more than jobs "
     "of the partition had.", _time_after_timeout),
    ("coverage", "ratio", "Fraction of the job's node time that the figures cover; 1 if they are "
     "from accounting only.", _coverage),
    ("cpu_final", "word", "Whether the CPU figures cover the whole job and are final: yes or no.",
     _yes_or_no(lambda m: explain.is_cpu_final(m.job))),
    ("memory_final", "word", "Whether the memory figures cover the whole job and are final: yes or "
     "no.", _yes_or_no(lambda m: explain.is_memory_final(m.job))),
    ("gpu_final", "word", "Whether the GPU figures cover the whole job and are final: yes or no.",
     _yes_or_no(lambda m: explain.is_measured_final(m.job))),
    ("nodes_final", "word", "Whether the figures of each node cover the whole job and are final: "
     "yes or no.", _yes_or_no(lambda m: explain.is_measured_final(m.job))),
    ("nodes", "count", "Nodes allocated.", _job_column("allocated_nodes")),
    ("cpus", "count", "CPUs allocated.", _job_column("allocated_cpus")),
    ("cpu_ratio", "ratio", "CPU efficiency.", _job_column("cpu_efficiency")),
    ("cpus_used", "count", "CPUs in use on average.", _cpus_used),
    ("cpus_peak", "count", "Most CPUs in use on one node between two samples; of completed jobs "
     "without GPUs that used less than `fair_use`.", right_size.node_cpus_peak),
    ("cpus_to_ask", "count", "`cpus_peak` plus 20 %, rounded up, or more if the job could take a "
     "quarter longer, or beyond its time limit; for all nodes.",
     _times_nodes(right_size.node_cpus_to_request)),
    ("single_threaded", "word", "Whether one CPU was in use all the time, and no more: yes or no.",
     _yes_or_no(right_size.is_single_threaded)),
    ("cpu_throttled_ratio", "ratio", "Time throttled by the CPU quota / available CPU time.",
     _usage_ratio("usage_throttled_seconds", lambda m: m.job["cpu_available_seconds"])),
    ("cpu_waiting_ratio", "ratio", "Fraction of time in which at least one task waited for a CPU.",
     _usage_ratio("usage_cpu_waiting_seconds", _node_time_seconds)),
    ("threads", "count", "Most threads at once, summed over nodes; where the kernel counts none, "
     "the most seen.", _job_column("usage_threads_peak")),
    ("node_balance_ratio", "ratio", "CPU time of the least busy node / mean of the nodes.",
     _node_balance),
    ("idlest_node", "word", "The least busy node.", _idlest_node),
    ("memory_limit", "bytes", "Memory allocated, on the nodes measured.",
     lambda m: explain.memory_available_bytes(m.job)),
    ("memory_peak", "bytes", "Peak memory, summed over nodes; includes page cache if it was "
     "measured.", _job_column("memory_used_bytes")),
    ("memory_ratio", "ratio", "Memory efficiency.", _job_column("memory_efficiency")),
    ("working_set", "bytes", "Mean memory without inactive page cache.",
     _job_column("usage_working_set_average_bytes")),
    ("memory_need", "bytes", "Maximum memory needed on one node by this and similar jobs.",
     right_size.node_memory_need),
    ("memory_to_ask", "bytes", "`memory_need` plus 20 %, rounded up, for all nodes.",
     _times_nodes(right_size.node_memory_to_request)),
    ("memory_request", "word", "`memory_to_ask` in the notation of the scheduler.",
     _in_words(memory_words, right_size.node_memory_to_request)),
    ("memory_after_kill", "word", "What larger runs of the name needed plus 20 %, else twice what "
     "was too little, in the notation of the scheduler; no more than the largest node of the "
     "cluster has.", _memory_after_kill),
    ("killed_runs", "count", "Other runs of the name, of the latest 50, that ran out of memory.",
     lambda m: sum(run["state"] == JobState.OUT_OF_MEMORY for run in m.runs_of_name)),
    ("memory_limit_hits", "count", "Number of times the memory limit was reached.",
     _job_column("usage_memory_limit_hits")),
    ("memory_waiting_ratio", "ratio", "Fraction of time in which at least one task waited for "
     "memory.", _usage_ratio("usage_memory_waiting_seconds", _node_time_seconds)),
    ("oom_kills", "count", "Processes that the OOM killer terminated.",
     _job_column("usage_oom_kills")),
    ("swap_peak", "bytes", "Maximum swap in use.", _job_column("usage_swap_peak_bytes")),
    ("io_waiting_ratio", "ratio", "Fraction of time in which at least one task waited for storage.",
     _usage_ratio("usage_io_waiting_seconds", _node_time_seconds)),
    ("gpus", "count", "GPUs that the job held.", lambda m: m.job["gpus_held"] or 0),
    ("gpu_ratio", "ratio", "GPU efficiency.", _job_column("usage_gpu_utilization_ratio")),
    ("gpu_observed", "ratio", "Part of the measured time in which the GPU that was observed least "
     "was observed while no other job held it.", _gpu_time("observed_seconds", min)),
    ("gpu_shared", "ratio", "Part of the measured time in which other jobs held a GPU of the job "
     "as well.", _gpu_time("shared_seconds", max)),
    ("gpus_untouched", "count", "Known GPUs on which no process of the job was ever seen.",
     _untouched_gpus),
    ("gpu_profiled", "ratio", "Part of the measured time that `gpu_sm` and the like cover (Hopper "
     "and later).", _gpu_time("profiled_seconds", min)),
    ("gpu_sm", "ratio", "Multiprocessors in use, mean.", _job_column("usage_gpu_sm_active_ratio")),
    ("gpu_sm_when_busy", "ratio", "`gpu_sm` / `gpu_ratio`.",
     _usage_ratio("usage_gpu_sm_active_ratio", lambda m: m.job["usage_gpu_utilization_ratio"])),
    ("gpu_tensor", "ratio", "Activity of tensor cores, mean.",
     _job_column("usage_gpu_tensor_active_ratio")),
    ("gpu_dram", "ratio", "Bandwidth of the GPUs' memory in use, mean.",
     _job_column("usage_gpu_dram_active_ratio")),
    ("gpus_measured", "count", "GPUs with measurements.", lambda m: len(m.gpus)),
    ("gpus_idle", "count", "GPUs with a mean utilisation below `idle_gpu`.", _idle_gpus),
    ("gpus_unused", "count", "GPUs that were busy for at most 10 s and held less than 1 GiB.",
     right_size.unused_gpus),
    ("gpus_in_use", "count", "GPUs that were used, or held data.", _gpus_in_use),
    ("gpus_to_ask", "count", "`gpus_in_use` of the node that used most, for all nodes, or more if "
     "similar jobs did.", _times_nodes(right_size.node_gpus_to_request)),
    ("gpus_counted", "word", "Whether the busy time of the GPUs was counted, not sampled: yes or "
     "no.", _yes_or_no(lambda m: all(each["shared_seconds"] is not None for each in m.gpus))),
    ("half_gpu_time", "seconds", "Run time, if the work on the GPU took twice as long.",
     _half_gpu_time),
    ("gpu_memory_peak", "bytes", "Maximum memory in use on one GPU.",
     _job_column("usage_gpu_memory_peak_bytes")),
    ("gpu_memory_ratio", "ratio", "`gpu_memory_peak` / memory of that GPU.", _gpu_memory_ratio),
    ("short_jobs", "count", "Number of jobs of the user of at most a minute in the previous day, "
     "without array tasks.", lambda m: m.short_jobs),
    ("similar_jobs", "count", "Similar jobs that completed.", lambda m: len(m.similar)),
)  # fmt: skip

FACTS: Mapping[str, JobFact] = {
    **{row[0]: JobFact(*row[1:]) for row in _FACTS},
    **THRESHOLD_FACTS,
}

UNITS: Mapping[str, str] = {name: each.unit for name, each in FACTS.items()}


def evaluate_quantities(inputs: ReportInput) -> FactValues:
    """Compute all quantities of a job; unknown ones are None."""
    return {name: each.evaluate(inputs) for name, each in FACTS.items()}
