"""A healthy day fires no alert; wasteful jobs and a stopped controller do.

The series of tests/fixtures/alerts/slurm.json were recorded by record.py from a real Slurm with
exporters (as their unit has it), collector `cluster`, poller, server and Prometheus; those of
machine.json by record_machine.py from a machine with a BMC, whose poller reads tracked work. Their
minutes are repeated for a day: counters go on from where they were, times move on, jobs that ran
all the time grow old, and every other job starts again.
"""

import json
import shutil
from pathlib import Path

import pytest

from tests.prometheus import families, record
from tests.prometheus import replay as replayed
from tests.prometheus.replay import series_notation, values_notation, with_stale_markers

ROOT = Path(__file__).parents[2]
RECORDED = json.loads((ROOT / "tests/fixtures/alerts/slurm.json").read_text())
MACHINE = json.loads((ROOT / "tests/fixtures/alerts/machine.json").read_text())
HEALTHY = [*RECORDED["healthy"], *MACHINE["healthy"]]
INTERVAL = RECORDED["interval"]
DAY = 86400 // INTERVAL

JOB_RULES = ("jobs.yml", "gpu.yml", "job_alerts.yml")
RULES = ("service_alerts.yml", *JOB_RULES)

pytestmark = pytest.mark.skipif(shutil.which("promtool") is None, reason="not installed: promtool")


def long_running_jobids(recorded):
    """Ids of the jobs that ran during the whole recording."""
    return {
        each["labels"]["jobid"]
        for each in recorded
        if each["labels"]["__name__"] == "batchjob_job_processes" and None not in each["values"]
    }


LONG_RUNNING = long_running_jobids(HEALTHY)


def growth_per_sample(values):
    """The mean growth of a counter from one sample to the next."""
    known = [(number, value) for number, value in enumerate(values) if value is not None]
    (begin, low), (end, high) = known[0], known[-1]
    return (high - low) / max(end - begin, 1)


def growth_per_repetition(labels, values):
    """How much larger the values are in each repetition."""
    name, job = labels["__name__"], labels.get("jobid")
    grows = name.endswith("_total")
    moves_on = name.endswith("_last_success_timestamp_seconds")
    if job is not None:
        grows = grows and job in LONG_RUNNING
        moves_on = name.endswith("_start_time_seconds") and job not in LONG_RUNNING
    if grows:
        return growth_per_sample(values) * len(values)
    return len(values) * INTERVAL if moves_on else 0.0


