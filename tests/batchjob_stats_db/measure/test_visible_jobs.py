"""The time windows in which the measurements of a page of jobs are queried."""

import pytest
import sqlalchemy as sa

from batchjob_stats_db.database import schema
from batchjob_stats_db.database.access import EVERYTHING, Access, ClusterLogin
from batchjob_stats_db.database.engine import parse_url, reader_engine
from batchjob_stats_db.database.record_rows import UsagePolicy
from batchjob_stats_db.measure.pending import visible_jobs
from tests.batchjob_stats_server import example_site


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    path = tmp_path_factory.mktemp("windows") / "jobs.db"
    example_site.make(path, 40)
    engine = reader_engine(parse_url(f"sqlite:///{path}"))
    yield engine
    engine.dispose()


def test_windows_of_a_page_match_those_of_single_jobs(engine):
    policy, now = UsagePolicy(), example_site.NOW
    with engine.connect() as db:
        ids = list(db.execute(sa.select(schema.job.c.id).limit(40)).scalars())
        found = visible_jobs(db, EVERYTHING, ids, policy, now)
        single = {number: visible_jobs(db, EVERYTHING, [number], policy, now) for number in ids}
    assert found == {number: jobs[number] for number, jobs in single.items() if jobs}
    assert len({job.window.cluster for job in found.values()}) > 1
    assert len(found) < len(ids)  # some are pending


def test_jobs_without_access_have_no_window(engine):
    bob = Access((ClusterLogin("alpha", "bob"),))
    with engine.connect() as db:
        jobs = db.execute(sa.select(schema.job.c.id, schema.job.c.username)).all()
        users = {row.id: row.username for row in jobs}
        found = visible_jobs(db, bob, list(users)[:40], UsagePolicy(), example_site.NOW)
    assert found
    assert {users[number] for number in found} == {"bob"}


def test_page_takes_two_statements_plus_one_per_cluster(engine):
    statements = []
    sa.event.listen(
        engine, "before_cursor_execute", lambda *arguments: statements.append(arguments[2])
    )
    with engine.connect() as db:
        ids = list(db.execute(sa.select(schema.job.c.id).limit(40)).scalars())
        del statements[:]
        found = visible_jobs(db, EVERYTHING, ids, UsagePolicy(), example_site.NOW)
    assert len(statements) == 2 + len({job.window.cluster for job in found.values()})
