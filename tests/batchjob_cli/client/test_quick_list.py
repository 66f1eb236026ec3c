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


def run(name, state=JobState.COMPLETED, ago=1000, **more):
    """A run that took a minute."""
    now = int(time.time())
    given = {
        "submit_time": now - ago, "start_time": now - ago, "end_time": now - ago + 60,
        "exit_code": 0, "user_cpu_seconds": 50.0, "system_cpu_seconds": 4.0,
        "peak_memory_bytes": 3 << 30, "allocated_cpus": 1, **more,
    }  # fmt: skip
    return record.Run(
        jobid=str(uuid.uuid4()), node=os.uname().nodename, user="alice", uid=os.getuid(),
        state=state, name=name, supervisor=record.current_process(), **given,
    )  # fmt: skip


PENDING_VALUES = {"start_time": None, "end_time": None, "exit_code": None}


@pytest.fixture
def recorded():
    """Runs that are in the database."""
    return (
        run("align", ago=900, tool="blast"),
        run("align", JobState.FAILED, ago=800, exit_code=1),
        run("later", JobState.PENDING, ago=700, **PENDING_VALUES),
    )


@pytest.fixture
def data(tmp_path, recorded):
    """A data directory with these runs, and three that nobody has recorded."""
    folder = tmp_path / "runs"
    folder.mkdir()
    for each in recorded:
        before = time.time() - 300
        os.utime(record.write(folder, each), (before, before))
    list(local_jobs.job_pages(tmp_path, {}, 10))
    record.write(folder, run("long", JobState.RUNNING, ago=600, end_time=None, exit_code=None))
    record.write(folder, run("never", JobState.CANCELLED, ago=500, start_time=None, exit_code=None))
    record.write(folder, run("plot", ago=50, end_time=time.time() - 20.5, allocated_cpus=0.5))
    return tmp_path


def without_changing_keys(rows):
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
        {"started_from": -850, "started_before": -500},
        {"cluster": "local"},
    ],
)
def test_quick_list_equals_full_list(data, question):
    now = int(time.time())
    question = {
        key: now + value if key.startswith("started") else value for key, value in question.items()
    }
    quick = quick_list.rows(data, {**question, "limit": 10}, 10)
    (full,) = local_jobs.job_pages(data, {**question, "limit": 10}, 10)
    assert quick is not None
    assert json.dumps(without_changing_keys(quick)) == json.dumps(without_changing_keys(full))


def test_pending_jobs_come_first_then_the_newest(data):
    names = [row["name"] for row in quick_list.rows(data, {}, 10)]
    assert names == ["later", "plot", "long", "align", "align", "never"]
    assert [row["name"] for row in quick_list.rows(data, {}, 2)] == names[:2]


def test_unsupported_queries_return_none(data, tmp_path_factory):
    assert quick_list.rows(data, {"sort": "-usage_energy_joules"}, 10) is None
    assert quick_list.rows(data, {"node": "n1"}, 10) is None
    assert quick_list.rows(tmp_path_factory.mktemp("empty"), {}, 10) is None


def test_changed_run_makes_quick_list_return_none(data, recorded):
    (path,) = (data / "runs").glob(f"{recorded[2].jobid}*")
    started = recorded[2]._replace(start_time=int(time.time()) - 5, state=JobState.RUNNING)
    assert record.write(path.parent, started) == path
    assert quick_list.rows(data, {}, 10) is None


def test_ended_run_is_measured_before_quick_list_answers(data):
    record.write(data / "runs", run("ended", ago=300))
    assert quick_list.rows(data, {}, 10) is None
    (rows,) = local_jobs.job_pages(data, {}, 10)
    assert {row["name"] for row in rows if row["usage_measured_time"]} >= {"ended"}
    assert quick_list.rows(data, {}, 10) is not None


def test_damaged_database_returns_none(data):
    (data / "jobs.db").write_bytes(b"nothing of the kind" * 1000)
    assert quick_list.rows(data, {}, 10) is None


def test_stored_statement_is_up_to_date():
    statement = job_list_statement.text()
    module = job_list_statement.__name__
    assert job_list.STATEMENT.read_text() == statement, f"run: python -m {module}"


LIST = """
import sys
from batchjob_cli.main import main
status = main(sys.argv[1:])
heavy = ("sqlalchemy", "requests", "prometheus_client", "fastapi", "pydantic", "jinja2", "msgspec")
print(*(name for name in heavy if name in sys.modules), file=sys.stderr)
sys.exit(status)
"""


@pytest.mark.parametrize("arguments", [["jobs"], ["jobs", "--format=json"], ["jobs", "--running"]])
def test_local_list_imports_no_heavy_libraries(data, arguments):
    argv = [sys.executable, "-c", LIST, *arguments, "--data", str(data)]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert done.stderr.split() == []
    assert "long" in done.stdout
