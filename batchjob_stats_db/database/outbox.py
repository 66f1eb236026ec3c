"""The messages that are to be sent, and those that were: each at most once for its cause.

A row is written in the transaction of what it tells. Before it is sent it belongs to a batch, which
becomes one message: alone, or as one of many in a summary. A sender claims a batch by a lease, and
notes in the end what became of it. After a kill, a batch is sent again under the same identity.
"""

from collections import Counter
from collections.abc import Collection, Iterable
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from batchjob.judgements import FAILED_STATES
from batchjob.schedulers.records import JobRecord
from batchjob_stats_db.database import schema, subscriptions
from batchjob_stats_db.database.subscriptions import MessageEvent, Offer, Recipient, Wish
from batchjob_stats_db.database.upsert import make_storable, write_rows

_table = schema.outbox
_row, _job = _table.c, schema.job.c
WAITING, SENT, FAILED, DROPPED = "waiting", "sent", "failed", "dropped"
FINAL_SECONDS = 900
"""How long after a job's end a message waits for final figures."""
_ENDS = (MessageEvent.END, MessageEvent.FAILURE)
_SUMMARY_SECONDS = 3600  # from one summary to the next
_FIRST_RETRY_SECONDS, _LAST_RETRY_SECONDS = 30, 3600
_KEPT_SECONDS = {True: 2 * 86400, False: 35 * 86400}  # after an end, and of what may recur


class Told(NamedTuple):
    """Something that happened to one job, or to none."""

    event: MessageEvent
    user: str
    job_id: int | None
    jobid: str
    cause: str
    due_time: int
    detail: str = ""
    account: str = ""
    threshold: int = 0


def told_of_records(
    ids: Iterable[tuple[int, JobRecord]], since: int, oldest: int, now: int
) -> list[Told]:
    """What to tell of jobs that began or ended since the last poll, but not long ago."""
    told = []
    for job_id, job in ids:
        at = job.start_time if job.end_time is None else job.end_time
        if at is None or job.tool or at < max(since, now - oldest):
            continue
        event = MessageEvent.STARTED
        if job.end_time is not None:
            event = MessageEvent.FAILURE if job.state in FAILED_STATES else MessageEvent.END
        kind = "end" if event in _ENDS else "start"
        due = now if kind == "start" else min(max(int(at) + FINAL_SECONDS, now), now + 900)
        told.append(Told(event, job.user, job_id, job.jobid, f"{kind}:{job_id}:{at:.0f}", due))
    return told


def write(db: Connection, offer: Offer, cluster: str, told: Collection[Told], now: int) -> None:
    """Put messages to those who want to be told into the outbox; a known cause changes nothing."""
    by_user: dict[str, list[subscriptions.Subscription]] = {}
    for own in subscriptions.of_users(db, {each.user for each in told}):
        by_user.setdefault(own.username, []).append(own)
    rows = []
    for each in told:
        wishes = [Wish(each.event, each.threshold)]
        if each.event is MessageEvent.FAILURE:
            wishes.append(Wish(MessageEvent.END))
        subscribed = by_user.get(each.user, ())
        found: set[Recipient] = set()
        for wish in wishes:
            found |= subscriptions.recipients(
                offer, subscribed, cluster, each.jobid, wish, each.account
            )
        rows += [
            (
                each.user, cluster, each.event.value, each.cause, *to, each.account, WAITING,
                each.detail, each.job_id, now, each.due_time, now, 0,
            )
            for to in found
        ]  # fmt: skip
    write_rows(db, _table, rows, _NEW, keep_existing=True)


_NEW = [c.name for c in _table.columns if c.name not in ("id", "batch", "done_time")]


def _waiting(clusters: Collection[str]) -> sa.ColumnElement[bool]:
    return (_row.state == WAITING) & _row.cluster.in_(clusters)


def waiting_counts(db: Connection, clusters: Collection[str]) -> Counter[str]:
    """How many events are waiting, by cluster."""
    query = sa.select(_row.cluster, sa.func.count()).where(_waiting(clusters))
    return Counter({row[0]: row[1] for row in db.execute(query.group_by(_row.cluster))})


def drop_outdated(
    db: Connection, clusters: Collection[str], oldest_seconds: float, now: int
) -> Counter[tuple[str, str]]:
    """Drop what is too old, or no longer true; returns how many, by cluster and channel."""
    ended = sa.select(_job.id).where(_job.id == _row.job_id, _job.end_time.is_not(None)).exists()
    failed = sa.select(_job.id).where(
        _job.id == _row.job_id, _job.state.in_([state.value for state in FAILED_STATES])
    )
    untrue = sa.or_(
        _row.event.in_(_ENDS) & ~ended,  # it was requeued
        (_row.event == MessageEvent.FAILURE) & ~failed.exists(),
        _row.event.in_((MessageEvent.IDLE, MessageEvent.MEMORY)) & ended,
    )
    too_old = _row.created_time < now - oldest_seconds
    which = _waiting(clusters) & (too_old | (untrue & _row.batch.is_(None)))
    return _finish(db, which, DROPPED, "too old, or no longer true", now)


def _may_try(now: int) -> sa.ColumnElement[bool]:
    """A clock that was set back must not keep a message for longer than the longest pause."""
    return (_row.next_time <= now) | (_row.next_time > now + _LAST_RETRY_SECONDS)


