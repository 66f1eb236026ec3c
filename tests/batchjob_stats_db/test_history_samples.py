"""What sample files have beyond other stores: several files of a job, cut ones, changing ones."""

import pytest

from batchjob.quantities.quantity import SeriesKind, Statistic
from batchjob.quantities.sample import JobSample, SampleHeader, SampleKey
from batchjob_stats_db.measure.batches import measure
from batchjob_stats_db.measure.job_usage import JobToMeasure
from batchjob_stats_db.samples.folder import files_of, folder_of
from batchjob_stats_db.samples.writer import Writer
from batchjob_stats_db.timeseries.base import JobWindow, SeriesQuery, TimeSeriesError
from batchjob_stats_db.timeseries.sample_store import SampleHistory

T = 1_775_300_000
ALICE = SampleHeader("slurm", "1", "alice", "n001", 5.0)
USER, SYSTEM = SampleKey("cpu_user_seconds"), SampleKey("cpu_system_seconds")
MEMORY, END = SampleKey("memory_current_bytes"), SampleKey("end_time_seconds")
SPAN = JobWindow("c1", "1", T, T + 1000)


def write(samples, begin, values, who=ALICE):
    """A file with a sample each 5 s."""
    writer = Writer(folder_of(samples, who.jobid), who, begin)
    for number, each in enumerate(values):
        writer.write(JobSample(begin + 5.0 * number, each))
    writer.close()
    return writer.path


def numbers(history, statistic, metric, span=SPAN):
    found = history.measure({statistic: [f"batchjob_job_{metric}"]}, [span])
    return [each.value for each in found[statistic]]


def test_one_file_after_the_other(tmp_path):
    write(tmp_path, T, [{USER: 10.0, MEMORY: 4096.0}, {USER: 20.0}])
    slower = ALICE._replace(interval_seconds=10.0)
    write(tmp_path, T + 50, [{USER: 90.0}, {USER: 100.0, MEMORY: 8192.0}], slower)
    history = SampleHistory(tmp_path)
    assert numbers(history, Statistic.TOTAL, "cpu_seconds_total") == [100]
    assert numbers(history, Statistic.COUNT, "cpu_seconds_total") == [4]
    assert numbers(history, Statistic.COUNT, "memory_current_bytes") == [2]
    assert numbers(history, Statistic.MEAN, "memory_current_bytes") == [6144]


def test_a_node_that_was_recorded_twice_counts_once(tmp_path):
    course = [{USER: 10.0 * n, MEMORY: 4096.0} for n in range(10)]
    write(tmp_path, T, course)
    write(tmp_path, T + 1, course)
    history = SampleHistory(tmp_path)
    assert numbers(history, Statistic.TOTAL, "cpu_seconds_total") == [90]


def test_what_comes_later_is_seen(tmp_path):
    writer = Writer(folder_of(tmp_path, "1"), ALICE, T)
    history = SampleHistory(tmp_path)
    for number in range(1, 5):
        writer.write(JobSample(T + 5.0 * number, {USER: 10.0 * number}))
        assert numbers(history, Statistic.TOTAL, "cpu_seconds_total") == [10 * number]
        assert numbers(history, Statistic.COUNT, "cpu_seconds_total") == [number]
    writer.close()


def test_a_damaged_file_gives_what_can_be_read_and_is_named_once(tmp_path, caplog):
    path = write(tmp_path, T, [{USER: 10.0 * n} for n in range(10)])
    path.write_bytes(path.read_bytes() + b"garbage")
    history = SampleHistory(tmp_path)
    for _ in range(3):
        assert numbers(history, Statistic.TOTAL, "cpu_seconds_total") == [90]
        numbers(history, Statistic.COUNT, "cpu_seconds_total", SPAN._replace(jobid="other"))
    assert [record.getMessage() for record in caplog.records] == [
        f"{path}: partly read: not gzip after this point: Error -3 while decompressing data: "
        "incorrect header check"
    ]


def test_what_cannot_be_read_at_all_is_an_error(tmp_path):
    folder_of(tmp_path, "1").mkdir()
    (folder_of(tmp_path, "1") / "20260101-000000.jsonl.gz").mkdir()
    with pytest.raises(TimeSeriesError, match=r"20260101-000000\.jsonl\.gz"):
        numbers(SampleHistory(tmp_path), Statistic.TOTAL, "cpu_seconds_total")


def test_no_samples_no_answer(tmp_path):
    history = SampleHistory(tmp_path / "nowhere")
    wanted = {Statistic.TOTAL: ["batchjob_job_cpu_seconds_total"]}
    assert history.measure(wanted, [SPAN]) == {Statistic.TOTAL: []}
    assert history.job_series(SeriesQuery("x", SeriesKind.GAUGE, {"jobid": ["1"]}), SPAN, 10) == []


def test_another_cluster_has_other_jobs(tmp_path):
    write(tmp_path, T, [{USER: 10.0}])
    assert numbers(SampleHistory(tmp_path, "c1"), Statistic.TOTAL, "cpu_seconds_total") == [10]
    assert numbers(SampleHistory(tmp_path, "c2"), Statistic.TOTAL, "cpu_seconds_total") == []


def test_a_gpu_s_curves_and_power(tmp_path):
    gpu = ("3", "GPU-abc", "")
    write(
        tmp_path,
        T,
        [{SampleKey("gpu_utilization_ratio", gpu): 0.5, SampleKey("gpu_power_watts", gpu): 300.0}],
    )
    history = SampleHistory(tmp_path)
    asked = SeriesQuery("batchjob_job_gpu_info", SeriesKind.GAUGE, {"jobid": ["1"]})
    (held,) = history.job_series(asked, SPAN, 1)
    assert (held.labels["gpu"], held.labels["uuid"], held.points[0].high) == ("3", "GPU-abc", 1.0)
    asked = SeriesQuery("batchjob_gpu_power_watts", SeriesKind.GAUGE, {"uuid": ["GPU-abc"]})
    (power,) = history.job_series(asked, SPAN, 1)
    assert power.points[0].mean == 300


def test_a_job_s_usage_without_any_time_series_database(tmp_path):
    course = [
        {USER: 9.5 * n, SYSTEM: 0.5 * n, MEMORY: 4096.0, SampleKey("memory_peak_bytes"): 8192.0,
         SampleKey("io_read_bytes", ("sda",)): 100.0 * n,
         SampleKey("io_read_bytes", ("sdb",)): 1.0 * n,
         SampleKey("energy_joules", ("host", "active")): 50.0 * n,
         SampleKey("gpu_utilization_ratio", ("0", "GPU-a", "")): 0.25}
        for n in range(1, 21)
    ]  # fmt: skip
    write(tmp_path, T + 5, [*course, {**course[-1], END: T + 100.0}])
    job = JobToMeasure(1, "c1", "1", "alice", 1001, T, T + 100, 1, 2, SPAN)
    (usage,) = measure(SampleHistory(tmp_path), [job], 5.0)
    assert usage.doubt == ""
    assert (usage.samples, usage.nodes, usage.coverage) == (21, 1, 1.0)
    values = usage.values
    assert values["user_cpu_seconds"] == 190
    assert values["memory_peak_bytes"] == 8192
    assert values["memory_average_bytes"] == 4096
    assert values["io_read_bytes"] == 2020
    assert values["energy_host_active_joules"] == 1000
    assert [gpu.utilization_ratio for gpu in usage.devices] == [0.25]
    assert not list(files_of(folder_of(tmp_path, "2")))
