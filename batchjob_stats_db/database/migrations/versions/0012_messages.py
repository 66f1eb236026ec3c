"""Who wants to hear of what, and the messages that are to be sent."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"

_ID = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def _texts(names: str, default: str | None = None) -> list[sa.Column[str]]:
    return [
        sa.Column(name, sa.Text, nullable=False, server_default=default) for name in names.split()
    ]


def _integers(names: str) -> list[sa.Column[int]]:
    return [sa.Column(name, sa.BigInteger, nullable=False) for name in names.split()]


def upgrade() -> None:
    """Create the tables of messages, and what the poller tells the server about them."""
    op.create_table(
        "subscription",
        sa.Column("id", _ID, primary_key=True),
        *_texts("username event channel"),
        *_texts("target cluster jobid account quiet_hours", ""),
        *_integers("threshold created_time"),
        sa.UniqueConstraint(
            "username", "event", "channel", "target", "cluster", "jobid", "account",
            name="uq_subscription",
        ),
    )  # fmt: skip
    op.create_table(
        "outbox",
        sa.Column("id", _ID, primary_key=True),
        *_texts("username cluster event cause channel"),
        *_texts("target quiet_hours account state detail", ""),
        sa.Column("job_id", _ID, sa.ForeignKey("job.id", ondelete="CASCADE")),
        *_integers("created_time due_time next_time tries"),
        *(sa.Column(name, sa.BigInteger) for name in ("batch", "done_time")),
        sa.UniqueConstraint("cause", "username", "channel", "target", name="uq_outbox"),
    )
    op.create_index("ix_outbox_job_id", "outbox", ["job_id"])
    op.create_index("ix_outbox_state", "outbox", ["state", "cluster", "batch"])
    op.create_table(
        "message_site",
        sa.Column("name", sa.Text, primary_key=True),
        *_texts("value"),
        sqlite_with_rowid=False,
    )
