"""Each rule of advice: an example job to which it applies, and one to which it does not."""

import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchjob.runtime.settings import SettingsError
from batchjob_stats_server.report.conditions import parse_condition
from batchjob_stats_server.report.facts import FACTS, evaluate_quantities
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


def cpu_usage(cpus, peak=None, threads=3):
    """Usage of a job that keeps this number of CPUs busy, or at times more."""
    return {
        "usage_user_cpu_seconds": cpus * 7200.0, "usage_system_cpu_seconds": 0.0,
        "usage_threads_peak": threads, "cpu_peaks": {"n1": peak or cpus},
        "time_limit_seconds": 10_000,
    }  # fmt: skip


def memory_peak(gib):
    return {"usage_memory_peak_bytes": gib * GIB, "usage_memory_peak_node_bytes": gib * GIB}


def elapsed_time(seconds, **more):
    return {"elapsed_seconds": seconds, "end_time": T + seconds, **more}


def profiled(ratio, sm, tensor=0.0, dram=0.0):
    """A job on one GPU of which GPM told how well it was used."""
    return gpu_usage(
        ratio,
        usage_gpu_sm_active_ratio=sm,
        usage_gpu_tensor_active_ratio=tensor,
        usage_gpu_dram_active_ratio=dram,
    )


def untouched(job):
    """The job, with no process on its last GPU."""
    job["gpus"][-1]["memory_peak_bytes"] = None
    return job


def shared(job):
    """The job, of which another one held the GPU for half of the time."""
    job["gpus"][0] |= {"observed_seconds": 3600.0, "shared_seconds": 3600.0}
    return job


def gpu_usage(*ratios, **more):
    devices = [
        {
            **GPU,
            "uuid": f"GPU-{n}",
            "utilization_ratio": r,
            "memory_peak_bytes": 30 * GIB * (r > 0.01),
        }
        for n, r in enumerate(ratios)
    ]
    return {
        "allocated_gpus": len(ratios), "usage_gpus": len(ratios), "gpus": devices,
        "usage_gpu_utilization_ratio": sum(ratios) / len(ratios),
        "usage_gpu_memory_peak_bytes": 30 * GIB,
        "gpu_memory": {f"GPU-{n}": 40.0 * GIB for n in range(len(ratios))}, **more,
    }  # fmt: skip


TWO = {"allocated_nodes": 2, "usage_nodes": 2, "allocated_cpus": 16, **cpu_usage(14)}
SMALL_GPU = gpu_usage(0.2)
SMALL_GPU["gpus"][0]["memory_peak_bytes"] = 4 * GIB
HOLDING = gpu_usage(0.0, 0.9)  # a model that fills the memory of both
HOLDING["gpus"][0]["memory_peak_bytes"] = 30 * GIB
KILLED = {"state": "OUT_OF_MEMORY", "allocated_memory_bytes": 16 * GIB, "allocated_nodes": 1}
RUNNING = {"state": "RUNNING", "end_time": None}

