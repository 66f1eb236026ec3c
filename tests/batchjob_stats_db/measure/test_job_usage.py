"""The usage computed from a job's samples, and its caveats."""

import pytest

from batchjob.quantities.quantity import Statistic
from batchjob.schedulers.accounting import Batch
from batchjob.schedulers.node_names import without_port
from batchjob.schedulers.states import JobState
from batchjob_stats_db.database import schema
from batchjob_stats_db.database.record_rows import UsagePolicy
from batchjob_stats_db.measure.job_usage import JobToMeasure, compute_usage
from batchjob_stats_db.measure.pending import due_jobs, mark_for_measurement, measure_due
from batchjob_stats_db.timeseries.base import JobWindow, SeriesValue
from batchjob_stats_db.timeseries.prometheus_client import Endpoint
from batchjob_stats_db.timeseries.prometheus_store import Prometheus
from tests.batchjob_stats_db.tsdb import SERVERS, line

JOB = JobToMeasure(7, "c1", "1", "alice", 1001, 0, 3600, 1, 4, JobWindow("c1", "1", 0, 4000))


def sample(statistic, metric, value, **labels):
    labels = {"instance": "n001:10910", "jobid": "1", "user": "alice", **labels}
    return (statistic, f"batchjob_job_{metric}"), SeriesValue(
        f"batchjob_job_{metric}", labels, value
    )


def by_statistic(*samples):
    grouped = {}
    for key, each in samples:
        grouped.setdefault(key, []).append(each)
    return grouped


WHOLE_RUN_SAMPLES = (
    sample(Statistic.COUNT, "cpu_seconds_total", 120, mode="user"),
    sample(Statistic.PEAK, "end_time_seconds", 3600),
)


def test_values_of_several_nodes_are_added():
    usage = compute_usage(
        JOB._replace(nodes=2),
        by_statistic(
            *WHOLE_RUN_SAMPLES,
            sample(Statistic.COUNT, "cpu_seconds_total", 120, instance="n002:10910"),
            sample(Statistic.PEAK, "end_time_seconds", 3600, instance="n002:10910"),
            sample(Statistic.TOTAL, "cpu_seconds_total", 100.0, mode="user"),
            sample(Statistic.TOTAL, "cpu_seconds_total", 50.0, mode="user", instance="n002:10910"),
            sample(Statistic.TOTAL, "cpu_seconds_total", 7.0, mode="system"),
            sample(Statistic.PEAK, "memory_peak_bytes", 10),
            sample(Statistic.PEAK, "memory_peak_bytes", 30, instance="n002:10910"),
            sample(Statistic.TOTAL, "emissions_grams_total", 3.0, provider="rte"),
            sample(Statistic.TOTAL, "emissions_grams_total", 5.0, provider="owid"),
        ),
        30,
    )
    assert usage.values["user_cpu_seconds"] == 150
    assert usage.values["system_cpu_seconds"] == 7
    assert (usage.values["memory_peak_bytes"], usage.values["memory_peak_node_bytes"]) == (40, 30)
    assert usage.emissions == {"rte": 3, "owid": 5}
    assert (usage.nodes, usage.samples, usage.coverage, usage.caveats) == (2, 240, 1.0, "")


def test_unmeasured_values_are_absent():
    usage = compute_usage(JOB, by_statistic(*WHOLE_RUN_SAMPLES), 30)
    assert usage.values == {}
    assert compute_usage(JOB, {}, 30).caveats == "no samples"


def test_samples_of_another_user_are_dropped_and_counted():
    other = sample(Statistic.TOTAL, "cpu_seconds_total", 9e9, mode="user", user="mallory")
    by_uid = sample(Statistic.TOTAL, "cpu_seconds_total", 5.0, mode="user", user="1001")
    usage = compute_usage(JOB, by_statistic(*WHOLE_RUN_SAMPLES, other, by_uid), 30)
    assert usage.values["user_cpu_seconds"] == 5
    assert (usage.dropped_series, usage.caveats) == (1, "user differs")


def test_series_without_a_user_are_used_only_as_a_fallback():
    def sample_without_user(value, instance):
        return sample(Statistic.TOTAL, "cpu_seconds_total", value, mode="user", user="",
                      instance=instance)  # fmt: skip

    usage = compute_usage(
        JOB, by_statistic(*WHOLE_RUN_SAMPLES, sample_without_user(5.0, "short:10910")), 30
    )
    assert usage.values["user_cpu_seconds"] == 5
    assert usage.caveats == "user unknown"
    instance = WHOLE_RUN_SAMPLES[0][1].labels["instance"]
    usage = compute_usage(
        JOB, by_statistic(*WHOLE_RUN_SAMPLES, sample_without_user(5.0, instance)), 30
    )
    assert "user_cpu_seconds" not in usage.values  # from its start, before the user was known
    assert usage.caveats == ""


