"""Every place that shows a derived figure of a job shows the same."""

import csv
import ipaddress
import json
import re
import time
from pathlib import Path
from typing import NamedTuple

import pytest
import sqlalchemy as sa
from fastapi.testclient import TestClient
from markupsafe import escape

from batchjob.runtime.formatting import format_duration, format_run_time, share
from batchjob.schedulers.accounting import Batch
from batchjob_cli.job_columns import default_columns
from batchjob_cli.main import main
from batchjob_stats_db.admin.migrate import migrate
from batchjob_stats_db.database import schema
from batchjob_stats_db.database.engine import parse_url, writer_engine
from batchjob_stats_db.database.store import Store, UsagePolicy
from batchjob_stats_db.days import day_of
from batchjob_stats_db.measure.rollup import roll_up
from batchjob_stats_db.poller.options import DatabaseOptions
from batchjob_stats_db.queries.efficiency import columns, replace_usages
from batchjob_stats_server import app
from batchjob_stats_server.api.stats import WasteRow
from batchjob_stats_server.options import (
    AuthOptions,
    LimitOptions,
    ServerSettings,
    ServerWebOptions,
)
from batchjob_stats_server.services import build
from collectors.emissions.options import EmissionsOptions
from tests.batchjob_stats_server.conftest import NOW, PROXY, SECRET, record

DASHBOARDS = Path(__file__).parents[2] / "grafana/dashboards/infinity"
GIB = 1 << 30

# Times are seconds from now.
START, END = -7000, -3400
JOB = {"state": "COMPLETED", "submit_time": START - 200, "eligible_time": START - 120,
       "start_time": START, "end_time": END, "elapsed_seconds": 3600, "time_limit_seconds": 7200,
       "allocated_cpus": 4, "allocated_gpus": 2, "allocated_memory_bytes": 8 * GIB,
       "cpu_seconds": None, "update_time": 0}  # fmt: skip
HOUR = {"samples": 120, "nodes": 1, "source": "prometheus", "doubt": "", "measured_time": 0,
        "dropped_series": 0}  # fmt: skip
WHOLE = {**HOUR, "coverage": 1.0, "until_time": END, "user_cpu_seconds": 10_000.0,
         "system_cpu_seconds": 800.0, "memory_peak_bytes": 6 * GIB,
         "memory_average_bytes": 5 * GIB, "gpus": 2, "gpu_utilization_ratio": 0.4}  # fmt: skip
HALF_SEEN = WHOLE | {"coverage": 0.5, "user_cpu_seconds": 5_000.0, "system_cpu_seconds": 400.0}
UNSEEN = HOUR | {"coverage": 0.0, "samples": 0, "until_time": END}
JUST_ENDED = WHOLE | {"until_time": END - 20, "user_cpu_seconds": 9_940.0}
STALE = WHOLE | {"until_time": START + 1800, "user_cpu_seconds": 1_000.0, "memory_peak_bytes": GIB}
ACCOUNTED = {"cpu_seconds": 10_800.0, "peak_memory_bytes": 6 * GIB}
SHORT = {"start_time": END - 59, "elapsed_seconds": 59, "cpu_seconds": 177.0}
LIVE = {"end_time": None, "elapsed_seconds": None}


class Figures(NamedTuple):
    """What is known of a job; None is unknown."""

    cpu: float | None = 0.75
    memory: float | None = 0.75
    gpu: float | None = 0.4
    time: float | None = 0.5
    wait: int | None = 120
    basis: str | None = "measured"


