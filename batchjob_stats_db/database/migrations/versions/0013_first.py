"""The tables of the first release: databases that have them are upgraded from here on."""

revision = "0013"
down_revision = None


def upgrade() -> None:
    """Nothing: `admin.migrate` creates the tables of an empty database."""
