"""The part of a job's node time that its measurements cover.

A counter counts from the job's start, so its total covers all the time up to its last sample, even
if earlier samples are missing. Averages and sampled peaks cover only their own samples: if many are
missing, there are gaps.
"""

import math
from collections.abc import Collection, Iterable
from typing import NamedTuple

from batchjob.judgements import COMPLETE_COVERAGE, SEEN_TO_END

_SPARE_SAMPLES = 3  # samples of a node that may be missing at the edges of its time
_APART_SCRAPES = 2  # the last samples of nodes that all answer are not farther apart


class NodeSamples(NamedTuple):
    """The samples of a node; times in epoch seconds."""

    samples: int  # of its counters, which outlive the job
    latest: float | None = None  # time of its last sample; None: unknown
    end: float | None = None  # when its exporter saw the job end, by the node's clock
    reset: bool = False  # a counter was reset, and lost its growth since the previous sample
    gauge_samples: int = 0  # of its gauges, which end with the job
    gauge_latest: float | None = None  # time of the last of them; None: unknown
    returned: float | None = None  # when the job gave the node back
    cpu_seconds: float = 0.0  # until its last sample

    def end_since(self, start: float) -> float | None:
        """When the job that began at `start` ended here, by the store's clock; None: it has not.

        A node whose clock is right has the moment itself. Otherwise the end lies between the last
        sample of the living job and the last one of all.
        """
        if self.end is None or (self.latest is not None and self.gauge_latest == self.latest):
            return None  # or it goes on
        end = self.end if self.latest is None else min(self.end, self.latest)
        end = end if self.gauge_latest is None else max(end, self.gauge_latest)
        return end if end >= start else None  # the end of another run, whose values linger


class MeasuredTime(NamedTuple):
    """The measured part of a job's life, in epoch seconds."""

    start: int
    end: int | None  # None: the job is running
    until: int

    @property
    def seconds(self) -> int:
        """Its length; 1 at least."""
        return max(1, (self.until if self.end is None else self.end) - self.start)

    def seconds_until(self, returned: float | None) -> float:
        """The part of it for which the job had a node that it gave back at this time."""
        seconds = float(self.seconds)
        return seconds if returned is None else min(seconds, max(0.0, returned - self.start))


def measured_until(nodes: Collection[NodeSamples], start: int, until: int, interval: float) -> int:
    """The time up to which a running job was measured: its last sample, at most `until`.

    Its nodes are scraped at different moments, and its CPU time is the sum of what each had used by
    then: it is that of the mean moment, weighted by the CPUs in use. Silent nodes have no part in
    it. Nodes whose exporter saw the job's end are ignored. If all of them did, the job has ended,
    even if its scheduler still lists it as running.
    """
    ends = [node.end_since(start) for node in nodes]
    active = [node for node, end in zip(nodes, ends, strict=True) if end is None]
    times = [node.latest for node in active] if active else ends
    known = [at for at in times if at is not None]
    if not known or len(known) < len(times):
        return until
    last = max(known)
    if active:
        cpus = [
            (node.cpu_seconds / max(1.0, at - start), at)
            for node, at in zip(active, known, strict=True)
            if at > last - _APART_SCRAPES * interval
        ]
        used = math.fsum(count for count, _ in cpus)
        last = math.fsum(count * at for count, at in cpus) / used if used else last
    return min(math.ceil(last), until)


def has_ended_everywhere(nodes: Collection[NodeSamples], allocated: int | None, start: int) -> bool:
    """Whether the exporter of each allocated node has seen the job end; one alone ends nothing."""
    ended = sum(node.end_since(start) is not None for node in nodes)
    return allocated is not None and ended == len(nodes) >= max(allocated, 1)


def coverage(
    nodes: Collection[NodeSamples],
    allocated: int | None,
    time: MeasuredTime,
    interval: float,
    returned: Iterable[float] = (),
) -> float:
    """The part, 0 to 1, of the job's node time that totals of counters cover.

    `returned`: when it gave back nodes, which it had until then only.
    """
    covered = math.fsum(_covered_seconds(node, time, interval) for node in nodes)
    without = math.fsum(time.seconds - time.seconds_until(at) for at in returned)
    whole = time.seconds * max(allocated or 1, len(nodes)) - without
    return min(1.0, covered / max(1, whole))


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
    whole = time.seconds_until(node.returned)
    sampled = node.samples * interval
    end = node.end if time.end is not None else node.end_since(time.start)
    is_over = node.returned is not None and (node.latest or 0) >= node.returned - 2 * interval
    if end is not None or is_over:
        seconds = whole  # nothing is left to be counted here, though other nodes may go on
    else:
        seconds = sampled if node.latest is None else node.latest - time.start
        if time.end is not None:
            seconds = min(seconds, SEEN_TO_END * whole)  # its last moments are unknown
    if node.reset:
        seconds = min(seconds, sampled)
    # While it runs, some nodes' samples are later than the mean moment of all.
    is_fixed = time.end is not None or node.returned is not None
    longest = whole if is_fixed else whole + _APART_SCRAPES * interval
    return min(max(seconds, 0.0), longest)
