"""Families of all jobs, metric by metric, as the text formats demand."""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain, compress, count
from operator import is_not, itemgetter
from typing import Any

from collectors.jobs.metrics import JOBS, JobMetric, JobRow
from collectors.jobs.reading import FLAT_FIELDS, JobReading
from collectors.metric import JoinedLabels, Labels, MetricFamily, Sample, labels

_Shown = Sample | tuple[Sample, ...] | None  # what a row shows of one job


class JobFamilies:
    """Makes families of readings. For one thread at a time.

    A job's numbers are picked and compared with those before in a few calls. What did not change
    is given again: in the same sample, and a metric of which no job has news in the same list.
    """

    def __init__(self, table: Sequence[JobMetric], created: bool = False) -> None:
        """`created`: say of each counter when its job began."""
        self._created = created
        self._rows: list[JobRow] = [row for entry in table for row in entry.rows]
        self._pick = itemgetter(*(FLAT_FIELDS.index(row.field) for row in self._rows))
        self._given: dict[Labels, _Given] = {}  # by the job's labels
        self._running: list[_Given] = []
        self._changed: set[int] = set()  # places of which some job has news
        at, self._columns = 0, []
        for entry in table:
            self._columns.append(_Columns(entry, range(at, at + len(entry.rows))))
            at += len(entry.rows)

    def of(self, readings: Sequence[JobReading]) -> list[MetricFamily]:
        """The families of these jobs, no two of which have the same labels."""
        before, were_running = self._given, self._running
        self._given = {
            reading.labels: before.get(reading.labels) or _Given(reading.labels, len(self._rows))
            for reading in readings
        }
        all_given = list(self._given.values())
        changed = self._changed
        running = [reading for reading in readings if reading.ended_at is None]
        self._running = [self._given[reading.labels] for reading in running]
        if list(before.values()) != all_given or were_running != self._running:
            changed.update(range(len(self._rows)))
        for reading, given in zip(readings, all_given, strict=True):
            changed.update(given.update(self._rows, self._pick(reading.flat())))
        families = [
            columns.family(all_given if columns.lasting else self._running, changed)
            for columns in self._columns
        ]
        self._changed = set()
        if self._created:
            began = {reading.labels: reading.started_at for reading in readings}
            families = [
                columns.with_creation(family, all_given, began)
                for columns, family in zip(self._columns, families, strict=True)
            ]
        made = [family for family in families if family.samples]
        return [*made[:1], _count(running), *made[1:]]


class _Columns:
    """A metric's rows: what they show of all jobs, kept until some job has news."""

    def __init__(self, entry: JobMetric, places: range) -> None:
        self.lasting = entry.lasting
        self._rows = list(zip(entry.rows, places, strict=True))
        self._places = frozenset(places)
        self._family = MetricFamily(entry.metric, (), distinct=True)

    def family(self, jobs: Sequence["_Given"], changed: set[int]) -> MetricFamily:
        """The metric's family, of which `changed` says where there is something new."""
        if not self._places.isdisjoint(changed):
            shown = (row.together([job.shown[at] for job in jobs]) for row, at in self._rows)
            self._family = self._family._replace(samples=list(chain.from_iterable(shown)))
        return self._family

    def with_creation(
        self, family: MetricFamily, jobs: Sequence["_Given"], began: Mapping[Labels, float | None]
    ) -> MetricFamily:
        """The family of a counter with the time at which each sample was 0: the job's start."""
        if family.metric.type != "counter":
            return family
        created: dict[Labels, float] = {}
        for job in jobs:
            at_zero = began[job.labels]
            if at_zero is not None:
                for row, place in self._rows:
                    for of, _ in row.together([job.shown[place]]):
                        created[of] = at_zero
        return family._replace(created=created)


class _Given:
    """What was last shown of one job, row by row."""

    __slots__ = ("_labels", "_numbers", "labels", "shown")

    def __init__(self, own: Labels, rows: int) -> None:
        self.labels = own
        self._labels = JoinedLabels(own)
        self._numbers: tuple[Any, ...] = (None,) * rows
        self.shown: list[_Shown] = [None] * rows

    def update(self, rows: Sequence[JobRow], numbers: tuple[Any, ...]) -> list[int]:
        """Show these numbers; at which places they are new."""
        before = self._numbers
        changed = [
            at
            for at in compress(count(), map(is_not, numbers, before))
            if numbers[at] != before[at]
        ]
        for at in changed:
            self.shown[at] = rows[at].shown(numbers[at], self._labels)
        self._numbers = numbers
        return changed


def _count(running: Sequence[JobReading]) -> MetricFamily:
    counts = Counter(reading.manager for reading in running)
    return MetricFamily(JOBS, [(labels(manager=m), number) for m, number in sorted(counts.items())])