def test_nan_is_dropped():
    bad = sample(Statistic.MEAN, "memory_current_bytes", float("nan"))
    usage = compute_usage(JOB, by_statistic(*WHOLE_RUN_SAMPLES, bad), 30)
    assert (usage.values, usage.caveats) == ({}, "not a number")


def test_coverage_of_a_node_without_an_end_counts_its_samples():
    half = sample(Statistic.COUNT, "cpu_seconds_total", 60, mode="user")
    usage = compute_usage(JOB, by_statistic(half), 30)
    assert usage.coverage == 0.5
    assert usage.caveats == "nodes missing"
    assert (
        compute_usage(JOB._replace(nodes=2), by_statistic(*WHOLE_RUN_SAMPLES), 30).coverage == 0.5
    )


def test_gpu_averages_are_weighted_by_time():
    usage = compute_usage(
        JOB,
        by_statistic(
            *WHOLE_RUN_SAMPLES,
            sample(Statistic.MEAN, "gpu_utilization_ratio", 1.0, gpu="0", uuid="GPU-a"),
            sample(Statistic.COUNT, "gpu_utilization_ratio", 25, gpu="0", uuid="GPU-a"),
            sample(Statistic.MEAN, "gpu_utilization_ratio", 0.0, gpu="1", uuid="GPU-b"),
            sample(Statistic.COUNT, "gpu_utilization_ratio", 75, gpu="1", uuid="GPU-b"),
            sample(Statistic.PEAK, "gpu_memory_bytes", 5, gpu="1", uuid="GPU-b"),
        ),
        30,
    )
    assert usage.values["gpu_utilization_ratio"] == 0.25
    assert usage.values["gpus"] == 2
    assert [(gpu.node, gpu.uuid, gpu.memory_peak_bytes) for gpu in usage.devices] == [
        ("n001", "GPU-a", None),
        ("n001", "GPU-b", 5),
    ]


SECOND_NODE = {"instance": "n002:10910"}
ON_TWO_NODES = (
    *WHOLE_RUN_SAMPLES,
    sample(Statistic.COUNT, "cpu_seconds_total", 120, mode="user", **SECOND_NODE),
    sample(Statistic.PEAK, "memory_peak_bytes", 10),
    sample(Statistic.PEAK, "memory_current_bytes", 9),
)


def test_memory_peak_of_nodes_with_different_kernels():
    current = sample(Statistic.PEAK, "memory_current_bytes", 30, **SECOND_NODE)
    usage = compute_usage(JOB._replace(nodes=2), by_statistic(*ON_TWO_NODES, current), 30)
    assert (usage.values["memory_peak_bytes"], usage.values["memory_peak_node_bytes"]) == (40, 30)
    assert "peak sampled" in usage.caveats


def test_memory_peak_of_one_node_is_not_used_for_the_job():
    usage = compute_usage(JOB._replace(nodes=2), by_statistic(*ON_TWO_NODES), 30)
    assert "memory_peak_bytes" not in usage.values
    assert "memory_peak_node_bytes" not in usage.values


def test_peak_of_threads_is_the_kernels_where_it_counts_one():
    counted = sample(Statistic.PEAK, "threads_peak", 300, kind="counted")
    scraped = sample(Statistic.PEAK, "threads", 7)
    usage = compute_usage(JOB, by_statistic(*WHOLE_RUN_SAMPLES, counted, scraped), 30)
    assert (usage.values["threads_peak"], usage.caveats) == (300, "")
    seen = sample(Statistic.PEAK, "threads_peak", 20, kind="seen", **SECOND_NODE)
    usage = usage_on_two_nodes(counted, scraped, seen)
    assert (usage.values["threads_peak"], usage.caveats) == (320, "threads sampled")
    assert "threads_peak" not in usage_on_two_nodes(counted).values


def test_caveats():
    cpu = sample(Statistic.TOTAL, "cpu_seconds_total", 20_000.0, mode="user")
    assert (
        compute_usage(JOB, by_statistic(*WHOLE_RUN_SAMPLES, cpu), 30).caveats
        == "more cpu than allocated"
    )
    current = sample(Statistic.PEAK, "memory_current_bytes", 12)
    usage = compute_usage(JOB, by_statistic(*WHOLE_RUN_SAMPLES, current), 30)
    assert (usage.values["memory_peak_bytes"], usage.caveats) == (12, "peak sampled")
    running_job = JOB._replace(end=None, window=JOB.window._replace(until=JOB.start + 3600))
    assert compute_usage(running_job, by_statistic(WHOLE_RUN_SAMPLES[0]), 30).caveats == "running"


