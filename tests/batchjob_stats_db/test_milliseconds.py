"""Run times with milliseconds, written to the database and read back."""

import pytest
import sqlalchemy as sa

from batchjob.quantities.quantity import Statistic
from batchjob.schedulers.accounting import Batch
from batchjob_stats_db.admin.check import findings
from batchjob_stats_db.database import schema
from batchjob_stats_db.database.access import EVERYTHING
from batchjob_stats_db.database.record_rows import UsagePolicy
from batchjob_stats_db.days import DAY
from batchjob_stats_db.measure.pending import due_jobs
from batchjob_stats_db.measure.rollup import due_days, roll_up, waits
from batchjob_stats_db.measure.writer import write_usages
from batchjob_stats_db.queries.job_list import Page, SortOrder, list_jobs
from batchjob_stats_db.timeseries.base import SeriesValue
from tests.helpers.measured import measure

D0 = 20540 * DAY  # a midnight


def run_record(job, jobid, start, seconds=None, **fields):
    end = None if seconds is None else round(start + seconds, 3)
    return job(jobid, submit_time=int(start), eligible_time=start, start_time=start, end_time=end,
               elapsed_seconds=seconds, **fields)  # fmt: skip


@pytest.mark.parametrize("key", ["start_time", "end_time", "elapsed_seconds"])
def test_runs_within_one_second_are_in_order(store, job, engine, key):
    # Written in another order than they ran in.
    starts = {"b": 0.25, "d": 0.75, "a": 0.125, "c": 0.5}
    runs = [run_record(job, name, D0 + start, start) for name, start in starts.items()]
    store.write(Batch(tuple(runs), (), "", 0), "s")
    with engine.connect() as db:
        first = list_jobs(db, EVERYTHING, order=SortOrder(key), page=Page(2))
        remaining = list_jobs(db, EVERYTHING, order=SortOrder(key), page=Page(9, first.more))
    assert [row["jobid"] for row in (*first.rows, *remaining.rows)] == ["d", "c", "b", "a"]


def test_times_round_trip(store, job, rows, engine):
    store.write(Batch((run_record(job, "1", D0 + 0.345, 1.234), job("2")), (), "", 0), "s")
    exact, whole_seconds = rows(schema.job)
    assert (exact["start_time"], exact["end_time"]) == (D0 + 0.345, D0 + 1.579)
    assert exact["elapsed_seconds"] == 1.234
    assert isinstance(whole_seconds["start_time"], int)  # times in whole seconds stay integers
    assert isinstance(whole_seconds["end_time"], int)
    (node_start,) = {each["start_time"] for each in rows(schema.job_node)} - {
        whole_seconds["start_time"]
    }
    assert node_start == D0 + 0.345
    with engine.connect() as db:
        (row,) = list_jobs(db, EVERYTHING, order=SortOrder("jobid", False), page=Page(1)).rows
    assert (row["elapsed_seconds"], row["wait_seconds"]) == (1.234, 0)


def test_writing_again_changes_nothing(store, job):
    batch = Batch((run_record(job, "1", D0 + 0.345, 1.234),), (), "", 0)
    store.write(batch, "s")
    assert store.write(batch, "s").counts["unchanged"] == 1


def test_days_begin_at_midnight(store, job, engine, rows):
    runs = (
        run_record(job, "1", D0 - 0.001, 0.5),
        run_record(job, "2", D0, 0.25),
        run_record(job, "3", D0 + 0.999, 2.5),
    )
    store.write(Batch(runs, (), "", 0), "s")
    with engine.begin() as db:
        for day in due_days(db, "c1", 10):
            roll_up(db, "c1", day, D0 + 2 * DAY)
        days = [row["day"] for row in db.execute(waits(schema.job.c.cluster == "c1")).mappings()]
        assert not [each for each in findings(db, D0 + 2 * DAY) if "jobs_" in each]
    assert days == [D0 - DAY, D0]
    sums = {row["day"]: row for row in rows(schema.USAGE.by_day)}
    assert sums[D0 - DAY]["wall_seconds"] == pytest.approx(0.001, abs=1e-6)
    assert sums[D0]["wall_seconds"] == pytest.approx(0.499 + 0.25 + 2.5, abs=1e-6)
    assert (sums[D0 - DAY]["jobs_started"], sums[D0]["jobs_started"]) == (1, 2)


class HistoryOfOneSeries:
    """A store of measurements with one series per job, which includes its end."""

    source = "samples"

    def measure(self, wanted, spans):
        return {
            statistic: self._of(statistic, metrics, spans) for statistic, metrics in wanted.items()
        }

    @staticmethod
    def _of(statistic, metrics, spans):
        values = {Statistic.COUNT: 2.0, Statistic.TOTAL: 0.5}
        labels = {"instance": "n001", "user": "alice", "mode": "user"}
        return [
            SeriesValue(metric, labels | {"jobid": span.jobid}, values.get(statistic, span.end))
            for metric in metrics
            for span in spans
            if metric in ("batchjob_job_cpu_seconds_total", "batchjob_job_end_time_seconds")
        ]


def test_run_is_measured_until_its_end(store, job, engine):
    policy, now = UsagePolicy(settle_seconds=1), D0 + 60
    store.write(Batch((run_record(job, "1", D0 + 0.9, 0.25),), (), "", 0), "s")
    with engine.begin() as db:
        db.execute(sa.update(schema.job).values(usage_due_time=now))
        due = due_jobs(db, "c1", policy, now, 9)
        usages = dict(zip(due, measure(HistoryOfOneSeries(), due, 5.0), strict=True))
        write_usages(db, "c1", "samples", usages, policy, now)
        (row,) = list_jobs(db, EVERYTHING, page=Page(1)).rows
    assert (row["cpu_basis"], row["usage_final"], row["usage_coverage"]) == ("measured", 1, 1.0)
    assert row["cpu_efficiency"] == pytest.approx(0.5 / (4 * 0.25))
