"""Measuring from sample files: several files of a job, damaged and growing ones."""

import pytest

from batchjob.quantities.quantity import SeriesKind, Statistic
from batchjob.quantities.sample import JobSample, SampleHeader, SampleKey
from batchjob_stats_db.measure.job_usage import JobToMeasure
from batchjob_stats_db.samples.folder import files_of, folder_of
from batchjob_stats_db.samples.writer import Writer
from batchjob_stats_db.timeseries.base import JobWindow, SeriesQuery, TimeSeriesError
from batchjob_stats_db.timeseries.sample_store import SampleHistory
from tests.helpers.measured import measure

T = 1_775_300_000
ALICE = SampleHeader("slurm", "1", "alice", "n001", 5.0)
USER, SYSTEM = SampleKey("cpu_user_seconds"), SampleKey("cpu_system_seconds")
MEMORY, END = SampleKey("memory_current_bytes"), SampleKey("end_time_seconds")
WINDOW = JobWindow("c1", "1", T, T + 1000)


def write_file(samples, begin, values, header=ALICE):
    """A file with a sample each 5 s."""
    writer = Writer(folder_of(samples, header.jobid), header, begin)
    for number, each in enumerate(values):
        writer.write(JobSample(begin + 5.0 * number, each))
    writer.close()
    return writer.path


def measured_values(history, statistic, metric, window=WINDOW):
    found = history.measure({statistic: [f"batchjob_job_{metric}"]}, [window])
    return [each.value for each in found[statistic]]


def test_consecutive_files_of_a_job(tmp_path):
    write_file(tmp_path, T, [{USER: 10.0, MEMORY: 4096.0}, {USER: 20.0}])
    slower = ALICE._replace(interval_seconds=10.0)
    write_file(tmp_path, T + 50, [{USER: 90.0}, {USER: 100.0, MEMORY: 8192.0}], slower)
    history = SampleHistory(tmp_path)
    assert measured_values(history, Statistic.TOTAL, "cpu_seconds_total") == [100]
    assert measured_values(history, Statistic.COUNT, "cpu_seconds_total") == [4]
    assert measured_values(history, Statistic.COUNT, "memory_current_bytes") == [2]
    assert measured_values(history, Statistic.MEAN, "memory_current_bytes") == [6144]


def test_node_recorded_twice_is_counted_once(tmp_path):
    values = [{USER: 10.0 * n, MEMORY: 4096.0} for n in range(10)]
    write_file(tmp_path, T, values)
    write_file(tmp_path, T + 1, values)
    history = SampleHistory(tmp_path)
    assert measured_values(history, Statistic.TOTAL, "cpu_seconds_total") == [90]


def test_a_curve_with_enough_points_has_each_sample(tmp_path):
    """Also where the samples' rounded times are next to the ends of the intervals."""
    header, number = ALICE._replace(interval_seconds=29.9848), 660
    writer = Writer(folder_of(tmp_path, "1"), header, T)
    for each in range(1, number + 1):
        at = round(T + header.interval_seconds * each, 2)
        writer.write(JobSample(at, {USER: 10.0 * each, MEMORY: 4096.0 * each}))
    writer.close()
    window = WINDOW._replace(until=T + 19_790, end=T + 19_790)
    for kind, metric in (
        (SeriesKind.GAUGE, "memory_current_bytes"),
        (SeriesKind.RATE, "cpu_seconds_total"),
    ):
        query = SeriesQuery(f"batchjob_job_{metric}", kind, {"jobid": ("1",)})
        (series,) = SampleHistory(tmp_path).job_series(query, window, 3000)
        assert len(series.points) == number
        (series,) = SampleHistory(tmp_path).job_series(query, window, 60)
        assert len(series.points) == 60


def test_samples_written_later_are_seen(tmp_path):
    writer = Writer(folder_of(tmp_path, "1"), ALICE, T)
    history = SampleHistory(tmp_path)
    for number in range(1, 5):
        writer.write(JobSample(T + 5.0 * number, {USER: 10.0 * number}))
        assert measured_values(history, Statistic.TOTAL, "cpu_seconds_total") == [10 * number]
        assert measured_values(history, Statistic.COUNT, "cpu_seconds_total") == [number]
    writer.close()


