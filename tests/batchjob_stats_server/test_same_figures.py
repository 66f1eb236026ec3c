"""Every place that shows a derived figure of a job shows the same value."""

import csv
import ipaddress
import json
import re
import time
from pathlib import Path

import pytest
import sqlalchemy as sa
from fastapi.testclient import TestClient

from batchjob.runtime.formatting import format_duration, format_run_time, share
from batchjob.schedulers.accounting import Batch
from batchjob_cli.main import main
from batchjob_stats_db.admin.migrate import migrate
from batchjob_stats_db.database import schema
from batchjob_stats_db.database.engine import parse_url, writer_engine
from batchjob_stats_db.database.store import Store, UsagePolicy
from batchjob_stats_db.days import day_of
from batchjob_stats_db.measure.rollup import roll_up
from batchjob_stats_db.poller.options import DatabaseOptions
from batchjob_stats_db.queries.operators import RESOURCES, unused_key
from batchjob_stats_server import app
from batchjob_stats_server.api.stats import WasteRow
from batchjob_stats_server.options import (
    AuthOptions,
    LimitOptions,
    ServerSettings,
    ServerWebOptions,
)
from batchjob_stats_server.services import build
from tests.batchjob_stats_server.conftest import PROXY, SECRET, job_record
from tests.batchjob_stats_server.job_figure_cases import (
    CASES,
    JOB,
    START,
    with_absolute_times,
)
from tests.batchjob_stats_server.pages.conftest import element_text, parse_page
from tests.batchjob_stats_server.pages.test_pages import table_rows

