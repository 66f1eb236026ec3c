"""Windows of accounting, asked of a scheduler with a clock of its own."""

import pytest

from batchjob.states import JobState
from batchjob_stats_db.records import JobRecord
from batchjob_stats_db.sources.slurm_windows import EVER, Parsed, WindowOptions, Windows

JOBS, EVERY, RUN = 200, 37, 20  # their number, seconds between starts, seconds of a run
BEGIN = EVER + 100_000_000


class Scheduler:
    """Ended jobs that it has heard of by its own time."""

    def __init__(self):
        self.now = BEGIN

    def window(self, begin, end, states):
        for number in range(JOBS):
            start = BEGIN + number * EVERY
            if begin <= start + RUN <= min(end, self.now):
                yield Parsed(_job(number, start), ())

    def by_id(self, jobids, end):
        return iter(())

    def queue(self):
        return ()


def _job(number, start):
    return JobRecord(
        "c1", str(number), start, JobState.COMPLETED, "COMPLETED", "sacct",
        start_time=start, end_time=start + RUN,
    )  # fmt: skip


@pytest.mark.parametrize("ahead", [-86_400, -3600, -590, 0, 590])
def test_a_poller_whose_clock_is_wrong_misses_no_job(ahead):
    """Ahead of the scheduler by up to the overlap; behind, it has them when its own time comes."""
    scheduler = Scheduler()
    windows = Windows(
        "sacct",
        scheduler,
        WindowOptions(overlap=600.0, runaway_interval=0.0),
        clock=lambda: scheduler.now + ahead,
    )
    watermark, seen = str(BEGIN - 7200), set()
    while scheduler.now + min(ahead, 0) < BEGIN + JOBS * EVERY + RUN:
        scheduler.now += 300
        for batch in windows.read(watermark, {}):
            watermark = batch.watermark
            seen.update(job.jobid for job in batch.jobs)
    assert len(seen) == JOBS
