"""Families of all jobs, metric by metric, as the text formats demand."""

from collections import Counter
from collections.abc import Sequence
from itertools import chain, compress, count
from operator import is_not, itemgetter
from typing import Any

from collectors.jobs.metrics import JOBS, JobMetric, JobRow
from collectors.jobs.reading import FLAT_FIELDS, JobReading
from collectors.metric import Family, JoinedLabels, Labels, Sample, labels

_Shown = Sample | tuple[Sample, ...] | None  # what a row shows of one job


class JobFamilies:
    """Makes families of readings. For one thread at a time.

    A job's numbers are picked and compared with those before in a few calls; what did not change
    is given again in the same samples.
    """

    def __init__(self, table: Sequence[JobMetric]) -> None:
        self._table = table
        self._rows: list[JobRow] = [row for entry in table for row in entry.rows]
        self._pick = itemgetter(*(FLAT_FIELDS.index(row.field) for row in self._rows))
        self._given: dict[Labels, _Given] = {}  # by the job's labels

    def of(self, readings: Sequence[JobReading]) -> list[Family]:
        """The families of these jobs, no two of which have the same labels."""
        before = self._given
        self._given = {
            reading.labels: before.get(reading.labels) or _Given(reading.labels, len(self._rows))
            for reading in readings
        }
        running = [reading for reading in readings if reading.ended_at is None]
        of_running = self._columns(running)
        of_all = of_running if len(running) == len(readings) else self._columns(readings)
        made, at = [], 0
        for entry in self._table:
            columns = (of_all if entry.lasting else of_running)[at : at + len(entry.rows)]
            at += len(entry.rows)
            samples = list(
                chain.from_iterable(
                    row.together(column) for row, column in zip(entry.rows, columns, strict=False)
                )
            )
            if samples:
                made.append(Family(entry.metric, samples, distinct=True))
        return [*made[:1], _count(running), *made[1:]]

    def _columns(self, readings: Sequence[JobReading]) -> list[tuple[_Shown, ...]]:
        """For each row of the table what it shows of each job; nothing without jobs."""
        given = [
            self._given[reading.labels].update(self._rows, self._pick(reading.flat()))
            for reading in readings
        ]
        return list(zip(*given, strict=True))


class _Given:
    """What was last shown of one job, row by row."""

    def __init__(self, own: Labels, rows: int) -> None:
        self._labels = JoinedLabels(own)
        self._numbers: tuple[Any, ...] = (None,) * rows
        self._shown: list[_Shown] = [None] * rows

    def update(self, rows: Sequence[JobRow], numbers: tuple[Any, ...]) -> list[_Shown]:
        """What shows these numbers."""
        before = self._numbers
        for at in compress(count(), map(is_not, numbers, before)):
            if numbers[at] != before[at]:
                self._shown[at] = rows[at].shown(numbers[at], self._labels)
        self._numbers = numbers
        return self._shown


def _count(running: Sequence[JobReading]) -> Family:
    counts = Counter(reading.manager for reading in running)
    return Family(JOBS, [(labels(manager=m), number) for m, number in sorted(counts.items())])