DASHBOARDS = Path(__file__).parents[2] / "grafana/dashboards/infinity"


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Data directory and application of a server; each case is the job of its own cluster."""
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
    for name, (usage, job_changes, _) in CASES.items():
        write_job(engine, name, usage, job_changes)
    engine.dispose()
    web = ServerWebOptions(threads=4, allowed_host=("testserver",))
    limit = LimitOptions(user_rate=0)  # one user sends all requests
    services = build(ServerSettings(database, web, auth, limit=limit))
    yield folder, app.make(services)
    services.reader.dispose()
    services.writer.dispose()


def write_job(engine, cluster, usage, job_changes):
    """Write the job of a case, and the sums of its days."""
    now = int(time.time())
    store = Store(engine, cluster, UsagePolicy(), clock=lambda: now)
    store.write(Batch((job_record("2", cluster=cluster, user="bob"),), (), "", 0), "s")
    job = schema.job
    with engine.begin() as db:
        job_id = db.scalar(sa.select(job.c.id).where(job.c.cluster == cluster))
        db.execute(
            sa.update(job)
            .where(job.c.id == job_id)
            .values(with_absolute_times(now, JOB | job_changes))
        )
        if usage:
            db.execute(
                sa.insert(schema.job_usage).values(job_id=job_id, **with_absolute_times(now, usage))
            )
        for day in {day_of(now + START), day_of(now)}:
            roll_up(db, cluster, day, now)


@pytest.fixture(params=CASES)
def cluster(request):
    return request.param


@pytest.fixture
def figures(cluster):
    return CASES[cluster][2]


@pytest.fixture
def get(site, cluster):
    """Get a path for the cluster of the case."""

    def answer(path, user="vera", **params):
        headers = {"X-Grafana-User": user, "X-Batchjob-Secret": SECRET}
        client = TestClient(site[1], client=(PROXY, 50000), headers=headers)
        answer = client.get(path, params={"cluster": cluster} | params)
        assert answer.status_code == 200, answer.text
        return answer

    return answer


def approximately(value):
    """Equal, except for the time that passes while a job runs."""
    return pytest.approx(value, abs=1e-4)


def has_figures(row, figures):
    """Whether a row of the API, or of an export of it, has these figures."""
    keys = ("cpu_efficiency", "memory_efficiency", "usage_gpu_utilization_ratio",
            "time_efficiency", "wait_seconds")  # fmt: skip
    values = [None if row[key] in (None, "") else float(row[key]) for key in keys]
    assert dict(zip(keys, values, strict=True)) == approximately(
        dict(zip(keys, figures[:5], strict=True))
    )
    return True


def percentages(page):
    """The percentages in a page."""
    return [" ".join(each.split()) for each in re.findall(r"[\d.]+\s%", page.text)]


def test_job_list(figures, get):
    (row,) = get("/api/v1/jobs").json()
    assert has_figures(row, figures)
    assert row["cpu_basis"] == figures.basis


def test_efficiency_filters(figures, get):
    for name, ratio in (("cpu_efficiency", figures.cpu), ("memory_efficiency", figures.memory),
                        ("gpu_utilization", figures.gpu)):  # fmt: skip
        filters = {f"{name}_at_least": 0.0}
        assert len(get("/api/v1/jobs", **filters).json()) == (ratio is not None)
        if ratio is not None:
            filters = {f"{name}_at_least": ratio - 0.001, f"{name}_at_most": ratio + 0.001}
            assert len(get("/api/v1/jobs", **filters).json()) == 1


def test_report(figures, get):
    report = get("/api/v1/jobs/2/report").json()
    ratios = {each["what"]: each["ratio"] for each in report["efficiency"]}
    assert ratios == approximately(
        {"cpu": figures.cpu, "memory": figures.memory, "gpu": figures.gpu, "time": figures.time}
    )


@pytest.mark.parametrize("cluster", [name for name in CASES if CASES[name][2].basis == "at least"])
def test_a_lower_bound_of_cpu_time_says_so_everywhere(site, cluster, get, capsys):
    (csv_row,) = csv.DictReader(get("/api/v1/jobs", format="csv").text.splitlines())
    assert csv_row["cpu_basis"] == "at least"
    report = get("/api/v1/jobs/2/report").json()
    assert report["use"]["cpu_basis"] == "at least"
    assert "cpu time at least" in report["basis"]["caveats"]
    text = get("/api/v1/jobs/2/report", format="text").text
    assert re.search(r"CPU time, at least\s+3 h", text)
    assert "the job used at least what is shown" in " ".join(text.split())
    assert "at least, CPU time /" in get("/jobs/2").text or CASES[cluster][2].cpu is None
    assert "at least 3" in get("/compare", job=[f"{cluster}:2"], cluster=()).text
    arguments = ["jobs", "--data", str(site[0]), "--user", "bob", "--cluster", cluster]
    assert main(arguments) == 0
    assert ("at least 75 %" in capsys.readouterr().out) == (CASES[cluster][2].cpu is not None)


@pytest.mark.parametrize("cluster", [name for name in CASES if name.startswith("node failed")])
def test_node_failure_is_never_called_idleness(get):
    report = get("/api/v1/jobs/2/report").json()
    assert "cpu-idle" not in {each["rule"] for each in report["advice"]}


def test_html_pages(figures, get):
    listed = percentages(get("/jobs", columns=["cpu", "memory", "gpu", "time"]))
    job = get("/jobs/2")
    for ratio in (figures.cpu, figures.memory, figures.gpu, figures.time):
        assert ratio is None or share(ratio) in listed
        assert ratio is None or share(ratio) in percentages(job)
    waited = re.search(r"<dt>Started</dt>.*?, after ([^<]+)<", job.text)
    assert (waited and waited[1]) == (
        format_duration(figures.wait, "\u202f") if figures.wait else None
    )


def test_csv_and_ndjson_exports(figures, get):
    (csv_row,) = csv.DictReader(get("/api/v1/jobs", format="csv").text.splitlines())
    (json_line,) = get("/api/v1/jobs", format="ndjson").text.splitlines()
    assert has_figures(csv_row, figures)
    assert has_figures(json.loads(json_line), figures)


def dashboard_queries(dashboard):
    """The queries of all panels of a dashboard."""
    panels = json.loads((DASHBOARDS / f"{dashboard}.json").read_text())["panels"]
    return [each for panel in panels for each in panel.get("targets", ())]


def test_dashboard_columns(figures, get):
    """Dashboards compute nothing: their columns are keys of the API."""
    for name in ("job", "jobs", "my-jobs"):
        (query,) = (
            each for each in dashboard_queries(name) if "time_efficiency" in json.dumps(each)
        )
        params = {each["key"]: each["value"] for each in query["url_options"]["params"]}
        chosen = {"fields": params["fields"], **({"jobid": "2"} if "jobid" in params else {})}
        (row,) = get(f"/api/v1{query['url']}", **chosen).json()
        assert {each["selector"] for each in query["columns"]} <= set(row)
        assert has_figures(row, figures)


def test_jobs_command(figures, site, cluster, capsys):
    arguments = ["jobs", "--data", str(site[0]), "--user", "bob", "--cluster", cluster]
    assert main([*arguments, "--format", "json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert has_figures(row, figures)
    keys = "cpu_efficiency,memory_efficiency,usage_gpu_utilization_ratio,time_efficiency"
    assert main([*arguments, "--columns", f"{keys},wait_seconds"]) == 0
    _, cells = capsys.readouterr().out.splitlines()
    assert re.split(r"\s{2,}", cells.strip()) == [
        *("-" if each is None else share(each) for each in figures[:4]),
        "-" if figures.wait is None else format_run_time(figures.wait),
    ]


def test_waste_sums(figures, get, cluster):
    """The sums of a user who had only this job."""
    used = {"cpu": figures.cpu, "memory": figures.memory, "gpu": figures.gpu}
    known_ratios = {name: ratio for name, ratio in used.items() if ratio is not None}
    rows = {name: get("/api/v1/stats/waste", of=name).json() for name in used}
    for name, ratio in used.items():
        assert len(rows[name]) == (ratio is not None)
        for row in rows[name]:
            assert row[f"{name}_efficiency"] == approximately(ratio)
            allocated = row[RESOURCES[name][0]]
            assert row[unused_key(name)] == approximately(allocated * max(1 - ratio, 0))
    (job,) = get("/api/v1/jobs").json()
    for name in ("cpu", "gpu"):
        key = unused_key(name)
        assert (job[key] is None) == (used[name] is None)
        assert (job[key] or 0) == pytest.approx(sum(row[key] for row in rows[name]), abs=2)
    cluster_page = get(f"/clusters/{cluster}", cluster=())
    usage_page = get("/usage")
    assert {share(each) for each in known_ratios.values()} <= set(percentages(usage_page))
    known_ratios.pop("memory", None)  # these pages have CPUs and GPUs
    for page in (cluster_page, get("/admin", user="root", cluster=())):
        assert {share(each) for each in known_ratios.values()} <= set(percentages(page))


@pytest.mark.parametrize("cluster", ["completely measured"])
def test_memory_used_is_the_peak_on_the_usage_page_as_in_lists(get):
    """Its mean was 5 of 8 GiB, which is another figure."""
    (row,) = get("/api/v1/usage", by="user").json()
    assert row["memory_byte_seconds"] == pytest.approx(5 / 8 * row["memory_allocated_byte_seconds"])
    (job,) = get("/api/v1/jobs").json()
    page = parse_page(get("/usage"))
    titles = [element_text(each) for each in page.findall(".//table[@class='sticky']/thead/tr/th")]
    ((*cells,),) = table_rows(page, "By user")
    assert cells[0] == "bob"
    assert cells[titles.index("Memory used")].startswith(share(job["memory_efficiency"]))


def test_mean_waits(figures, get):
    """The mean waits of a user and of a day, with this job alone."""
    known_waits = [] if figures.wait is None else [figures.wait]
    assert [row["wait_seconds"] for row in get("/api/v1/usage", by="user").json()] == known_waits
    assert [row["wait_mean_seconds"] for row in get("/api/v1/stats/waits").json()] == known_waits


def test_waste_dashboard_uses_api_fields_only():
    queries = [each for each in dashboard_queries("operators") if each["url"] == "/stats/waste"]
    selectors = {column["selector"] for each in queries for column in each["columns"]}
    assert selectors <= {"user", *WasteRow.model_fields}