def assign_batches(
    db: Connection,
    clusters: Collection[str],
    storm: int,
    gather_seconds: float,
    minute: int,
    now: int,
) -> None:
    """Decide what becomes a message of its own, and what a summary.

    More than `storm` messages that wait for one person at one place become a summary. `minute`: of
    the day, for quiet hours.
    """
    alone = _waiting(clusters) & _row.batch.is_(None)
    is_final = sa.select(_job.id).where(_job.id == _row.job_id, _job.usage_due_time.is_(None))
    ready = (_row.due_time <= now) | (_row.event.in_(_ENDS) & is_final.exists())
    gathered = (_row.created_time <= now - gather_seconds) & _may_try(now)
    keys = (_row.username, _row.cluster, _row.channel, _row.target)
    counts = (sa.func.count(), sa.func.max(_row.quiet_hours))
    for *place, number, quiet_hours in db.execute(
        sa.select(*keys, *counts).where(alone).group_by(*keys)
    ).all():
        if subscriptions.is_quiet(quiet_hours, minute):
            continue
        there = sa.and_(*(key == value for key, value in zip(keys, place, strict=True)))
        which, is_digest = alone & there, _row.event == MessageEvent.DIGEST
        own = sa.update(_table).where(which, ready, gathered).values(batch=_row.id)
        is_summed_up = _was_summed_up(db, there, now)
        if number <= storm and not is_summed_up:
            db.execute(own)
            continue
        db.execute(own.where(is_digest))
        first = sa.select(sa.func.min(_row.id)).where(which, ~is_digest, gathered)
        if not is_summed_up and (lead := db.execute(first).scalar()) is not None:
            db.execute(sa.update(_table).where(which, ~is_digest).values(batch=lead))


def _was_summed_up(db: Connection, there: sa.ColumnElement[bool], now: int) -> bool:
    """Whether a summary went there within the last hour."""
    recent = (_row.done_time > now - _SUMMARY_SECONDS) & (_row.done_time <= now)
    query = sa.select(_row.id).where(there, _row.state == SENT, recent, _row.batch != _row.id)
    return db.execute(query.limit(1)).first() is not None


_SHOWN = 20  # rows of a batch that a message names
_JOB_COLUMNS = [
    _job[name] for name in (
        "jobid", "name", "start_time", "end_time", "elapsed_seconds", "exit_code",
        "exit_code_or_128_more", "usage_due_time",
    )
]  # fmt: skip


class MessageBatch(NamedTuple):
    """Rows that become one message; without a job, the columns of `job` are None."""

    id: int
    tries: int
    states: dict[str, int]  # the number of jobs in each state
    rows: list[sa.Row[Any]]  # the first of them, failed jobs before others

    @property
    def first(self) -> sa.Row[Any]:
        """The only row of a message about one job."""
        return self.rows[0]


def due_batches(db: Connection, clusters: Collection[str], now: int) -> list[int]:
    """Batches that may be sent now, the longest due first."""
    which = _waiting(clusters) & _row.batch.is_not(None) & _may_try(now)
    query = sa.select(_row.batch).where(which).group_by(_row.batch)
    return [each for each in db.scalars(query.order_by(sa.func.min(_row.next_time))) if each]


def claim(db: Connection, batch: int, lease_seconds: int, now: int) -> MessageBatch | None:
    """Take a batch for some seconds, in which nobody else sends it; None: somebody else has it."""
    which = (_row.batch == batch) & (_row.state == WAITING)
    taken = {"next_time": now + lease_seconds, "tries": _row.tries + 1}
    if not db.execute(sa.update(_table).where(which, _may_try(now)).values(taken)).rowcount:
        return None
    joined = _table.outerjoin(schema.job)
    counts = sa.select(_job.state, sa.func.count()).select_from(joined).where(which)
    states = {row[0]: row[1] for row in db.execute(counts.group_by(_job.state))}
    is_failed = sa.case((_job.state.in_([state.value for state in FAILED_STATES]), 0), else_=1)
    columns = (*_table.columns, *_JOB_COLUMNS, _job.state.label("job_state"))
    query = sa.select(*columns).select_from(joined).where(which).order_by(is_failed, _row.id)
    rows = list(db.execute(query.limit(_SHOWN)).all())
    return MessageBatch(batch, rows[0].tries, states, rows) if rows else None


def finish(
    db: Connection, batch: int, state: str, detail: str, now: int
) -> Counter[tuple[str, str]]:
    """Note what became of a batch; returns the number of rows by cluster and channel."""
    return _finish(db, (_row.batch == batch) & (_row.state == WAITING), state, detail, now)


def _finish(
    db: Connection, which: sa.ColumnElement[bool], state: str, detail: str, now: int
) -> Counter[tuple[str, str]]:
    keys = (_row.cluster, _row.channel)
    rows = db.execute(sa.select(*keys, sa.func.count()).where(which).group_by(*keys)).all()
    if rows:
        done = {"state": state, "done_time": now, "detail": make_storable(detail[:300])}
        db.execute(sa.update(_table).where(which).values(done))
    return Counter({(row[0], row[1]): row[2] for row in rows})


def postpone(db: Connection, batch: MessageBatch, *, is_doubtful: bool, now: int) -> None:
    """Try again later. If nobody can have got the message, it may become part of a summary."""
    pause = min(_FIRST_RETRY_SECONDS * 2 ** min(batch.tries - 1, 10), _LAST_RETRY_SECONDS)
    values: dict[str, Any] = {"next_time": now + pause}
    if not is_doubtful:
        values["batch"] = None
    which = (_row.batch == batch.id) & (_row.state == WAITING)
    db.execute(sa.update(_table).where(which).values(values))


def delete_old(db: Connection, cluster: str, now: int) -> None:
    """Delete what was done long ago: its cause does not come again."""
    for is_end, seconds in _KEPT_SECONDS.items():
        about = _row.event.in_(_ENDS) if is_end else _row.event.not_in(_ENDS)
        old = (_row.cluster == cluster) & about & (_row.done_time < now - seconds)
        db.execute(sa.delete(_table).where(old))
