"""Tell the other exit codes apart from what sacct up to 25.05 prints, which may be 128 less.

0006 left those of releases whose record ids have 64 bits, but 24.11 and 25.05, which are among
them, print 128 less as well. A failed job with 0 may have returned 128. Which release printed a
stored code is not known.
"""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"

_COLUMNS = ("state", "exit_code", "exit_signal", "exit_code_or_128_more")
_JOB = sa.table("job", *map(sa.column, ("id", "source", *_COLUMNS)))
_STEP = sa.table("job_step", *map(sa.column, ("job_id", *_COLUMNS)))


def upgrade() -> None:
    """Move the codes of which it is not known what they are; slurmctld's have both columns."""
    from_sacct = _JOB.c.source == "sacct"
    jobs = sa.select(_JOB.c.id).where(from_sacct)
    for table, which in ((_JOB, from_sacct), (_STEP, _STEP.c.job_id.in_(jobs))):
        failed_with_0 = (table.c.exit_code == 0) & (table.c.state == "FAILED")
        ambiguous = (
            (table.c.exit_code.between(1, 127) | failed_with_0)
            & (table.c.exit_signal == 0)
            & table.c.exit_code_or_128_more.is_(None)
        )
        values = {"exit_code_or_128_more": table.c.exit_code, "exit_code": None}
        op.execute(sa.update(table).where(which & ambiguous).values(values))
