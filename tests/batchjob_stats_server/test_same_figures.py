"""Every place that shows how much a job used of what it had shows the same."""

import csv
import json
import re
from pathlib import Path

import pytest
import sqlalchemy as sa
from fastapi.testclient import TestClient
from markupsafe import escape

from batchjob.runtime.formatting import share
from batchjob_cli.job_columns import default_columns
from batchjob_cli.main import main
from batchjob_stats_db.database import schema
from batchjob_stats_db.queries.efficiency import columns, with_usages
from batchjob_stats_server import app
from tests.batchjob_stats_server.conftest import NOW, PROXY, SECRET

DASHBOARDS = Path(__file__).parents[2] / "grafana/dashboards/infinity"
GIB = 1 << 30
END = NOW - 3400  # of job 2, which ran an hour on 4 CPUs
HOUR = {"samples": 120, "nodes": 1, "source": "prometheus", "doubt": "", "measured_time": NOW,
        "dropped_series": 0}  # fmt: skip
WHOLE = {**HOUR, "coverage": 1.0, "until_time": END, "user_cpu_seconds": 10_000.0,
         "system_cpu_seconds": 800.0, "memory_peak_bytes": 6 * GIB}  # fmt: skip
HALF_SEEN = WHOLE | {"coverage": 0.5, "user_cpu_seconds": 5_000.0, "system_cpu_seconds": 400.0}
UNSEEN = HOUR | {"coverage": 0.0, "samples": 0, "until_time": END}
JUST_ENDED = WHOLE | {"until_time": END - 20, "user_cpu_seconds": 9_940.0}
STALE = WHOLE | {"until_time": END - 1800, "user_cpu_seconds": 1_000.0, "memory_peak_bytes": GIB}
ACCOUNTED = {"cpu_seconds": 10_800.0, "peak_memory_bytes": 6 * GIB}
RUNNING = {"end_time": None, "elapsed_seconds": None, "state": "RUNNING"}
TRUE = (0.75, 0.75)

CASES = {
    "measured whole": (WHOLE, {}, TRUE, "measured"),
    "measured by half": (HALF_SEEN, {}, TRUE, "measured"),
    "measured by half, with accounting": (HALF_SEEN, ACCOUNTED, TRUE, "accounting"),
    "not measured": (None, ACCOUNTED, TRUE, "accounting"),
    "measured by nothing": (UNSEEN, {}, (None, None), None),
    "measured by nothing, with accounting": (UNSEEN, ACCOUNTED, TRUE, "accounting"),
    "just ended": (JUST_ENDED, {"usage_due_time": END + 60}, TRUE, "measured"),
    "not measured, too short for accounting": (
        None,
        {**ACCOUNTED, "start_time": END - 59, "elapsed_seconds": 59, "cpu_seconds": 177.0},
        (0.75, None),
        "accounting",
    ),
    "not measured, without accounting": (None, {}, (None, None), None),
    "measured before its end, with accounting": (STALE, ACCOUNTED, TRUE, "accounting"),
    "measured before its end": (STALE, {}, (1_800 / 7_200, 0.125), "measured"),
    "running": (STALE, RUNNING, (1_800 / (4 * (END - 1800 - NOW + 6000)), 0.125), "measured"),
}


@pytest.fixture(params=CASES)
def case(request, services):
    usage, changed, expected, basis = CASES[request.param]
    job = schema.job
    with services.writer.begin() as db:
        number = db.scalar(sa.select(job.c.id).where(job.c.jobid == "2", job.c.cluster == "c1"))
        values = {"start_time": END - 3600, "allocated_memory_bytes": 8 * GIB, "cpu_seconds": None}
        if "end_time" in changed:
            values["start_time"] = NOW - 6000
        db.execute(sa.update(job).where(job.c.id == number).values(**values | changed))
        db.execute(sa.delete(schema.job_usage).where(schema.job_usage.c.job_id == number))
        if usage:
            db.execute(sa.insert(schema.job_usage).values(job_id=number, **usage))
    return expected, basis


@pytest.fixture
def client(services):
    headers = {"X-Grafana-User": "vera", "X-Batchjob-Secret": SECRET}
    return TestClient(app.make(services), client=(PROXY, 50000), headers=headers)


