"""Alembic's environment: the connection comes from migrate.py, never from a file."""

from typing import Any, cast

from alembic import context

from batchjob_stats_db.database import schema

_done = 0


def _applied(*, ctx: Any, step: Any, heads: Any, run_args: Any) -> None:  # noqa: ARG001
    global _done
    _done += 1
    if on_progress := context.config.attributes.get("on_progress"):
        on_progress(_done, step.up_revision_id)


connection = context.config.attributes["connection"]
context.configure(
    connection=connection,
    target_metadata=schema.metadata,
    render_as_batch=connection.dialect.name == "sqlite",  # SQLite alters tables by copying them
    compare_type=True,
    on_version_apply=cast(Any, _applied),  # called with keyword arguments
)
with context.begin_transaction():
    context.run_migrations()
