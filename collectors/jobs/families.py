"""Families of all jobs, metric by metric, as the text formats demand."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain, compress, count
from operator import is_not
from typing import Any, NamedTuple

from batchjob.quantities.quantity import Quantity
from batchjob.quantities.reading import JobReading
from collectors.jobs.metrics import INFO, JOBS, by_metric
from collectors.jobs.state.job_identity import JobIdentity
from collectors.metric import JoinedLabels, Labels, Metric, MetricFamily, Sample, exported, labels

IdentifiedReading = tuple[JobIdentity, JobReading]
_Shown = Sample | tuple[Sample, ...] | None  # what is shown of one number of one job


class JobFamilies:
    """Makes families of readings. For one thread at a time.

    A job's numbers are compared with those before. What did not change is given again: in the same
    sample, and a metric of which no job has news in the same list.
    """

    def __init__(self, quantities: Sequence[Quantity], created: bool = False) -> None:
        """`created`: say of each counter when its job began."""
        self._created = created
        self._reads = [quantity.read for quantity in quantities if quantity.read]
        self._rows = [_INFO_SHOWN, *map(_shown_quantity, quantities)]
        self._given: dict[Labels, _Given] = {}  # by the job's labels
        self._running: list[_Given] = []
        self._changed: set[int] = set()  # places of which some job has news
        self._columns = [_Columns(INFO, True, [(_INFO_SHOWN, 0)])]
        rows = zip(self._rows, count(), strict=False)
        next(rows)
        for metric, group in by_metric(quantities):
            own = [next(rows) for _ in group]
            self._columns.append(_Columns(exported(metric), metric.outlives_job, own))

    def of(self, readings: Sequence[IdentifiedReading]) -> list[MetricFamily]:
        """The families of these jobs, no two of which have the same labels."""
        before, were_running = self._given, self._running
        self._given = {
            identity.name.labels: before.get(identity.name.labels)
            or _Given(identity.name.labels, len(self._rows))
            for identity, _ in readings
        }
        all_given = list(self._given.values())
        changed = self._changed
        running = [identity for identity, reading in readings if reading.ended_at is None]
        self._running = [self._given[identity.name.labels] for identity in running]
        if list(before.values()) != all_given or were_running != self._running:
            changed.update(range(len(self._rows)))
        for (identity, reading), given in zip(readings, all_given, strict=True):
            numbers = (identity.info, *[read(reading) for read in self._reads])
            changed.update(given.update(self._rows, numbers))
        families = [
            columns.family(all_given if columns.lasting else self._running, changed)
            for columns in self._columns
        ]
        self._changed = set()
        if self._created:
            began = {identity.name.labels: reading.started_at for identity, reading in readings}
            families = [
                columns.with_creation(family, all_given, began)
                for columns, family in zip(self._columns, families, strict=True)
            ]
        made = [family for family in families if family.samples]
        return [*made[:1], _count(running), *made[1:]]


class ShownQuantity(NamedTuple):
    """How a number of a job is shown: in a sample, or, of a mapping, in several."""

    show: Callable[[Any, JoinedLabels], _Shown]
    several: bool = False

    def together(self, column: Iterable[Any]) -> Iterable[Sample]:
        """The samples of all jobs, from what is shown of each."""
        shown = filter(None, column)
        return chain.from_iterable(shown) if self.several else shown


_INFO_SHOWN = ShownQuantity(lambda info, of_job: (of_job[info], 1))


def _shown_quantity(quantity: Quantity) -> ShownQuantity:
    if quantity.group is None:
        text = labels(**dict(quantity.labels))
        return ShownQuantity(
            lambda number, of_job: None if number is None else (of_job[text], number)
        )
    (label,), of_each = quantity.group.labels, quantity.of_each
    return ShownQuantity(
        lambda several, of_job: tuple(
            (of_job[labels(**{label: name})], of_each(value))
            for name, value in (several or {}).items()
        ),
        several=True,
    )


class _Columns:
    """A metric's rows: what they show of all jobs, kept until some job has news."""

    def __init__(
        self, metric: Metric, lasting: bool, rows: list[tuple[ShownQuantity, int]]
    ) -> None:
        self.lasting = lasting
        self._rows = rows
        self._places = frozenset(place for _, place in rows)
        self._family = MetricFamily(metric, (), distinct=True)

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

    def update(self, rows: Sequence[ShownQuantity], numbers: tuple[Any, ...]) -> list[int]:
        """Show these numbers; at which places they are new."""
        before = self._numbers
        changed = [
            at
            for at in compress(count(), map(is_not, numbers, before))
            if numbers[at] != before[at]
        ]
        for at in changed:
            self.shown[at] = rows[at].show(numbers[at], self._labels)
        self._numbers = numbers
        return changed


def _count(running: Sequence[JobIdentity]) -> MetricFamily:
    counts = Counter(identity.name.manager for identity in running)
    return MetricFamily(JOBS, [(labels(manager=m), number) for m, number in sorted(counts.items())])
