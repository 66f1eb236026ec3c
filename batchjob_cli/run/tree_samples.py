"""Samples of a run without a cgroup: no exporter finds its processes, so it writes them itself."""

import os
import time
from itertools import chain, count
from pathlib import Path

from batchjob.local_runs.directory import SAMPLES
from batchjob.local_runs.record import Run
from batchjob.quantities.sample import END, JobSample, SampleHeader, SampleKey
from batchjob_cli.run.process_tree import ProcessTree
from batchjob_stats_db.samples.folder import folder_of
from batchjob_stats_db.samples.writer import Writer, repack

_INTERVAL_SECONDS = 5.0


class TreeSamples:
    """Written at the start, after a second, at each interval and at the end."""

    def __init__(self, data: Path, run: Run, tree: ProcessTree) -> None:
        node = os.uname().nodename
        self._header = SampleHeader("local", run.jobid, run.user, node, _INTERVAL_SECONDS)
        self._folder, self._tree = folder_of(data / SAMPLES, run.jobid), tree
        self._moments = chain((0.0, 1.0), count(_INTERVAL_SECONDS, _INTERVAL_SECONDS))
        self._begin, self._due = time.monotonic(), next(self._moments)
        self._writer: Writer | None = None

    def take(self, ended_at: float | None = None) -> None:
        """Look at the processes, whose memory has its peak at any time, and write what is due."""
        used, now = self._tree.sample(), time.monotonic() - self._begin
        if now < self._due and ended_at is None:
            return
        self._due = next(moment for moment in self._moments if moment > now)
        at, end = ended_at or time.time(), {} if ended_at is None else {END: ended_at}
        used |= self._tree.sample_storage()
        known = {SampleKey(each.name): value for each, value in used.items() if value is not None}
        try:
            self._writer = self._writer or Writer(self._folder, self._header, at)
            self._writer.write(JobSample(at, known | end))
            if end:
                self._writer.close()
                repack(self._writer.path)
        except OSError:  # as at the run's record, of which the user is told
            self._due = float("inf")
