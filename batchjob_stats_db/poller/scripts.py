"""Requests the batch scripts of started jobs, if the site stores them."""

import threading
from collections.abc import Callable, Mapping, Sequence

from batchjob.runtime.subprocesses import SchedulerError
from batchjob.schedulers.accounting import AccountingSource, ScriptSource, SubmittedJob
from batchjob_stats_db.database import scripts
from batchjob_stats_db.database.store import Store
from batchjob_stats_db.days import DAY
from batchjob_stats_db.poller.batch_writer import BatchWriter

_JOBS_AT_ONCE = 2000
_CALLS_AT_ONCE = 100  # calls per cycle, one for each script
# Jobs that started earlier have none, or scripts were not kept at the time.
_LOOKBACK_SECONDS = 2 * DAY

# slurmctld sends the script after the job record, in a separate message (DBD_JOB_HEAVY): between
# the two, a query finds no script.
_SETTLE_SECONDS = 60


class ScriptReader:
    """Reads the scripts from one cluster's sources."""

    def __init__(
        self,
        sources: Sequence[AccountingSource],
        store: Store,
        writer: BatchWriter,
        clock: Callable[[], float],
        on_progress: Callable[[], None],
    ) -> None:
        """`on_progress` is called after each script."""
        self._sources = sources
        self._store = store
        self._writer = writer
        self._clock = clock
        self._on_progress = on_progress

    def read_missing(self, stop: threading.Event) -> bool:
        """Request some missing scripts, the newest jobs' first; returns whether all succeeded."""
        outcomes = [self._read_missing_of(source, stop) for source in self._sources]
        return all(outcomes)

    def _read_missing_of(self, source: AccountingSource, stop: threading.Event) -> bool:
        if not isinstance(source, ScriptSource) or not source.script_bytes:
            return True
        key = f"{source.name}.scripts"
        now = int(self._clock())
        since, until = now - _LOOKBACK_SECONDS, now - _SETTLE_SECONDS
        with self._store.engine.connect() as db:
            missing = scripts.jobs_without_script(
                db, self._store.cluster, source.name, since, until, _JOBS_AT_ONCE
            )
        try:
            for jobs in list(_group_by_submission(missing).values())[:_CALLS_AT_ONCE]:
                if stop.is_set():
                    return True
                text = source.script(next(iter(jobs.values())))
                with self._store.transaction() as db:
                    scripts.store(db, list(jobs), text, source.script_bytes)
                self._on_progress()
        except SchedulerError as error:
            self._writer.record_failure(key, str(error))
            return False
        self._writer.record_success(key)
        return True


def _group_by_submission(
    found: Sequence[tuple[int, SubmittedJob]],
) -> Mapping[object, Mapping[int, SubmittedJob]]:
    """Jobs by submission: the tasks of an array, and the parts of a het job, share a script."""
    groups: dict[object, dict[int, SubmittedJob]] = {}
    for number, job in found:
        submission = (job.array_jobid or job.het_jobid or job.jobid, job.submit_time)
        groups.setdefault(submission, {})[number] = job
    return groups
