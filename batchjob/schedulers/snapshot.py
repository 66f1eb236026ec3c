"""Sources whose scheduler always lists all jobs that it knows."""

import json
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from batchjob.schedulers.accounting import (
    Batch,
    Unfinished,
    epoch_watermark,
    missing,
    own,
    vanished,
)
from batchjob.schedulers.fields import FieldReader, RowError, quarantined
from batchjob.schedulers.records import JobRecord, Quarantined, folded

_BATCH = 2000  # records per batch


class SnapshotOptions(Protocol):
    """The options that all these sources have."""

    @property
    def history(self) -> float:
        """How long the scheduler keeps ended jobs, in seconds."""

    @property
    def trust_missing(self) -> bool:
        """Whether most unfinished jobs may be missing."""


class SnapshotJob(NamedTuple):
    """A job as the scheduler lists it."""

    jobid: str
    row: FieldReader
    told: object  # kept if the job cannot be read


class SnapshotSource(ABC):
    """Reads all jobs in each cycle."""

    name: str
    form: re.Pattern[str]  # matches the scheduler's job ids

    def __init__(
        self, cluster: str, options: SnapshotOptions, clock: Callable[[], float] = time.time
    ) -> None:
        self.cluster = cluster
        self._history_seconds = options.history
        self._trust_missing = options.trust_missing
        self._clock = clock

    @abstractmethod
    def ask(self) -> Iterable[SnapshotJob]:
        """All jobs of the scheduler; raises SchedulerError."""

    @abstractmethod
    def records(
        self, job: SnapshotJob, unfinished: Mapping[str, Unfinished], now: int
    ) -> Iterable[JobRecord]:
        """The runs of a job that are known from it; raises RowError."""

    def watermark_at(self, since: int) -> str:
        """Everything is read, whatever the watermark."""
        return str(since)

    def read(self, watermark: str, unfinished: Mapping[str, Unfinished]) -> Iterator[Batch]:
        """See AccountingSource."""
        now = int(self._clock())
        unfinished = own(unfinished, self.form)
        records: list[JobRecord] = []
        bad: list[Quarantined] = []
        for job in self.ask():
            try:
                records += self.records(job, unfinished, now)
            except RowError as error:
                bad.append(quarantined(self.name, str(error), json.dumps(job.told)))
                continue
            if job.row.complaints:
                reason = "; ".join(job.row.complaints)
                bad.append(quarantined(self.name, reason, json.dumps(job.told)))
        gone = self._gone(records, watermark, unfinished, now)
        for at in range(0, len(records), _BATCH):
            yield Batch(folded(records[at : at + _BATCH]), (), watermark, now)
        yield Batch((), tuple(bad), str(now), now, gone)

    def _gone(
        self,
        records: Sequence[JobRecord],
        watermark: str,
        unfinished: Mapping[str, Unfinished],
        now: int,
    ) -> tuple[str, ...]:
        """Unfinished jobs that the scheduler knows no more; raises ShrunkenError.

        If the last reading is longer ago than the scheduler keeps ended jobs, all unfinished jobs
        may be missing because they have ended.
        """
        known = {(record.jobid, record.submit_time) for record in records}
        forgotten = now - epoch_watermark(self.name, watermark) > self._history_seconds
        return vanished(
            self.name,
            missing(unfinished, known),
            unfinished,
            nothing_seen=not known,
            trust=self._trust_missing or forgotten,
        )
