"""Sources whose scheduler always lists all jobs that it knows."""

import json
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from batchjob.runtime.settings import option
from batchjob.runtime.subprocesses import CommandOptions
from batchjob.runtime.values import duration
from batchjob.schedulers.accounting import (
    Batch,
    UnfinishedJob,
    check_vanished,
    missing_jobids,
    parse_epoch_watermark,
    with_jobids_like,
)
from batchjob.schedulers.fields import FieldReader, quarantined_row, row_problem
from batchjob.schedulers.reallocation import with_seen_change
from batchjob.schedulers.records import JobRecord, QuarantinedRow, merge_by_key

_BATCH = 2000  # records per batch


@dataclass(frozen=True)
class SnapshotOptions(CommandOptions):
    history: float = option(0.0, "How long the scheduler remembers ended jobs.", parse=duration)
    trust_missing: bool = option(
        False, "Accept an answer in which most unfinished jobs are missing."
    )


class SnapshotSource(ABC):
    name: str
    jobid_pattern: re.Pattern[str]  # matches the scheduler's job ids

    def __init__(
        self, cluster: str, options: SnapshotOptions, clock: Callable[[], float] = time.time
    ) -> None:
        self.cluster = cluster
        self._options: Any = options
        self._history_seconds = options.history
        self._trust_missing = options.trust_missing
        self._clock = clock

    @abstractmethod
    def query_jobs(self) -> Iterable[tuple[str, FieldReader]]:
        """The ids of all jobs of the scheduler, and what it says of each; raises SchedulerError."""

    @abstractmethod
    def records(
        self, jobid: str, row: FieldReader, unfinished: Mapping[str, UnfinishedJob], now: int
    ) -> Iterable[JobRecord]:
        """Records of the runs of a job; raises RowError."""

    def watermark_at(self, since: int) -> str:
        """Everything is read, whatever the watermark."""
        return str(since)

    def read(self, watermark: str, unfinished: Mapping[str, UnfinishedJob]) -> Iterator[Batch]:
        """See AccountingSource; raises SourceError as well."""
        now = int(self._clock())
        unfinished = with_jobids_like(unfinished, self.jobid_pattern)
        records: list[JobRecord] = []
        quarantine: list[QuarantinedRow] = []
        unreadable: set[str] = set()  # jobs that are listed, and stay as they were
        for jobid, row in self.query_jobs():
            raw, problems = row.values, row.parse_errors
            try:
                found = self.records(jobid, row, unfinished, now)
                records += [
                    with_seen_change(each, unfinished.get(each.jobid), now) for each in found
                ]
            except Exception as error:
                problems = [row_problem(error)]
                unreadable.add(jobid)
            if problems:
                quarantine.append(
                    quarantined_row(self.name, "; ".join(problems), json.dumps(raw), jobid)
                )
        missing = {jobid: job for jobid, job in unfinished.items() if jobid not in unreadable}
        listed = {(record.jobid, record.submit_time) for record in records}
        # If the last reading is longer ago than the scheduler keeps ended jobs, all unfinished jobs
        # may be missing because they have ended.
        history_exceeded = now - parse_epoch_watermark(self.name, watermark) > self._history_seconds
        gone = check_vanished(
            self.name,
            missing_jobids(missing, listed),
            missing,
            nothing_seen=not listed,
            trust_missing=self._trust_missing or history_exceeded,
        )
        for at in range(0, len(records), _BATCH):
            yield Batch(merge_by_key(records[at : at + _BATCH]), (), watermark, now)
        yield Batch((), tuple(quarantine), str(now), now, gone)
