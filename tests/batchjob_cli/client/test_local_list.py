"""A list from this machine's database: what it records first, and what it imports."""

import os
import subprocess
import sys
import time
import uuid

import pytest

from batchjob.local_runs import record
from batchjob.schedulers.states import JobState
from batchjob_cli.client import local_jobs
from batchjob_cli.job_columns import DEFAULT_KEYS, default_columns
from batchjob_cli.up.records import open_recorded


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
def data(tmp_path):
    """A data directory with three runs that are in the database."""
    folder = tmp_path / "runs"
    folder.mkdir()
    record.write(folder, run("align", ago=900))
    record.write(folder, run("align", JobState.FAILED, ago=800, exit_code=1))
    record.write(folder, run("later", JobState.PENDING, ago=700, **PENDING_VALUES))
    assert [row["name"] for row in jobs(tmp_path)] == ["later", "align", "align"]
    return tmp_path


def jobs(data, **parameters):
    (rows,) = local_jobs.job_pages(data, parameters, 10)
    return rows


def is_recorded(data):
    engine = open_recorded(data)
    if engine is not None:
        engine.dispose()
    return engine is not None


def test_runs_in_the_database_are_not_recorded_again(data):
    assert is_recorded(data)


@pytest.mark.parametrize(
    "new",
    [
        run("long", JobState.RUNNING, ago=60, end_time=None, exit_code=None),
        run("never", JobState.CANCELLED, ago=50, start_time=None, exit_code=None),
        run("ended", ago=300),
    ],
    ids=lambda new: new.name,
)
def test_new_runs_are_recorded_before_the_list(data, new):
    record.write(data / "runs", new)
    assert not is_recorded(data)
    assert new.name in {row["name"] for row in jobs(data)}
    assert is_recorded(data)


def test_a_run_that_has_started_is_recorded_before_the_list(data):
    (waiting,) = (row for row in jobs(data) if row["state"] == "PENDING")
    (path,) = (data / "runs").glob(f"{waiting['jobid']}*")
    started = record.decode_run(record.read(path))._replace(
        start_time=int(time.time()) - 5, state=JobState.RUNNING
    )
    record.write(path.parent, started)
    assert not is_recorded(data)
    assert waiting["jobid"] in {row["jobid"] for row in jobs(data, running="true")}


def test_a_damaged_database_counts_as_not_recorded(data):
    (data / "jobs.db").write_bytes(b"nothing of the kind" * 1000)
    assert not is_recorded(data)


def test_only_the_requested_keys_are_read(data):
    (rows,) = local_jobs.job_pages(data, {}, 10, ("jobid", "window_to"))
    assert {tuple(row) for row in rows} == {("jobid", "window_to")}
    assert [row["window_to"] == "now" for row in rows] == [True, False, False]


LIST = """
import sys
from batchjob_cli.main import main
status = main(sys.argv[1:])
heavy = (
    "batchjob_stats_db.poller.service", "requests", "prometheus_client", "fastapi", "pydantic",
    "jinja2", "msgspec", "yaml", "psycopg", "alembic",
)
print(*(name for name in heavy if name in sys.modules), file=sys.stderr)
sys.exit(status)
"""


@pytest.mark.parametrize("arguments", [["jobs"], ["jobs", "--format=json"], ["jobs", "--running"]])
def test_a_list_imports_what_it_needs(data, arguments):
    argv = [sys.executable, "-c", LIST, *arguments, "--data", str(data)]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert done.stderr.split() == []


def test_cpus_of_a_changed_allocation_are_those_at_last():
    row = dict.fromkeys(DEFAULT_KEYS) | {"jobid": "7", "state": "RUNNING", "allocated_cpus": 4.0}
    (cpus,) = (each for each in default_columns([row], None, short=False) if each.title == "CPUS")
    assert cpus.cell(row) == "4"
    assert cpus.cell(row | {"resized_cpu_seconds": 7200.0}) == "4 at last"
