"""Tracked work over the API and on pages: found by its own id, with all recorded fields."""

import json

import pytest

from batchjob.schedulers.accounting import Batch
from batchjob.schedulers.states import JobState
from batchjob_stats_db.database.engine import parse_url, writer_engine
from batchjob_stats_db.database.store import Store, UsagePolicy
from tests.batchjob_stats_server.conftest import NOW, job_record

TASK = "8f14e45f-task"
FIRST = "11111111-aaaa-4bbb-8ccc-123456789abc"
SECOND = "22222222-aaaa-4bbb-8ccc-123456789abc"


def attempt(jobid, start, **fields):
    """An attempt of a task that took 1.053608 s and failed."""
    values = {
        "source": "runs", "name": "mesh", "tool": "openfoam", "record_id": TASK,
        "parameters": '{"cells": 1000}', "error": "no mesh", "result_type": "Mesh",
        "state": JobState.FAILED,
        "submit_time": int(start), "eligible_time": start, "start_time": start,
        "end_time": round(start + 1.054, 3), "elapsed_seconds": 1.053608, "exit_code": 3,
        "user_cpu_seconds": 0.363, "system_cpu_seconds": 0.02, "cpu_seconds": 0.383,
        "peak_memory_bytes": 56_352_768, "allocated_cpus": None,
    }  # fmt: skip
    return job_record(jobid, **values | fields)


@pytest.fixture
def alice_client(proxy_client, database_url):
    engine = writer_engine(parse_url(database_url))
    attempts = (
        attempt(FIRST, NOW - 60 + 0.25),
        attempt(SECOND, NOW - 60 + 0.75, array_jobid="order-17"),
    )
    Store(engine, "c1", UsagePolicy(), lambda: NOW).write(Batch(attempts, (), "", 0), "s")
    engine.dispose()
    return proxy_client("alice")


def test_all_attempts_are_found_by_record_id(alice_client, proxy_client):
    rows = alice_client.get("/api/v1/jobs", params={"record_id": TASK}).json()
    assert [row["jobid"] for row in rows] == [SECOND, FIRST]  # the newest first, within a second
    assert alice_client.get("/api/v1/jobs", params={"record_id": "another"}).json() == []
    assert proxy_client("bob").get("/api/v1/jobs", params={"record_id": TASK}).json() == []
    of_workflow = alice_client.get(
        "/api/v1/jobs", params={"record_id": TASK, "array_jobid": "order-17"}
    )
    assert [row["jobid"] for row in of_workflow.json()] == [SECOND]


def test_row_has_all_recorded_fields(alice_client):
    row = alice_client.get("/api/v1/jobs", params={"record_id": TASK}).json()[1]
    assert (row["tool"], json.loads(row["parameters"])) == ("openfoam", {"cells": 1000})
    assert row["result_type"] == "Mesh"
    assert (row["error"], row["exit_code"], row["state"]) == ("no mesh", 3, "FAILED")
    assert (row["user_cpu_seconds"], row["system_cpu_seconds"]) == (0.363, 0.02)
    assert (row["peak_memory_bytes"], row["elapsed_seconds"]) == (56_352_768, 1.053608)
    assert row["end_time"] - row["start_time"] == 1054
    assert row["start_time_rfc3339"].endswith(".250Z")


def test_report_and_page_show_recorded_fields(alice_client):
    text = alice_client.get(f"/api/v1/jobs/{FIRST}/report", params={"format": "text"}).text
    page = alice_client.get(f"/jobs/{FIRST}").text.replace("\u202f", " ").replace("&#34;", '"')
    for shown in (text, page):
        for word in ("openfoam", '{"cells": 1000}', "no mesh", "Mesh", TASK, "1.054 s", ".250 UTC"):
            assert word in shown, word
        for word in ("0.383 s", "user 0.363 s", "system 0.02 s", "53.7 MiB"):
            assert word in shown, word
