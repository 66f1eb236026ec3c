"""Each rule of advice: a job of which it speaks, and one like it of which it does not."""

import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchjob.runtime.settings import SettingsError
from batchjob_stats_server.report.conditions import ConditionError, parse_condition
from batchjob_stats_server.report.facts import QUANTITIES, UNITS, evaluate_quantities
from batchjob_stats_server.report.model import NodeUse
from batchjob_stats_server.report.rules import advise, load_rules
from tests.batchjob_stats_server.report.test_report import (
    GIB,
    GPU,
    JOB,
    RULES,
    UNMEASURED,
    WITH_GPU,
    T,
    material,
    row,
)


def used(cpus):
    """CPU time of so many of the CPUs."""
    return {"usage_user_cpu_seconds": cpus * 7200.0, "usage_system_cpu_seconds": 0.0}


def peak(gib):
    return {"usage_memory_peak_bytes": gib * GIB, "usage_memory_peak_node_bytes": gib * GIB}


def ran(seconds, **more):
    return {"elapsed_seconds": seconds, "end_time": T + seconds, **more}


def gpus(*ratios, **more):
    devices = [{**GPU, "uuid": f"GPU-{n}", "utilization_ratio": r} for n, r in enumerate(ratios)]
    return {
        "allocated_gpus": len(ratios), "usage_gpus": len(ratios), "gpus": devices,
        "usage_gpu_utilization_ratio": sum(ratios) / len(ratios),
        "usage_gpu_memory_peak_bytes": 30 * GIB,
        "gpu_memory": {f"GPU-{n}": 40.0 * GIB for n in range(len(ratios))}, **more,
    }  # fmt: skip


TWO = {"allocated_nodes": 2, "usage_nodes": 2, "allocated_cpus": 16, **used(14)}
SMALL_GPU = gpus(0.2)
SMALL_GPU["gpus"][0]["memory_peak_bytes"] = 4 * GIB
RUNNING = {"state": "RUNNING", "end_time": None}

# Rule; a job of which it speaks; what it says to do; the same job a little different, of which it
# does not speak.
EXAMPLES = [
    ("out-of-memory", {"state": "OUT_OF_MEMORY"}, "more memory", {"state": "FAILED"}),
    ("out-of-memory", {"state": "OUT_OF_MEMORY", "allocated_memory_bytes": 16 * GIB},
     "Twice what it had is 32 GiB (--mem=32768M).", {"state": "FAILED"}),
    ("out-of-memory", {"state": "FAILED", "usage_oom_kills": 2}, "", {"usage_oom_kills": 0}),
    ("processes-killed", {"usage_oom_kills": 1}, "more memory", {"usage_oom_kills": 0}),
    ("memory-near-limit", {"usage_working_set_average_bytes": 15 * GIB}, "",
     {"usage_working_set_average_bytes": 12 * GIB}),
    ("memory-near-limit",
     {**peak(16), "usage_memory_limit_hits": 9, "usage_memory_waiting_seconds": 600.0,
      "usage_working_set_average_bytes": 8 * GIB},
     "Request more memory", {"usage_memory_waiting_seconds": 0.0}),  # page cache
    ("memory-oversized", peak(3.1), "Request 4 GiB (--mem=4096M)", peak(9)),
    ("memory-oversized", {**peak(3.1), "source": "qstat"}, "(-l mem=4096mb)", {"state": "FAILED"}),
    ("memory-oversized", {**peak(3.1), **TWO, "allocated_memory_bytes": 32 * GIB},
     "4 GiB per node", {"usage_coverage": 0.5}),
    ("memory-oversized", peak(3.1), "", {"similar": [row()]}),  # a job like it needed 12 GiB
    ("memory-pressure", {"usage_memory_waiting_seconds": 900.0}, "",
     {"usage_memory_waiting_seconds": 100.0}),
    ("low-cpu", used(3), "Request 4 CPUs", used(5)),
    ("low-cpu", used(3), "", gpus(0.8)),
    ("single-threaded", used(1), "Request 1 CPU", used(2)),
    ("cpu-idle", used(0.1), "", used(1)),
    ("cpu-throttled", {"usage_throttled_seconds": 9000.0}, "(8)", {"usage_throttled_seconds": 9.0}),
    ("too-many-threads", {"usage_threads_peak": 64, "usage_cpu_waiting_seconds": 5000.0}, "to 8",
     {"usage_threads_peak": 16}),
    ("unbalanced-nodes", {**TWO, "nodes": [NodeUse("n1", 90.0, 1), NodeUse("n2", 10.0, 1)]},
     "all 2 nodes", {"nodes": [NodeUse("n1", 90.0, 1), NodeUse("n2", 60.0, 1)]}),
    ("io-bound", {"usage_io_waiting_seconds": 3600.0}, "", {"usage_io_waiting_seconds": 60.0}),
    ("swapped", {"usage_swap_peak_bytes": GIB}, "", {"usage_swap_peak_bytes": 1 << 20}),
    ("gpu-unused", gpus(0.0, 0.001), "", gpus(0.0, 0.5)),
    ("gpu-unused-so-far", gpus(0.0, 0.001, **RUNNING), "nvidia-smi", gpus(0.0, 0.5)),
    ("gpu-partly-unused", gpus(0.0, 0.9, 0.9), "only 2 of them", gpus(0.5, 0.9, 0.9)),
    ("gpu-partly-unused", gpus(0.0, 0.9), "only 1 of them", {"allocated_gpus": 3}),
    ("gpu-low", gpus(0.2, 0.2), "", gpus(0.2, 0.6)),
    ("gpu-small-enough", SMALL_GPU, "MIG", gpus(0.2)),
    ("gpu-memory-near-limit", gpus(0.8, gpu_memory={"GPU-0": 30.0 * GIB}), "", gpus(0.8)),
    ("time-limit-reached", {"state": "TIMEOUT", "time_limit_seconds": 7200},
     "Twice the limit is 4:00:00 (--time=4:00:00).", {"state": "COMPLETED"}),
    ("time-limit-reached", {"state": "TIMEOUT", "time_limit_seconds": None},
     "continue from them in the next job.", {"state": "COMPLETED"}),
    ("time-limit-too-long", {"time_limit_seconds": 86400}, "2:30:00 (--time=2:30:00)",
     {"time_limit_seconds": 14_000}),
    ("failed-soon", ran(20, state="FAILED"), "", ran(7200, state="FAILED")),
    ("many-short-jobs", ran(20, short_jobs=80), "array", {"array_jobid": "6"}),
    ("not-measured", UNMEASURED, "", {name: JOB[name] for name in UNMEASURED}),
]  # fmt: skip