ENERGY = "energy_joules_total"
HOST = {"component": "host", "kind": "active"}
OF_GPU = {"component": "gpu", "kind": "active"}


def usage_on_two_nodes(*samples):
    return compute_usage(JOB._replace(nodes=2), by_statistic(*ON_TWO_NODES[:3], *samples), 30)


def test_value_missing_on_a_node_is_unknown_for_the_job():
    one = sample(Statistic.TOTAL, "process_io_read_bytes_total", 10)
    usage = usage_on_two_nodes(one)
    assert "process_io_read_bytes" not in usage.values
    assert usage.caveats == "values of some nodes missing"
    both = sample(Statistic.TOTAL, "process_io_read_bytes_total", 30, **SECOND_NODE)
    usage = usage_on_two_nodes(one, both)
    assert (usage.values["process_io_read_bytes"], usage.caveats) == (40, "")


def test_node_without_disk_io_is_not_a_missing_value():
    usage = usage_on_two_nodes(sample(Statistic.TOTAL, "io_read_bytes_total", 10, device="sda"))
    assert (usage.values["io_read_bytes"], usage.caveats) == (10, "")


def test_energy_of_only_some_nodes_is_kept_and_marked():
    one = sample(Statistic.TOTAL, ENERGY, 500.0, **HOST)
    usage = usage_on_two_nodes(one)
    assert usage.values["energy_host_active_joules"] == 500
    assert usage.caveats == "energy of some nodes missing"
    usage = usage_on_two_nodes(one, sample(Statistic.TOTAL, ENERGY, 700.0, **HOST, **SECOND_NODE))
    assert (usage.values["energy_host_active_joules"], usage.caveats) == (1200, "")


def test_gpu_energy_is_expected_only_of_nodes_with_gpus():
    gpu = {"gpu": "0", "uuid": "GPU-a"}
    energy = sample(Statistic.TOTAL, ENERGY, 90.0, **OF_GPU, **gpu)
    used = sample(Statistic.MEAN, "gpu_utilization_ratio", 1.0, **gpu)
    counted = sample(Statistic.COUNT, "gpu_utilization_ratio", 120, **gpu)
    usage = usage_on_two_nodes(energy, used, counted)
    assert (usage.values["energy_gpu_active_joules"], usage.caveats) == (90, "")
    other = sample(
        Statistic.MEAN, "gpu_utilization_ratio", 1.0, gpu="0", uuid="GPU-b", **SECOND_NODE
    )
    assert (
        "energy of some nodes missing" in usage_on_two_nodes(energy, used, counted, other).caveats
    )


def test_node_name_of_an_instance():
    assert without_port("n001:10910") == "n001"
    assert without_port("[::1]:10910") == "::1"
    assert without_port("n001") == "n001"


@pytest.fixture(scope="module", params=SERVERS)
def history(request):
    now = 1_775_300_000  # NOW of conftest
    begin, end = now - 7000, now - 3400
    lines = [
        line("cpu_seconds_total", 9 + n, begin + 30 * n, mode=mode)
        for n in range(1, 121)
        for mode in ("user", "system")
    ]
    lines += [line("end_time_seconds", end, end + 5)]
    lines += [line("memory_current_bytes", 100, begin + 30)]
    lines += [line("gpu_utilization_ratio", 0.5, begin + 30, gpu="0", uuid="GPU-a")]
    lines += [line("emissions_grams_total", 2.5, end + 5, provider="rte")]
    lines += [line("cpu_seconds_total", 2, end - 1, mode="user", jobid="short")]
    with request.param(lines) as url:
        yield Prometheus(Endpoint(url))


