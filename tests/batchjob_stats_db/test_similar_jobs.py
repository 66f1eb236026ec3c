"""Which of a user's jobs a job is compared with."""

import pytest

from batchjob.schedulers.accounting import Batch
from batchjob_stats_db.database.access import EVERYTHING
from batchjob_stats_db.queries.jobs import runs_of
from batchjob_stats_db.queries.similar import same_name, similar
from tests.batchjob_stats_db.conftest import NOW


@pytest.fixture
def alike(engine, store, job):
    """Records jobs, each an hour after the one before; with what the last one is compared."""

    def asked(*given):
        start = NOW - 3600 * (len(given) + 1)
        jobs = [
            job(
                str(number), submit_time=start + 3600 * number, start_time=start + 3600 * number,
                end_time=start + 3600 * number + 600, **fields,
            )
            for number, fields in enumerate(given)
        ]  # fmt: skip
        store.write(Batch(tuple(jobs), (), "", 0), "sacct")
        with engine.connect() as db:
            (last,) = runs_of(db, EVERYTHING, str(len(given) - 1), "c1")
            what, rows = similar(db, EVERYTHING, last)
        return what, [row["jobid"] for row in rows]

    return asked


def test_those_of_its_name(alike):
    found = alike({"name": "a"}, {"name": "b"}, {"name": "a"}, {"name": "a"}, {"name": "a"})
    assert found == ("name", ["3", "2", "0"])


def test_those_of_its_request_where_few_have_its_name(alike):
    found = alike({"name": "a"}, {"name": "b", "allocated_cpus": 8}, {"name": "c"}, {"name": "d"})
    assert found == ("account, partition and size", ["2", "0"])


@pytest.mark.parametrize(("names", "found"), [("abcd", ("", [])), ("aba", ("name", ["0"]))])
def test_one_machine_s_runs_have_no_request_to_be_alike_in(alike, names, found):
    assert alike(*({"name": name, "account": "", "partition": ""} for name in names)) == found


def test_the_latest_runs_of_a_name_the_oldest_first(engine, store, job):
    jobs = [
        job(str(number), name="ab"[number % 2], start_time=NOW - 3600 + number, end_time=NOW)
        for number in range(7)
    ]
    store.write(Batch((*jobs, job("8", name="a", user="bob")), (), "", 0), "sacct")
    with engine.connect() as db:
        (run,) = runs_of(db, EVERYTHING, "2", "c1")
        assert [row["jobid"] for row in same_name(db, EVERYTHING, run, 3)] == ["2", "4", "6"]
        assert [row["jobid"] for row in same_name(db, EVERYTHING, run)] == ["0", "2", "4", "6"]
