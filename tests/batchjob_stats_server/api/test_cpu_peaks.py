"""The most CPUs in use, out of a job's samples."""

import pytest

from batchjob.quantities.sample import JobSample, SampleHeader, SampleKey
from batchjob_stats_db.measure.job_usage import JobToMeasure
from batchjob_stats_db.samples.folder import folder_of
from batchjob_stats_db.samples.writer import Writer
from batchjob_stats_db.timeseries.base import JobWindow
from batchjob_stats_db.timeseries.sample_store import SampleHistory
from batchjob_stats_server.api.reports import cpu_peaks

T = 1_775_300_000
SECONDS = 3600
JOB = JobToMeasure(
    1, "c1", "1", "alice", 1001, T, T + SECONDS, 2, 16,
    JobWindow("c1", "1", T, T + SECONDS, end=T + SECONDS, nodes=2),
)  # fmt: skip


def write_curve(samples, node, cpus_at, until=SECONDS):
    """A sample each 30 s of a node that has `cpus_at(second)` CPUs in use."""
    writer = Writer(folder_of(samples, "1"), SampleHeader("slurm", "1", "alice", node, 30.0), T)
    total = 0.0
    for second in range(30, until + 1, 30):
        total += 30 * cpus_at(second)
        writer.write(JobSample(T + second, {SampleKey("cpu_user_seconds"): total}))
    writer.close()


def test_peak_of_a_short_phase_is_found_on_each_node(tmp_path):
    write_curve(tmp_path, "n1", lambda second: 8.0 if 1800 <= second < 1890 else 1.0)
    write_curve(tmp_path, "n2", lambda second: 2.0)
    assert cpu_peaks(SampleHistory(tmp_path), JOB) == pytest.approx({"n1": 8.0, "n2": 2.0})


def test_incomplete_curve_has_no_peak(tmp_path):
    write_curve(tmp_path, "n1", lambda second: 1.0)
    write_curve(tmp_path, "n2", lambda second: 1.0, until=SECONDS // 2)
    assert cpu_peaks(SampleHistory(tmp_path), JOB) == pytest.approx({"n1": 1.0})
