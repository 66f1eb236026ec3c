"""Accounting and controller, asked of a Slurm with a clock of its own."""

import pytest

from batchjob.schedulers.slurm.accounting import sacct
from batchjob.schedulers.slurm.accounting.queries import EARLIEST_TIME
from batchjob_stats_db.database import schema
from batchjob_stats_db.database.store import Store
from batchjob_stats_db.poller.options import (
    ClusterSettings,
    PollOptions,
    RetentionOptions,
    TsdbOptions,
)
from batchjob_stats_db.poller.poller import Poller
from batchjob_stats_db.poller.self_metrics import PollerMetrics
from tests.simulated.slurm import SimulatedSlurm, SlurmJob

pytestmark = pytest.mark.parametrize("url", ["sqlite"], indirect=True)

BEGIN = EARLIEST_TIME + 500_043_200
MINUTE, HOUR, DAY = 60, 3600, 86_400


class Site:
    """A Slurm, a poller with clocks of its own, and the database."""

    def __init__(self, engine, monkeypatch, **options):
        self.slurm = SimulatedSlurm(BEGIN)
        self.ahead = 0  # of the poller's clock
        self.now = BEGIN
        monkeypatch.setattr(sacct, "run", self.slurm.run)
        self.engine, self.options = engine, options
        self.restart()

    def restart(self, interval=MINUTE):
        """Begin a new process."""
        source = sacct.Sacct(
            "c1", sacct.SacctOptions(**self.options), clock=self.clock, monotonic=self.monotonic
        )
        cluster = ClusterSettings("c1", (source,), (), TsdbOptions())
        store = Store(self.engine, "c1", cluster.tsdb.policy(), self.clock)
        options = PollOptions(interval=interval, first=HOUR, rollup_interval=100 * DAY)
        self.poller = Poller(
            cluster, store, None, options, RetentionOptions(), PollerMetrics(),
            self.clock, self.monotonic,
        )  # fmt: skip

    def clock(self):
        return float(self.now + self.ahead)

    def monotonic(self):
        return float(self.now - BEGIN)

    def go(self, seconds, step=MINUTE):
        """Time passes, and the poller polls."""
        end = self.now + seconds
        while self.now < end:
            self.now = min(self.now + step, end)
            self.slurm.now = self.now
            self.poller.run_cycle()

    def jobs(self, number=1, every=0, **given):
        """Add jobs that are submitted from now on; their life is given relative to that."""
        made = []
        for index in range(number):
            at = self.now + index * every
            life = {"start": 30, "end": 90} | given
            times = {
                name: at + life.pop(name)
                for name in ("start", "end", "known_at", "ended_at")
                if life.get(name) is not None
            }
            job = SlurmJob(10 + len(self.slurm.by_id), at, **{"start": None} | times | life)
            made.append(self.slurm.add(job))
        return made


@pytest.fixture
def site(engine, monkeypatch):
    return Site(engine, monkeypatch)


def states(rows):
    return [row["state"] for row in rows(schema.job)]


def test_a_cycle_is_one_call_to_each_and_the_controller_is_asked_once_a_minute(site):
    site.jobs(300, every=10, end=100_000)
    site.go(HOUR, step=10 * MINUTE)
    site.slurm.calls.clear()
    site.go(10 * MINUTE)
    programs = [call[0] for call in site.slurm.calls]
    assert programs.count("squeue") == 10
    assert programs.count("sacct") == 20  # what ended, and 50 jobs by id
    site.restart(interval=10)
    site.slurm.calls.clear()
    site.go(10 * MINUTE, step=10)
    assert [call[0] for call in site.slurm.calls].count("squeue") == 10


def test_accounting_is_not_asked_for_what_waits_or_runs(site):
    site.jobs(10, end=10_000)
    site.go(10 * MINUTE)  # SimulatedSlurm refuses to answer such a question
    assert len(site.slurm.calls) > 20


def test_jobs_that_wait_are_listed_with_their_reason_before_accounting_knows_them(site, rows):
    site.jobs(start=HOUR, end=2 * HOUR, known_at=HOUR)
    site.go(5 * MINUTE)
    (row,) = rows(schema.job)
    assert (row["state"], row["reason"]) == ("PENDING", "Priority")
    assert (row["start_time"], row["allocated_cpus"], row["requested_cpus"]) == (None, None, 4)
    site.go(HOUR)
    (row,) = rows(schema.job)
    assert (row["state"], row["allocated_cpus"], row["node_list"]) == ("RUNNING", 4, "n1")


