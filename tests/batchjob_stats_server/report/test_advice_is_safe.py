"""No advice suggests requesting less than a job used, whatever part of it was measured."""

import re

import pytest
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st

from batchjob_stats_db.measure.job_usage import GAPS, NOT_A_NUMBER, PEAK_SAMPLED
from batchjob_stats_server.report.facts import evaluate_quantities
from batchjob_stats_server.report.model import NodeUse
from batchjob_stats_server.report.rules import advise
from tests.batchjob_stats_server.report.test_report import GIB, GPU, RULES, UNMEASURED, T, material

HOURS = 3600
STAGES = ["measured"] * 4 + ["running", "just ended", "accounted", "due again"]
ENDS = ["COMPLETED"] * 4 + ["FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL"]
REDUCING = {
    "memory-oversized", "low-cpu", "single-threaded", "unbalanced-nodes", "gpu-unused",
    "gpu-partly-unused", "gpu-small-enough", "time-limit-too-long",
}  # fmt: skip
_LESS = re.compile(
    r"request (?!more|a GPU with more|nodes|\{\w+_after_\w+\})|without GPUs|lower the number",
    re.IGNORECASE,
)


def test_rules_that_suggest_a_smaller_request_are_known():
    assert {rule.id for rule in RULES if _LESS.search(rule.step)} == REDUCING