PARTLY = Figures(cpu=0.25, memory=0.125)
BY_ACCOUNTING = Figures(gpu=None, basis="accounting")
CASES = {
    "measured whole": (WHOLE, {}, Figures()),
    "measured by half": (HALF_SEEN, {}, Figures()),
    "measured by half, with accounting": (HALF_SEEN, ACCOUNTED, Figures(basis="accounting")),
    "not measured": (None, ACCOUNTED, BY_ACCOUNTING),
    "measured by nothing": (UNSEEN, {}, Figures(None, None, None, basis=None)),
    "measured by nothing, with accounting": (UNSEEN, ACCOUNTED, BY_ACCOUNTING),
    "just ended": (JUST_ENDED, {"usage_due_time": END + 60}, Figures()),
    "not measured, too short for accounting": (
        None,
        ACCOUNTED | SHORT,
        BY_ACCOUNTING._replace(memory=None, time=59 / 7200, wait=3661),
    ),
    "not measured, without accounting": (None, {}, Figures(None, None, None, basis=None)),
    "measured before its end, with accounting": (STALE, ACCOUNTED, Figures(basis="accounting")),
    "measured before its end": (STALE, {}, PARTLY),
    "running": (
        STALE,
        LIVE | {"state": "RUNNING", "time_limit_seconds": 7_000_000},
        PARTLY._replace(time=0.001),
    ),
    "suspended": (
        STALE,
        LIVE | {"state": "SUSPENDED", "elapsed_seconds": 1800},
        PARTLY._replace(time=0.25),
    ),
    "vanished": (STALE, LIVE | {"state": "VANISHED"}, PARTLY._replace(time=0.25)),
    "vanished, not measured": (
        None,
        LIVE | {"state": "VANISHED"},
        Figures(None, None, None, None, basis=None),
    ),
    "without a run time from its scheduler": (WHOLE, {"elapsed_seconds": None}, Figures()),
    "without a time limit": (WHOLE, {"time_limit_seconds": None}, Figures(time=None)),
    "started at once": (WHOLE, {"eligible_time": START}, Figures(wait=0)),
    "of no known eligible time": (WHOLE, {"eligible_time": None}, Figures(wait=200)),
    "never started": (
        None,
        {"state": "CANCELLED", "start_time": None, "elapsed_seconds": 0},
        Figures(None, None, None, None, None, None),
    ),
}


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A server over a database in which each case is a job in a cluster of its own."""
    folder = tmp_path_factory.mktemp("same")
    (folder / "secret").write_text(SECRET)
    (folder / "secret").chmod(0o600)
    auth = AuthOptions(
        trusted_peer=(ipaddress.ip_network(PROXY),), secret_file=str(folder / "secret"),
        viewer=("vera",), admin=("root",),
    )  # fmt: skip
    database = DatabaseOptions(f"sqlite:///{folder}/jobs.db")
    engine = writer_engine(parse_url(database.url), create=True)
    migrate(engine)
    for name, (usage, changed, _) in CASES.items():
        write(engine, name, usage, changed)
    engine.dispose()
    web = ServerWebOptions(threads=4, allowed_host=("testserver",))
    limit = LimitOptions(user_rate=0)  # one user asks for all
    made = build(ServerSettings(database, web, auth, EmissionsOptions(), limit=limit))
    yield folder, app.make(made)
    made.reader.dispose()
    made.writer.dispose()


def write(engine, cluster, usage, changed):
    """The job of a case, and the sums of its days."""
    now = int(time.time())
    store = Store(engine, cluster, UsagePolicy(), clock=lambda: now)
    store.write(Batch((record("2", cluster=cluster, user="bob"),), (), "", 0), "s")
    job = schema.job
    with engine.begin() as db:
        number = db.scalar(sa.select(job.c.id).where(job.c.cluster == cluster))
        db.execute(sa.update(job).where(job.c.id == number).values(_from(now, JOB | changed)))
        if usage:
            db.execute(sa.insert(schema.job_usage).values(job_id=number, **_from(now, usage)))
        for day in {day_of(now + START), day_of(now)}:
            roll_up(db, cluster, day, now)


def _from(now, row):
    """The row with times from now as times."""
    return {
        key: now + value if key.endswith("_time") and value is not None else value
        for key, value in row.items()
    }


@pytest.fixture(params=CASES)
def cluster(request):
    return request.param


@pytest.fixture
def figures(cluster):
    return CASES[cluster][2]


@pytest.fixture
def get(site, cluster):
    """The answer for the cluster of the case."""

    def answer(path, user="vera", **params):
        headers = {"X-Grafana-User": user, "X-Batchjob-Secret": SECRET}
        client = TestClient(site[1], client=(PROXY, 50000), headers=headers)
        answer = client.get(path, params={"cluster": cluster} | params)
        assert answer.status_code == 200, answer.text
        return answer

    return answer


def near(value):
    """Equal, but for the time that passes while a job runs."""
    return pytest.approx(value, abs=1e-4)


def same(row, figures):
    """Whether a row of the API, or of an export of it, has these figures."""
    keys = ("cpu_efficiency", "memory_efficiency", "usage_gpu_utilization_ratio",
            "time_efficiency", "wait_seconds")  # fmt: skip
    found = [None if row[key] in (None, "") else float(row[key]) for key in keys]
    assert dict(zip(keys, found, strict=True)) == near(dict(zip(keys, figures[:5], strict=True)))
    return True


def percents(page):
    """The shares in a page."""
    return [" ".join(each.split()) for each in re.findall(r"[\d.]+\s%", page.text)]


def test_lists(figures, get):
    (row,) = get("/api/v1/jobs").json()
    assert same(row, figures)
    assert row["cpu_basis"] == figures.basis


def test_filters(figures, get):
    for name, ratio in (("cpu_efficiency", figures.cpu), ("memory_efficiency", figures.memory),
                        ("gpu_utilization", figures.gpu)):  # fmt: skip
        limits = {f"{name}_at_least": 0.0}
        assert len(get("/api/v1/jobs", **limits).json()) == (ratio is not None)
        if ratio is not None:
            limits = {f"{name}_at_least": ratio - 0.001, f"{name}_at_most": ratio + 0.001}
            assert len(get("/api/v1/jobs", **limits).json()) == 1


def test_reports(figures, get):
    report = get("/api/v1/jobs/2/report").json()
    ratios = {each["what"]: each["ratio"] for each in report["efficiency"]}
    assert ratios == near(
        {"cpu": figures.cpu, "memory": figures.memory, "gpu": figures.gpu, "time": figures.time}
    )


def test_pages(figures, get):
    listed = percents(get("/jobs", columns=["cpu", "memory", "gpu", "time"]))
    job = get("/jobs/2")
    for ratio in (figures.cpu, figures.memory, figures.gpu, figures.time):
        assert ratio is None or share(ratio) in listed
        assert ratio is None or share(ratio) in percents(job)
    waited = re.search(r"<dt>Started</dt>.*?, after ([^<]+)<", job.text)
    assert (waited and waited[1]) == (
        format_duration(figures.wait, "\u202f") if figures.wait else None
    )


def test_exports(figures, get):
    (of_table,) = csv.DictReader(get("/api/v1/jobs", format="csv").text.splitlines())
    (line,) = get("/api/v1/jobs", format="ndjson").text.splitlines()
    assert same(of_table, figures)
    assert same(json.loads(line), figures)


def targets(dashboard):
    """The queries of a dashboard."""
    panels = json.loads((DASHBOARDS / f"{dashboard}.json").read_text())["panels"]
    return [each for panel in panels for each in panel.get("targets", ())]


def test_dashboards(figures, get):
    """They compute nothing: their columns are keys of the API."""
    for name in ("job", "jobs", "my-jobs"):
        (target,) = (each for each in targets(name) if "time_efficiency" in json.dumps(each))
        asked = {each["key"]: each["value"] for each in target["url_options"]["params"]}
        path = target["url"].replace("${job:percentencode}", "2")
        (row,) = get(f"/api/v1{path}", fields=asked["fields"]).json()
        assert {each["selector"] for each in target["columns"]} <= set(row)
        assert same(row, figures)


def test_commands(figures, site, cluster, capsys):
    arguments = ["jobs", "--data", str(site[0]), "--user", "bob", "--cluster", cluster]
    assert main([*arguments, "--format", "json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert same(row, figures)
    keys = "cpu_efficiency,memory_efficiency,usage_gpu_utilization_ratio,time_efficiency"
    assert main([*arguments, "--columns", f"{keys},wait_seconds"]) == 0
    _, cells = capsys.readouterr().out.splitlines()
    assert re.split(r"\s{2,}", cells.strip()) == [
        *("-" if each is None else share(each) for each in figures[:4]),
        "-" if figures.wait is None else format_run_time(figures.wait),
    ]


def test_waste(figures, get, cluster):
    """The sums of a user who had only this job."""
    used = {"cpu": figures.cpu, "gpu": figures.gpu}
    known = {name: ratio for name, ratio in used.items() if ratio is not None}
    rows = {name: get("/api/v1/stats/waste", of=name).json() for name in used}
    for name, ratio in used.items():
        assert len(rows[name]) == (ratio is not None)
        for row in rows[name]:
            assert row[f"{name}_efficiency"] == near(ratio)
            had = row[f"measured_{name}_allocated_seconds"]
            assert row[f"{name}_unused_seconds"] == near(had * (1 - ratio))
    of_cluster = get(f"/clusters/{cluster}", cluster=())
    for page in (get("/usage"), of_cluster, get("/admin", user="root", cluster=())):
        assert {share(each) for each in known.values()} <= set(percents(page))


def test_waits(figures, get):
    """Of a user, and of a day, with this job alone."""
    known = [] if figures.wait is None else [figures.wait]
    assert [row["wait_seconds"] for row in get("/api/v1/usage", by="user").json()] == known
    assert [row["wait_mean_seconds"] for row in get("/api/v1/stats/waits").json()] == known


def test_the_dashboard_of_waste_computes_nothing():
    asked = [each for each in targets("operators") if each["url"] == "/stats/waste"]
    selectors = {column["selector"] for each in asked for column in each["columns"]}
    assert selectors <= {"user", *WasteRow.model_fields}


def test_a_job_that_waits(services, proxied):
    """It waits since it could start, not since it was submitted."""
    with services.writer.begin() as db:
        job = schema.job
        ready = {"submit_time": NOW - 86_400, "eligible_time": NOW - 7200}
        db.execute(sa.update(job).where(job.c.jobid == "8").values(ready))
    get = proxied("vera").get
    assert get("/api/v1/jobs/8/report").json()["headline"].startswith("Waiting for 2 h")
    for path in ("/jobs/8", "/jobs?state=PENDING", "/clusters/c1"):
        text = get(path).text.replace("\u202f", " ")
        assert "2 h" in text
        assert "1 d" not in text


def test_a_measurement_from_before_the_end_says_how_far_it_goes(services, proxied):
    with services.writer.begin() as db:
        number = db.scalar(sa.select(schema.job.c.id).where(schema.job.c.jobid == "2"))
        db.execute(sa.insert(schema.job_usage).values(job_id=number, **_from(NOW, STALE)))
    client = proxied("vera")
    assert (
        "measured only up to 2026-04-04 "
        in client.get("/api/v1/jobs/2/report", headers={"Accept": "text/plain"}).text
    )
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
        db.execute(which.values(**VANISHED, start_time=NOW + START, time_limit_seconds=7200))
        if usage:
            values = _from(NOW, usage)
            db.execute(sa.insert(schema.job_usage).values(job_id=number, **values))
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
            job_id=number, **_from(NOW, WHOLE | {"nodes": 2} | usage)))  # fmt: skip
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
        shown = {
            None: missing,
            3.6e6: "1\N{NARROW NO-BREAK SPACE}kWh",
            9.0e6: "2.5\N{NARROW NO-BREAK SPACE}kWh",
        }
        assert escape(shown[joules]) in html, page


def test_many_rows_again_and_again():
    rows = [{column.name: None for column in columns()} | {"id": number} for number in (1, 2)]
    usages = {1: WHOLE, 2: STALE}
    for _ in range(3):
        assert [row["usage_until_time"] for row in replace_usages(rows, usages)] == [
            END,
            START + 1800,
        ]
