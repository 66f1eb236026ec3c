"""Jobs with complete, incomplete and missing measurements, and the figures expected for each."""

from typing import NamedTuple

GIB = 1 << 30

# Times are seconds from now.
START, END = -7000, -3400
JOB = {"state": "COMPLETED", "submit_time": START - 200, "eligible_time": START - 120,
       "start_time": START, "end_time": END, "elapsed_seconds": 3600, "time_limit_seconds": 7200,
       "allocated_cpus": 4, "allocated_gpus": 2, "allocated_memory_bytes": 8 * GIB,
       "cpu_seconds": None, "update_time": 0}  # fmt: skip
MEASUREMENT = {"samples": 120, "nodes": 1, "source": "prometheus", "caveats": "",
               "measured_time": 0, "dropped_series": 0}  # fmt: skip
COMPLETE = {**MEASUREMENT, "coverage": 1.0, "until_time": END, "user_cpu_seconds": 10_000.0,
            "system_cpu_seconds": 800.0, "memory_peak_bytes": 6 * GIB,
            "memory_average_bytes": 5 * GIB, "gpus": 2, "gpu_utilization_ratio": 0.4,
            "gpu_busy_seconds": 0.4 * 7200, "gpu_observed_seconds": 7200.0}  # fmt: skip
HALF_COVERED = COMPLETE | {
    "coverage": 0.5,
    "user_cpu_seconds": 5_000.0,
    "system_cpu_seconds": 400.0,
}
WITHOUT_SAMPLES = MEASUREMENT | {"coverage": 0.0, "samples": 0, "until_time": END}
JUST_ENDED = COMPLETE | {"until_time": END - 20, "user_cpu_seconds": 9_940.0}
INCOMPLETE = COMPLETE | {
    "until_time": START + 1800,
    "user_cpu_seconds": 1_000.0,
    "memory_peak_bytes": GIB,
}
ACCOUNTING = {"cpu_seconds": 10_800.0, "peak_memory_bytes": 6 * GIB}
SHORT_JOB = {"start_time": END - 59, "elapsed_seconds": 59, "cpu_seconds": 177.0}
UNFINISHED = {"end_time": None, "elapsed_seconds": None}


class Figures(NamedTuple):
    """The derived figures of a job; None is unknown."""

    cpu: float | None = 0.75
    memory: float | None = 0.75
    gpu: float | None = 0.4
    time: float | None = 0.5
    wait: int | None = 120
    basis: str | None = "measured"


INCOMPLETE_FIGURES = Figures(cpu=0.25, memory=0.125)
ACCOUNTING_FIGURES = Figures(gpu=None, basis="accounting")
CASES = {
    "completely measured": (COMPLETE, {}, Figures()),
    "half measured": (HALF_COVERED, {}, Figures()),
    "half measured, with accounting": (HALF_COVERED, ACCOUNTING, Figures(basis="accounting")),
    "not measured": (None, ACCOUNTING, ACCOUNTING_FIGURES),
    "measured without samples": (WITHOUT_SAMPLES, {}, Figures(None, None, None, basis=None)),
    "measured without samples, with accounting": (WITHOUT_SAMPLES, ACCOUNTING, ACCOUNTING_FIGURES),
    "just ended": (JUST_ENDED, {"usage_due_time": END + 60}, Figures()),
    "not measured, too short for accounting": (
        None,
        ACCOUNTING | SHORT_JOB,
        ACCOUNTING_FIGURES._replace(memory=None, time=59 / 7200, wait=3661),
    ),
    "not measured, without accounting": (None, {}, Figures(None, None, None, basis=None)),
    "measured before its end, with accounting": (
        INCOMPLETE,
        ACCOUNTING,
        Figures(basis="accounting"),
    ),
    "measured before its end": (INCOMPLETE, {}, INCOMPLETE_FIGURES),
    "running": (
        INCOMPLETE,
        UNFINISHED | {"state": "RUNNING", "time_limit_seconds": 7_000_000},
        INCOMPLETE_FIGURES._replace(time=0.001),
    ),
    "suspended": (
        INCOMPLETE,
        UNFINISHED | {"state": "SUSPENDED", "elapsed_seconds": 1800},
        INCOMPLETE_FIGURES._replace(time=0.25),
    ),
    "vanished": (
        INCOMPLETE,
        UNFINISHED | {"state": "VANISHED"},
        INCOMPLETE_FIGURES._replace(time=0.25),
    ),
    "vanished, not measured": (
        None,
        UNFINISHED | {"state": "VANISHED"},
        Figures(None, None, None, None, basis=None),
    ),
    "node failed, accounting lost what was measured": (
        HALF_COVERED,
        {"state": "NODE_FAIL", "cpu_seconds": 0.0},
        Figures(),
    ),
    "node failed, not measured, accounting lost it": (
        None,
        {"state": "NODE_FAIL", "cpu_seconds": 0.0},
        Figures(None, None, None, basis=None),
    ),
    "accounting has less than was measured": (
        HALF_COVERED,
        {"cpu_seconds": 5_399.0, "peak_memory_bytes": GIB},
        Figures(),
    ),
    "accounting lacks processes": (
        None,
        ACCOUNTING | {"cpu_at_least": 1},
        ACCOUNTING_FIGURES._replace(basis="at least"),
    ),
    "accounting lacks what was killed": (
        None,
        ACCOUNTING | {"cpu_at_least": 2},
        ACCOUNTING_FIGURES._replace(cpu=None, basis="at least"),
    ),
    "accounting lacks what was killed and half measured": (
        HALF_COVERED,
        {"cpu_at_least": 2, "cpu_seconds": 0.007},
        Figures(),
    ),
    "measured more than its CPUs can provide": (
        COMPLETE | {"user_cpu_seconds": 99_000.0, "caveats": "more cpu than allocated"},
        {},
        Figures(cpu=None),
    ),
    "used GPUs beyond its allocation": (
        COMPLETE | {"gpus": 4, "gpu_busy_seconds": 0.4 * 14400, "gpu_observed_seconds": 14400.0},
        {},
        Figures(),
    ),
    "gave back GPUs": (
        COMPLETE | {"gpus": 4, "gpu_busy_seconds": 0.4 * 10800, "gpu_observed_seconds": 10800.0},
        {"resized_gpu_seconds": 3600.0},
        Figures(),
    ),
    "without a run time from its scheduler": (COMPLETE, {"elapsed_seconds": None}, Figures()),
    "without a time limit": (COMPLETE, {"time_limit_seconds": None}, Figures(time=None)),
    "started at once": (COMPLETE, {"eligible_time": START}, Figures(wait=0)),
    "without an eligible time": (COMPLETE, {"eligible_time": None}, Figures(wait=200)),
    "never started": (
        None,
        {"state": "CANCELLED", "start_time": None, "elapsed_seconds": 0},
        Figures(None, None, None, None, None, None),
    ),
}


def with_absolute_times(now, row):
    """The row, with times relative to `now` made absolute."""
    return {
        key: now + value if key.endswith("_time") and value is not None else value
        for key, value in row.items()
    }