# Rule; a job to which it applies; what it suggests; changes to the job with which it no longer
# applies.
EXAMPLES = [
    ("out-of-memory", {"state": "OUT_OF_MEMORY"}, "See in the report", {"state": "FAILED"}),
    ("out-of-memory", {"state": "OUT_OF_MEMORY", "allocated_memory_bytes": 16 * GIB},
     "Request 32 GiB (--mem=32768M).", {"state": "FAILED"}),
    ("out-of-memory",
     {"state": "OUT_OF_MEMORY", "largest_node_bytes": 24 * GIB},
     "Request 24 GiB (--mem=24576M).", {"state": "FAILED"}),
    ("out-of-memory", {"state": "OUT_OF_MEMORY", "largest_node_bytes": 16 * GIB},
     "no node of the cluster has more memory.", {"state": "FAILED"}),
    ("out-of-memory",
     {"state": "OUT_OF_MEMORY", "similar": [row(usage_memory_peak_node_bytes=20 * GIB)]},
     "Request 24 GiB (--mem=24576M).", {"state": "FAILED"}),
    ("out-of-memory", {"state": "FAILED", "usage_oom_kills": 2}, "", {"usage_oom_kills": 0}),
    ("processes-killed", {"usage_oom_kills": 1}, "more memory", {"usage_oom_kills": 0}),
    ("memory-near-limit", {"usage_working_set_average_bytes": 15 * GIB}, "",
     {"usage_working_set_average_bytes": 12 * GIB}),
    ("memory-near-limit",
     {**memory_peak(16), "usage_memory_limit_hits": 9, "usage_memory_waiting_seconds": 600.0,
      "usage_working_set_average_bytes": 8 * GIB},
     "Request more memory", {"usage_memory_waiting_seconds": 0.0}),  # page cache
    ("memory-near-limit", {**memory_peak(15.8), "runs_of_name": [KILLED] * 9}, "(--mem=",
     {"runs_of_name": []}),
    ("memory-oversized", memory_peak(3.1), "Request 3.75 GiB (--mem=3840M)", memory_peak(9)),
    ("memory-oversized",
     {**memory_peak(3.1), "submit_line": "sbatch -c 8 --mem-per-cpu=2G run.sh"},
     "(--mem-per-cpu=480M)", memory_peak(9)),
    ("memory-oversized", {**memory_peak(3.1), "source": "lsb_acct"}, "(-M 3840MB)", memory_peak(9)),
    ("memory-oversized", {**memory_peak(3.1), "source": "qstat"}, "(-l mem=3840mb)",
     {"state": "FAILED"}),
    ("memory-oversized", {**memory_peak(3.1), **TWO, "allocated_memory_bytes": 32 * GIB},
     "3.75 GiB per node", {"usage_coverage": 0.5}),
    ("memory-oversized", memory_peak(3.1), "", {"similar": [row()]}),  # a job like it needed 12 GiB
    ("memory-oversized", memory_peak(3.1), "",
     {"runs_of_name": [{**KILLED, "allocated_memory_bytes": 12 * GIB}]}),
    ("memory-pressure", {"usage_memory_waiting_seconds": 900.0}, "",
     {"usage_memory_waiting_seconds": 100.0}),
    ("low-cpu", cpu_usage(3), "request 5 of the 8 CPUs", cpu_usage(5)),
    ("low-cpu", cpu_usage(1.5, 4), "request 5 of the 8 CPUs", cpu_usage(5)),
    ("low-cpu", cpu_usage(3, 8), "Find out what", cpu_usage(5)),
    ("low-cpu", cpu_usage(3), "", gpu_usage(0.8)),
    ("single-threaded", cpu_usage(1), "request 1 of the 8 CPUs", cpu_usage(1, 1.5)),
    ("single-threaded", cpu_usage(1), "", cpu_usage(1, threads=9)),  # may have worked in turns
    ("cpu-idle", cpu_usage(0.1), "", cpu_usage(1)),
    ("cpu-throttled", {"usage_throttled_seconds": 9000.0}, "(8)", {"usage_throttled_seconds": 9.0}),
    ("too-many-threads", {"usage_threads_peak": 64, "usage_cpu_waiting_seconds": 5000.0}, "to 8",
     {"usage_threads_peak": 16}),
    ("unbalanced-nodes", {**TWO, "nodes": [NodeUse("n1", 90.0, 1), NodeUse("n2", 10.0, 1)]},
     "all 2 nodes", {"nodes": [NodeUse("n1", 90.0, 1), NodeUse("n2", 60.0, 1)]}),
    ("io-bound", {"usage_io_waiting_seconds": 3600.0}, "", {"usage_io_waiting_seconds": 60.0}),
    ("swapped", {"usage_swap_peak_bytes": GIB}, "", {"usage_swap_peak_bytes": 1 << 20}),
    ("gpu-unused", gpu_usage(0.0, 0.001), "", gpu_usage(0.0, 0.5)),
    ("gpu-unused-so-far", gpu_usage(0.0, 0.001, **RUNNING), "nvidia-smi", gpu_usage(0.0, 0.5)),
    ("gpu-partly-unused", gpu_usage(0.0, 0.9, 0.9), "request 2", gpu_usage(0.5, 0.9, 0.9)),
    ("gpu-partly-unused", gpu_usage(0.0, 0.9), "request 1", HOLDING),
    ("gpu-partly-unused", gpu_usage(0.0, 0.9), "request 1", {"allocated_gpus": 3}),
    ("gpu-low", gpu_usage(0.2, 0.2), "", gpu_usage(0.2, 0.6)),
    ("gpu-small-enough", SMALL_GPU, "MIG", gpu_usage(0.2)),
    ("gpu-memory-near-limit", gpu_usage(0.8, gpu_memory={"GPU-0": 30.0 * GIB}), "", gpu_usage(0.8)),
    # As recorded on an H100: benchmarks/gpu_accuracy.py, `copies`, `one_block`, `fp64`, `fp16`.
    ("gpu-copies-only", profiled(0.83, sm=0.0, dram=0.014), "Keep data", profiled(0.86, sm=0.0066)),
    ("gpu-few-multiprocessors", profiled(0.86, sm=0.0066), "larger batches",
     profiled(0.83, sm=0.0)),
    ("gpu-tensor-cores-unused", profiled(0.86, sm=0.86), "TF32",
     profiled(0.96, sm=0.96, tensor=0.9)),
    ("gpu-memory-bound", profiled(0.89, sm=0.7, dram=0.79), "", profiled(0.89, sm=0.7, dram=0.17)),
    ("gpu-without-process", {**RUNNING, **untouched(gpu_usage(0.9, 0.0))}, "torchrun",
     gpu_usage(0.9, 0.0)),
    ("gpu-shared", shared(gpu_usage(0.8)), "support", gpu_usage(0.8)),
    ("time-limit-reached", {"state": "TIMEOUT", "time_limit_seconds": 7200},
     "Request 4:00:00 (--time=4:00:00).", {"state": "COMPLETED"}),
    ("time-limit-reached",
     {"state": "TIMEOUT", "time_limit_seconds": 7200, "similar": [row(elapsed_seconds=10_000)]},
     "Request 3:30:00 (--time=3:30:00).", {"state": "COMPLETED"}),
    ("time-limit-reached",
     {"state": "TIMEOUT", "time_limit_seconds": 7200, "longest_limit_seconds": 7200},
     "Request more time, if the partition allows it: no recent job there had a longer limit.",
     {"state": "COMPLETED"}),
    ("time-limit-reached", {"state": "TIMEOUT", "time_limit_seconds": None},
     "continue from them in the", {"state": "COMPLETED"}),
    ("time-limit-too-long", {"time_limit_seconds": 86400}, "2:30:00 (--time=2:30:00)",
     {"time_limit_seconds": 14_000}),
    ("failed-soon", elapsed_time(20, state="FAILED"), "", elapsed_time(7200, state="FAILED")),
    ("segmentation-fault", {"state": "FAILED", "exit_signal": 11}, "ulimit -s", {"exit_signal": 6}),
    ("segmentation-fault", {"state": "FAILED", "exit_code": 139}, "gdb", {"exit_code": 1}),
    ("bus-error", {"state": "FAILED", "exit_signal": 7}, "/dev/shm", {"exit_signal": 6}),
    ("illegal-instruction", {"state": "FAILED", "exit_signal": 4}, "Compile", {"exit_signal": 6}),
    ("program-aborted", {"state": "FAILED", "exit_signal": 6}, "last lines", {"exit_signal": 4}),
    ("invalid-calculation", {"state": "FAILED", "exit_signal": 8}, "gdb", {"exit_signal": 4}),
    ("own-limit", {"state": "FAILED", "exit_signal": 25}, "ulimit -a", {"exit_signal": 4}),
    ("killed-by-signal", {"state": "FAILED", "exit_signal": 9, "usage_oom_kills": 0}, "timeout",
     {"usage_oom_kills": 1}),
    ("warning-signal", {"state": "FAILED", "exit_signal": 12}, "trap", {"exit_signal": 15}),
    ("many-short-jobs", elapsed_time(20, short_jobs=80), "array", {"array_jobid": "6"}),
    ("not-measured", UNMEASURED, "", {name: JOB[name] for name in UNMEASURED}),
]  # fmt: skip