def said(**changed):
    return {
        each.rule: each
        for each in advise(RULES, evaluate_quantities(material(**changed)), UNITS)[0]
    }


@pytest.mark.parametrize(("rule", "job", "step", "other"), EXAMPLES)
def test_a_rule_speaks_of_its_job_alone(rule, job, step, other):
    found = said(**job)
    assert rule in found
    assert step in found[rule].step
    assert "unknown" not in found[rule].reason + found[rule].step
    if other:
        assert rule not in said(**{**job, **other})
    else:
        assert rule not in said()


def test_every_rule_has_an_example():
    assert {rule for rule, *_ in EXAMPLES} == {rule.id for rule in RULES}


def test_there_is_nothing_to_say_of_a_good_job():
    assert said() == {}
    assert said(**gpus(0.8)) == {}


def test_the_numbers_are_given_in_base_units():
    found = said(**peak(3.1))["memory-oversized"]
    assert found.numbers["memory_peak"] == 3.1 * GIB
    assert found.reason.startswith("The peak was 3.1 GiB of 16 GiB (19 %)")


def test_serious_things_come_first():
    severities = [each.severity for each in said(**peak(1), **used(1), state="TIMEOUT").values()]
    assert severities == sorted(severities, key=("serious", "warning", "info").index)
    assert severities[0] == "serious"


def silent(**changed):
    found = advise(RULES, evaluate_quantities(material(**changed)), UNITS)[1]
    return {each.rule: each.reason for each in found}


def test_thin_data_is_a_reason_to_be_silent():
    thin = silent(usage_coverage=0.4, **used(1))
    assert thin["low-cpu"] == "needs cpu_final == yes, it is no"
    assert silent(**ran(60))["low-cpu"] == "needs elapsed >= 5 min, it is 0:01:00"
    assert silent(**WITH_GPU, gpus=[])["gpu-unused"].startswith("needs gpu_samples >= 5, it is 0")
    assert silent(**TWO)["unbalanced-nodes"] == "node_balance_ratio is not known"


def test_a_running_job_is_not_told_to_ask_for_less():
    assert "memory-oversized" not in said(**RUNNING, **peak(1))
    assert "memory-oversized" not in silent(**RUNNING)


def test_a_node_without_measurements_is_no_idle_node():
    one = [NodeUse("n1", 90.0, 1)]
    assert "unbalanced-nodes" in silent(**TWO, nodes=one)


def test_gpus_that_were_not_all_measured_are_not_called_unused():
    assert "gpu-unused" in silent(**gpus(0.0, allocated_gpus=2))


PAGE = (Path(__file__).parents[3] / "docs" / "report.md").read_text()


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_the_page_has_every_rule(rule):
    assert f"| `{rule.id}` | {rule.severity} | {rule.title} |" in PAGE


@pytest.mark.parametrize("name", QUANTITIES)
def test_the_page_has_every_quantity(name):
    assert f"| `{name}` | {QUANTITIES[name].unit} | {QUANTITIES[name].about} |" in PAGE


# The language of conditions.

SOME = {"a": "bytes", "b": "bytes", "t": "seconds", "r": "ratio", "n": "count", "w": "word"}


