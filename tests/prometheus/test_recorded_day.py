"""A healthy day raises no alert, and a controller that is away does: series of a real chain.

tests/fixtures/alerts/slurm.json was made by record.py from a real Slurm with exporter (as its unit
has it), collector `cluster`, poller, server and Prometheus. Its minutes are repeated for a day:
counters go on from where they were, times move on.
"""

import json
import shutil
from pathlib import Path

import pytest

from tests.prometheus import families
from tests.prometheus import replay as replayed
from tests.prometheus.replay import series_of, text_of

ROOT = Path(__file__).parents[2]
RECORDED = json.loads((ROOT / "tests/fixtures/alerts/slurm.json").read_text())
INTERVAL = RECORDED["interval"]
DAY = 86400 // INTERVAL

pytestmark = pytest.mark.skipif(shutil.which("promtool") is None, reason="not installed: promtool")


def repeated(name, values, count):
    """The recorded values, over and over until there are `count`."""
    known = [value for value in values if value is not None]
    step = 0.0
    if name.endswith("_total"):
        step = known[-1] - known[0]
    elif name.endswith("_last_success_timestamp_seconds"):
        if known[-1] == known[0]:  # what is read once an hour
            return [known[0] + number * INTERVAL // 3600 * 3600 for number in range(count)]
        step = len(values) * INTERVAL
    whole = []
    for times in range(count // len(values) + 1):
        whole += [None if value is None else value + times * step for value in values]
    return whole[:count]


def replay(folder, series, expected, times):
    """Which alerts fire, each how many times."""
    samples = [
        {"labels": f'{{alertname="{name}"}}', "value": value} for name, value in expected.items()
    ]
    firing = 'count by (alertname) (ALERTS{alertstate="firing"})'
    expectations = [(firing, when, samples) for when in times]
    rules = [replayed.RULES / "service_alerts.yml"]
    replayed.replay(folder, INTERVAL, series, expectations, rules)


def test_the_recording_has_what_alerts_ask_for():
    recorded = {each["labels"]["__name__"] for each in RECORDED["healthy"]}
    wanted = """up batchjob_jobs batchjob_scrape_collector_success
        batchjob_job_read_errors_total batchjob_cluster_age_seconds batchjob_cluster_errors_total
        batchjob_cluster_node_info batchjob_stats_db_last_success_timestamp_seconds
        batchjob_stats_db_poll_interval_seconds batchjob_stats_db_ended_jobs_total
        batchjob_stats_db_measured_jobs_total batchjob_stats_db_backup_timestamp_seconds
        batchjob_stats_server_requests_total"""
    assert set(wanted.split()) <= recorded
    assert recorded - {"up"} <= families.known()
    denied = [each for each in RECORDED["healthy"] if each["labels"].get("reason") == "denied"]
    assert denied  # the exporter was one without CAP_SYS_PTRACE


def test_a_healthy_day(tmp_path):
    series = [
        (
            series_of(each["labels"]),
            text_of(repeated(each["labels"]["__name__"], each["values"], DAY)),
        )
        for each in RECORDED["healthy"]
    ]
    replay(tmp_path, series, {}, ["1h", "6h", "12h", "23h"])


def test_a_controller_that_is_away(tmp_path):
    """An hour as recorded before, the minutes without it, and half an hour like the last."""
    before = {series_of(each["labels"]): each for each in RECORDED["healthy"]}
    after = {series_of(each["labels"]): each for each in RECORDED["controller_down"]}
    hour = 3600 // INTERVAL
    series = []
    for name in before.keys() | after.keys():
        first, then = before.get(name), after.get(name)
        metric = (first or then)["labels"]["__name__"]
        values = repeated(metric, first["values"], hour) if first else [None] * hour
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
                step = (known[-1] - known[0]) / len(own) if metric.endswith("_total") else 0.0
                if metric.endswith("_timestamp_seconds") and known[-1] > known[0]:
                    step = INTERVAL
                values += [values[-1] + step * (number + 1) for number in range(hour // 2)]
        series.append((name, text_of(values)))
    parts = {
        each["labels"]["part"]
        for each in RECORDED["controller_down"]
        if each["labels"]["__name__"] == "batchjob_cluster_errors_total"
        and each["values"][-1] > each["values"][0]
    }
    assert {"nodes", "jobs"} <= parts
    replay(tmp_path, series, {"BatchjobClusterStateOld": len(parts)}, ["75m"])
