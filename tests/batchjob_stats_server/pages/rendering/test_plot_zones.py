"""What a plot shades is what advice calls wasteful, or near a limit."""

import json

import pytest

from batchjob_stats_server.pages.rendering import usage_bars
from batchjob_stats_server.report.facts import UNITS
from batchjob_stats_server.report.rules import load_rules

CPU_JOB = {"started": "yes", "ended": "yes", "state": "COMPLETED", "gpus": 0.0, "cpus": 8.0,
           "memory_limit": float(16 << 30)}  # fmt: skip


def zone(words, side, ratio):
    return {"words": words, "side": side, "ratio": ratio}


def zones(rules=None, **facts):
    return usage_bars.job_zones(rules or load_rules(), dict.fromkeys(UNITS) | CPU_JOB | facts)


def test_a_job_of_cpus():
    found = zones()
    assert found["cpu"] == [zone("little used", "below", 0.5)]
    assert found["memory"] == [
        zone("little used", "below", 0.5), zone("nearly full", "above", 0.9),
    ]  # fmt: skip
    assert found["pressure_io"] == [zone("waits for storage", "above", 0.3)]
    assert found["gpu_utilization"] == found["gpu_memory"] == []


def test_cpus_of_a_job_with_gpus_may_do_little():
    found = zones(gpus=4.0)
    assert found["cpu"] == []
    assert found["gpu_utilization"] == [zone("little used", "below", 0.3)]


@pytest.mark.parametrize("facts", [{"state": "OUT_OF_MEMORY"}, {"ended": "no", "state": "RUNNING"}])
def test_memory_is_called_unused_of_jobs_alone_that_ended_well(facts):
    assert "below" not in {each["side"] for each in zones(**facts)["memory"]}


def test_a_site_sets_the_thresholds_with_its_rules(tmp_path):
    own = tmp_path / "advice.yaml"
    own.write_text(
        "without: [io-bound]\n"
        "rules:\n- {id: low-cpu, severity: info, title: t, when: [cpu_ratio < 20 %], reason: r., "
        "step: s.}\n"
    )
    found = zones(load_rules(str(own)))
    assert found["cpu"] == [zone("little used", "below", 0.2)]
    assert found["pressure_io"] == []


def test_the_script_reads_json():
    told = usage_bars.as_json(usage_bars.node_zones(), ("memory", "swap"))
    assert json.loads(told) == [{"words": "nearly full", "side": "above", "ratio": 0.95}]