def advice_by_rule(**changed):
    return {each.rule: each for each in advise(RULES, evaluate_quantities(material(**changed)))[0]}


@pytest.mark.parametrize(("rule", "job", "step", "other"), EXAMPLES)
def test_rule_applies_only_to_its_example_job(rule, job, step, other):
    found = advice_by_rule(**job)
    assert rule in found
    assert step in found[rule].step
    assert "unknown" not in found[rule].reason + found[rule].step
    if other:
        assert rule not in advice_by_rule(**{**job, **other})
    else:
        assert rule not in advice_by_rule()


def test_every_rule_has_an_example():
    assert {rule for rule, *_ in EXAMPLES} == {rule.id for rule in RULES}


def test_efficient_job_gets_no_advice():
    assert advice_by_rule() == {}
    assert advice_by_rule(**gpu_usage(0.8)) == {}


def test_advice_numbers_are_in_base_units():
    found = advice_by_rule(**memory_peak(3.1))["memory-oversized"]
    assert found.numbers["memory_peak"] == 3.1 * GIB
    assert found.reason.startswith("The peak was 3.1 GiB of 16 GiB (19 %)")


def test_advice_is_sorted_by_severity():
    severities = [
        each.severity
        for each in advice_by_rule(**memory_peak(1), **cpu_usage(1), state="TIMEOUT").values()
    ]
    assert severities == sorted(severities, key=("serious", "warning", "info").index)
    assert severities[0] == "serious"


