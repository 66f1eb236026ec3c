"""Figures of jobs that are pending, vanished, or not measured on all nodes or to their end."""

import csv
import re

import pytest
import sqlalchemy as sa
from markupsafe import escape

from batchjob_cli.job_columns import default_columns
from batchjob_stats_db.database import schema
from batchjob_stats_db.queries.efficiency import columns
from tests.batchjob_stats_server.conftest import NOW
from tests.batchjob_stats_server.job_figure_cases import (
    COMPLETE,
    END,
    INCOMPLETE,
    MEASUREMENT,
    START,
    with_absolute_times,
)
from tests.helpers.derived_rows import replace_usages


def test_pending_job_waits_since_its_eligible_time(services, proxy_client):
    """A pending job waits since it was eligible, not since it was submitted."""
    with services.writer.begin() as db:
        job = schema.job
        times = {"submit_time": NOW - 86_400, "eligible_time": NOW - 7200}
        db.execute(sa.update(job).where(job.c.jobid == "8").values(times))
    get = proxy_client("vera").get
    assert get("/api/v1/jobs/8/report").json()["headline"].startswith("Waiting for 2 h")
    for path in ("/jobs/8", "/jobs?state=PENDING", "/clusters/c1"):
        text = get(path).text.replace("\u202f", " ")
        assert "2 h" in text
        assert "1 d" not in text


def test_report_states_end_of_incomplete_measurement(services, proxy_client):
    with services.writer.begin() as db:
        job_id = db.scalar(sa.select(schema.job.c.id).where(schema.job.c.jobid == "2"))
        values = with_absolute_times(NOW, INCOMPLETE)
        db.execute(sa.insert(schema.job_usage).values(job_id=job_id, **values))
    client = proxy_client("vera")
    assert "measured only up to 2026-04-04 " in client.get("/api/v1/jobs/2/report?format=text").text
    (row,) = (row for row in client.get("/api/v1/jobs?user=bob").json() if row["jobid"] == "2")
    assert row["usage_coverage"] < 0.7
    assert row["usage_final"] == 0


VANISHED = {"state": "VANISHED", "end_time": None, "elapsed_seconds": None}
MEASURED_FOR_AN_HOUR = {"until_time": END, "coverage": 1.0}


@pytest.mark.parametrize(
    ("usage", "seconds", "run_time"),
    [
        (MEASUREMENT | MEASURED_FOR_AN_HOUR, 3600, "1 h, up to its last measurement"),
        (None, None, "not known"),
    ],
    ids=["measured", "not measured"],
)
def test_vanished_job_ran_until_its_last_measurement(
    services, proxy_client, usage, seconds, run_time
):
    with services.writer.begin() as db:
        job_id = db.scalar(sa.select(schema.job.c.id).where(schema.job.c.jobid == "2"))
        update_job = sa.update(schema.job).where(schema.job.c.id == job_id)
        db.execute(update_job.values(**VANISHED, start_time=NOW + START, time_limit_seconds=7200))
        if usage:
            values = with_absolute_times(NOW, usage)
            db.execute(sa.insert(schema.job_usage).values(job_id=job_id, **values))
    client = proxy_client("vera")
    (row,) = (row for row in client.get("/api/v1/jobs?user=bob").json() if row["jobid"] == "2")
    assert (row["state"], row["elapsed_seconds"]) == ("VANISHED", seconds)
    assert row["time_efficiency"] == (seconds and seconds / 7200)
    (csv_row,) = csv.DictReader(client.get("/api/v1/jobs?user=bob&format=csv").text.splitlines())
    assert float(csv_row["elapsed_seconds"] or 0) == (seconds or 0)
    time_column = next(
        each for each in default_columns([row], None, short=False) if each.title == "TIME"
    )
    assert time_column.cell(row) == ("1:00:00" if seconds else "-")

    report = client.get("/api/v1/jobs/2/report").json()
    assert report["job"]["elapsed_seconds"] == seconds
    text = client.get("/api/v1/jobs/2/report?format=text").text
    assert re.search(rf"Run time +{run_time}", text)
    for page in ("/jobs?user=bob", "/jobs/2"):
        html = client.get(page).text
        assert bool(re.search(r"\b1\sh\b", html)) == bool(seconds), page
        assert "it has not started" not in html
    if seconds:
        filtered = client.get("/api/v1/jobs?user=bob&elapsed_at_least=3600&elapsed_at_most=3600")
        assert [each["jobid"] for each in filtered.json()] == ["2"]


ENERGY = {"energy_host_active_joules": 3.0e6, "energy_host_idle_joules": 0.6e6}


@pytest.mark.parametrize(
    ("usage", "accounted", "joules", "source"),
    [
        (ENERGY, None, 3.6e6, "prometheus"),
        (ENERGY | {"caveats": "energy of some nodes missing"}, None, None, ""),
        (ENERGY | {"nodes": 1, "coverage": 0.5}, None, None, ""),
        (ENERGY | {"nodes": 1, "coverage": 0.5}, 9_000_000, 9.0e6, "accounting"),
    ],
    ids=["both nodes", "energy of one node missing", "one node not measured", "by accounting"],
)
def test_energy_of_some_nodes_is_not_shown_as_job_energy(
    services, proxy_client, usage, accounted, joules, source
):
    with services.writer.begin() as db:
        job_id = db.scalar(sa.select(schema.job.c.id).where(schema.job.c.jobid == "2"))
        update_job = sa.update(schema.job).where(schema.job.c.id == job_id)
        db.execute(update_job.values(allocated_nodes=2, energy_joules=accounted))
        values = with_absolute_times(NOW, COMPLETE | {"nodes": 2} | usage)
        db.execute(sa.insert(schema.job_usage).values(job_id=job_id, **values))
    client = proxy_client("vera")
    (row,) = (row for row in client.get("/api/v1/jobs?user=bob").json() if row["jobid"] == "2")
    measured_joules = joules if source == "prometheus" else None
    assert (row["usage_energy_joules"], row["energy_used_joules"]) == (measured_joules, joules)
    energy = client.get("/api/v1/jobs/2/report").json()["energy"]
    missing_reason = "" if measured_joules else "it was not measured on all of the job's nodes"
    assert (energy["total_joules"], energy["source"]) == (joules, source)
    assert energy["missing"] == missing_reason
    text = client.get("/api/v1/jobs/2/report?format=text").text
    assert ("of the measured nodes only" in text) == bool(missing_reason)
    if joules is None:
        assert re.search(f"Energy +not known: {missing_reason}", text)
    for page in ("/jobs?user=bob", "/jobs/2"):
        html = client.get(page).text
        shown_energy = {
            None: missing_reason,
            3.6e6: "1\N{NARROW NO-BREAK SPACE}kWh",
            9.0e6: "2.5\N{NARROW NO-BREAK SPACE}kWh",
        }
        assert escape(shown_energy[joules]) in html, page


def test_replace_usages_gives_same_result_when_repeated():
    rows = [{column.name: None for column in columns()} | {"id": number} for number in (1, 2)]
    usages = {1: COMPLETE, 2: INCOMPLETE}
    for _ in range(3):
        assert [row["usage_until_time"] for row in replace_usages(rows, usages)] == [
            END,
            START + 1800,
        ]
