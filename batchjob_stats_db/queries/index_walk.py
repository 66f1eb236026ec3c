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
from batchjob_stats_db.database.access import Access, visibility_terms
from batchjob_stats_db.queries.filters import (
    Filter,
    clusters_to_query,
    index_conditions,
    row_conditions,
)
from batchjob_stats_db.queries.statements import cached_by_access

MOST_READ = 100_000  # maximum rows read for one page

Value = int | float | str | None

_NODE_JOBS = schema.job_node.join(schema.job, schema.job_node.c.job_id == schema.job.c.id)


class After(NamedTuple):
    """The end of a page: the value of its last job and the job; the next page follows it."""

    value: Value
    id: int
    part: str = ""  # the part of the list, if it has several


class IdPage(NamedTuple):
    """Ids of rows of `job`, and where the next page begins; None: this was the last page."""

    ids: list[int]
    more: After | None


_TIME_PARAMETERS: Mapping[str, Any] = {
    name: sa.bindparam(name, type_=sa.BigInteger)
    for name in ("started_from", "started_before", "ended_from", "ended_before")
}
"""Parameters for a filter's times, which differ in each request: the statement stays the same."""

_Position = tuple[Any, ...]  # (time, id), or (id,) for jobs without that time


class IndexWalk(NamedTuple):
    """Walks an index whose last columns are a time and the id of the job."""

    sort_columns: tuple[ColumnElement[Any], ColumnElement[Any]]
    which: Filter
    descending: bool
    has_time: bool  # False: walk the jobs without this time
    started_only: bool = True  # in an index by end time: only jobs that started
    not_pending: bool = False  # of the jobs without a start time: not those that still wait

    def find_ids(self, db: Connection, access: Access, limit: int, after: After | None) -> IdPage:
        """A page of ids."""
        clusters = tuple(clusters_to_query(db, self.which.cluster))
        times = {
            name: at for name in _TIME_PARAMETERS if (at := getattr(self.which, name)) is not None
        }
        walk = self._replace(
            which=self.which._replace(**{name: _TIME_PARAMETERS[name] for name in times})
        )
        positions: list[_Position] = []
        end: _Position | None = None
        for scan_length in _scan_lengths() if row_conditions(self.which) else [None]:
            end = (
                None if scan_length is None else self._end(db, access, clusters, after, scan_length)
            )
            queries = _queries(access, walk, clusters, after, end, limit + 1 - len(positions))
            found = {tuple(row) for query in queries for row in db.execute(query, times).all()}
            positions += sorted(found, reverse=self.descending)
            if len(positions) > limit or end is None:
                break
            after = self._after(end)
        if len(positions) > limit:
            positions, end = positions[:limit], positions[limit - 1]
        ids = [job_id for *_, job_id in positions]
        return IdPage(ids, None if end is None else self._after(end))

    def _ranges(
        self, access: Access, clusters: Sequence[str]
    ) -> Iterator[Sequence[ColumnElement[bool]]]:
        """A query for each range: no database finds the newest of several ranges at once."""
        for cluster in clusters:
            conditions = index_conditions(self.which._replace(cluster=cluster), self._start())
            yield from ([term, *conditions] for term in visibility_terms(access, cluster=cluster))

    def queries(
        self, access: Access, clusters: tuple[str, ...], after: After | None, end: _Position | None,
        most: int,
    ) -> Sequence[sa.Select[Any]]:  # fmt: skip
        """Queries for the first matching positions after `after`, up to `end`."""
        conditions = row_conditions(self.which)
        query = (
            sa.select(*self._position_columns())
            .select_from(
                self._tables().outerjoin(schema.job_usage) if conditions else self._tables()
            )
            .where(
                *conditions,
                *self._after_conditions(after),
                *self._started_conditions(),
                *self._not_pending_conditions(),
            )
            .order_by(*self._order())
            .limit(most)
        )
        if end is not None:
            at, last = sa.tuple_(*self._position_columns()), sa.tuple_(*end)
            query = query.where(at >= last if self.descending else at <= last)
        return [query.where(*each) for each in self._ranges(access, clusters)]

    def _started_conditions(self) -> list[ColumnElement[bool]]:
        """In the index by end time, there are also jobs that ended without having started."""
        return [self._start().is_not(None)] if self.has_time and self.started_only else []

    def _not_pending_conditions(self) -> list[ColumnElement[bool]]:
        job = schema.job.c
        return [job.end_time.is_not(None) | (job.state != "PENDING")] if self.not_pending else []

    def _start(self) -> ColumnElement[Any]:
        return self.sort_columns[0] if self.which.node is not None else schema.job.c.start_time

    def _tables(self) -> Any:
        return schema.job if self.which.node is None else _NODE_JOBS

    def _position_columns(self) -> Sequence[ColumnElement[Any]]:
        """For jobs without the time, the id alone, since NULLs cannot be compared."""
        return self.sort_columns if self.has_time else self.sort_columns[1:]

    def _order(self) -> list[ColumnElement[Any]]:
        return [each.desc() if self.descending else each.asc() for each in self.sort_columns]

    def _after_conditions(self, after: After | None) -> list[ColumnElement[bool]]:
        time = self.sort_columns[0]
        known = time.is_not(None) if self.has_time else time.is_(None)
        if after is None:
            return [known]
        at = sa.tuple_(*self._position_columns())
        end = sa.tuple_(*(after[:2] if self.has_time else after[1:2]))
        return [known, at < end if self.descending else at > end]

    def _end(
        self, db: Connection, access: Access, clusters: tuple[str, ...], after: After | None,
        scan_length: int,
    ) -> _Position | None:  # fmt: skip
        """The nearest position this many rows on in any range; None: all ranges end before."""
        queries = _ends(access, self, clusters, after, scan_length)
        ends = [tuple(row) for query in queries for row in db.execute(query)]
        nearest = max if self.descending else min
        return nearest(ends) if ends else None

    def ends(
        self, access: Access, clusters: tuple[str, ...], after: After | None, scan_length: int
    ) -> Sequence[sa.Select[Any]]:
        """Queries for the position this many rows after `after` in each range."""
        query = (
            sa.select(*self._position_columns())
            .select_from(self._tables())
            .where(*self._after_conditions(after))
            .order_by(*self._order())
            .limit(1)
            .offset(scan_length)
        )
        return [query.where(*each) for each in self._ranges(access, clusters)]

    def _after(self, position: _Position) -> After:
        return After(*(position if self.has_time else (None, *position)))


@cached_by_access
def _queries(access: Access, walk: IndexWalk, *beyond: Any) -> Sequence[sa.Select[Any]]:
    return walk.queries(access, *beyond)


@cached_by_access
def _ends(access: Access, walk: IndexWalk, *beyond: Any) -> Sequence[sa.Select[Any]]:
    return walk.ends(access, *beyond)


def _scan_lengths() -> tuple[int, ...]:
    """How many rows to scan for matching ones: few at first, since they are usually near.

    Walking an index as far as permitted costs more than reading a page of frequent jobs.
    """
    return MOST_READ // 50, MOST_READ * 9 // 50, MOST_READ * 4 // 5