def silence_reasons(**changed):
    found = advise(RULES, evaluate_quantities(material(**changed)))[1]
    return {each.rule: each.reason for each in found}


def test_insufficient_data_silences_rules_with_a_reason():
    thin = silence_reasons(usage_coverage=0.4, **cpu_usage(1))
    assert thin["low-cpu"] == (
        "Whether the CPU figures cover the whole job and are final: no; needed: cpu_final == yes"
    )
    short = silence_reasons(**elapsed_time(60))
    assert short["low-cpu"] == "Run time: 0:01:00; needed: elapsed >= 5 min"
    assert silence_reasons(**WITH_GPU, gpus=[])["gpu-unused"].startswith(
        "GPUs with measurements: 0; needed: gpus_measured >= 1 * gpus; Part of the measured time in"
    )
    assert silence_reasons(**TWO)["unbalanced-nodes"] == (
        "CPU time of the least busy node / mean of the nodes: unknown"
    )


def test_running_job_is_not_advised_to_request_less():
    assert "memory-oversized" not in advice_by_rule(**RUNNING, **memory_peak(1))
    assert "memory-oversized" not in silence_reasons(**RUNNING)


def test_unmeasured_node_does_not_count_as_idle():
    one = [NodeUse("n1", 90.0, 1)]
    assert "unbalanced-nodes" in silence_reasons(**TWO, nodes=one)


def test_partly_measured_gpus_are_not_reported_unused():
    assert "gpu-unused" in silence_reasons(**gpu_usage(0.0, allocated_gpus=2))
    shared = gpu_usage(0.0)
    shared["gpus"][0] |= {"observed_seconds": 6700.0, "shared_seconds": 500.0}
    assert silence_reasons(**shared)["gpu-unused"].endswith("needed: gpu_observed >= 95 %")


DOCUMENTATION = (Path(__file__).parents[3] / "docs" / "report.md").read_text()


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_documentation_lists_rule(rule):
    assert f"| `{rule.id}` | {rule.severity} | {rule.title} |" in DOCUMENTATION


@pytest.mark.parametrize("name", FACTS)
def test_documentation_lists_quantity(name):
    assert f"| `{name}` | {FACTS[name].unit} | {FACTS[name].about} |" in DOCUMENTATION


# Conditions of rules.

QUANTITY_UNITS = {
    "a": "bytes",
    "b": "bytes",
    "t": "seconds",
    "r": "ratio",
    "n": "count",
    "w": "word",
}


@pytest.mark.parametrize(
    ("condition", "values", "holds"),
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
def test_conditions(condition, values, holds):
    known = dict.fromkeys(QUANTITY_UNITS) | values
    assert parse_condition(condition, QUANTITY_UNITS).holds(known) is holds


@pytest.mark.parametrize(
    ("condition", "message"),
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
def test_invalid_condition_is_explained(condition, message):
    with pytest.raises(ValueError, match=message.replace("(", r"\(")):
        parse_condition(condition, QUANTITY_UNITS)


@given(st.recursive(st.none() | st.booleans() | st.floats() | st.text(), lambda inner: (
    st.lists(inner) | st.dictionaries(st.sampled_from(["all", "any", "x"]), inner))))  # fmt: skip
def test_arbitrary_condition_parses_or_raises_condition_error(raw):
    with contextlib.suppress(ValueError):
        parse_condition(raw, QUANTITY_UNITS)


# Rules files of a site.

RULE = """
  - id: my-rule
    severity: info
    title: Night owl
    when: [cpus >= 4, elapsed > 1 h]
    reason: "{cpus} CPUs for {elapsed}."
    step: Sleep.
"""


def test_site_rules_file_adds_replaces_and_disables_rules(tmp_path):
    file = tmp_path / "rules.yml"
    file.write_text(f"without: [swapped]\nrules:{RULE}{RULE.replace('my-rule', 'low-cpu')}")
    rules = {rule.id: rule for rule in load_rules(str(file))}
    assert "swapped" not in rules
    assert rules["low-cpu"].title == "Night owl"
    found, _ = advise([rules["my-rule"]], evaluate_quantities(material()))
    assert found[0].reason == "8 CPUs for 2:00:00."


@pytest.mark.parametrize(
    ("text", "message"),
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
def test_invalid_rules_file_is_explained(tmp_path, text, message):
    file = tmp_path / "rules.yml"
    file.write_text(text)
    with pytest.raises(SettingsError) as caught:
        load_rules(str(file))
    assert message in str(caught.value)
    assert str(file) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_rules_file_is_named(tmp_path):
    with pytest.raises(SettingsError, match=r"gone\.yml"):
        load_rules(str(tmp_path / "gone.yml"))
