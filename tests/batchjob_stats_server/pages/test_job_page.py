"""What the page of a job says beyond its report."""

import os

import pytest
from fastapi.testclient import TestClient

from batchjob.local_runs.directory import LOGS
from batchjob.local_runs.output import StreamLog
from batchjob_stats_server import app
from batchjob_stats_server.local_output import last_errors
from batchjob_stats_server.pages.rendering.run_strip import build_strip
from tests.batchjob_stats_server.conftest import PROXY, SECRET
from tests.batchjob_stats_server.pages.conftest import HTML, drawings, parsed, words
from tests.batchjob_stats_server.pages.test_pages import table


def run(jobid, seconds, state="COMPLETED", **more):
    return {"jobid": jobid, "state": state, "elapsed_seconds": seconds, "start_time": 1000,
            "end_time": 1000 + seconds, "memory_used_bytes": None, "energy_used_joules": None,
            **more}  # fmt: skip


def test_a_strip_marks_what_was_slower_than_usual():
    found = build_strip([run("1", 100), run("2", 110), run("3", 90), run("4", 400)], 5000)
    assert found.slow == [False, False, False, True]
    assert "slower than usual" in found.descriptions[3]
    assert [row.title for row in found.rows] == ["Elapsed"]
    assert found.rows[0].bars[3].height > 3 * found.rows[0].bars[0].height


def test_no_strip_of_one_run_and_no_usual_time_of_two():
    assert build_strip([run("1", 100)], 5000) is None
    assert build_strip([run("1", 100), run("2", 900)], 5000).slow == [False, False]


def test_runs_of_a_name_and_the_jobs_beside_it(page, now):
    document = page("alice", "/jobs/5", cluster="c1")
    (drawing,) = drawings(document, "strip")
    titles = [words(each) for each in drawing.iter("{http://www.w3.org/2000/svg}title")]
    assert any(each.startswith("Job 5, completed, elapsed 1 h") for each in titles)
    (row,) = table(document, "Nodes")
    assert row[-1].startswith("2 "), "jobs of others are counted and not named"


def test_the_submit_line_stands_with_the_facts(example):
    document = parsed(example("/jobs/40133?cluster=alpha"))
    assert "sbatch --cpus-per-task=" in words(document.find(".//dl[@class='facts']"))


@pytest.fixture
def failed_run(tmp_path):
    directory = tmp_path / LOGS / "2"
    directory.mkdir(parents=True)
    writer = StreamLog(directory, "stderr", 1 << 20)
    for number in range(30):
        writer.add(f"line {number}\n".encode(), 1000.0 + number)
    writer.close(2000.0)
    return tmp_path


def test_the_last_lines_of_standard_error(failed_run):
    assert last_errors(failed_run, "2", os.getuid())[-1] == "line 29"
    assert len(last_errors(failed_run, "2", os.getuid())) == 10
    assert last_errors(failed_run, "3", os.getuid()) == []
    assert last_errors(failed_run, "../2", os.getuid()) == []
    assert last_errors(failed_run, "2", os.getuid() + 1) == []


def test_only_its_user_reads_what_a_failed_run_wrote(services, failed_run):
    made = app.make(services._replace(local_data=failed_run))
    for user in ("root", "bob"):
        headers = {"X-Grafana-User": user, "X-Batchjob-Secret": SECRET, **HTML}
        answer = TestClient(made, client=(PROXY, 1), headers=headers).get("/jobs/2?cluster=c1")
        assert "standard error" not in answer.text, "job 2 ended well"
