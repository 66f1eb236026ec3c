"""No advice asks for less than a job truly used, however little of it was seen, and whenever."""

from hypothesis import given
from hypothesis import strategies as st

from batchjob_stats_server.report.facts import UNITS, values
from batchjob_stats_server.report.rules import advise
from tests.batchjob_stats_server.report.test_report import GIB, RULES, UNMEASURED, T, material

HOURS = 3600


@st.composite
def jobs(draw):
    """What a job truly used, and what is known of it at some stage of its life."""
    nodes = draw(st.integers(1, 3))
    peaks = [draw(st.integers(GIB // 4, 16 * GIB)) for _ in range(nodes)]
    cpus = 8 * nodes
    busy = draw(st.floats(0.05, 1.0)) * cpus * 2 * HOURS
    truth = {"node_peak": max(peaks), "cpus": busy / (2 * HOURS)}
    known = {
        "allocated_nodes": nodes, "allocated_cpus": cpus,
        "allocated_memory_bytes": 16 * GIB * nodes,
        "cpu_seconds": None, "peak_memory_bytes": None, "usage_due_time": None,
    }  # fmt: skip
    stage = draw(st.sampled_from(["running", "just ended", "measured", "accounted", "due again"]))
    seen = draw(st.integers(0, 1000)) / 1000
    if stage == "running":
        known |= {"state": "RUNNING", "end_time": None, "elapsed_seconds": None}
    if stage in ("running", "just ended"):
        known["usage_until_time"] = T + max(1, int(seen * 2 * HOURS) - 1)
        coverage = 1.0
    else:
        coverage = seen
    whole = stage in ("measured", "due again") and draw(st.booleans())
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
        "usage_memory_peak_bytes": int(sum(peaks) * seen),
        "usage_memory_peak_node_bytes": int(max(peaks) * seen),
    }
    if stage == "accounted":
        known |= UNMEASURED
    if stage == "accounted" or (stage != "running" and draw(st.booleans())):
        known |= {"cpu_seconds": busy, "peak_memory_bytes": sum(peaks)}
    return truth, known


@given(jobs())
def test_no_request_below_what_was_used(job):
    truth, known = job
    found = values(material(**known))
    rules = {each.rule for each in advise(RULES, found, UNITS)[0]}
    if "memory-oversized" in rules:
        assert found["memory_to_ask"] >= truth["node_peak"] * known["allocated_nodes"]
    if rules & {"low-cpu", "single-threaded"}:
        asked = found["cpus_to_ask"] if "low-cpu" in rules else 1.1
        assert asked >= truth["cpus"]
