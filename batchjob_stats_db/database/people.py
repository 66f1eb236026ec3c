"""Writes accounts and their members, replacing the previous ones."""

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from batchjob.schedulers.records import Associations
from batchjob_stats_db.database import schema

ASSOCIATION = schema.association


def write_people(db: Connection, cluster: str, people: Associations, now: int) -> None:
    """Replace a cluster's accounts and associations; members keep their time of arrival."""
    key = (ASSOCIATION.c.account, ASSOCIATION.c.username, ASSOCIATION.c.role)
    there = sa.select(*key, ASSOCIATION.c.since_time).where(ASSOCIATION.c.cluster == cluster)
    since = {tuple(row[:3]): row[3] for row in db.execute(there)}
    rows = {
        (each.account, each.user, each.role.value): int(each.default)
        for each in people.associations
        if each.cluster in ("", cluster)
    }
    rows |= {("", each.user, each.level): 0 for each in people.administrators}
    db.execute(sa.delete(ASSOCIATION).where(ASSOCIATION.c.cluster == cluster))
    if rows:
        names = ("cluster", "account", "username", "role", "is_default", "since_time")
        values = [(cluster, *row, default, since.get(row, now)) for row, default in rows.items()]
        db.execute(sa.insert(ASSOCIATION), [dict(zip(names, each, strict=True)) for each in values])
    account = schema.account
    db.execute(sa.delete(account).where(account.c.cluster == cluster))
    tree = {
        each.account: {**each._asdict(), "cluster": cluster}
        for each in people.accounts
        if each.cluster in ("", cluster)
    }
    if tree:
        db.execute(sa.insert(account), list(tree.values()))
