"""The first tables; databases that have them are upgraded. New ones are created from `schema`."""

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Nothing: `admin.migrate` creates the tables of an empty database."""
