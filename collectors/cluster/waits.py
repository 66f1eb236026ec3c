"""How long jobs waited until they began, as a histogram that only grows."""

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from collectors.cluster.reading import Job

BOUNDS = (10, 60, 300, 900, 3600, 4 * 3600, 12 * 3600, 86400, 3 * 86400, 7 * 86400)
"""Seconds; the last bucket has no bound."""


class Waited(NamedTuple):
    """Jobs of one partition that began: how many per bucket, and the seconds they waited."""

    counts: tuple[int, ...]
    seconds: float


_NONE = Waited((0,) * (len(BOUNDS) + 1), 0.0)


class Waits:
    """Counts each job once, at the reading that first shows it started.

    The jobs of the first reading began before we looked, so they are not counted. A job counts
    again when it is requeued and begins anew.
    """

    def __init__(self) -> None:
        self._known: set[tuple[str, int]] | None = None
        self._waited: Mapping[str, Waited] = {}

    def observe(self, jobs: Iterable[Job]) -> Mapping[str, Waited]:
        """The histogram by partition, with the jobs that began since the reading before."""
        begun = {(job.jobid, job.started): job for job in jobs if job.started is not None}
        keys = {(jobid, started) for jobid, started in begun if started is not None}
        waited = dict(self._waited)
        for key in sorted(keys - self._known) if self._known is not None else ():
            job = begun[key]
            if job.eligible is None or job.eligible > key[1]:
                continue
            seconds = key[1] - job.eligible
            waited[job.partition] = _plus(waited.get(job.partition, _NONE), seconds)
        self._known, self._waited = keys, waited
        return waited


def _plus(waited: Waited, seconds: int) -> Waited:
    counts = list(waited.counts)
    counts[bisect_left(BOUNDS, seconds)] += 1
    return Waited(tuple(counts), waited.seconds + seconds)
