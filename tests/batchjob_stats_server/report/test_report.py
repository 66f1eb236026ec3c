"""Efficiency, comparison and the ways to write a report."""

import dataclasses
import json
from html.parser import HTMLParser

import pytest

from batchjob_stats_db.database import schema
from batchjob_stats_db.queries.efficiency import columns
from batchjob_stats_server.report import forms as written
from batchjob_stats_server.report.build import build_report
from batchjob_stats_server.report.model import NodeUse, ReportInput
from batchjob_stats_server.report.right_size import round_memory, round_seconds
from batchjob_stats_server.report.rules import load_rules
from batchjob_stats_server.report.text import build_document
from tests.helpers.derived_rows import replace_usage

GIB = 1 << 30
T = 1_775_300_000
RULES = load_rules()

# A job as the database has it: two hours on one node with 8 CPUs and 16 GiB, well used.
EMPTY = {each.name: "" if isinstance(each.type, schema.Text) else None for each in columns()}
JOB = EMPTY | {
    "id": 1, "cluster": "c1", "jobid": "7", "username": "alice", "account": "physics",
    "state": "COMPLETED", "state_word": "COMPLETED", "source": "sacct", "name": "train",
    "submit_time": T - 100, "start_time": T, "end_time": T + 7200, "elapsed_seconds": 7200,
    "time_limit_seconds": 9000, "exit_code": 0, "allocated_cpus": 8, "allocated_nodes": 1,
    "allocated_memory_bytes": 16 * GIB,
    "usage_source": "prometheus", "usage_samples": 240, "usage_nodes": 1, "usage_coverage": 1.0,
    "usage_until_time": T + 7200, "usage_user_cpu_seconds": 50_000.0,
    "usage_system_cpu_seconds": 1840.0, "usage_memory_peak_bytes": 12 * GIB,
    "usage_memory_peak_node_bytes": 12 * GIB,
}  # fmt: skip
GPU = {"node": "n1", "gpu": "0", "uuid": "GPU-a", "gpu_instance": "", "utilization_ratio": 0.8,
       "memory_peak_bytes": 30 * GIB, "samples": 240, "observed_seconds": 7200.0,
       "shared_seconds": 0.0, "mps_seconds": 0.0, "profiled_seconds": 7200.0,
       "sm_active_ratio": 0.6, "sm_active_peak_ratio": 0.9, "sm_occupancy_ratio": 0.3,
       "tensor_active_ratio": 0.2, "dram_active_ratio": 0.1}  # fmt: skip
IDLE = {**GPU, "gpu": "1", "uuid": "GPU-b", "utilization_ratio": 0.0}
WITH_GPU = {"allocated_gpus": 1, "usage_gpus": 1, "usage_gpu_utilization_ratio": 0.8}
MEMORY = {"GPU-a": 40.0 * GIB, "GPU-b": 40.0 * GIB}
UNMEASURED = {name: None for name in JOB if name.startswith("usage_")}


def row(**changed):
    """A job as a page of jobs has it, with the figures that follow from its usage."""
    given = {**JOB, **changed}
    usage = {
        name.removeprefix("usage_"): value for name, value in given.items() if "usage_" in name
    }
    return replace_usage(given, usage)


BESIDE = (
    "cpu_peaks",
    "runs_of_name",
    "largest_node_bytes",
    "longest_limit_seconds",
    "script",
)  # what a report has beside the job's row


def material(gpus=(), nodes=(), gpu_memory=MEMORY, similar=(), short_jobs=0, **changed):
    beside = {name: changed.pop(name) for name in BESIDE if name in changed}
    return ReportInput(
        row(**changed), T + 8000, gpus, (), nodes, gpu_memory, similar=similar, alike="name",
        short_jobs=short_jobs, **beside,
    )  # fmt: skip


def report_of(pue=None, **given):
    return build_report(material(**given), RULES, pue)


def ratios(**changed):
    return {each.what: each.ratio for each in report_of(**changed).efficiency}