@st.composite
def jobs(draw, gpus=0):
    """What a job really used, and what is known of it at some stage of its life."""
    nodes = draw(st.integers(1, 3))
    peaks = [draw(st.integers(GIB // 4, 16 * GIB)) for _ in range(nodes)]
    cpus = 8 * nodes
    busy = draw(st.floats(0.05, 1.0) | st.just(1 / 8)) * cpus * 2 * HOURS
    truth = {"node_peak": max(peaks), "cpus": busy / (2 * HOURS)}
    of_gpus = draw(st.lists(st.sampled_from([0.0, 0.02, 0.9]), min_size=gpus, max_size=gpus))
    truth |= {"gpus": of_gpus, "gpu_memory": draw(st.sampled_from([1, 30])) * GIB}
    truth["shares"] = [draw(st.floats(0.1, 1.0)) for _ in range(nodes)]  # of nodes in CPU time
    known = {
        "allocated_nodes": nodes, "allocated_cpus": cpus,
        "allocated_memory_bytes": 16 * GIB * nodes,
        "cpu_seconds": None, "peak_memory_bytes": None, "usage_due_time": None,
        "time_limit_seconds": draw(st.sampled_from([3, 24])) * HOURS,
        "allocated_gpus": len(of_gpus),
    }  # fmt: skip
    ended_by = draw(st.sampled_from(ENDS))
    known["state"] = ended_by
    stage = draw(st.sampled_from(STAGES))
    seen = draw(st.integers(0, 1000)) / 1000
    if stage == "running":
        known |= {"state": "RUNNING", "end_time": None, "elapsed_seconds": None}
    if stage in ("running", "just ended"):
        known["usage_until_time"] = T + max(1, int(seen * 2 * HOURS) - 1)
        coverage = 1.0
    else:
        coverage = seen
    whole = stage in ("measured", "due again") and draw(st.sampled_from([True, True, False]))
    gaps = draw(st.sampled_from([False, False, True]))  # counters are whole all the same
    if whole:
        seen = coverage = 1.0
    elif stage != "accounted":
        coverage = min(coverage, 0.999) if stage != "just ended" else coverage
    if stage == "due again":
        known["usage_due_time"] = T + 9000
        seen = draw(st.integers(0, 1000)) / 1000  # late samples may tell more
    known |= {
        "usage_coverage": coverage,
        "usage_nodes": nodes,
        "usage_user_cpu_seconds": busy * seen,
        "usage_system_cpu_seconds": 0.0,
        "usage_threads_peak": draw(st.integers(1, 20)),
        "cpu_peaks": {f"n{node}": busy / (2 * HOURS * nodes) for node in range(nodes)},
        "usage_memory_peak_bytes": int(sum(peaks) * seen),
        "usage_memory_peak_node_bytes": int(max(peaks) * seen),
    }
    known |= draw(usage_with_caveats(known, gaps))
    known |= draw(measured_gpus(truth, whole and not gaps))
    known["nodes"] = draw(measured_nodes(truth["shares"], whole))
    if stage == "accounted":
        known |= {**UNMEASURED, "gpus": []}
    if stage == "accounted" or (stage != "running" and draw(st.booleans())):
        known |= draw(accounted_usage(busy, peaks, ended_by))
    return truth, known


@st.composite
def usage_with_caveats(draw, known, gaps):
    """Usage with caveats, which may be too low."""
    sampled, odd = draw(st.sampled_from([(False, False)] * 2 + [(True, False), (False, True)]))
    caveats = {GAPS: gaps, PEAK_SAMPLED: sampled, NOT_A_NUMBER: odd}
    found = {"usage_caveats": ", ".join(caveat for caveat, there in caveats.items() if there)}
    for name in ("usage_memory_peak_bytes", "usage_memory_peak_node_bytes"):
        found[name] = draw(st.integers(0, known[name])) if sampled or odd else known[name]
    part = draw(st.floats(0, 1)) if odd else 1
    return found | {"usage_user_cpu_seconds": known["usage_user_cpu_seconds"] * part}


@st.composite
def accounted_usage(draw, busy, peaks, ended_by):
    """Accounting samples memory periodically, and may lack a step that was terminated."""
    counted = busy if ended_by == "COMPLETED" else busy * draw(st.floats(0, 1))
    return {"cpu_seconds": counted, "peak_memory_bytes": draw(st.integers(0, sum(peaks)))}


@st.composite
def measured_gpus(draw, truth, whole):
    """Measurements of a job's GPUs: complete, or of any part of its time."""
    seen = draw(st.sampled_from([[0.0], [0.02], [0.0, 0.5]]))
    devices = [
        {
            **GPU, "uuid": f"GPU-{number}",
            "utilization_ratio": true if whole else draw(st.sampled_from(seen)),
            "memory_peak_bytes": (truth["gpu_memory"] if whole else GIB) * (true > 0),
            "observed_seconds": 1e9 if whole else draw(st.floats(0, 7200)),
        }
        for number, true in enumerate(truth["gpus"])
        if draw(st.integers(0, 3))  # the others are reported by no exporter or driver
    ]  # fmt: skip
    ratios = [each["utilization_ratio"] for each in devices]
    return {
        "gpus": devices,
        "gpu_memory": {each["uuid"]: 40.0 * GIB for each in devices},
        "usage_gpus": len(devices) or None,
        "usage_gpu_utilization_ratio": sum(ratios) / len(ratios) if ratios else None,
        "usage_gpu_memory_peak_bytes": truth["gpu_memory"] if whole else GIB,
    }


@st.composite
def measured_nodes(draw, shares, whole):
    return [
        NodeUse(f"n{number}", share if whole else share * draw(st.floats(0, 1)), GIB)
        for number, share in enumerate(shares)
        if whole or draw(st.booleans())
    ]


def applied_rules(job):
    """The rules that apply to a job."""
    return {each.rule for each in advise(RULES, evaluate_quantities(material(**job[1])))[0]}


@pytest.mark.parametrize("rule", sorted(REDUCING))
def test_generated_jobs_trigger_every_reducing_rule(rule):
    gpus = 2 if rule == "gpu-partly-unused" else int(rule.startswith("gpu"))
    any_job = settings(max_examples=3000, phases=[Phase.generate], database=None)
    find(jobs(gpus), lambda job: rule in applied_rules(job), settings=any_job)


@given(jobs())
def test_advice_never_requests_less_than_was_used(job):
    truth, known = job
    found, rules = evaluate_quantities(material(**known)), applied_rules(job)
    if "memory-oversized" in rules:
        assert found["memory_to_ask"] >= truth["node_peak"] * known["allocated_nodes"]
    if rules & {"low-cpu", "single-threaded"}:
        asked = found["cpus_to_ask"]
        assert asked is None or asked >= 0.95 * truth["cpus"]
    if "unbalanced-nodes" in rules:
        assert min(truth["shares"]) < 0.5 * sum(truth["shares"]) / len(truth["shares"])
    if "time-limit-too-long" in rules:
        assert found["time_to_ask"] >= 2 * HOURS


@given(st.integers(1, 3).flatmap(jobs))
def test_advice_never_gives_up_a_used_gpu(job):
    truth, known = job
    found, rules = evaluate_quantities(material(**known)), applied_rules(job)
    used_gpus = sum(ratio >= 0.01 for ratio in truth["gpus"])
    if "gpu-unused" in rules:
        assert used_gpus == 0
    if "gpu-partly-unused" in rules:
        assert found["gpus_in_use"] >= used_gpus
    if "gpu-small-enough" in rules:
        assert truth["gpus"][0] < 0.3
        assert truth["gpu_memory"] < 0.2 * 40 * GIB