def test_lists_reports_and_pages(case, client):
    (cpu, memory), basis = case
    (row,) = (row for row in client.get("/api/v1/jobs?user=bob").json() if row["jobid"] == "2")
    assert (row["cpu_efficiency"], row["memory_efficiency"]) == pytest.approx((cpu, memory))
    assert row["cpu_basis"] == basis

    report = client.get("/api/v1/jobs/2/report").json()
    ratios = {each["what"]: each["ratio"] for each in report["efficiency"]}
    assert (ratios["cpu"], ratios["memory"]) == pytest.approx((cpu, memory))

    shown = [
        " ".join(each.split()) for each in re.findall(r"\d+\s%", client.get("/jobs?user=bob").text)
    ]
    assert cpu is None or share(cpu) in shown
    assert memory is None or share(memory) in shown

    if cpu is not None:
        near = f"cpu_efficiency_at_least={cpu - 0.001}&cpu_efficiency_at_most={cpu + 0.001}"
        found = client.get(f"/api/v1/jobs?user=bob&{near}").json()
        assert [each["jobid"] for each in found] == ["2"]


def test_exports(case, client):
    (cpu, memory), _ = case
    table = csv.DictReader(client.get("/api/v1/jobs?user=bob&format=csv").text.splitlines())
    lines = client.get("/api/v1/jobs?user=bob&format=ndjson").text.splitlines()
    for rows in (table, map(json.loads, lines)):
        (row,) = (row for row in rows if row["jobid"] == "2")
        assert _number(row["cpu_efficiency"]) == pytest.approx(cpu)
        assert _number(row["memory_efficiency"]) == pytest.approx(memory)


def test_dashboards(case, client):
    """They compute nothing: their columns are keys of the API."""
    (cpu, memory), _ = case
    for name in ("job", "jobs", "my-jobs"):
        dashboard = json.loads((DASHBOARDS / f"{name}.json").read_text())
        targets = (each for panel in dashboard["panels"] for each in panel.get("targets", ()))
        (target,) = (each for each in targets if "cpu_efficiency" in json.dumps(each))
        shown = {each["selector"] for each in target["columns"]}
        assert {"cpu_efficiency", "memory_efficiency"} <= shown
        asked = {each["key"]: each["value"] for each in target["url_options"]["params"]}
        path = target["url"].replace("${job:percentencode}", "2")
        rows = client.get(f"/api/v1{path}", params={"cluster": "c1", "fields": asked["fields"]})
        (row,) = (row for row in rows.json() if row["jobid"] == "2")
        assert (row["cpu_efficiency"], row["memory_efficiency"]) == pytest.approx((cpu, memory))