def repeat_values(labels, values, count):
    """The recorded values, repeated until there are `count`."""
    known = [value for value in values if value is not None]
    once_an_hour = labels["__name__"].endswith("_last_success_timestamp_seconds")
    if once_an_hour and known[-1] == known[0]:
        return [known[0] + number * INTERVAL // 3600 * 3600 for number in range(count)]
    growth = growth_per_repetition(labels, values)
    values_so_far = []
    for repetition in range(count // len(values) + 1):
        values_so_far += [
            None if value is None else value + repetition * growth for value in values
        ]
    return values_so_far[:count]


def healthy_series(count):
    """Labels and `count` values of each series that was recorded without a fault."""
    return [
        (each["labels"], repeat_values(each["labels"], each["values"], count)) for each in HEALTHY
    ]


def replay_alerts(folder, series, expected, times, rules, more=()):
    """Assert how often each alert fires; `more` are other expressions, times and answers."""
    samples = [
        {"labels": f'{{alertname="{name}"}}', "value": value} for name, value in expected.items()
    ]
    firing = 'count by (alertname) (ALERTS{alertstate="firing"})'
    expectations = [(firing, eval_time, samples) for eval_time in times]
    replayed.replay(
        folder,
        INTERVAL,
        [
            (series_notation(labels), values_notation(with_stale_markers(values)))
            for labels, values in series
        ],
        [*expectations, *more],
        [replayed.RULES / name for name in rules],
    )


def test_recordings_have_all_series_of_alerts():
    """An alert on series that do not exist never fires."""
    recorded = {each["labels"]["__name__"] for each in HEALTHY}
    required = {"up", *record.alert_series_names("service_alerts.yml", "job_alerts.yml")}
    not_recorded = {
        "batchjob_cluster_node_flag",  # of nodes that are not healthy
        # Of jobs with GPUs in accounting, which the recorded poller did not read.
        "batchjob_stats_db_job_gpus",
        "batchjob_job_free_gpu_busy_seconds_total", "batchjob_job_free_gpu_observed_seconds_total",
    }  # fmt: skip
    assert required - recorded == not_recorded
    assert not_recorded <= families.exposed_names()
    assert not [each for each in MACHINE["healthy"] if None in each["values"]]
    assert recorded - {"up"} <= families.exposed_names()
    denied = [each for each in HEALTHY if each["labels"].get("reason") == "denied"]
    assert denied  # the exporter ran without CAP_SYS_PTRACE
    failed = [each for each in HEALTHY if each["labels"].get("result") == "failed"]
    assert {each["labels"]["__name__"] for each in failed} == {
        "batchjob_stats_db_ended_jobs_total", "batchjob_stats_db_tracked_work_total",
    }  # fmt: skip


def test_healthy_day_fires_no_alert(tmp_path):
    is_old = "batchjob:job:age_seconds > 22 * 3600"
    conditions = [
        f"batchjob:job:cpus >= 4 and {is_old}",
        f"batchjob:job:cpu_utilization_ratio < 0.5 and batchjob:job:cpus >= 4 and {is_old}",
        f"batchjob:job:memory_limit_ratio > 0.5 and {is_old}",
        f"batchjob:job_gpu:utilization_ratio:max30m > 0 and on (jobid) {is_old}",
    ]
    one_series = [{"labels": "{}", "value": 1}]
    more_expectations = [(f"count({each})", "23h", one_series) for each in conditions]
    replay_alerts(
        tmp_path, healthy_series(DAY), {}, ["1h", "6h", "12h", "23h"], RULES, more_expectations
    )


@pytest.mark.parametrize(
    ("alert", "metric", "factor"),
    [
        ("BatchjobLowCpu", "batchjob_job_cpu_seconds_total", 0.02),
        ("BatchjobMemoryNearLimit", "batchjob_job_memory_anon_bytes", 1.65),
        ("BatchjobGpuIdle", "batchjob_job_gpu_utilization_ratio", 0.0),
    ],
)
def test_wasteful_long_job_fires_alert(tmp_path, alert, metric, factor):
    """The same hours, with one metric of the long-running jobs scaled."""

    def scaled(labels, values):
        if labels["__name__"] != metric or labels["jobid"] not in LONG_RUNNING:
            return values
        return [value * factor for value in values]

    series = [
        (labels, scaled(labels, values)) for labels, values in healthy_series(4 * 3600 // INTERVAL)
    ]
    replay_alerts(tmp_path, series, {alert: 1}, ["3h"], JOB_RULES)


def test_stopped_controller_fires_cluster_alert(tmp_path):
    """A healthy hour, the minutes of the fault, and half an hour like its end."""
    before = {series_notation(each["labels"]): each for each in RECORDED["healthy"]}
    after = {series_notation(each["labels"]): each for each in RECORDED["controller_down"]}
    hour = 3600 // INTERVAL
    series = []
    for name in before.keys() | after.keys():
        healthy, faulty = before.get(name), after.get(name)
        labels = (healthy or faulty)["labels"]
        metric = labels["__name__"]
        values = repeat_values(labels, healthy["values"], hour) if healthy else [None] * hour
        if faulty:
            fault_values = faulty["values"]
            known = [value for value in fault_values if value is not None]
            shift = 0.0
            if metric.endswith("_total") and healthy:
                last = [value for value in values if value is not None][-1]
                shift = last - [value for value in healthy["values"] if value is not None][-1]
            if metric.endswith("_timestamp_seconds"):
                shift = hour * INTERVAL
            values += [None if value is None else value + shift for value in fault_values]
            if fault_values[-1] is not None:
                growth = growth_per_sample(fault_values) if metric.endswith("_total") else 0.0
                if metric.endswith("_timestamp_seconds") and known[-1] > known[0]:
                    growth = INTERVAL
                values += [values[-1] + growth * (number + 1) for number in range(hour // 2)]
        series.append((labels, [*values, None]))
    parts = {
        each["labels"]["part"]
        for each in RECORDED["controller_down"]
        if each["labels"]["__name__"] == "batchjob_cluster_errors_total"
        and each["values"][-1] > each["values"][0]
    }
    assert {"nodes", "jobs"} <= parts
    expected = {"BatchjobClusterStateOld": len(parts)}
    replay_alerts(tmp_path, series, expected, ["75m"], ["service_alerts.yml"])
