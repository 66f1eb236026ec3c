"""Filters on jobs, and the clusters that a query reads."""

import functools
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.sql.elements import ColumnElement

from batchjob.judgements import RUNNING_STATES
from batchjob.schedulers.states import JobState
from batchjob_stats_db.database import schema
from batchjob_stats_db.database.engine import read_if_changed
from batchjob_stats_db.queries.efficiency import DERIVED, GPUS_HELD, RUN_SECONDS


class Filter(NamedTuple):
    """Which jobs are wanted; None or empty matches all."""

    cluster: str | None = None
    user: str | None = None
    account: str | None = None
    partition: str | None = None
    qos: str | None = None
    states: tuple[str, ...] = ()
    state_words: tuple[str, ...] = ()  # as named by the scheduler
    jobid: str | None = None
    array_jobid: str | None = None
    het_jobid: str | None = None
    name: str | None = None
    name_contains: str | None = None
    tool: str | None = None
    record_id: str | None = None
    depends_on: str | None = None  # part of the scheduler's text
    node: str | None = None
    started_from: int | None = None
    started_before: int | None = None
    ended_from: int | None = None
    ended_before: int | None = None
    limits: tuple[tuple[str, float], ...] = ()  # such as ("elapsed_at_least", 60)
    started: bool | None = None
    running: bool = False  # or suspended: suspended jobs hold their nodes
    arrays_once: bool = False  # of an array only the task that stands for it (queries/arrays.py)
    # But for the task that stands for it: cluster, id of the array, user, and id of that task.
    arrays_left_out: tuple[tuple[str, str, str, int], ...] = ()


_job, _usage = schema.job.c, schema.job_usage.c
_derived: dict[str, ColumnElement[Any]] = {column.name: column.element for column in DERIVED}

# Conditions that use an index; the others are checked row by row.
_INDEXED: dict[str, ColumnElement[Any]] = {
    "cluster": _job.cluster,
    "user": _job.username,
    "account": _job.account,
    "node": schema.job_node.c.node,
}
_EQUAL = ("partition", "qos", "jobid", "array_jobid", "het_jobid", "name", "tool", "record_id")
_LIMITED: dict[str, ColumnElement[Any]] = {
    "elapsed": RUN_SECONDS,
    "cpu_efficiency": _derived["cpu_efficiency"],
    "memory_efficiency": _derived["memory_efficiency"],
    "gpu_utilization": _usage.gpu_utilization_ratio,
    "gpus": GPUS_HELD,
    "nodes": _job.allocated_nodes,
    "memory": _derived["memory_used_bytes"],
    "energy": _derived["energy_used_joules"],
}


def states_in(states: Iterable[str]) -> ColumnElement[bool]:
    """With constants: SQLAlchemy writes lists of parameters into the statement each time."""
    return _job.state.in_([sa.literal_column(f"'{JobState(state).value}'") for state in states])


def index_conditions(which: Filter, start: ColumnElement[Any]) -> list[ColumnElement[bool]]:
    """Conditions that an index can answer; `start` is the column of the start time to use."""
    wanted = which._asdict()
    conditions = [
        column == wanted[name] for name, column in _INDEXED.items() if wanted[name] is not None
    ]
    if which.node is not None and which.cluster is not None:
        conditions.append(schema.job_node.c.cluster == which.cluster)
    if which.started_from is not None:
        conditions.append(start >= which.started_from)
    if which.started_before is not None:
        conditions.append(start < which.started_before)
    if which.started is not None:
        conditions.append(start.is_not(None) if which.started else start.is_(None))
    if which.ended_from is not None:
        conditions.append(_job.end_time >= which.ended_from)
    if which.ended_before is not None:
        conditions.append(_job.end_time < which.ended_before)
    if which.running:
        conditions += [_job.end_time.is_(None), states_in(RUNNING_STATES)]
    elif which.states and {*which.states} <= {*RUNNING_STATES, JobState.PENDING}:
        conditions += [_job.end_time.is_(None), states_in(which.states)]
    return conditions


def needs_figures(which: Filter) -> bool:
    """Whether the row conditions compare figures, which more tables than `job` are read for."""
    return bool(which.limits)


@functools.lru_cache(256)
def row_conditions(which: Filter) -> tuple[ColumnElement[bool], ...]:
    """Conditions that need each row to be read."""
    wanted = which._asdict()
    conditions = [_job[name] == wanted[name] for name in _EQUAL if wanted[name] is not None]
    if which.name_contains is not None:
        conditions.append(_job.name.icontains(which.name_contains, autoescape=True))
    if which.depends_on is not None:
        conditions.append(_job.dependencies.contains(which.depends_on, autoescape=True))
    if which.states:
        conditions.append(states_in(which.states))
    if which.state_words:
        conditions.append(_job.state_word.in_(which.state_words))
    for name, limit in which.limits:
        figure, _, end = name.rpartition("_at_")
        column = _LIMITED[figure]
        conditions.append(column >= limit if end == "least" else column <= limit)
    if which.arrays_left_out:
        standing = _job.id.in_([sa.literal(each[3]) for each in which.arrays_left_out])
        of_arrays = (
            (_job.cluster == cluster) & (_job.array_jobid == array) & (_job.username == user)
            for cluster, array, user, _ in which.arrays_left_out
        )
        conditions.append((_job.tool != "") | standing | sa.not_(sa.or_(*of_arrays)))
    return tuple(conditions)


_CLUSTERS = sa.select(schema.cluster.c.name).order_by(schema.cluster.c.name)


def cluster_names(db: Connection, only: str | None = None) -> Sequence[str]:
    """The clusters that a query reads: all, unless it is about one."""
    return [only] if only is not None else [row.name for row in read_if_changed(db, _CLUSTERS)]
