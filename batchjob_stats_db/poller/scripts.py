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
_BACK_SECONDS = 2 * DAY  # jobs that started earlier have none, or scripts were not kept at the time

# slurmctld sends the script after the job record, in a separate message (DBD_JOB_HEAVY): between
# the two, a query finds no script.
_SETTLE_SECONDS = 60


class ScriptReading:
    """Reads the scripts from one cluster's sources."""

    def __init__(
        self,
        sources: Sequence[AccountingSource],
        store: Store,
        writer: BatchWriter,
        clock: Callable[[], float],
        live: Callable[[], None],
    ) -> None:
        """`live` is called after each script, as a sign of life."""
        self._sources = sources
        self._store = store
        self._writer = writer
        self._clock = clock
        self._live = live

    def some(self, stop: threading.Event) -> bool:
        """Request some missing scripts, the newest jobs' first; returns whether all succeeded."""
        outcomes = [self._some_of(source, stop) for source in self._sources]
        return all(outcomes)

    def _some_of(self, source: AccountingSource, stop: threading.Event) -> bool:
        if not isinstance(source, ScriptSource) or not source.script_bytes:
            return True
        key = f"{source.name}.scripts"
        now = int(self._clock())
        since, known = now - _BACK_SECONDS, now - _SETTLE_SECONDS
        with self._store.engine.connect() as db:
            found = scripts.without(
                db, self._store.cluster, source.name, since, known, _JOBS_AT_ONCE
            )
        try:
            for jobs in list(_sharing(found).values())[:_CALLS_AT_ONCE]:
                if stop.is_set():
                    return True
                text = source.script(next(iter(jobs.values())))
                with self._store.transaction() as db:
                    scripts.keep(db, list(jobs), text, source.script_bytes)
                self._live()
        except SchedulerError as error:
            self._writer.failed(key, str(error))
            return False
        self._writer.succeeded(key)
        return True


def _sharing(
    found: Sequence[tuple[int, SubmittedJob]],
) -> Mapping[object, Mapping[int, SubmittedJob]]:
    """Jobs by submission: the tasks of an array, and the parts of a het job, share a script."""
    groups: dict[object, dict[int, SubmittedJob]] = {}
    for number, job in found:
        submission = (job.array_jobid or job.het_jobid or job.jobid, job.submit_time)
        groups.setdefault(submission, {})[number] = job
    return groups
