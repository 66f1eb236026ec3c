"""Names of clusters, with which the indexes of most tables begin."""

from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from batchjob_stats_db.database import schema

_NAMES = sa.select(schema.cluster.c.name)


def known_clusters(db: Connection, cluster: str | None) -> Sequence[str]:
    """This cluster, or all."""
    if cluster is not None:
        return [cluster]
    return db.scalars(_NAMES).all()
