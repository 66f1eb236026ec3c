"""Pages of jobs along an index, each as fast as the first.

A page reads its own rows, and those that a filter without an index skips, up to a maximum; a page
that was cut short by the maximum continues like a full one.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.sql.elements import ColumnElement

from batchjob_stats_db.database import schema
from batchjob_stats_db.database.access import Access, terms
from batchjob_stats_db.queries.filters import Filter, found_by, known_clusters, looked_at
from batchjob_stats_db.queries.statements import remembered

MOST_READ = 100_000  # maximum rows read for one page

Value = int | float | str | None

_OF_NODE = schema.job_node.join(schema.job, schema.job_node.c.job_id == schema.job.c.id)


class After(NamedTuple):
    """The end of a page: the value of its last job and the job; the next page follows it."""

    value: Value
    id: int
    part: str = ""  # the part of the list, if it has several


class Numbers(NamedTuple):
    """Numbers of jobs, and where the next page begins; None: this was the last page."""

    ids: list[int]
    more: After | None


_TIMES: Mapping[str, Any] = {
    name: sa.bindparam(name, type_=sa.BigInteger)
    for name in ("started_from", "started_before", "ended_from", "ended_before")
}
"""Parameters in place of a filter's times, which differ at each look, for one statement of all."""

_Place = tuple[Any, ...]  # (time, job id), or (job id,) for jobs without that time


class IndexWalk(NamedTuple):
    """Walks an index whose last columns are the time and the number of the job."""

    place: tuple[ColumnElement[Any], ColumnElement[Any]]
    which: Filter
    descending: bool
    known: bool  # whether the time is known; if not, walk the jobs without one
    begun: bool = True  # in an index by end time: only jobs that started
    ended: bool = False  # of the jobs without a start time: only those that are no longer pending

    def numbers(self, db: Connection, access: Access, limit: int, after: After | None) -> Numbers:
        """A page of numbers."""
        clusters = tuple(known_clusters(db, self.which.cluster))
        times = {name: at for name in _TIMES if (at := getattr(self.which, name)) is not None}
        walk = self._replace(which=self.which._replace(**{name: _TIMES[name] for name in times}))
        places: list[_Place] = []
        end: _Place | None = None
        for reach in _reaches() if looked_at(self.which) else [None]:
            end = None if reach is None else self._end(db, access, clusters, after, reach)
            queries = _queries(access, walk, clusters, after, end, limit + 1 - len(places))
            found = {tuple(row) for query in queries for row in db.execute(query, times).all()}
            places += sorted(found, reverse=self.descending)
            if len(places) > limit or end is None:
                break
            after = self._after(end)
        if len(places) > limit:
            places, end = places[:limit], places[limit - 1]
        ids = [number for *_, number in places]
        return Numbers(ids, None if end is None else self._after(end))

    def _ranges(
        self, access: Access, clusters: Sequence[str]
    ) -> Iterator[Sequence[ColumnElement[bool]]]:
        """A query for each range: no database finds the newest of several ranges at once."""
        for cluster in clusters:
            found = found_by(self.which._replace(cluster=cluster), self._start())
            yield from ([term, *found] for term in terms(access, cluster=cluster))

    def queries(
        self, access: Access, clusters: tuple[str, ...], after: After | None, end: _Place | None,
        most: int,
    ) -> Sequence[sa.Select[Any]]:  # fmt: skip
        """Queries for the first matching places after `after`, up to `end`."""
        others = looked_at(self.which)
        query = (
            sa.select(*self._place())
            .select_from(self._tables().outerjoin(schema.job_usage) if others else self._tables())
            .where(*others, *self._beyond(after), *self._begun(), *self._waits_no_more())
            .order_by(*self._order())
            .limit(most)
        )
        if end is not None:
            at, last = sa.tuple_(*self._place()), sa.tuple_(*end)
            query = query.where(at >= last if self.descending else at <= last)
        return [query.where(*each) for each in self._ranges(access, clusters)]

    def _begun(self) -> list[ColumnElement[bool]]:
        """In the index by end time, there are also jobs that ended without having started."""
        return [self._start().is_not(None)] if self.known and self.begun else []

    def _waits_no_more(self) -> list[ColumnElement[bool]]:
        job = schema.job.c
        return [job.end_time.is_not(None) | (job.state != "PENDING")] if self.ended else []

    def _start(self) -> ColumnElement[Any]:
        return self.place[0] if self.which.node is not None else schema.job.c.start_time

    def _tables(self) -> Any:
        return schema.job if self.which.node is None else _OF_NODE

    def _place(self) -> Sequence[ColumnElement[Any]]:
        """Without times, it is the number alone: no NULL is less than another."""
        return self.place if self.known else self.place[1:]

    def _order(self) -> list[ColumnElement[Any]]:
        return [each.desc() if self.descending else each.asc() for each in self.place]

    def _beyond(self, after: After | None) -> list[ColumnElement[bool]]:
        known = self.place[0].is_not(None) if self.known else self.place[0].is_(None)
        if after is None:
            return [known]
        at, end = sa.tuple_(*self._place()), sa.tuple_(*(after[:2] if self.known else after[1:2]))
        return [known, at < end if self.descending else at > end]

    def _end(
        self, db: Connection, access: Access, clusters: tuple[str, ...], after: After | None,
        reach: int,
    ) -> _Place | None:  # fmt: skip
        """The place this many rows on, in the nearest range; None: all ranges end before."""
        queries = _ends(access, self, clusters, after, reach)
        ends = [tuple(row) for query in queries for row in db.execute(query)]
        nearest = max if self.descending else min
        return nearest(ends) if ends else None

    def ends(
        self, access: Access, clusters: tuple[str, ...], after: After | None, reach: int
    ) -> Sequence[sa.Select[Any]]:
        """Queries for the place this many rows after `after` in each range."""
        query = (
            sa.select(*self._place())
            .select_from(self._tables())
            .where(*self._beyond(after))
            .order_by(*self._order())
            .limit(1)
            .offset(reach)
        )
        return [query.where(*each) for each in self._ranges(access, clusters)]

    def _after(self, place: _Place) -> After:
        return After(*(place if self.known else (None, *place)))


@remembered
def _queries(access: Access, walk: IndexWalk, *beyond: Any) -> Sequence[sa.Select[Any]]:
    return walk.queries(access, *beyond)


@remembered
def _ends(access: Access, walk: IndexWalk, *beyond: Any) -> Sequence[sa.Select[Any]]:
    return walk.ends(access, *beyond)


def _reaches() -> tuple[int, ...]:
    """How far to look for matching rows, starting near: most often they are there.

    To walk an index as far as permitted costs more than to read a page of frequent jobs.
    """
    return MOST_READ // 50, MOST_READ * 9 // 50, MOST_READ * 4 // 5
