"""Parts of the job page outside the report."""

import os
import threading

import pytest
from fastapi.testclient import TestClient

from batchjob.local_runs.directory import LOGS
from batchjob.local_runs.output import StreamLog
from batchjob.runtime.formatting import size
from batchjob_stats_server import app
from batchjob_stats_server.pages import job
from batchjob_stats_server.pages.job import last_lines
from batchjob_stats_server.pages.rendering.run_strip import build_strip
from tests.batchjob_stats_server.conftest import PROXY, SECRET
from tests.batchjob_stats_server.pages.conftest import HTML, element_text, parse_page, svg_elements
from tests.batchjob_stats_server.pages.test_pages import table_rows


def run_row(jobid, seconds, state="COMPLETED", **more):
    return {"jobid": jobid, "state": state, "elapsed_seconds": seconds, "start_time": 1000,
            "end_time": 1000 + seconds, "memory_used_bytes": None, "energy_used_joules": None,
            **more}  # fmt: skip


def test_run_strip_marks_slow_runs():
    found = build_strip(
        [run_row("1", 100), run_row("2", 110), run_row("3", 90), run_row("4", 400)], 5000
    )
    runs, descriptions, slow, bars = zip(*found["runs"], strict=True)
    assert [run["jobid"] for run in runs] == ["1", "2", "3", "4"]
    assert slow == (False, False, False, True)
    assert "slower than usual" in descriptions[3]
    (title,) = found["titles"]
    assert title.startswith("Elapsed, at most ")
    heights = [height for ((_, height),) in bars]
    assert heights[3] > 3 * heights[0]


def test_run_strip_needs_two_runs_and_more_to_mark_slow_ones():
    assert build_strip([run_row("1", 100)], 5000) is None
    found = build_strip([run_row("1", 100), run_row("2", 900)], 5000)
    assert [slow for _, _, slow, _ in found["runs"]] == [False, False]


def test_job_page_shows_earlier_runs_and_count_of_jobs_on_its_node(page, now):
    document = page("alice", "/jobs/5", cluster="c1")
    (drawing,) = svg_elements(document, "strip")
    titles = [element_text(each) for each in drawing.iter("{http://www.w3.org/2000/svg}title")]
    assert any(each.startswith("Job 5, completed, elapsed 1 h") for each in titles)
    (row,) = table_rows(document, "Nodes")
    assert row[-1].startswith("2 "), "jobs of others are counted and not named"


def test_job_page_shows_submit_line(example_page):
    document = parse_page(example_page("/jobs/40133?cluster=alpha"))
    assert "sbatch --cpus-per-task=" in element_text(document.find(".//dl[@class='facts']"))


def test_page_and_report_show_bytes_over_the_network(example_page):
    (job,) = example_page("/api/v1/jobs/40133?cluster=alpha").json()
    received, sent = (size(job[f"usage_network_{way}_bytes"]) for way in ("received", "sent"))
    table = table_rows(parse_page(example_page("/jobs/40133?cluster=alpha")), "Efficiency")
    (row,) = (row for row in table if row[0] == "Network")
    assert row[-1] == f"{received} received, {sent} sent"
    report = example_page("/api/v1/jobs/40133/report?cluster=alpha&format=text").text
    assert f"{received} received, {sent} sent" in report


@pytest.fixture
def run_with_standard_error(tmp_path):
    directory = tmp_path / LOGS / "2"
    directory.mkdir(parents=True)
    writer = StreamLog(directory, "stderr", 1 << 20)
    for number in range(30):
        writer.add(f"line {number}\n".encode(), 1000.0 + number)
    writer.close(2000.0)
    return tmp_path


def test_plot_of_memory_has_the_peak_that_samples_may_miss(example_page):
    figures = parse_page(example_page("/jobs/40120?cluster=alpha")).findall(".//figure")
    peaks = {figure.get("data-curves"): figure.get("data-peak") for figure in figures}
    assert int(peaks["memory memory_working_set"]) > 0
    assert peaks["cpu"] is None


