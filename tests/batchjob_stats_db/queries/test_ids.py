"""Finding jobs by ids as users write them."""

import pytest

from batchjob.schedulers.accounting import Batch
from batchjob_stats_db.database.access import EVERYTHING, Access, ClusterLogin
from batchjob_stats_db.queries.jobs import AmbiguousIdError, find_jobs

UUIDS = ("0f3a2b1c-aaaa-4bbb-8ccc-123456789abc", "0f3a2b1c-aaab-4bbb-8ccc-123456789abc")


@pytest.fixture
def db(engine, store, job):
    store.write(
        Batch(
            (
                job("5", array_jobid="4", array_index=7),
                job("7", het_jobid="6", het_offset=1),
                job("8[3]"),
                *(job(uuid) for uuid in UUIDS),
                job("0f3a2b", user="bob"),
            ),
            (),
            "",
            0,
        ),
        "s",
    )
    with engine.connect() as connection:
        yield connection


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("5", ["5"]),
        ("4_7", ["5"]),
        ("6+1", ["7"]),
        ("8[3]", ["8[3]"]),
        (UUIDS[0], [UUIDS[0]]),
        ("0f3a2b1c-aaaa", [UUIDS[0]]),
        ("0f3a2b", ["0f3a2b"]),  # a complete id is not a prefix
        ("4", []),
        ("4_8", []),
        ("6+7", []),
        ("0f3", []),
        ("%", []),
        ("", []),
    ],
)
def test_find_jobs_by_written_id(db, text, found):
    assert [row["jobid"] for row in find_jobs(db, EVERYTHING, text)] == found
    assert [row["jobid"] for row in find_jobs(db, EVERYTHING, text, "c1")] == found
    assert find_jobs(db, EVERYTHING, text, "c2") == []


def test_ambiguous_prefix_is_refused(db):
    with pytest.raises(AmbiguousIdError):
        find_jobs(db, EVERYTHING, "0f3a2b1c")


def test_jobs_of_other_users_are_not_found(db):
    carol = Access((ClusterLogin("c1", "carol"),))
    assert find_jobs(db, carol, "4_7") == []
    assert find_jobs(db, carol, "0f3a2b1c") == []
