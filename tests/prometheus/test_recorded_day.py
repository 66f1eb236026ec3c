"""A healthy day raises no alert; jobs that waste and a controller that is away do.

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
from tests.prometheus.replay import series_of, text_of, with_ends

ROOT = Path(__file__).parents[2]
RECORDED = json.loads((ROOT / "tests/fixtures/alerts/slurm.json").read_text())
MACHINE = json.loads((ROOT / "tests/fixtures/alerts/machine.json").read_text())
HEALTHY = [*RECORDED["healthy"], *MACHINE["healthy"]]
INTERVAL = RECORDED["interval"]
DAY = 86400 // INTERVAL

JOB_RULES = ("jobs.yml", "gpu.yml", "job_alerts.yml")
RULES = ("service_alerts.yml", *JOB_RULES)

pytestmark = pytest.mark.skipif(shutil.which("promtool") is None, reason="not installed: promtool")


def lasting(recorded):
    """Ids of the jobs that ran all the time."""
    return {
        each["labels"]["jobid"]
        for each in recorded
        if each["labels"]["__name__"] == "batchjob_job_processes" and None not in each["values"]
    }


LASTING = lasting(HEALTHY)


def slope(values):
    """How much a counter grew from one sample to the next, in the mean."""
    known = [(number, value) for number, value in enumerate(values) if value is not None]
    (begin, low), (end, high) = known[0], known[-1]
    return (high - low) / max(end - begin, 1)


def step(labels, values):
    """By how much the values have grown when they are repeated."""
    name, job = labels["__name__"], labels.get("jobid")
    grows = name.endswith("_total")
    moves_on = name.endswith("_last_success_timestamp_seconds")
    if job is not None:
        grows = grows and job in LASTING
        moves_on = name.endswith("_start_time_seconds") and job not in LASTING
    if grows:
        return slope(values) * len(values)
    return len(values) * INTERVAL if moves_on else 0.0


def repeated(labels, values, count):
    """The recorded values, over and over until there are `count`."""
    known = [value for value in values if value is not None]
    once_an_hour = labels["__name__"].endswith("_last_success_timestamp_seconds")
    if once_an_hour and known[-1] == known[0]:
        return [known[0] + number * INTERVAL // 3600 * 3600 for number in range(count)]
    by = step(labels, values)
    whole = []
    for times in range(count // len(values) + 1):
        whole += [None if value is None else value + times * by for value in values]
    return whole[:count]


def healthy(count):
    """Labels and values of each series that was recorded without a fault."""
    return [(each["labels"], repeated(each["labels"], each["values"], count)) for each in HEALTHY]


def replay(folder, series, expected, times, rules, more=()):
    """Which alerts fire, each how many times; `more`: other expressions, times and answers."""
    samples = [
        {"labels": f'{{alertname="{name}"}}', "value": value} for name, value in expected.items()
    ]
    firing = 'count by (alertname) (ALERTS{alertstate="firing"})'
    expectations = [(firing, when, samples) for when in times]
    replayed.replay(
        folder,
        INTERVAL,
        [(series_of(labels), text_of(with_ends(values))) for labels, values in series],
        [*expectations, *more],
        [replayed.RULES / name for name in rules],
    )


def test_the_recordings_have_what_alerts_ask_for():
    """An alert on series that are not there does not fire, whatever it says."""
    recorded = {each["labels"]["__name__"] for each in HEALTHY}
    wanted = {"up", *record.names("service_alerts.yml", "job_alerts.yml")}
    assert wanted - recorded == {"batchjob_cluster_node_flag"}  # of nodes that are not healthy
    assert not [each for each in MACHINE["healthy"] if None in each["values"]]
    assert recorded - {"up"} <= families.known()
    denied = [each for each in HEALTHY if each["labels"].get("reason") == "denied"]
    assert denied  # the exporter was one without CAP_SYS_PTRACE
    failed = [each for each in HEALTHY if each["labels"].get("result") == "failed"]
    assert {each["labels"]["__name__"] for each in failed} == {
        "batchjob_stats_db_ended_jobs_total", "batchjob_stats_db_tracked_work_total",
    }  # fmt: skip


def test_a_healthy_day(tmp_path):
    old = "batchjob:job:age_seconds > 22 * 3600"
    there_is = [
        f"batchjob:job:cpus >= 4 and {old}",
        f"batchjob:job:cpu_utilization_ratio < 0.5 and batchjob:job:cpus >= 4 and {old}",
        f"batchjob:job:memory_limit_ratio > 0.5 and {old}",
        f"batchjob:job_gpu:utilization_ratio:max30m > 0 and on (jobid) {old}",
    ]
    one = [{"labels": "{}", "value": 1}]
    more = [(f"count({each})", "23h", one) for each in there_is]
    replay(tmp_path, healthy(DAY), {}, ["1h", "6h", "12h", "23h"], RULES, more)


@pytest.mark.parametrize(
    ("alert", "metric", "factor"),
    [
        ("BatchjobLowCpu", "batchjob_job_cpu_seconds_total", 0.02),
        ("BatchjobMemoryNearLimit", "batchjob_job_memory_anon_bytes", 1.65),
        ("BatchjobGpuIdle", "batchjob_job_gpu_utilization_ratio", 0.0),
    ],
)
def test_a_long_job_that_wastes(tmp_path, alert, metric, factor):
    """The same hours, but for one number of the jobs that run all the time."""

    def scaled(labels, values):
        if labels["__name__"] != metric or labels["jobid"] not in LASTING:
            return values
        return [value * factor for value in values]

    series = [(labels, scaled(labels, values)) for labels, values in healthy(4 * 3600 // INTERVAL)]
    replay(tmp_path, series, {alert: 1}, ["3h"], JOB_RULES)


def test_a_controller_that_is_away(tmp_path):
    """An hour as recorded before, the minutes without it, and half an hour like the last."""
    before = {series_of(each["labels"]): each for each in RECORDED["healthy"]}
    after = {series_of(each["labels"]): each for each in RECORDED["controller_down"]}
    hour = 3600 // INTERVAL
    series = []
    for name in before.keys() | after.keys():
        first, then = before.get(name), after.get(name)
        labels = (first or then)["labels"]
        metric = labels["__name__"]
        values = repeated(labels, first["values"], hour) if first else [None] * hour
        if then:
            own = then["values"]
            known = [value for value in own if value is not None]
            shift = 0.0
            if metric.endswith("_total") and first:
                last = [value for value in values if value is not None][-1]
                shift = last - [value for value in first["values"] if value is not None][-1]
            if metric.endswith("_timestamp_seconds"):
                shift = hour * INTERVAL
            values += [None if value is None else value + shift for value in own]
            if own[-1] is not None:
                growth = slope(own) if metric.endswith("_total") else 0.0
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
    replay(tmp_path, series, expected, ["75m"], ["service_alerts.yml"])
