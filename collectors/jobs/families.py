"""Families of all jobs, metric by metric, as the text formats demand."""

from collections import Counter
from collections.abc import Sequence
from itertools import chain
from typing import Any

from collectors.jobs.metrics import (
    JOBS,
    InfoRow,
    JobLabels,
    JobMetric,
    JobReading,
    Row,
    Rows,
    Sample,
)
from collectors.metric import Family, Labels, labels

_Samples = tuple[Sample, ...]


class JobFamilies:
    """Makes families of readings. For one thread at a time."""

    def __init__(self, table: Sequence[JobMetric]) -> None:
        self._table = table
        self._rows = [row for entry in table for row in entry.rows]
        self._given: dict[Labels, _Given] = {}  # by the job's labels

    def of(self, readings: Sequence[JobReading]) -> list[Family]:
        """The families of these jobs, whose labels differ."""
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
            samples = list(chain.from_iterable(chain.from_iterable(columns)))
            if samples:
                made.append(Family(entry.metric, samples))
        return [*made[:1], _count(running), *made[1:]]

    def _columns(self, readings: Sequence[JobReading]) -> list[tuple[_Samples, ...]]:
        """For each row of the table the samples of each job."""
        given = [self._given[each.labels].update(self._rows, each) for each in readings]
        return list(zip(*given, strict=True))


class _Given:
    """The samples last given of one job, row by row: what did not change is given again."""

    def __init__(self, own: Labels, rows: int) -> None:
        self._labels = JobLabels(own)
        self._reading: JobReading | None = None
        self._values: list[Any] = [None] * rows
        self._samples: list[_Samples] = [()] * rows

    def update(self, rows: Sequence[Row | Rows | InfoRow], reading: JobReading) -> list[_Samples]:
        """The samples of this reading."""
        if reading != self._reading:
            self._reading = reading
            values = self._values
            for at, row in enumerate(rows):
                value: Any = row.value(reading)
                if value != values[at]:
                    values[at] = value
                    self._samples[at] = row.samples(value, self._labels)
        return self._samples


def _count(running: Sequence[JobReading]) -> Family:
    counts = Counter(reading.manager for reading in running)
    return Family(JOBS, [(labels(manager=m), number) for m, number in sorted(counts.items())])