def test_damaged_file_is_partly_read_and_logged_once(tmp_path, caplog):
    path = write_file(tmp_path, T, [{USER: 10.0 * n} for n in range(10)])
    path.write_bytes(path.read_bytes() + b"garbage")
    history = SampleHistory(tmp_path)
    for _ in range(3):
        assert measured_values(history, Statistic.TOTAL, "cpu_seconds_total") == [90]
        measured_values(
            history, Statistic.COUNT, "cpu_seconds_total", WINDOW._replace(jobid="other")
        )
    assert [record.getMessage() for record in caplog.records] == [
        f"{path}: partly read: not gzip after this point: Error -3 while decompressing data: "
        "incorrect header check"
    ]


def test_unreadable_file_is_an_error(tmp_path):
    folder_of(tmp_path, "1").mkdir()
    (folder_of(tmp_path, "1") / "20260101-000000.jsonl.gz").mkdir()
    with pytest.raises(TimeSeriesError, match=r"20260101-000000\.jsonl\.gz"):
        measured_values(SampleHistory(tmp_path), Statistic.TOTAL, "cpu_seconds_total")


def test_missing_samples_give_no_values(tmp_path):
    history = SampleHistory(tmp_path / "nowhere")
    wanted = {Statistic.TOTAL: ["batchjob_job_cpu_seconds_total"]}
    assert history.measure(wanted, [WINDOW]) == {Statistic.TOTAL: []}
    assert (
        history.job_series(SeriesQuery("x", SeriesKind.GAUGE, {"jobid": ["1"]}), WINDOW, 10) == []
    )


def test_jobs_of_another_cluster_are_excluded(tmp_path):
    write_file(tmp_path, T, [{USER: 10.0}])
    assert measured_values(SampleHistory(tmp_path, "c1"), Statistic.TOTAL, "cpu_seconds_total") == [
        10
    ]
    assert (
        measured_values(SampleHistory(tmp_path, "c2"), Statistic.TOTAL, "cpu_seconds_total") == []
    )


def test_gpu_series_and_power(tmp_path):
    gpu = ("3", "GPU-abc", "")
    write_file(
        tmp_path,
        T,
        [{SampleKey("gpu_utilization_ratio", gpu): 0.5, SampleKey("gpu_power_watts", gpu): 300.0}],
    )
    history = SampleHistory(tmp_path)
    query = SeriesQuery("batchjob_job_gpu_info", SeriesKind.GAUGE, {"jobid": ["1"]})
    (gpu_info,) = history.job_series(query, WINDOW, 1)
    assert (gpu_info.labels["gpu"], gpu_info.labels["uuid"], gpu_info.points[0].high) == (
        "3",
        "GPU-abc",
        1.0,
    )
    query = SeriesQuery("batchjob_gpu_power_watts", SeriesKind.GAUGE, {"uuid": ["GPU-abc"]})
    (power,) = history.job_series(query, WINDOW, 1)
    assert power.points[0].mean == 300


def test_usage_measured_from_sample_files(tmp_path):
    samples = [
        {USER: 9.5 * n, SYSTEM: 0.5 * n, MEMORY: 4096.0, SampleKey("memory_peak_bytes"): 8192.0,
         SampleKey("io_read_bytes", ("sda",)): 100.0 * n,
         SampleKey("io_read_bytes", ("sdb",)): 1.0 * n,
         SampleKey("energy_joules", ("host", "active")): 50.0 * n,
         SampleKey("gpu_utilization_ratio", ("0", "GPU-a", "")): 0.25}
        for n in range(1, 21)
    ]  # fmt: skip
    write_file(tmp_path, T + 5, [*samples, {**samples[-1], END: T + 100.0}])
    job = JobToMeasure(1, "c1", "1", "alice", 1001, T, T + 100, 1, 2, WINDOW)
    (usage,) = measure(SampleHistory(tmp_path), [job], 5.0)
    assert usage.caveats == ""
    assert (usage.samples, usage.nodes, usage.coverage) == (21, 1, 1.0)
    values = usage.values
    assert values["user_cpu_seconds"] == 190
    assert values["memory_peak_bytes"] == 8192
    assert values["memory_average_bytes"] == 4096
    assert values["io_read_bytes"] == 2020
    assert values["energy_host_active_joules"] == 1000
    assert [gpu.utilization_ratio for gpu in usage.devices] == [0.25]
    assert not list(files_of(folder_of(tmp_path, "2")))
