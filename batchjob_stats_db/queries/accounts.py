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
    """The account; None if it is not in the accounting."""
    accounts, associations = schema.account.c, schema.association.c
    here = accounts.cluster == cluster
    row = db.execute(
        sa.select(accounts.parent, accounts.limits).where(here, accounts.account == account)
    ).one_or_none()
    members = (
        db.execute(
            sa.select(associations.username, associations.role)
            .where(associations.cluster == cluster, associations.account == account)
            .order_by(associations.role, associations.username)
        )
        .mappings()
        .all()
    )
    if row is None and not members:
        return None
    below = db.scalars(
        sa.select(accounts.account)
        .where(here, accounts.parent == account)
        .order_by(accounts.account)
    ).all()
    return AccountRecord(row.parent if row else "", row.limits if row else "", below, members)