def test_the_time_of_a_suspended_job_stands_until_it_runs_again(site, rows):
    suspended = BEGIN + 10 * MINUTE, BEGIN + 30 * MINUTE
    site.jobs(start=10, end=10 * HOUR, suspended=suspended)
    for _ in range(2):
        site.go(12 * MINUTE)
        (row,) = rows(schema.job)
        assert (row["state"], row["elapsed_seconds"]) == ("SUSPENDED", 590)
    for _ in range(2):
        site.go(12 * MINUTE)
        (row,) = rows(schema.job)
        assert (row["state"], row["suspended_seconds"]) == ("RUNNING", 20 * MINUTE)


def test_running_jobs_get_their_steps_in_turn(site, rows):
    site.jobs(120, start=10, end=10 * HOUR, steps=2)
    site.go(6 * MINUTE)
    assert len(rows(schema.job_step)) == 240
    assert {row["record_id"] for row in rows(schema.job)} == {str(n + 1) for n in range(120)}


def test_a_poll_in_which_only_time_passed_writes_no_job(site, rows):
    site.jobs(60, start=10, end=10 * HOUR, steps=1)
    site.go(10 * MINUTE)
    before = rows(schema.job), rows(schema.job_step)
    metrics = site.poller.metrics.registry
    label = {"cluster": "c1", "outcome": "changed"}
    changed = metrics.get_sample_value("batchjob_stats_db_jobs_total", label)
    site.go(10 * MINUTE)
    assert (rows(schema.job), rows(schema.job_step)) == before
    assert metrics.get_sample_value("batchjob_stats_db_jobs_total", label) == changed


@pytest.mark.parametrize("ahead", [-DAY, -HOUR, -590, 590, HOUR, DAY])
def test_a_poller_whose_clock_is_wrong_misses_no_job(site, rows, ahead):
    site.go(MINUTE)
    site.ahead = ahead
    site.restart()
    site.jobs(60, every=37)
    site.go(HOUR, step=5 * MINUTE)
    assert states(rows) == ["COMPLETED"] * 60


@pytest.mark.parametrize("ahead", [HOUR, DAY])
@pytest.mark.parametrize("off", [0, 30 * MINUTE, 2 * HOUR])
def test_a_clock_that_was_ahead_for_a_while_loses_no_job(site, rows, ahead, off):
    site.go(HOUR, step=10 * MINUTE)
    site.jobs(100, every=120)
    site.ahead = ahead
    site.go(10 * MINUTE)
    site.ahead = 0
    if off:  # the clock was set right while the poller was not there
        site.now += off
        site.slurm.now = site.now
        site.restart()
    site.go(4 * HOUR, step=10 * MINUTE)
    assert states(rows) == ["COMPLETED"] * 100


def test_polls_go_on_when_the_clock_is_set_back(site, rows):
    site.ahead = DAY
    site.restart()
    site.go(5 * MINUTE)
    site.ahead = 0
    site.jobs()
    site.go(5 * MINUTE)
    assert states(rows) == ["COMPLETED"]


def test_a_controller_whose_clock_was_ahead_loses_no_job(site, rows):
    site.jobs(start=30 + DAY, end=DAY + 60, known_at=1, ended_at=60)
    site.go(10 * MINUTE)
    site.jobs(60, every=30)
    site.go(2 * HOUR, step=5 * MINUTE)
    assert states(rows) == ["COMPLETED"] * 61


def test_records_that_come_hours_late_come_in_once_one_of_them_was_waited_for(site, rows):
    site.go(HOUR, step=10 * MINUTE)
    site.jobs(start=0, end=HOUR, known_at=1, ended_at=3 * HOUR)
    site.go(5 * MINUTE)  # it is seen to run
    site.jobs(20, every=60, known_at=3 * HOUR, ended_at=3 * HOUR)  # these are not
    site.slurm.ctld_down = True
    site.go(HOUR, step=5 * MINUTE)
    site.slurm.ctld_down = False
    site.go(4 * HOUR, step=5 * MINUTE)
    assert states(rows) == ["COMPLETED"] * 21


