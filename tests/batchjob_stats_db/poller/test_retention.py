"""Retention of jobs, names, steps and sums, and forgetting users."""

import sqlalchemy as sa

from batchjob.schedulers.accounting import Batch
from batchjob.schedulers.records import Association, Associations, QuarantinedRow, Role, StepRecord
from batchjob.schedulers.states import JobState
from batchjob_stats_db.admin import privacy
from batchjob_stats_db.admin.check import findings
from batchjob_stats_db.database import schema
from batchjob_stats_db.days import next_month
from batchjob_stats_db.measure.rollup import due_days, roll_up
from batchjob_stats_db.poller.options import RetentionOptions
from batchjob_stats_db.poller.retention import delete_expired

DAY = 86400


def write_jobs(store, job, now):
    step = StepRecord("0", JobState.COMPLETED, "COMPLETED", name="secret", submit_line="srun x")
    old = {"start_time": now - 100 * DAY, "end_time": now - 99 * DAY, "steps": (step,)}
    live = {"start_time": now - 100 * DAY, "end_time": None, "state": JobState.RUNNING}
    quarantined = (QuarantinedRow("s", "odd", "alice|..."),)
    jobs = (job("1", **old), job("2", steps=(step,)), job("3", **live))
    store.write(Batch(jobs, quarantined, "", 0), "s")


def roll_up_all_days(engine, now):
    with engine.begin() as db:
        for day in due_days(db, "c1", 1000):
            roll_up(db, "c1", day, now)


def test_expired_jobs_are_deleted_but_their_sums_kept(store, job, rows, engine, now):
    write_jobs(store, job, now)
    roll_up_all_days(engine, now)
    days = rows(schema.daily_usage)
    assert delete_expired(store, RetentionOptions(jobs=50 * DAY), now) == 1
    assert [row["jobid"] for row in rows(schema.job)] == ["2", "3"]
    assert len(rows(schema.job_step)) == 1
    assert rows(schema.daily_usage) == days


def test_names_can_expire_before_the_jobs(store, job, rows, now):
    write_jobs(store, job, now)
    delete_expired(store, RetentionOptions(names=50 * DAY), now)
    assert [row["name"] for row in rows(schema.job)] == ["", "train", "train"]
    assert [row["submit_line"] for row in rows(schema.job_step)] == ["", "srun x"]
    assert delete_expired(store, RetentionOptions(names=50 * DAY), now) == 0


def test_steps_and_quarantine_expire(store, job, rows, now):
    write_jobs(store, job, now)
    delete_expired(store, RetentionOptions(steps=50 * DAY), now)
    assert len(rows(schema.job_step)) == 1
    assert len(rows(schema.quarantine)) == 1
    delete_expired(store, RetentionOptions(), now + 31 * DAY)
    assert rows(schema.quarantine) == []


def test_forget_removes_the_user_but_keeps_the_sums(store, job, rows, engine, now):
    write_jobs(store, job, now)
    associations = Associations((Association("", "physics", "alice", Role.MEMBER),), (), ())
    store.write_associations(associations, "sacctmgr")
    roll_up_all_days(engine, now)
    before = sum(row["wall_seconds"] for row in rows(schema.daily_usage))
    with engine.begin() as db:
        assert privacy.forget(db, "alice") == 3
    roll_up_all_days(engine, now)
    assert sum(row["wall_seconds"] for row in rows(schema.daily_usage)) == before
    with engine.connect() as db:
        for table in schema.metadata.sorted_tables:
            for row in db.execute(sa.select(table)):
                assert "alice" not in map(str, row)
                assert "secret" not in map(str, row)
                assert not any("alice|" in str(value) for value in row)


def test_account_and_monthly_sums_expire_with_the_days(store, job, rows, engine, now):
    write_jobs(store, job, now)
    roll_up_all_days(engine, now)
    delete_expired(store, RetentionOptions(daily=50 * DAY), now)
    first = now - 50 * DAY
    for sums in schema.SUMS:
        for table in (sums.by_user, sums.by_account, sums.by_day):
            assert all(row["day"] >= first for row in rows(table))
        for table in (sums.monthly_by_user, sums.monthly_by_account):
            assert all(next_month(row["month"]) > first for row in rows(table))
    assert all(row["day"] >= first for row in rows(schema.daily_wait))
    with engine.connect() as db:
        assert [line for line in findings(db, now) if "by user" in line] == []


def test_check_reports_inconsistent_sums(store, job, engine, now):
    write_jobs(store, job, now)
    roll_up_all_days(engine, now)
    with engine.begin() as db:
        db.execute(sa.delete(schema.USAGE.monthly_by_account))
        reported = [line for line in findings(db, now) if "by user" in line]
    assert reported
    assert all(line.startswith("c1: monthly_account_usage: ") for line in reported)


def test_check_reports_days_with_wrong_job_counts(store, job, engine, now):
    write_jobs(store, job, now)
    later = {"start_time": now - 98 * DAY, "end_time": now - 97 * DAY}
    store.write(Batch((job("4", **later), job("5", **later)), (), "", 0), "s")
    roll_up_all_days(engine, now)
    with engine.begin() as db:
        assert [line for line in findings(db, now) if "but there are" in line] == []
        db.execute(sa.delete(schema.job).where(schema.job.c.jobid == "5"))
        reported = [
            line.partition(" of ")[0] for line in findings(db, now) if "but there are" in line
        ]
    assert reported == ["c1: jobs_started", "c1: jobs_ended"]


def test_check_names_days_after_the_last_year_of_calendars(store, job, engine, now):
    """A database of before impossible times were set aside, or one that was written by hand."""
    write_jobs(store, job, now)
    roll_up_all_days(engine, now)
    with engine.begin() as db:
        db.execute(sa.update(schema.job).values(start_time=2**39, end_time=2**39))
        db.execute(sa.update(schema.job).where(schema.job.c.jobid == "1").values(
            start_time=now - 90 * DAY, end_time=now - 90 * DAY
        ))  # fmt: skip
        reported = [line for line in findings(db, now) if "but there are" in line]
    assert any(" of @5497557" in line for line in reported)


def test_marks_of_days_far_ahead_are_deleted(store, engine, rows, now):
    """Left by a record of an impossible time; those of a clock that is a little ahead are kept."""
    with engine.begin() as db:
        for day in (now - DAY, now + DAY, now + 400 * DAY, 2**39):
            db.execute(sa.insert(schema.rollup_due).values(cluster="c1", day=day))
    delete_expired(store, RetentionOptions(), now)
    assert [row["day"] for row in rows(schema.rollup_due)] == [now - DAY, now + DAY]
