"""Batch scripts: stored once, bounded, and deleted with the last job that has them."""

import pytest
import sqlalchemy as sa

from batchjob.schedulers.accounting import Batch
from batchjob_stats_db.admin import privacy
from batchjob_stats_db.database import schema, scripts
from batchjob_stats_db.database.access import EVERYTHING, Access, ClusterLogin
from batchjob_stats_db.poller.options import RetentionOptions
from batchjob_stats_db.poller.retention import delete_expired

DAY = 86400


@pytest.fixture
def jobs_with_script(store, job, engine, now):
    """Two jobs of alice with one script, and a later one that has none."""
    old = {"start_time": now - 100 * DAY, "end_time": now - 99 * DAY}
    store.write(Batch((job("1", **old), job("2"), job("3")), (), "", 0), "sacct")
    with engine.begin() as db:
        ids = db.scalars(sa.select(schema.job.c.id).order_by(schema.job.c.jobid)).all()
        scripts.store(db, ids[:2], "#!/bin/sh\necho é\n", 16)
        scripts.store(db, ids[2:], "", 16)
    return ids


def visible_scripts(engine, access=EVERYTHING):
    with engine.connect() as db:
        ids = db.scalars(sa.select(schema.job.c.id)).all()
        return [row["script"] for row in scripts.of_jobs(db, access, ids)]


def test_script_is_stored_once_up_to_its_limit(jobs_with_script, engine, rows):
    assert visible_scripts(engine) == ["#!/bin/sh\necho "] * 2
    (script,) = rows(schema.batch_script)
    assert script["whole_bytes"] == 18


def test_jobs_without_script_are_those_not_read_yet(jobs_with_script, store, job, engine, now):
    store.write(Batch((job("4", start_time=now - 60),), (), "", 0), "sacct")
    with engine.connect() as db:
        source = job("4").source
        found = scripts.jobs_without_script(db, "c1", source, now - DAY, now, 10)
        new = scripts.jobs_without_script(db, "c1", source, now - DAY, now - 1, 10)
    assert [each.jobid for _, each in found] == ["4"]
    assert not new  # accounting may not have its script yet


def test_script_is_deleted_with_its_last_job(jobs_with_script, store, engine, rows, now):
    delete_expired(store, RetentionOptions(jobs=50 * DAY), now)
    assert len(visible_scripts(engine)) == 1
    with engine.begin() as db:
        db.execute(sa.delete(schema.job))
    delete_expired(store, RetentionOptions(), now)
    assert rows(schema.batch_script) == []


def test_script_expires_with_the_names(jobs_with_script, store, engine, rows, now):
    delete_expired(store, RetentionOptions(names=50 * DAY), now)
    assert len(visible_scripts(engine)) == 1
    assert len(rows(schema.job_script)) == 3  # so it is not queried again


def test_forgetting_a_user_deletes_the_scripts(jobs_with_script, engine, rows):
    with engine.begin() as db:
        privacy.forget(db, "alice")
    assert rows(schema.batch_script) == []


def test_script_is_visible_only_with_access_to_the_job(jobs_with_script, engine):
    assert visible_scripts(engine, Access((ClusterLogin("c1", "bob"),))) == []
    assert len(visible_scripts(engine, Access((ClusterLogin("c1", "alice"),)))) == 2