def test_efficiency_of_ended_job():
    assert ratios() == {"cpu": pytest.approx(0.9), "memory": 0.75, "time": 0.8}


def test_efficiency_states_formula_and_source():
    cpu, memory, _ = report_of().efficiency
    assert (cpu.used, cpu.available, cpu.unit) == (51_840, 57_600, "seconds")
    assert cpu.formula == "CPU time / (CPUs * elapsed time * part measured)"
    assert memory.source == "prometheus"


def test_job_that_gave_back_cpus_is_not_told_how_many_to_request():
    """Sixteen CPUs for an hour, then eight; two were in use."""
    used = {"usage_user_cpu_seconds": 14_400.0, "usage_system_cpu_seconds": 0.0}
    used |= {"cpu_peaks": {"n1": 2.0}}
    assert "low-cpu" in {each.rule for each in report_of(**used).advice}
    report = report_of(**used, resized_cpu_seconds=8 * 3600.0)
    cpu = report.efficiency[0]
    assert cpu.formula == "CPU time / (CPUs held at each time * elapsed time * part measured)"
    assert (cpu.available, cpu.ratio) == (24 * 3600, pytest.approx(4 / 24))
    assert "low-cpu" not in {each.rule for each in report.advice}
    lines = [line for _, lines in build_document(report).sections for line in lines]
    assert [each.text for each in lines if each.label == "Allocated"] == [
        "1 node, 8 CPUs, 16 GiB at last"
    ]


def test_waiting_job_tells_what_it_requests():
    waiting = {"state": "PENDING", "start_time": None, "end_time": None, "elapsed_seconds": None}
    asked = {"requested_nodes": 2, "requested_cpus": 16, "requested_gpus": 1}
    report = report_of(**waiting, **asked, requested_memory_bytes=8 << 30)
    lines = [line for _, lines in build_document(report).sections for line in lines]
    assert [each.text for each in lines if each.label == "Requested"] == [
        "2 nodes, 16 CPUs, 1 GPU, 8 GiB"
    ]
    assert [each for each in lines if each.label == "Allocated"] == []


def test_efficiency_refers_to_the_measured_part():
    half = {"usage_coverage": 0.5, "allocated_nodes": 2, "allocated_cpus": 16}
    assert ratios(**half) == {"cpu": pytest.approx(0.9), "memory": 1.5, "time": 0.8}


def test_accounting_is_used_without_measurements():
    found = report_of(**UNMEASURED, cpu_seconds=28_800.0, peak_memory_bytes=4 * GIB)
    cpu, memory, _ = found.efficiency
    assert (cpu.ratio, cpu.source) == (0.5, "accounting")
    assert (memory.ratio, memory.source) == (0.25, "accounting")
    assert found.basis.source == "accounting"


def test_caveats_are_explained():
    text = " ".join(written.as_text(report_of(usage_caveats="nodes missing, user differs")).split())
    assert "more than 5 % of the job's time on its nodes was not measured" in text
    assert "energy may be too low; series of another user with this job id are left out" in text
    assert "nodes missing" not in text


@pytest.mark.parametrize(
    ("accounted", "told"),
    [
        (None, "CPU time, IO and energy may be too low"),
        (51_840.0, "; IO and energy may be too low"),
    ],
)
def test_cpu_time_that_accounting_knows_is_not_said_to_be_too_low(accounted, told):
    """As of a run whose children did the work after its last sample."""
    given = {"usage_caveats": "running, nodes missing", "usage_until_time": T + 3600}
    report = report_of(**given, usage_coverage=0.5, cpu_seconds=accounted)
    assert told in " ".join(written.as_text(report).split())
    assert ("CPU time, IO" in " ".join(report.caveats())) == (accounted is None)


def test_missing_measurements_are_mentioned_once():
    given = {**UNMEASURED, "usage_caveats": "no samples"}
    text = " ".join(written.as_text(report_of(**given, cpu_seconds=28_800.0)).split())
    assert "none; what the scheduler or `batchjob run` recorded is used instead" in text
    assert "Caveats" not in text


