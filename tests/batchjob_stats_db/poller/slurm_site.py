"""A simulated Slurm, a poller that reads it, and the database."""

from batchjob.schedulers.slurm.accounting import sacct
from batchjob.schedulers.slurm.accounting.queries import EARLIEST_TIME
from batchjob.schedulers.slurm.accounting.slurm_rest import SlurmRestOptions
from batchjob.schedulers.slurm.slurmrestd import Slurmrestd
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

START_TIME = EARLIEST_TIME + 500_043_200
MINUTE, HOUR, DAY = 60, 3600, 86_400


def clear(engine):
    """Empty the database, for the next example of a property."""
    with engine.begin() as db:
        for table in reversed(schema.metadata.sorted_tables):
            db.execute(table.delete())


class Site:
    """A Slurm, a poller with clocks of its own, and the database."""

    def __init__(self, engine, monkeypatch, source=sacct.Sacct, **options):
        self.slurm = SimulatedSlurm(START_TIME)
        self.clock_offset = 0  # of the poller's clock
        self.now = START_TIME
        monkeypatch.setattr(sacct, "run", self.slurm.run)
        monkeypatch.setattr(Slurmrestd, "get", lambda _, *request: self.slurm.get(*request))
        self.engine, self.source, self.options = engine, source, options
        self.restart()

    def restart(self, interval=MINUTE, first=HOUR):
        """Replace the poller, as a new process would."""
        options = sacct.SacctOptions if self.source is sacct.Sacct else SlurmRestOptions
        source = self.source("c1", options(**self.options), self.clock, self.monotonic)
        cluster = ClusterSettings("c1", (source,), (), TsdbOptions())
        store = Store(self.engine, "c1", cluster.tsdb.policy(), self.clock)
        options = PollOptions(interval=interval, first=first, rollup_interval=100 * DAY)
        self.poller = Poller(
            cluster, store, None, options, RetentionOptions(), PollerMetrics(),
            self.monotonic,
        )  # fmt: skip

    def clock(self):
        return float(self.now + self.clock_offset)

    def monotonic(self):
        return float(self.now - START_TIME)

    def run_for(self, seconds, step=MINUTE):
        """Let time pass, with a poll after each step."""
        end = self.now + seconds
        while self.now < end:
            self.now = min(self.now + step, end)
            self.slurm.now = self.now
            self.poller.run_cycle()

    def add_jobs(self, count=1, interval=0, **given):
        """Add jobs submitted from now on; other times are given in seconds after submission."""
        added = []
        for index in range(count):
            at = self.now + index * interval
            times_after_submission = {"start": 30, "end": 90} | given
            times = {
                name: at + times_after_submission.pop(name)
                for name in ("start", "end", "known_at", "ended_at")
                if times_after_submission.get(name) is not None
            }
            job = SlurmJob(
                10 + len(self.slurm.by_id), at, **{"start": None} | times | times_after_submission
            )
            added.append(self.slurm.add(job))
        return added

    def add_resized_job(self, at, end):
        """A running job that is resized at a time; accounting has two records of it."""
        (first,) = self.add_jobs(end=at - self.now, state="RESIZING", steps=1)
        second = SlurmJob(first.jobid, at, first.start, end, original_submit=first.submit)
        return first, self.slurm.add(second)
