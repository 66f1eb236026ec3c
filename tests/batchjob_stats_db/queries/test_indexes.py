"""Queries use the indexes that are made for them, in databases without statistics."""

import sqlite3
from contextlib import closing, contextmanager

import pytest
import sqlalchemy as sa

from batchjob.schedulers.states import JobState
from batchjob_stats_db.database.access import EVERYTHING, Access, ClusterLogin
from batchjob_stats_db.database.engine import parse_url, reader_engine
from batchjob_stats_db.queries.filters import Filter
from batchjob_stats_db.queries.job_list import count_jobs, list_jobs
from batchjob_stats_db.queries.jobs import find_jobs, members_of
from batchjob_stats_db.queries.operators import (
    cpus_by_node,
    failures_by_node,
    failures_by_state,
    idle_gpus,
)
from batchjob_stats_db.queries.stats import queued_by_partition
from tests.batchjob_stats_server import example_site

CAROL = Access((ClusterLogin("", "carol"),))


@pytest.fixture
def planned(tmp_path):
    """A connection to a site's database, and the plans of the statements that it ran."""
    example_site.make(tmp_path / "jobs.db", 40)
    engine = reader_engine(parse_url(f"sqlite:///{tmp_path}/jobs.db"))
    statements = []
    sa.event.listen(
        engine, "before_cursor_execute", lambda *arguments: statements.append(arguments[2:4])
    )

    @contextmanager
    def open_database():
        with engine.connect() as db:
            yield (
                db,
                lambda: [
                    " ".join(
                        step[3] for step in db.exec_driver_sql(f"EXPLAIN QUERY PLAN {query}", of)
                    )
                    for query, of in tuple(statements)
                    if query.startswith("SELECT") and "FROM job" in query
                ],
            )

    yield open_database
    engine.dispose()


def test_jobs_of_a_user_are_found_by_their_ids(planned):
    with planned() as (db, plans):
        find_jobs(db, CAROL, "40003")
        members_of(db, CAROL, "39000")
        found = [plan for plan in plans() if "jobid=?" in plan]
    assert len(found) == 3  # by its own id, as tasks of an array, as parts of a het job
    assert not any("username=?" in plan for plan in found)


def test_failed_jobs_are_counted_without_the_others(planned):
    with planned() as (db, plans):
        failures_by_state(db, "alpha", example_site.NOW)
        failures_by_node(db, "alpha", example_site.NOW)
        assert len(plans()) == 2
        assert all("COVERING INDEX ix_job_failed (cluster=? AND end_time>?)" in p for p in plans())


def test_waiting_jobs_of_a_user_are_counted_without_the_ended_ones(planned):
    with planned() as (db, plans):
        count_jobs(db, CAROL, Filter(states=(JobState.PENDING,)))
        assert all("ix_job_unfinished (cluster=? AND state=? AND username=?)" in p for p in plans())


@pytest.mark.parametrize("access", [EVERYTHING, CAROL], ids=["of everybody", "of a user"])
@pytest.mark.parametrize(
    "which",
    [Filter(), Filter(running=True), Filter(states=(JobState.PENDING,))],
    ids=["first page", "running", "waiting"],
)
def test_unfinished_jobs_are_listed_without_the_ended_ones(planned, tmp_path, access, which):
    """Statistics say that there are few jobs without an end time, or a start time."""
    with closing(sqlite3.connect(tmp_path / "jobs.db")) as db:
        db.execute("ANALYZE")
    with planned() as (db, plans):
        list_jobs(db, access, which)
        unfinished = next(plan for plan in plans() if "TEMP B-TREE" in plan)
    assert "ix_job_unfinished (cluster=? AND state=?" in unfinished
    assert ("username=?" in unfinished) == (access is CAROL)


def test_queues_are_counted_without_the_ended_jobs(planned):
    with planned() as (db, plans):
        queued_by_partition(db, "alpha")
        assert ["ix_job_unfinished (cluster=? AND state=?)" in each for each in plans()] == [True]


def test_running_jobs_are_not_looked_for_among_all_start_times(planned):
    with planned() as (db, plans):
        idle_gpus(db, EVERYTHING, 0.01, 1800, 10, "alpha")
        cpus_by_node(db, "alpha", example_site.NOW)
        assert plans()
        assert not [plan for plan in plans() if "ix_job_start_time" in plan]