def test_measurement_of_running_job_is_a_caveat_only_after_its_end():
    told = "measured while the job ran, not up to its end"
    ended = {"usage_caveats": "running"}
    running = {**ended, "state": "RUNNING", "end_time": None}
    assert told in " ".join(written.as_text(report_of(**ended)).split())
    assert told not in " ".join(written.as_text(report_of(**running)).split())


def test_multiline_command_is_shown_on_one_line():
    text = written.as_text(report_of(submit_line="sbatch --wrap 'echo a\n\techo b\x1b[2J'"))
    assert "sbatch --wrap 'echo a  echo b?[2J'" in text


def test_task_of_an_array_is_not_shown_as_the_whole():
    text = " ".join(written.as_text(report_of(array_jobid="24", array_index=4)).split())
    assert "Array task 4 of 24; see the others with: batchjob jobs --workflow 24" in text
    assert "Array waiting tasks of 24" in " ".join(
        written.as_text(report_of(array_jobid="24", state="PENDING", start_time=None)).split()
    )
    assert "Array" not in written.as_text(report_of())


def test_unknown_efficiency_has_a_reason():
    found = report_of(**UNMEASURED, time_limit_seconds=None, allocated_memory_bytes=None)
    assert {each.what: (each.ratio, each.missing) for each in found.efficiency} == {
        "cpu": (None, "nothing was measured"),
        "memory": (None, "its memory limit is not known"),
        "time": (None, "no time limit is known"),
    }


def test_a_run_without_limits_is_said_to_have_none():
    found = report_of(source="runs", allocated_cpus=None, allocated_memory_bytes=None)
    cpu, memory, _ = found.efficiency
    assert (cpu.missing, memory.missing) == ("no limit was set", "no limit was set")


def test_impossible_cpu_time_gives_no_efficiency():
    cpu = report_of(usage_caveats="more cpu than allocated").efficiency[0]
    assert (cpu.ratio, cpu.missing) == (None, "more CPU time than the CPUs can provide")


def test_running_job_is_rated_up_to_its_last_measurement():
    running = {"state": "RUNNING", "end_time": None, "elapsed_seconds": None}
    found = report_of(**running, usage_until_time=T + 6400, usage_user_cpu_seconds=44_240.0)
    assert found.interim
    assert found.efficiency[0].ratio == pytest.approx(0.9)
    assert found.job.elapsed_seconds == 8000


def test_elapsed_time_of_vanished_job_does_not_grow():
    vanished = {"state": "VANISHED", "state_word": "RUNNING", "end_time": None}
    found = report_of(**vanished, elapsed_seconds=3600, usage_until_time=T + 3600)
    assert (found.job.state, found.job.elapsed_seconds, found.interim) == ("VANISHED", 3600, False)
    unmeasured = report_of(**UNMEASURED, **vanished, elapsed_seconds=None)
    assert unmeasured.job.elapsed_seconds is None


def test_pending_job_has_no_efficiency_and_no_advice():
    found = report_of(**UNMEASURED, state="PENDING", start_time=None, end_time=None)
    assert {each.missing for each in found.efficiency} == {"the job has not started"}
    assert (found.advice, found.silent) == ((), ())


def test_energy_and_emissions_with_and_without_pue():
    energies = {"usage_energy_host_active_joules": 3e6, "usage_energy_host_idle_joules": 6e5}
    given = material(**energies)._replace(emissions=[{"provider": "rte:FR", "grams": 44.0}])
    found = build_report(given, RULES, 1.25)
    assert found.energy.components == {"host_active": 3e6, "host_idle": 6e5}
    assert (found.energy.total_joules, found.energy.site_joules) == (3.6e6, 4.5e6)
    assert (found.emissions[0].grams, found.emissions[0].site_grams) == (44, 55)
    assert build_report(given, RULES).emissions[0].site_grams is None
    accounted = report_of(energy_joules=3_600_000)
    assert accounted.energy.source == "accounting"
    assert "(accounting: of its whole nodes)" in " ".join(written.as_text(accounted).split())
    assert report_of().energy.total_joules is None


