"""Logs the start, the end and the state of each run of a data directory, whoever started it.

Runs have processes of their own, so their files tell what happens to them.
"""

import math
import time
from collections.abc import Callable
from pathlib import Path

from batchjob.local_runs import history
from batchjob.local_runs.record import Run
from batchjob.runtime.background import Refresher
from batchjob.schedulers.states import JobState
from batchjob_cli.run.summary import log_deleted, log_ended, log_started, log_waiting

_OVERLAP_SECONDS = 5.0  # timestamps of file systems are coarse


class RunLog:
    """Remembers the runs that live, and those that have just ended."""

    def __init__(self, data: Path, clock: Callable[[], float] = time.time) -> None:
        """What happened before is not logged."""
        self._data = data
        self._clock = clock
        self._looked_at = clock()
        self._began = math.floor(1000 * self._looked_at) / 1000  # records have milliseconds
        self._known: dict[str, Run] | None = None

    def look(self) -> None:
        """Log what has changed since the last look; raises OSError."""
        since, self._looked_at = self._looked_at - _OVERLAP_SECONDS, self._clock()
        if self._known is None:
            before = [each for each in history.all_runs(self._data) if not self._is_new(each)]
            self._known = {run.jobid: run for run in before if run.state.is_live}
        changed = [run for run in history.changed_runs(self._data, since) if self._is_new(run)]
        ids = {run.jobid for run in changed}
        # A run that was killed has changed nothing.
        others = history.runs_with_ids(self._data, self._known.keys() - ids)
        own = [run for run in (*changed, *others) if run.by == "run"]
        for run in sorted(own, key=lambda each: each.start_time or each.submit_time):
            self._log_change(run, self._known.get(run.jobid))
        for jobid in self._known.keys() - {run.jobid for run in own}:
            if self._known[jobid].state.is_live:
                log_deleted(self._known[jobid])
        self._known = {run.jobid: run for run in own if run.state.is_live or run.jobid in ids}

    def _is_new(self, run: Run) -> bool:
        return max(run.submit_time, run.start_time or 0.0, run.end_time or 0.0) >= self._began

    def _log_change(self, run: Run, known: Run | None) -> None:
        before = known.state if known else None
        if run.state is before:
            return
        if run.state is JobState.PENDING:
            log_waiting(run)
        if run.start_time is not None and before in (None, JobState.PENDING):
            log_started(run)
        if not run.state.is_live:
            log_ended(run)


def run_logger(data: Path, interval: float) -> Refresher[None]:
    """Looks at the runs every `interval` seconds, once it has been started."""
    return Refresher("runs", RunLog(data).look, interval, interval)
