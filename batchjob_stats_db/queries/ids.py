"""Finds jobs by their ids as schedulers and people write them."""

import re
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection, RowMapping

from batchjob_stats_db.database import schema
from batchjob_stats_db.database.access import Access
from batchjob_stats_db.queries.jobs import of_ids, runs_of

_JOB = schema.job.c
# A prefix of a UUID; one of digits alone needs 8 of them.
_UUID_PREFIX = re.compile(r"(?=.*[a-f-]|.{8})[0-9a-f-]{4,35}")


class AmbiguousIdError(ValueError):
    """An id prefix that several jobs have."""


class _PartNotation(NamedTuple):
    """A notation for a part of a whole: `123_4` is task 4 of array 123."""

    pattern: re.Pattern[str]
    whole: sa.Column[str]
    number: sa.Column[int]


_PART_NOTATIONS = (
    _PartNotation(re.compile(r"(\d{1,18})_(\d{1,9})"), _JOB.array_jobid, _JOB.array_index),
    _PartNotation(re.compile(r"(\d{1,18})\+(\d{1,9})"), _JOB.het_jobid, _JOB.het_offset),
)


def find_jobs(
    db: Connection, access: Access, text: str, cluster: str | None = None
) -> list[RowMapping]:
    """All runs of a job, the latest first.

    `text` is the accounting's id (`123`, `2[1].pbs01`, `123[4]`, a UUID), Slurm's name of an array
    task or part of a het job (`123_4`, `123+1`), or a prefix of a UUID that no other visible job
    has; else AmbiguousIdError is raised.
    """
    if exact := runs_of(db, access, text, cluster):
        return exact
    for part in _PART_NOTATIONS:
        if found := part.pattern.fullmatch(text):
            # This matches the partial index, which contains only array tasks and components of het
            # jobs.
            return of_ids(
                db, access, cluster,
                part.whole != sa.literal_column("''"),
                part.whole == found[1], part.number == int(found[2]),
            )  # fmt: skip
    if not _UUID_PREFIX.fullmatch(text):
        return []
    # The range is for the index. substr() decides, since PostgreSQL's order of dashes depends on
    # the locale.
    runs = of_ids(
        db, access, cluster,
        _JOB.jobid >= text, _JOB.jobid < f"{text}g",
        sa.func.substr(_JOB.jobid, 1, len(text)) == text, sa.func.length(_JOB.jobid) == 36,
    )  # fmt: skip
    if len({row["jobid"] for row in runs}) > 1:
        raise AmbiguousIdError(f"several jobs have ids that begin with {text}")
    return runs


def parts_of(db: Connection, access: Access, text: str) -> list[RowMapping]:
    """The tasks of an array, or the parts of a het job, by the id of the whole."""
    return [
        row
        for part in _PART_NOTATIONS
        for row in of_ids(
            db, access, None, part.whole != sa.literal_column("''"), part.whole == text
        )
    ]
