"""The part of a job's node time that its measurements cover.

A counter counts from the job's start, so its total covers all the time up to its last sample, even
if earlier samples are missing. Averages and sampled peaks cover only their own samples: if many are
missing, there are gaps.
"""

import math
from collections.abc import Collection
from typing import NamedTuple

from batchjob.judgements import COMPLETE_COVERAGE, SEEN_TO_END

_SPARE_SAMPLES = 3  # samples of a node that may be missing at the edges of its time


class NodeSamples(NamedTuple):
    """The samples of a node; times in epoch seconds."""

    samples: int  # of its counters, which outlive the job
    latest: float | None = None  # time of its last sample; None: unknown
    end: float | None = None  # when its exporter saw the job end
    reset: bool = False  # a counter was reset, and lost its growth since the previous sample
    gauge_samples: int = 0  # of its gauges, which end with the job


class MeasuredTime(NamedTuple):
    """The measured part of a job's life, in epoch seconds."""

    start: int
    end: int | None  # None: the job is running
    until: int

    @property
    def seconds(self) -> int:
        """Its length; 1 at least."""
        return max(1, (self.until if self.end is None else self.end) - self.start)


def measured_until(nodes: Collection[NodeSamples], until: int) -> int:
    """The time up to which a running job was measured: its last sample, at most `until`.

    Nodes whose exporter saw the job's end are ignored. If all of them did, the job has ended, even
    if its scheduler still lists it as running.
    """
    latest_of_active = [node.latest for node in nodes if node.end is None]
    last_times = latest_of_active or [node.end for node in nodes]
    known = [at for at in last_times if at is not None]
    return min(math.ceil(max(known)), until) if known and len(known) == len(last_times) else until


def coverage(
    nodes: Collection[NodeSamples], allocated: int | None, time: MeasuredTime, interval: float
) -> float:
    """The part, 0 to 1, of the job's node time that totals of counters cover."""
    covered = math.fsum(_covered_seconds(node, time, interval) for node in nodes)
    return covered / time.seconds / max(allocated or 1, len(nodes))


def has_gaps(nodes: Collection[NodeSamples], time: MeasuredTime, interval: float) -> bool:
    """Whether averages and sampled peaks miss more than 5 % of the time."""
    covered = math.fsum(_covered_seconds(node, time, interval) for node in nodes)
    samples = sum(node.gauge_samples + _SPARE_SAMPLES for node in nodes)
    return samples * interval < COMPLETE_COVERAGE * covered


def has_gpu_gaps(
    samples: Collection[int], covered: float, time: MeasuredTime, interval: float
) -> bool:
    """The same for any GPU, by its samples; `covered` is the coverage (0..1) of its job."""
    fewest = min(samples, default=math.inf) + _SPARE_SAMPLES
    return fewest * interval < COMPLETE_COVERAGE * covered * time.seconds


def _covered_seconds(node: NodeSamples, time: MeasuredTime, interval: float) -> float:
    """Covered seconds of a node's time."""
    whole = float(time.seconds)
    sampled = node.samples * interval
    if node.end is not None:
        # The exporter saw the job end. Its values linger, which does not prove that the job is
        # still running, even if its scheduler says so.
        seconds = whole if time.end is not None else node.end - time.start
    else:
        seconds = sampled if node.latest is None else node.latest - time.start
        if time.end is not None:
            seconds = min(seconds, SEEN_TO_END * whole)  # its last moments are unknown
    if node.reset:
        seconds = min(seconds, sampled)
    return min(max(seconds, 0.0), whole)
