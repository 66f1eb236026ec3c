"""A list of this machine's jobs without SQLAlchemy is the list with it."""

import json
import os
import subprocess
import sys
import time
import uuid

import pytest

from batchjob.local_runs import record
from batchjob.schedulers.states import JobState
from batchjob_cli.client import local_jobs, quick_list
from batchjob_stats_db.queries import job_list, job_list_statement

NOW = int(time.time())


def run(name, state=JobState.COMPLETED, ago=1000, **more):
    """A run that took a minute."""
    given = {
        "submit_time": NOW - ago, "start_time": NOW - ago, "end_time": NOW - ago + 60,
        "exit_code": 0, "user_cpu_seconds": 50.0, "system_cpu_seconds": 4.0,
        "peak_memory_bytes": 3 << 30, "allocated_cpus": 1, **more,
    }  # fmt: skip
    return record.Run(
        jobid=str(uuid.uuid4()), node=os.uname().nodename, user="alice", uid=os.getuid(),
        state=state, name=name, supervisor=record.this_process(), **given,
    )  # fmt: skip


WAITS = {"start_time": None, "end_time": None, "exit_code": None}
RUNS = (
    run("align", ago=900, tool="blast"),
    run("align", JobState.FAILED, ago=800, exit_code=1),
    run("later", JobState.PENDING, ago=700, **WAITS),
    run("long", JobState.RUNNING, ago=600, end_time=None, exit_code=None),
    run("never", JobState.CANCELLED, ago=500, start_time=None, exit_code=None),
    run("plot", ago=50, end_time=NOW - 20.5, allocated_cpus=0.5),
)


@pytest.fixture
def data(tmp_path):
    """A data directory whose database has three of six runs."""
    folder = tmp_path / "runs"
    folder.mkdir()
    for each in RUNS[:3]:
        os.utime(record.write(folder, each), (NOW - 300, NOW - 300))
    list(local_jobs.job_pages(tmp_path, {}, 10))
    for each in RUNS[3:]:
        record.write(folder, each)
    return tmp_path


def alike(rows):
    """Rows without the time at which they were written, and what goes on from second to second."""
    moving = (
        "update_time", "update_time_rfc3339", "usage_measured_time",
        "usage_measured_time_rfc3339", "elapsed_seconds", "time_efficiency",
    )  # fmt: skip
    return [{key: value for key, value in row.items() if key not in moving} for row in rows]


@pytest.mark.parametrize(
    "question",
    [
        {},
        {"user": "alice", "name": "align"},
        {"user": "bob"},
        {"tool": "blast"},
        {"state": ["FAILED", "PENDING"]},
        {"running": "true"},
        {"started_from": NOW - 850, "started_before": NOW - 500},
        {"cluster": "local"},
    ],
)
def test_both_lists_are_the_same(data, question):
    quick = quick_list.rows(data, {**question, "limit": 10}, 10)
    (whole,) = local_jobs.job_pages(data, {**question, "limit": 10}, 10)
    assert quick is not None
    assert json.dumps(alike(quick)) == json.dumps(alike(whole))


def test_those_that_wait_come_first_then_the_newest(data):
    names = [row["name"] for row in quick_list.rows(data, {}, 10)]
    assert names == ["later", "plot", "long", "align", "align", "never"]
    assert [row["name"] for row in quick_list.rows(data, {}, 2)] == names[:2]


def test_what_takes_more_is_left_to_others(data, tmp_path_factory):
    assert quick_list.rows(data, {"sort": "-usage_energy_joules"}, 10) is None
    assert quick_list.rows(data, {"node": "n1"}, 10) is None
    assert quick_list.rows(tmp_path_factory.mktemp("empty"), {}, 10) is None


def test_a_run_that_has_ended_since_it_was_recorded_is_recorded_again(data):
    (path,) = (data / "runs").glob(f"{RUNS[2].jobid}*")
    started = RUNS[2]._replace(start_time=NOW - 5, state=JobState.RUNNING)
    assert record.write(path.parent, started) == path
    assert quick_list.rows(data, {}, 10) is None


def test_a_damaged_database_is_left_to_others(data):
    (data / "jobs.db").write_bytes(b"nothing of the kind" * 1000)
    assert quick_list.rows(data, {}, 10) is None


def test_the_statement_is_up_to_date():
    made = job_list_statement.text()
    module = job_list_statement.__name__
    assert job_list.STATEMENT.read_text() == made, f"run: python -m {module}"


LIST = """
import sys
from batchjob_cli.main import main
status = main(sys.argv[1:])
heavy = ("sqlalchemy", "requests", "prometheus_client", "fastapi", "pydantic", "jinja2", "msgspec")
print(*(name for name in heavy if name in sys.modules), file=sys.stderr)
sys.exit(status)
"""


@pytest.mark.parametrize("arguments", [["jobs"], ["jobs", "--format=json"], ["jobs", "--running"]])
def test_a_local_list_loads_nothing_that_takes_its_time(data, arguments):
    argv = [sys.executable, "-c", LIST, *arguments, "--data", str(data)]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert done.stderr.split() == []
    assert "long" in done.stdout
