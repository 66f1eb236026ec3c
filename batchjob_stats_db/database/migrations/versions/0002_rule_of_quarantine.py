"""The rule that a row in quarantine breaks."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Add the column; all rows of the first revision were unreadable."""
    column = sa.Column("rule", sa.Text(), server_default="", nullable=False)
    with op.batch_alter_table("quarantine") as quarantine:
        quarantine.add_column(column)
    op.execute("UPDATE quarantine SET rule = 'unreadable'")