@pytest.mark.parametrize(
    ("condition", "given_", "holds"),
    [
        ("a < 2 GiB", {"a": GIB}, True),
        ("t >= 5 min", {"t": 299}, False),
        ("r <= 50 %", {"r": 0.5}, True),
        ("n == 3", {"n": 3}, True),
        ("a >= b", {"a": 2, "b": 2}, True),
        ("a > 95 % * b", {"a": 96, "b": 100}, True),
        ("a > 2 * b", {"a": 5, "b": 3}, False),
        ("w == RUNNING", {"w": "RUNNING"}, True),
        ("w != yes", {"w": "no"}, True),
        ("a < 1", {}, None),
        ("a > 2 * b", {"a": 5}, None),
        (["a > 1", "b > 1"], {"a": 2}, None),
        (["a > 1", "b > 1"], {"a": 0}, False),
        ({"any": ["a > 1", "b > 1"]}, {"a": 2}, True),
        ({"any": ["a > 1", "b > 1"]}, {"a": 0}, None),
        ({"any": ["a > 1", {"all": ["b > 1", "n > 1"]}]}, {"a": 0, "b": 0}, False),
    ],
)
def test_conditions(condition, given_, holds):
    known = dict.fromkeys(SOME) | given_
    assert parse_condition(condition, SOME).holds(known) is holds


@pytest.mark.parametrize(
    ("condition", "said_"),
    [
        ("c < 1", "unknown quantity 'c'; known are a, b"),
        ("a < 1 parsec", "unknown unit 'parsec'"),
        ("a < 5 min", "a is in bytes, not in min"),
        ("a < t", "a and t have different units"),
        ("a < 2 * t", "different units"),
        ("w < RUNNING", "expected == or !="),
        ("a == RUNNING", "expected a number, a quantity"),
        ("a <", "expected QUANTITY OPERATOR VALUE"),
        ("__import__('os')", "expected QUANTITY OPERATOR VALUE"),
        ("a < ().__class__", "expected a number"),
        (5, "expected a comparison"),
        ([], "expected a comparison"),
        ({"not": ["a < 1"]}, "expected a comparison"),
    ],
)
def test_wrong_conditions(condition, said_):
    with pytest.raises(ConditionError, match=said_.replace("(", r"\(")):
        parse_condition(condition, SOME)


@given(st.recursive(st.none() | st.booleans() | st.floats() | st.text(), lambda inner: (
    st.lists(inner) | st.dictionaries(st.sampled_from(["all", "any", "x"]), inner))))  # fmt: skip
def test_whatever_stands_there_is_a_condition_or_said_to_be_none(raw):
    with contextlib.suppress(ConditionError):
        parse_condition(raw, SOME)


# What a site changes.

RULE = """
  - id: my-rule
    severity: info
    title: Night owl
    when: [cpus >= 4, elapsed > 1 h]
    reason: "{cpus} CPUs for {elapsed}."
    step: Sleep.
"""


def test_a_site_adds_changes_and_switches_off(tmp_path):
    file = tmp_path / "rules.yml"
    file.write_text(f"without: [swapped]\nrules:{RULE}{RULE.replace('my-rule', 'low-cpu')}")
    rules = {rule.id: rule for rule in load_rules(UNITS, str(file))}
    assert "swapped" not in rules
    assert rules["low-cpu"].title == "Night owl"
    found, _ = advise([rules["my-rule"]], evaluate_quantities(material()), UNITS)
    assert found[0].reason == "8 CPUs for 2:00:00."


@pytest.mark.parametrize(
    ("text", "said_"),
    [
        ("- a", "expected the keys rules and without"),
        ("rules: 5", "expected lists under rules and without"),
        ("without: [swaped]", "without: unknown rule swaped; did you mean swapped?"),
        ("rules: [x]", "rule 1: expected a mapping"),
        (f"rules:{RULE}{RULE}", "rule my-rule is given twice"),
        (f"rules:{RULE.replace('when', 'then')}", "rule 1 (my-rule): unknown key then"),
        (f"rules:{RULE.replace('step: Sleep.', '')}", "step is missing"),
        (f"rules:{RULE.replace('info', 'bad')}", "severity: expected one of serious, warning"),
        (f"rules:{RULE.replace('my-rule', 'My Rule')}", "expected words with dashes"),
        (f"rules:{RULE.replace('{cpus}', '{cups}')}", "reason: unknown quantity cups"),
        (f"rules:{RULE.replace('>= 4', '>= many')}", "when: 'cpus >= many': expected a number"),
        ("rules: [", "while parsing"),
        ("!!python/object/apply:os.system [x]", "could not determine a constructor"),
    ],
)
def test_a_file_of_rules_with_a_mistake(tmp_path, text, said_):
    file = tmp_path / "rules.yml"
    file.write_text(text)
    with pytest.raises(SettingsError) as caught:
        load_rules(UNITS, str(file))
    assert said_ in str(caught.value)
    assert str(file) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_of_rules_that_is_not_there(tmp_path):
    with pytest.raises(SettingsError, match=r"gone\.yml"):
        load_rules(UNITS, str(tmp_path / "gone.yml"))
