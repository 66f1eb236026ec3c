"""How long jobs waited until they began."""

from collections.abc import Iterable, Mapping

from batchjob.schedulers.cluster import ClusterJob
from collectors.cluster.histogram import Histogram


class WaitDurations:
    """Counts each job once, at the reading that first shows it started.

    The jobs of the first reading began before we looked, so they are not counted. A job counts
    again when it is requeued and restarts.
    """

    def __init__(self) -> None:
        self._known: set[tuple[str, int]] | None = None
        self._waited: Mapping[str, Histogram] = {}

    def observe(self, jobs: Iterable[ClusterJob]) -> Mapping[str, Histogram]:
        """The histogram by partition, with the jobs that began since the reading before."""
        begun = {(job.jobid, job.started): job for job in jobs if job.started is not None}
        keys = {(jobid, started) for jobid, started in begun if started is not None}
        waited = dict(self._waited)
        for key in sorted(keys - self._known) if self._known is not None else ():
            job = begun[key]
            if job.eligible is None or job.eligible > key[1]:
                continue
            before = waited.get(job.partition, Histogram())
            waited[job.partition] = before.plus(key[1] - job.eligible)
        self._known, self._waited = keys, waited
        return waited