def test_measurements_are_written_to_the_database(store, job, rows, now, history):
    policy = UsagePolicy()
    short = job("short", start_time=now - 3402, end_time=now - 3399, user="alice")
    running = job("running", end_time=None)
    store.write(Batch((job("1"), short, running, job("gone")), (), "", 0), "sacct")
    usages, failed = measure_due(store, history, policy, 30, now)
    assert (len(usages), failed) == (3, {})  # the running one is not due yet
    by_id = {row["job_id"]: row for row in rows(schema.job_usage)}
    ids = {row["jobid"]: row["id"] for row in rows(schema.job)}
    long = by_id[ids["1"]]
    assert (long["user_cpu_seconds"], long["system_cpu_seconds"]) == (129, 129)
    assert (long["samples"], long["coverage"], long["source"]) == (120, 1.0, "prometheus")
    assert by_id[ids["short"]]["user_cpu_seconds"] == 2
    assert by_id[ids["gone"]]["caveats"] == "no samples"
    assert by_id[ids["gone"]]["user_cpu_seconds"] is None
    assert [gpu["uuid"] for gpu in rows(schema.job_gpu)] == ["GPU-a"]
    assert [(each["provider"], each["grams"]) for each in rows(schema.job_emissions)] == [
        ("rte", 2.5)
    ]
    due = {row["jobid"]: row["usage_due_time"] for row in rows(schema.job)}
    assert due["1"] is None
    assert due["gone"] == now + 1800  # late samples may come


def test_vanished_job_is_measured_once_more(store, job, rows, now, history):
    """Its end will never be known: the samples up to the last one are all there is."""
    record = job("1", state=JobState.RUNNING, end_time=None)
    store.write(Batch((record,), (), "", 0), "squeue")
    assert measure_due(store, history, UsagePolicy(), 30, now)[0] == {}
    store.write(Batch((), (), "", 0, vanished=("1",)), "squeue")
    measure_due(store, history, UsagePolicy(), 30, now)
    (usage,), (row,) = rows(schema.job_usage), rows(schema.job)
    assert (usage["user_cpu_seconds"], usage["system_cpu_seconds"]) == (129, 129)
    assert (row["state"], row["usage_due_time"]) == ("VANISHED", None)


def test_recompute_measures_jobs_again(store, job, rows, now, engine, history):
    store.write(Batch((job("1"),), (), "", 0), "sacct")
    measure_due(store, history, UsagePolicy(), 30, now)
    with engine.begin() as db:
        assert mark_for_measurement(db, "c1", now - 86400) == 1
        assert mark_for_measurement(db, "c1", now) == 0
    measure_due(store, history, UsagePolicy(), 30, now)
    assert len(rows(schema.job_usage)) == 1


def test_runs_of_a_requeued_job_have_separate_windows(store, job, engine, now):
    first = job(submit_time=now - 9000, start_time=now - 8900, end_time=now - 7100)
    second = job(submit_time=now - 7080, start_time=now - 7000, end_time=now - 3400)
    store.write(Batch((first, second), (), "", 0), "sacct")
    with engine.connect() as db:
        first_due, second_due = due_jobs(db, "c1", UsagePolicy(), now, 10)
    assert first_due.window.near_other_run
    assert second_due.window.near_other_run
    assert first_due.window.until == now - 7001
    assert not second_due.window.continues


def test_part_of_a_resized_job_continues_the_one_before(store, job, engine, now):
    first = job(
        submit_time=now - 9000, start_time=now - 8900, end_time=now - 7000, state=JobState.RESIZED
    )
    second = job(submit_time=now - 7000, start_time=now - 7000, end_time=now - 3400)
    store.write(Batch((first, second), (), "", 0), "sacct")
    with engine.connect() as db:
        due = due_jobs(db, "c1", UsagePolicy(), now, 10)
    assert [each.window.continues for each in due] == [False, True]


@pytest.mark.parametrize(
    ("statistic", "metric", "label", "number"),
    [
        (Statistic.MEAN, "gpu_utilization_ratio", "uuid", 2000),
        (Statistic.PEAK, "gpu_memory_bytes", "uuid", 2000),
        (Statistic.TOTAL, "emissions_grams_total", "provider", 100),
    ],
)
def test_series_of_a_node_cost_a_bounded_number_of_rows(statistic, metric, label, number):
    """Those of the job's other node stay."""
    many = [sample(statistic, metric, 0.5, **{label: f"x{each}"}) for each in range(number)]
    other = {"instance": "n002:10910"}
    usage = compute_usage(
        JOB._replace(nodes=2),
        by_statistic(
            *WHOLE_RUN_SAMPLES, *many,
            sample(statistic, metric, 0.25, **{label: "good"}, **other),
            sample(statistic, metric, 0.25, **{label: "x" * 300}, **other),
        ),
        30,
    )  # fmt: skip
    assert [gpu.uuid for gpu in usage.devices] == (["good"] if label == "uuid" else [])
    assert dict(usage.emissions) == ({"good": 0.25} if label == "provider" else {})
    assert usage.refused.count("parts") == number
    assert usage.refused.count("text") == 1
    assert "not a number" in usage.caveats