def test_last_lines_returns_last_lines_of_standard_error(run_with_standard_error):
    assert last_lines(run_with_standard_error, "2", os.getuid())[-1] == "line 29"
    assert len(last_lines(run_with_standard_error, "2", os.getuid())) == 10
    assert last_lines(run_with_standard_error, "3", os.getuid()) == []
    assert last_lines(run_with_standard_error, "../2", os.getuid()) == []
    assert last_lines(run_with_standard_error, "2\0", os.getuid()) == []
    assert last_lines(run_with_standard_error, "2", os.getuid() + 1) == []


def test_last_lines_of_binary_output_are_plain_text(tmp_path):
    directory = tmp_path / LOGS / "2"
    directory.mkdir(parents=True)
    output = StreamLog(directory, "stdout", 1 << 20)
    output.add(b"\x1b[1;31mred\x1b[0m\ttab\n\x00\xff\x1b]0;title\x07\n\xe2\x80\xaertl\n", 1000.0)
    output.close(1001.0)
    shown = ["red     tab", "?\N{REPLACEMENT CHARACTER}?]0;title?", "?rtl"]
    assert last_lines(tmp_path, "2", os.getuid()) == shown


def test_last_lines_of_both_streams_with_the_last_state_of_progress_bars(tmp_path):
    directory = tmp_path / LOGS / "2"
    directory.mkdir(parents=True)
    output, errors = (StreamLog(directory, stream, 1 << 20) for stream in ("stdout", "stderr"))
    output.add(b"epoch 1\n", 1000.0)
    errors.add(b"10 %\r50 %\r90 %\r\n", 1001.0)
    output.add(b"epoch", 1002.0)
    output.flush(1002.0)
    output.add(b" 2\n", 1002.5)
    output.close(1003.0)
    errors.close(1003.0)
    assert last_lines(tmp_path, "2", os.getuid()) == ["epoch 1", "90 %", "epoch 2"]


@pytest.mark.parametrize(
    ("who", "over_api", "seen"),
    [("bob", False, True), ("root", False, False), ("root", True, True), ("vera", True, True)],
)
def test_output_is_for_the_user_and_those_whom_the_api_allows(
    services, tmp_path, monkeypatch, who, over_api, seen
):
    monkeypatch.setattr(job, "last_lines", lambda *_: ["<b>found"])
    control = object() if over_api else None
    made = app.make(services._replace(local_data=tmp_path, run_control=control))
    headers = {"X-Grafana-User": who, "X-Batchjob-Secret": SECRET, **HTML}
    text = TestClient(made, client=(PROXY, 1), headers=headers).get("/jobs/2?cluster=c1").text
    assert ("Last lines of output" in text, "&lt;b&gt;found" in text) == (seen, seen)
    assert "<b>found" not in text


def test_page_of_failed_job_does_not_wait_for_a_hung_file_system(
    proxy_client, services, tmp_path, monkeypatch
):
    back = threading.Event()
    monkeypatch.setattr(job, "last_lines", lambda *_: ["found"] if back.wait(60) else [])
    made = app.make(services._replace(local_data=tmp_path))
    headers = {"X-Grafana-User": "alice", "X-Batchjob-Secret": SECRET, **HTML}
    with TestClient(made, client=(PROXY, 1), headers=headers) as client:
        try:
            assert "found" not in client.get("/jobs/1?cluster=c2").text
        finally:
            back.set()
        assert "found" in client.get("/jobs/1?cluster=c2").text


def test_standard_error_of_completed_job_is_not_shown(services, run_with_standard_error):
    made = app.make(services._replace(local_data=run_with_standard_error))
    for user in ("root", "bob"):
        headers = {"X-Grafana-User": user, "X-Batchjob-Secret": SECRET, **HTML}
        answer = TestClient(made, client=(PROXY, 1), headers=headers).get("/jobs/2?cluster=c1")
        assert "standard error" not in answer.text, "job 2 ended well"
