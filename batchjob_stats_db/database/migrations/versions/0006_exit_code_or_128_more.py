"""Tell exit codes apart from what sacct up to 25.05 prints, which may be 128 less.

What was stored as the exit code of a job from sacct becomes what it is: this code or 128 more.
Here those of releases that count their record ids; 0009 does the others.
"""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"

_JOB = sa.table("job", *map(sa.column, ("id", "source", "record_id", "exit_code", "exit_signal")),
                sa.column("exit_code_or_128_more"))  # fmt: skip
_STEP = sa.table(
    "job_step", *map(sa.column, ("job_id", "exit_code", "exit_signal", "exit_code_or_128_more"))
)
_LONGEST_RECORD_ID = 12  # digits of a counter; a record id of 64 bits has 18 or more


def upgrade() -> None:
    """Add the columns, and move the codes of which it is not known what they are."""
    for name in ("job", "job_step"):
        op.add_column(name, sa.Column("exit_code_or_128_more", sa.BigInteger))
    db = op.get_bind()
    from_counters = (_JOB.c.source == "sacct") & (
        sa.func.length(_JOB.c.record_id) <= _LONGEST_RECORD_ID
    )
    jobs = sa.select(_JOB.c.id).where(from_counters)
    for table, which in ((_JOB, from_counters), (_STEP, _STEP.c.job_id.in_(jobs))):
        ambiguous = table.c.exit_code.between(1, 127) & (table.c.exit_signal == 0)
        values = {"exit_code_or_128_more": table.c.exit_code, "exit_code": None}
        db.execute(sa.update(table).where(which & ambiguous).values(values))