def test_commands(case, path, capsys):
    (cpu, memory), _ = case
    arguments = ["jobs", "--data", str(Path(path).parent), "--user", "bob"]
    assert main([*arguments, "--format", "json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["cpu_efficiency"], row["memory_efficiency"]) == pytest.approx((cpu, memory))
    assert main([*arguments, "--columns", "cpu_efficiency,memory_efficiency"]) == 0
    _, cells = capsys.readouterr().out.splitlines()
    assert re.split(r"\s{2,}", cells.strip()) == [
        "-" if each is None else share(each) for each in (cpu, memory)
    ]


def _number(value):
    return None if value in (None, "") else float(value)


def test_a_measurement_from_before_the_end_says_how_far_it_goes(services):
    with services.writer.begin() as db:
        number = db.scalar(sa.select(schema.job.c.id).where(schema.job.c.jobid == "2"))
        db.execute(sa.insert(schema.job_usage).values(job_id=number, **STALE))
    headers = {"X-Grafana-User": "vera", "X-Batchjob-Secret": SECRET, "Accept": "text/plain"}
    client = TestClient(app.make(services), client=(PROXY, 50000), headers=headers)
    assert "measured only up to 2026-04-04 " in client.get("/api/v1/jobs/2/report").text
    (row,) = (row for row in client.get("/api/v1/jobs?user=bob").json() if row["jobid"] == "2")
    assert row["usage_coverage"] < 0.7
    assert row["usage_final"] == 0


VANISHED = {"state": "VANISHED", "end_time": None, "elapsed_seconds": None}
AN_HOUR = {"until_time": END, "coverage": 1.0}  # that it was seen for


@pytest.mark.parametrize(
    ("usage", "seconds", "words"),
    [(HOUR | AN_HOUR, 3600, "1 h, up to its last measurement"), (None, None, "not known")],
    ids=["measured", "not measured"],
)
def test_a_job_that_vanished_ran_until_it_was_last_measured(services, usage, seconds, words):
    with services.writer.begin() as db:
        number = db.scalar(sa.select(schema.job.c.id).where(schema.job.c.jobid == "2"))
        which = sa.update(schema.job).where(schema.job.c.id == number)
        db.execute(which.values(**VANISHED, start_time=END - 3600, time_limit_seconds=7200))
        if usage:
            db.execute(sa.insert(schema.job_usage).values(job_id=number, **usage))
    client = TestClient(
        app.make(services), client=(PROXY, 50000),
        headers={"X-Grafana-User": "vera", "X-Batchjob-Secret": SECRET},
    )  # fmt: skip
    (row,) = (row for row in client.get("/api/v1/jobs?user=bob").json() if row["jobid"] == "2")
    assert (row["state"], row["elapsed_seconds"]) == ("VANISHED", seconds)
    assert row["time_efficiency"] == (seconds and seconds / 7200)
    (listed,) = csv.DictReader(client.get("/api/v1/jobs?user=bob&format=csv").text.splitlines())
    assert float(listed["elapsed_seconds"] or 0) == (seconds or 0)
    time = next(each for each in default_columns([row], None, short=False) if each.title == "TIME")
    assert time.cell(row) == ("1:00:00" if seconds else "-")

    report = client.get("/api/v1/jobs/2/report").json()
    assert report["job"]["elapsed_seconds"] == seconds
    text = client.get("/api/v1/jobs/2/report", headers={"Accept": "text/plain"}).text
    assert re.search(rf"Run time +{words}", text)
    for page in ("/jobs?user=bob", "/jobs/2"):
        html = client.get(page).text
        assert bool(re.search(r"\b1\sh\b", html)) == bool(seconds), page
        assert "it has not started" not in html
    if seconds:
        found = client.get("/api/v1/jobs?user=bob&elapsed_at_least=3600&elapsed_at_most=3600")
        assert [each["jobid"] for each in found.json()] == ["2"]


ENERGY = {"energy_host_active_joules": 3.0e6, "energy_host_idle_joules": 0.6e6}


@pytest.mark.parametrize(
    ("usage", "accounted", "joules", "source"),
    [
        (ENERGY, None, 3.6e6, "prometheus"),
        (ENERGY | {"doubt": "energy of some nodes missing"}, None, None, ""),
        (ENERGY | {"nodes": 1, "coverage": 0.5}, None, None, ""),
        (ENERGY | {"nodes": 1, "coverage": 0.5}, 9_000_000, 9.0e6, "accounting"),
    ],
    ids=["of both nodes", "a node without", "a node not measured", "accounting knows it"],
)
def test_energy_of_some_nodes_is_not_the_job_s(services, usage, accounted, joules, source):
    with services.writer.begin() as db:
        number = db.scalar(sa.select(schema.job.c.id).where(schema.job.c.jobid == "2"))
        which = sa.update(schema.job).where(schema.job.c.id == number)
        db.execute(which.values(allocated_nodes=2, energy_joules=accounted))
        db.execute(sa.insert(schema.job_usage).values(
            job_id=number, **WHOLE | {"nodes": 2} | usage))  # fmt: skip
    client = TestClient(
        app.make(services), client=(PROXY, 50000),
        headers={"X-Grafana-User": "vera", "X-Batchjob-Secret": SECRET},
    )  # fmt: skip
    (row,) = (row for row in client.get("/api/v1/jobs?user=bob").json() if row["jobid"] == "2")
    measured = joules if source == "prometheus" else None
    assert (row["usage_energy_joules"], row["energy_used_joules"]) == (measured, joules)
    energy = client.get("/api/v1/jobs/2/report").json()["energy"]
    missing = "" if measured else "it was not measured on all of the job's nodes"
    assert (energy["total_joules"], energy["source"]) == (joules, source)
    assert energy["missing"] == missing
    text = client.get("/api/v1/jobs/2/report", headers={"Accept": "text/plain"}).text
    assert ("of the measured nodes only" in text) == bool(missing)
    if joules is None:
        assert re.search(f"Energy +not known: {missing}", text)
    for page in ("/jobs?user=bob", "/jobs/2"):
        html = client.get(page).text
        if joules is None:
            assert escape(missing) in html, page
        assert bool(re.search(r"\b1\skWh\b", html)) == bool(measured), page


def test_many_rows_again_and_again():
    rows = [{column.name: None for column in columns()} | {"id": number} for number in (1, 2)]
    usages = {1: WHOLE, 2: STALE}
    for _ in range(3):
        assert [row["usage_until_time"] for row in with_usages(rows, usages)] == [END, END - 1800]
