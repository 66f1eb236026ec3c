"""How completely a cluster is read and measured."""

from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection, RowMapping

from batchjob_stats_db.database import schema
from batchjob_stats_db.database.gate import RULES


def coverage_by_node(db: Connection, cluster: str, since: int) -> list[RowMapping]:
    """`jobs`, `unmeasured` and `coverage` by node, of jobs that ended since a midnight.

    `unmeasured` are jobs without any sample; the coverage (0..1) is a mean over run time.
    """
    daily = schema.daily_node_coverage.c
    query = (
        sa.select(
            daily.node,
            sa.func.sum(daily.jobs_ended).label("jobs"),
            sa.func.sum(daily.jobs_unmeasured).label("unmeasured"),
            (sa.func.sum(daily.covered_seconds) / sa.func.sum(daily.run_seconds)).label("coverage"),
        )
        .where(daily.cluster == cluster, daily.day >= since)
        .group_by(daily.node)
        .order_by("coverage", daily.node)
    )
    return list(db.execute(query).mappings().all())


def polls(db: Connection, cluster: str) -> list[RowMapping]:
    state = schema.poll_state
    query = sa.select(state).where(state.c.cluster == cluster).order_by(state.c.source)
    return list(db.execute(query).mappings().all())


class Refusals(NamedTuple):
    """What was refused of a source, by one rule of the gate, and is still in quarantine."""

    source: str
    rule: str
    number: int
    last_time: int  # epoch seconds

    @property
    def meaning(self) -> str:
        """What breaks the rule."""
        return RULES.get(self.rule, self.rule)


def refusals(db: Connection, cluster: str) -> list[Refusals]:
    bad = schema.quarantine.c
    query = (
        sa.select(bad.source, bad.rule, sa.func.count(), sa.func.max(bad.time))
        .where(bad.cluster == cluster)
        .group_by(bad.source, bad.rule)
        .order_by(bad.source, bad.rule)
    )
    return [Refusals._make(row) for row in db.execute(query)]
