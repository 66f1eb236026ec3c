"""What a running job uses now, whatever it used before."""

import pytest

from batchjob.quantities.job import CPU_SYSTEM, CPU_USER, MEMORY_CURRENT
from batchjob.quantities.sample import JobSample, SampleHeader, SampleKey
from batchjob_stats_db.measure.current_use import current_use
from batchjob_stats_db.measure.job_usage import JobToMeasure
from batchjob_stats_db.samples.file import encode_line
from batchjob_stats_db.samples.folder import folder_of
from batchjob_stats_db.timeseries.base import JobWindow
from batchjob_stats_db.timeseries.sample_store import SampleHistory

START, INTERVAL = 1_775_300_000, 10


@pytest.fixture
def record(tmp_path):
    """record(cpus at each sample) writes a job's samples; returns its store."""

    def write(cpus):
        import gzip

        header, used = SampleHeader("slurm", "1", "alice", "n1", float(INTERVAL)), 0.0
        folder = folder_of(tmp_path, "1")
        folder.mkdir(parents=True)
        with gzip.open(folder / "20260404-110000.jsonl.gz", "wb") as file:
            for number, share in enumerate(cpus):
                used += share * INTERVAL
                values = {
                    SampleKey(CPU_USER.name): used, SampleKey(CPU_SYSTEM.name): 0.0,
                    SampleKey(MEMORY_CURRENT.name): 1000.0 * (number + 1),
                }  # fmt: skip
                file.write(encode_line(header, JobSample(START + INTERVAL * number, values)))
        return SampleHistory(tmp_path)

    return write


def job(now):
    window = JobWindow("c", "1", START, now)
    return JobToMeasure(7, "c", "1", "alice", None, START, None, 1, 4, window)


def use(store, now):
    return current_use(store, [job(now)], INTERVAL, now).get(7)


def test_an_idle_job_that_was_busy_is_idle_now(record):
    store, now = record([4.0] * 100 + [0.5] * 60), START + INTERVAL * 159
    found = use(store, now)
    assert found.cpus == pytest.approx(0.5)
    assert found.sample_time == now
    assert found.memory_bytes == pytest.approx(1000.0 * 151, rel=0.01)


def test_a_young_job_is_measured_since_its_start(record):
    assert use(record([0.0, 2.0, 2.0]), START + 20).cpus == pytest.approx(2.0)


def test_a_job_without_a_sample_for_long_is_left_out(record):
    assert use(record([1.0] * 5), START + 3600) is None
