"""The judgements over numbers: which states count as failed, and from when a figure is notable.

The database, pages, reports, commands and dashboards take them from here, and a test keeps other
modules from writing their own. The sentences are quoted by the API and docs/report.md.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from batchjob.runtime.settings import option
from batchjob.runtime.values import duration, ratio
from batchjob.schedulers.states import JobState

FAILED_STATES = (
    JobState.FAILED,
    JobState.TIMEOUT,
    JobState.OUT_OF_MEMORY,
    JobState.NODE_FAIL,
    JobState.BOOT_FAIL,
    JobState.DEADLINE,
)
FAILED_MEANS = (
    "A job has failed if it ended as FAILED, TIMEOUT, OUT_OF_MEMORY, NODE_FAIL, BOOT_FAIL or "
    "DEADLINE, but not if it was cancelled, preempted, requeued or lost from sight."
)

LOST_STATES = (JobState.NODE_FAIL, JobState.BOOT_FAIL)
"""In these states steps may never have reported: 0 s of CPU time by accounting is no figure."""

AT_LEAST = "at least"
"""The basis of CPU time by an accounting that may lack processes, and what `process_io_basis` says.
"""
AT_LEAST_MEANS = (
    "CPU time is at least the figure where accounting lacks processes that nobody waited for "
    "(Slurm's jobacct_gather/linux): of a job whose processes were killed, nearly all of it may be "
    "missing, so that there is no efficiency, and sums leave it out."
)

RUNNING_STATES = (JobState.RUNNING, JobState.SUSPENDED)

USED_MEMORY_MEANS = (
    "The memory that a job used is its peak, of rows as of sums: a job needs its peak, however "
    "short it is."
)
FULL_WORKING_SET = 0.9  # mean memory without inactive page cache, of what was allocated
MEMORY_WAITING = 0.05  # part of the time in which tasks waited for memory, at the limit
SHORT_MEMORY_MEANS = (
    "Memory was short if a process was killed for lack of it, if the job waited for memory at its "
    "limit, or if it was full without page cache, which the kernel reclaims; a peak at the limit "
    "alone does not say so."
)
WASTE_MEANS = (
    "Waste is what measured jobs were allocated and did not use; CPU and GPU time are added up "
    "with the CPUs that a GPU is worth."
)
BASIS_MEANS = (
    "A complete measurement is preferred to accounting, and accounting to an incomplete one, but "
    "nothing to a larger amount that was measured; sums add up the figures of the jobs."
)
ENERGY_MEANS = (
    "The energy of a job is known if all of its nodes were measured, or by accounting; emissions "
    "follow the measured energy. Sums say of how much of the allocated CPU time they are."
)

COMPLETE_COVERAGE = 0.95
"""Part of a job's node time that measurements must cover to count as complete.

No threshold of the site, since stored sums are made with it. Shorter gaps are usual: the samples
at both ends of a job, and a restart of the exporter.
"""

GPU_COUNTERS_FOLLOW_SECONDS = 60
"""After which what a GPU did is in a job's counters, whose samples are given when 30 s old."""

WORTHWHILE_REDUCTION = 0.75
"""A job is told to request less memory or time only if that is less than this part of it."""

REQUEST_MARGIN = 1.2
"""What is advised to be requested is the highest need times this."""
SLOWER_AT_MOST = 1.25
"""Fewer CPUs are advised only if a job takes at most this times as long with them, at worst."""
CURVE_TOLERANCE = 0.05
"""Curves differ by so many CPUs or GPUs from what is allocated because of the times of samples."""
UNUSED_GPU_SECONDS = 10
UNUSED_GPU_BYTES = 1 << 30
"""A GPU that was busy for longer, or held more, was used; a mere context is smaller."""

# From when a dashboard's figure needs attention, and from when it is bad.
FAILED_PART = (0.2, 0.5)  # of ended jobs
CAVEATS_PART = (0.05, 0.2)  # of measured jobs, those with a caveat
NOTABLE_LIMIT_PART = 0.8  # of a limit or a disk
IDLE_CPU_PART = 0.1  # of a running job's CPUs: fewer are in use for an hour (alert, dashboards)

SLOW_RUN = 1.5
"""A run that took more than this multiple of the median of runs like it was slow."""
ABOVE_ALLOCATION = 0.1
"""More of a node's CPUs than its jobs were allocated, and this part of them, are busy: something
runs there without an allocation, or beyond it; the system itself needs less."""

SEEN_TO_END = 0.999
"""Coverage of a node whose exporter did not see the job's end: its last moments are unknown."""

CPU_TOLERANCE = 1.02
"""Measured CPU time above this multiple of what the CPUs can provide is impossible.

Accounting's times are in whole seconds, and prolog and epilog may add some CPU time.
"""
MORE_CPU = "more cpu than allocated"
"""The caveat of CPU time that the allocated CPUs cannot provide: no efficiency, and no advice.

It is in `job.caveats` for the CPU time of accounting, in `job_usage.caveats` for the measured one.
"""


def exceeds_cpus(cpu_seconds: float, cpus: float, seconds: float) -> bool:
    return cpu_seconds > CPU_TOLERANCE * cpus * (seconds + 2)


@dataclass(frozen=True)
class SiteThresholds:
    """From when a figure is notable; a site may choose other values."""

    idle_gpu: float = option(0.01, "A GPU with a mean utilisation below this is idle.", parse=ratio)
    # fmt: off
    idle_after: float = option(1800.0,
        "A running job is listed as idle only after this time.", parse=duration)
    low_use: float = option(0.25,
        "A job that used less than this part of its allocation is wasteful (red).", parse=ratio)
    fair_use: float = option(0.6,
        "A job that used less than this part of its allocation could use more (amber).",
        parse=ratio)
    advised_use: float = option(0.5,
        "A job that used less than this part of its CPUs or memory is advised to change.",
        parse=ratio)
    advised_gpu_use: float = option(0.3,
        "A job that used less than this part of its GPUs is advised to change.", parse=ratio)
    uneven_use: float = option(0.5,
        "A node that did less than this part of the nodes' mean had too little to do.", parse=ratio)
    near_limit: float = option(0.95,
        "A job that used more than this part of its memory or time is near its limit.", parse=ratio)
    enough_coverage: float = option(0.8,
        "Measurements that cover less than this part of a job or node are incomplete.", parse=ratio)
    gpu_weight: float = option(32.0,
        "Number of CPUs that a GPU is worth where waste of both is added up.")
    # fmt: on


_thresholds = SiteThresholds()


def thresholds() -> SiteThresholds:
    return _thresholds


def use_thresholds(chosen: SiteThresholds) -> None:
    """Judge by these thresholds from now on; a program calls it once, when it starts."""
    global _thresholds
    _thresholds = chosen


def unused_cpu_seconds(sums: Mapping[Any, Any]) -> float:
    """The unused CPU time, with GPU time in terms of the CPUs that it is worth."""
    gpu_seconds = sums["gpu_unused_seconds"] or 0.0
    return float((sums["cpu_unused_seconds"] or 0.0) + thresholds().gpu_weight * gpu_seconds)
