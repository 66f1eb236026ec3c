"""Both text formats, read back by prometheus-client's strict parsers and by promtool."""

import math
import shutil
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as prometheus_text

from batchjob_exporter.exposition import OPENMETRICS, TEXT, render
from collectors.metric import NO_LABELS, Metric, MetricFamily, labels

GAUGE = Metric("batchjob_jobs", "gauge", "Number of jobs.", ("manager",))
COUNTER = Metric("batchjob_job_cpu_seconds_total", "counter", "CPU time of the job.", ("jobid",))


def parsed_samples(parse, families, format):
    text = render(families, format).decode()
    return {
        (sample.name, tuple(sample.labels.items())): sample.value
        for family in parse(text)
        for sample in family.samples
    }


def test_text_format():
    families = [
        MetricFamily(GAUGE, [(labels(manager="slurm"), 2.0)]),
        MetricFamily(COUNTER, [(labels(jobid="17"), 1.5)]),
    ]
    assert render(families).decode() == (
        "# HELP batchjob_jobs Number of jobs.\n"
        "# TYPE batchjob_jobs gauge\n"
        'batchjob_jobs{manager="slurm"} 2.0\n'
        "# HELP batchjob_job_cpu_seconds_total CPU time of the job.\n"
        "# TYPE batchjob_job_cpu_seconds_total counter\n"
        'batchjob_job_cpu_seconds_total{jobid="17"} 1.5\n'
    )


def test_openmetrics_counter_family_and_eof():
    text = render([MetricFamily(COUNTER, [(labels(jobid="17"), 1.5)])], OPENMETRICS).decode()
    assert "# TYPE batchjob_job_cpu_seconds counter\n" in text
    assert 'batchjob_job_cpu_seconds_total{jobid="17"} 1.5\n' in text
    assert text.endswith("\n# EOF\n")


def test_families_of_one_metric_are_merged():
    families = [
        MetricFamily(COUNTER, [(labels(jobid="1"), 1.0)]),
        MetricFamily(GAUGE, [(NO_LABELS, 2.0)]),
        MetricFamily(COUNTER, [(labels(jobid="2"), 3.0)]),
    ]
    text = render(families).decode()
    assert text.count("# TYPE batchjob_job_cpu_seconds_total") == 1
    assert text.index('jobid="2"') < text.index("batchjob_jobs")


def test_family_without_samples_is_omitted():
    assert render([MetricFamily(GAUGE, [])]) == b""
    assert render([], OPENMETRICS) == b"# EOF\n"


@pytest.mark.parametrize("help_text", ["back\\slash", "two\nlines", 'a "quote"', "ünïcode"])
@pytest.mark.parametrize(("parse", "format"), [(prometheus_text, TEXT), (openmetrics, OPENMETRICS)])
def test_help_text_round_trips(parse, format, help_text):
    family = MetricFamily(Metric("x", "gauge", help_text), [(NO_LABELS, 1.0)])
    (read,) = parse(render([family], format).decode())
    assert read.documentation == help_text


label_values = st.text(st.characters(blacklist_categories=("Cs",)), max_size=20)


@given(
    st.dictionaries(label_values, st.floats(allow_nan=False) | st.integers(-(2**53), 2**53)),
    st.sampled_from([(prometheus_text, TEXT), (openmetrics, OPENMETRICS)]),
)
def test_samples_round_trip(values, how):
    parse, format = how
    samples = [(labels(manager=text), value) for text, value in values.items()]
    expected = {(GAUGE.name, (("manager", text),)): v for text, v in values.items()}
    assert parsed_samples(parse, [MetricFamily(GAUGE, samples)], format) == expected


@pytest.mark.parametrize(
    ("value", "text"),
    [(math.inf, "+Inf"), (-math.inf, "-Inf"), (math.nan, "NaN"), (True, "1"), (7, "7")],
)
def test_infinity_nan_and_integers(value, text):
    assert render([MetricFamily(GAUGE, [(NO_LABELS, value)])]).endswith(f"jobs {text}\n".encode())


@pytest.mark.skipif(not shutil.which("promtool"), reason="promtool is not installed")
def test_promtool_accepts_output():
    families = [
        MetricFamily(GAUGE, [(labels(manager='a"b\\c\nd'), 2.0), (labels(manager="ü"), math.nan)]),
        MetricFamily(COUNTER, [(labels(jobid="17"), 1e300)]),
    ]
    checked = subprocess.run(
        ["promtool", "check", "metrics"], input=render(families), capture_output=True, check=False
    )
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")
