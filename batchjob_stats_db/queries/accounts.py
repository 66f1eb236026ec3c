"""An account: its place among others, and its members."""

from collections.abc import Sequence
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection, RowMapping

from batchjob_stats_db.database import schema


class AccountRecord(NamedTuple):
    """An account in the scheduler's accounting, at the last reading."""

    parent: str
    limits: str
    below: Sequence[str]  # accounts whose parent it is
    members: Sequence[RowMapping]  # with username and role


def account_record(db: Connection, cluster: str, account: str) -> AccountRecord | None:
    """None for an account that is not in the accounting."""
    known, belongs = schema.account.c, schema.association.c
    here = known.cluster == cluster
    row = db.execute(
        sa.select(known.parent, known.limits).where(here, known.account == account)
    ).one_or_none()
    members = (
        db.execute(
            sa.select(belongs.username, belongs.role)
            .where(belongs.cluster == cluster, belongs.account == account)
            .order_by(belongs.role, belongs.username)
        )
        .mappings()
        .all()
    )
    if row is None and not members:
        return None
    below = db.scalars(
        sa.select(known.account).where(here, known.parent == account).order_by(known.account)
    ).all()
    return AccountRecord(row.parent if row else "", row.limits if row else "", below, members)