def test_a_poll_once_in_half_an_hour_does_not_take_what_ended_just_before_it_for_late(site, rows):
    site.jobs(20, end=HOUR, ended_at=HOUR + 5)
    site.go(HOUR, step=30 * MINUTE)
    assert set(states(rows)) == {"RUNNING"}
    site.slurm.calls.clear()
    site.go(HOUR, step=30 * MINUTE)
    assert set(states(rows)) == {"COMPLETED"}
    assert not [call for call in site.slurm.calls if "--allocations" in call]


def test_what_came_late_or_was_edited_is_found_at_night(site, rows, monkeypatch):
    site.go(HOUR)
    late = site.jobs(30, every=60, known_at=41 * HOUR, ended_at=41 * HOUR, steps=2)
    (edited,) = site.jobs(steps=1)
    site.slurm.ctld_down = True
    site.go(40 * HOUR, step=30 * MINUTE)
    assert states(rows) == ["COMPLETED"]
    edited.account = "chemistry"
    site.go(30 * HOUR, step=30 * MINUTE)
    assert states(rows) == ["COMPLETED"] * 31
    assert len(rows(schema.job_step)) == 2 * len(late) + 1
    by_account = {row["account"] for row in rows(schema.job) if row["jobid"] == str(edited.jobid)}
    assert by_account == {"chemistry"}


def test_the_nightly_reading_asks_for_steps_of_what_differs_alone(site, rows):
    site.jobs(100, every=60, steps=3)
    site.go(2 * DAY, step=30 * MINUTE)
    light = [call for call in site.slurm.calls if "--allocations" in call]
    assert light
    at = site.slurm.calls.index(light[0])
    assert "--jobs" not in site.slurm.calls[at + 1]


def test_the_nightly_reading_of_a_quiet_week_is_a_few_calls(site):
    site.jobs(5)
    site.go(HOUR)
    site.go(7 * DAY, step=6 * HOUR)
    site.slurm.calls.clear()
    site.go(DAY, step=6 * HOUR)
    assert len([call for call in site.slurm.calls if "--allocations" in call]) < 10


def test_accounting_goes_on_while_the_controller_is_down(site, rows):
    site.jobs(10, every=30)
    site.slurm.ctld_down = True
    site.go(HOUR, step=5 * MINUTE)
    assert states(rows) == ["COMPLETED"] * 10
    assert {row["error"] for row in rows(schema.poll_state)} == {""}


def test_a_job_that_nobody_knows_any_more_has_vanished(site, rows):
    (job,) = site.jobs(end=10 * HOUR)
    site.jobs(3, end=20 * HOUR)
    site.go(10 * MINUTE)
    site.slurm.by_id[str(job.jobid)].clear()
    del site.slurm.queued[job.key]
    site.go(5 * MINUTE)
    assert "VANISHED" not in states(rows)  # accounting may be late
    site.go(10 * MINUTE)
    assert sorted(states(rows)) == ["RUNNING"] * 3 + ["VANISHED"]


def test_a_runaway_job_is_marked_and_comes_right_at_its_end(site, rows):
    (job,) = site.jobs(end=HOUR, ended_at=4 * HOUR)
    site.jobs(3, end=20 * HOUR)
    site.go(2 * HOUR, step=5 * MINUTE)
    assert [row["doubt"] for row in rows(schema.job)] == ["runaway", "", "", ""]
    site.go(3 * HOUR, step=5 * MINUTE)
    row = next(row for row in rows(schema.job) if row["jobid"] == str(job.jobid))
    assert (row["state"], row["doubt"], row["end_time"]) == ("COMPLETED", "", job.end)


def test_an_idle_month_costs_two_calls_a_cycle(site):
    site.jobs(2)
    site.go(HOUR)
    site.now += 60 * DAY
    site.slurm.now = site.now
    site.restart()
    site.go(MINUTE)
    site.slurm.calls.clear()
    site.go(10 * MINUTE)
    assert len(site.slurm.calls) == 20


def test_a_failed_window_is_asked_for_in_shorter_ones(site, rows):
    site.jobs(100, every=600)
    site.slurm.dbd_down = True
    site.go(18 * HOUR, step=HOUR)
    site.slurm.dbd_down = False
    site.slurm.calls.clear()
    site.go(HOUR, step=15 * MINUTE)
    assert states(rows).count("COMPLETED") == 100
    starts = [call for call in site.slurm.calls if "--state" in call]
    assert len(starts) > 3