def jobs_with_memory_peaks(*peaks):
    return [row(usage_memory_peak_bytes=peak * GIB) for peak in peaks]


def test_comparison_with_similar_jobs():
    found = report_of(similar=jobs_with_memory_peaks(8, 10, 14, 20)).similar
    (memory,) = (each for each in found.comparisons if each.what == "peak memory")
    assert (memory.median, memory.this, memory.below) == (12 * GIB, 12 * GIB, 0.5)
    assert (memory.jobs, found.alike) == (4, "name")


def test_too_few_similar_jobs_give_no_comparison():
    found = report_of(similar=jobs_with_memory_peaks(8, 10)).similar
    assert found.comparisons == ()
    assert found.missing == "2 similar jobs completed; at least 3 are needed"


@pytest.mark.parametrize(
    ("need", "requested"), [(3.1, 3.75), (0.4, 0.5), (12, 15), (20, 24), (100, 120), (700, 896)]
)
def test_memory_to_request(need, requested):
    assert round_memory(need * GIB) == requested * GIB


@pytest.mark.parametrize(
    ("need", "requested"), [(5, 600), (1500, 1800), (7200, 9000), (20 * 3600, 24 * 3600)]
)
def test_time_to_request(need, requested):
    assert round_seconds(need) == requested


HOSTILE = "</title><script>alert(1)</script> | [x](y) `z` \x1b[2J\n# \u202e"


class Tags(HTMLParser):
    """Which tags a page has, and whether all of them are closed."""

    def __init__(self, page):
        super().__init__()
        self.seen, self.open = set(), []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.seen.add(tag)
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


FULL = {
    "name": HOSTILE, "partition": HOSTILE, "state_word": HOSTILE, "username": HOSTILE,
    **WITH_GPU, "gpus": [{**GPU, "node": HOSTILE}, IDLE], "nodes": [NodeUse(HOSTILE, 1.0, GIB)],
    "usage_energy_host_active_joules": 3e6, "similar": [JOB] * 5,
}  # fmt: skip


def test_html_is_well_formed_small_and_without_scripts():
    page = written.as_html(report_of(**FULL, pue=1.2))
    tags = Tags(page)
    assert not tags.open
    assert tags.seen <= {"html", "head", "meta", "title", "style", "body", "h1", "h2", "h3", "p",
                         "table", "tr", "th", "td", "meter", "strong", "code"}  # fmt: skip
    assert "http" not in page
    assert len(page) < 20_000


def test_text_report_has_no_control_characters():
    text = written.as_text(report_of(**FULL))
    assert text.replace("\n", "").isprintable()
    assert all(len(line) <= 90 or "script" in line for line in text.splitlines())


def test_markdown_escapes_foreign_markup():
    text = written.as_markdown(report_of(**FULL))
    assert r"\<script\>" in text
    assert "<script" not in text.replace(r"\<script", "")
    assert r"\[x\](y) \`z\`" in text
    for row in (line for line in text.splitlines() if line.startswith("|")):
        assert len(row.replace(r"\|", "").split("|")) == 4


def test_text_report():
    given = material(usage_memory_peak_bytes=3 * GIB, usage_memory_peak_node_bytes=3 * GIB)
    text = written.as_text(build_report(given, RULES))
    assert "  CPU     [##################..] 90 %, 14:24:00 of 16:00:00" in text
    assert "  warning: Much more memory was requested than used [memory-oversized]" in text
    assert (
        "    > Request 3.75 GiB (--mem=3840M): that is the highest peak plus 20 %, rounded up. The"
        in text
    )


def test_report_serializes_to_json():
    found = json.loads(json.dumps(dataclasses.asdict(report_of(**FULL))))
    assert found["efficiency"][0]["formula"]
    assert found["job"]["start_time"] == T * 1000
