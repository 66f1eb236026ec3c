"""The jobs of a user with which a job is compared."""

import pytest

from batchjob.schedulers.accounting import Batch
from batchjob.schedulers.states import JobState
from batchjob_stats_db.database.access import EVERYTHING
from batchjob_stats_db.queries.jobs import find_jobs
from batchjob_stats_db.queries.similar import same_name, similar
from tests.batchjob_stats_db.conftest import NOW


@pytest.fixture
def similar_to_last(engine, store, job):
    """Writes jobs, each an hour after the one before; what the last one is compared with."""

    def write_and_compare(*jobs_fields):
        start = NOW - 3600 * (len(jobs_fields) + 1)
        jobs = [
            job(
                str(number),
                **{
                    "submit_time": start + 3600 * number, "start_time": start + 3600 * number,
                    "end_time": start + 3600 * number + 600, **fields,
                },
            )
            for number, fields in enumerate(jobs_fields)
        ]  # fmt: skip
        store.write(Batch(tuple(jobs), (), "", 0), "sacct")
        with engine.connect() as db:
            (last,) = find_jobs(db, EVERYTHING, str(len(jobs_fields) - 1), "c1")
            criterion, rows = similar(db, EVERYTHING, last)
        return criterion, [row["jobid"] for row in rows]

    return write_and_compare


def test_jobs_of_the_same_name(similar_to_last):
    found = similar_to_last(
        {"name": "a"}, {"name": "b"}, {"name": "a"}, {"name": "a"}, {"name": "a"}
    )
    assert found == ("name", ["3", "2", "0"])


def test_jobs_of_the_same_request_if_few_have_the_name(similar_to_last):
    found = similar_to_last(
        {"name": "a"}, {"name": "b", "allocated_cpus": 8}, {"name": "c"}, {"name": "d"}
    )
    assert found == ("account, partition and size", ["2", "0"])


def test_waiting_job_is_compared_with_all_runs_of_its_name(similar_to_last):
    waiting = {"start_time": None, "end_time": None, "state": JobState.PENDING}
    found = similar_to_last(*({"name": name} for name in "aba"), {"name": "a", **waiting})
    assert found == ("name", ["2", "0"])


@pytest.mark.parametrize(("names", "found"), [("abcd", ("", [])), ("aba", ("name", ["0"]))])
def test_local_runs_are_not_compared_by_request(similar_to_last, names, found):
    assert (
        similar_to_last(*({"name": name, "account": "", "partition": ""} for name in names))
        == found
    )


def test_same_name_lists_the_latest_runs_oldest_first(engine, store, job):
    jobs = [
        job(str(number), name="ab"[number % 2], start_time=NOW - 3600 + number, end_time=NOW)
        for number in range(7)
    ]
    store.write(Batch((*jobs, job("8", name="a", user="bob")), (), "", 0), "sacct")
    with engine.connect() as db:
        (run,) = find_jobs(db, EVERYTHING, "2", "c1")
        assert [row["jobid"] for row in same_name(db, EVERYTHING, run, 3)] == ["2", "4", "6"]
        assert [row["jobid"] for row in same_name(db, EVERYTHING, run)] == ["0", "2", "4", "6"]
