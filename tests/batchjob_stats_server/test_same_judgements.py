"""Pages, API, CSV, commands, metrics and sums judge alike, by the thresholds of the site."""

import csv
import ipaddress
import json
import re
import time
from datetime import UTC
from urllib.parse import urlsplit

import pytest
import sqlalchemy as sa
from fastapi.testclient import TestClient

from batchjob import judgements
from batchjob.judgements import SiteThresholds, use_thresholds
from batchjob.local_runs.history import stats
from batchjob.local_runs.record import Run
from batchjob.runtime.times import format_time
from batchjob.schedulers.accounting import Batch
from batchjob.schedulers.states import JobState
from batchjob_cli.main import main
from batchjob_stats_db.admin.migrate import migrate
from batchjob_stats_db.database import schema
from batchjob_stats_db.database.engine import parse_url, writer_engine
from batchjob_stats_db.database.store import Store, UsagePolicy
from batchjob_stats_db.days import day_of
from batchjob_stats_db.measure.rollup import roll_up
from batchjob_stats_db.poller.options import DatabaseOptions
from batchjob_stats_db.poller.self_metrics import PollerMetrics, count_ended
from batchjob_stats_db.queries.efficiency import ENDED_ON_NODES
from batchjob_stats_server import app
from batchjob_stats_server.options import (
    AuthOptions,
    LimitOptions,
    SamplesOptions,
    ServerSettings,
    ServerWebOptions,
)
from batchjob_stats_server.services import build
from tests.batchjob_stats_server.conftest import PROXY, SECRET, job_record
from tests.batchjob_stats_server.pages.conftest import element_text, parse_page

NOW = int(time.time())
ENDED = [state for state in JobState if not state.is_live and state is not JobState.VANISHED]
FAILED = {
    "FAILED", "BOOT_FAIL", "DEADLINE", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY",
}  # fmt: skip


def record(state, **fields):
    """A job of an hour that ended in this state; its id is the state's word."""
    times = {"submit_time": NOW - 7300, "start_time": NOW - 7200, "end_time": NOW - 3600}
    if state.is_live or state is JobState.VANISHED:
        times |= {"end_time": None, "elapsed_seconds": None}
    return job_record(state.value, state=state, user="bob", **times | fields)


RECORDS = [record(state) for state in JobState if state is not JobState.PENDING]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Data directory with a database of one job of each state."""
    folder = tmp_path_factory.mktemp("judged")
    (folder / "secret").write_text(SECRET)
    (folder / "secret").chmod(0o600)
    engine = writer_engine(parse_url(f"sqlite:///{folder}/jobs.db"), create=True)
    migrate(engine)
    Store(engine, "c1", UsagePolicy(), clock=lambda: NOW).write(Batch(RECORDS, (), "", 0), "s")
    with engine.begin() as db:
        write_usages(db)
        for day in {day_of(NOW - 7200), day_of(NOW - 3600), day_of(NOW)}:
            roll_up(db, "c1", day, NOW)
    engine.dispose()
    return folder


def write_usages(db):
    """Of the running job, 30 % of CPUs, 85 % of memory, and 2 % of a GPU; FAILED: half of both."""
    job = schema.job
    ids = dict(db.execute(sa.select(job.c.jobid, job.c.id)).all())
    common = {"source": "prometheus", "samples": 240, "nodes": 1, "coverage": 1.0, "caveats": "",
              "gpus": 1, "dropped_series": 0, "measured_time": NOW}  # fmt: skip
    rows = [
        {"job_id": ids["RUNNING"], "until_time": NOW, "user_cpu_seconds": 0.3 * 4 * 7200,
         "memory_peak_bytes": 85 << 20, "gpu_utilization_ratio": 0.02},
        {"job_id": ids["FAILED"], "until_time": NOW - 3600, "user_cpu_seconds": 0.5 * 4 * 3600,
         "memory_peak_bytes": 50 << 20, "gpu_utilization_ratio": 0.5},
        # Full of page cache: without and with a process that was killed for want of memory.
        {"job_id": ids["TIMEOUT"], "until_time": NOW - 3600, "user_cpu_seconds": 0.5 * 4 * 3600,
         "memory_peak_bytes": 100 << 20, "gpu_utilization_ratio": 0.5, "oom_kills": 0},
        {"job_id": ids["COMPLETED"], "until_time": NOW - 3600, "user_cpu_seconds": 0.5 * 4 * 3600,
         "memory_peak_bytes": 100 << 20, "gpu_utilization_ratio": 0.5, "oom_kills": 1,
         "process_io_written_bytes": 1 << 20},
    ]  # fmt: skip
    db.execute(sa.update(job).values(allocated_memory_bytes=100 << 20, allocated_gpus=1))
    for row in rows:
        seconds = row["until_time"] - (NOW - 7200)
        observed = {
            "gpu_busy_seconds": seconds * row["gpu_utilization_ratio"],
            "gpu_observed_seconds": seconds,
        }
        db.execute(sa.insert(schema.job_usage).values(row | common | observed))
        db.execute(
            sa.insert(schema.job_gpu).values(
                job_id=row["job_id"], node="n001", uuid="GPU-1", gpu_instance="", gpu="0",
                utilization_ratio=row["gpu_utilization_ratio"], samples=240,
                observed_seconds=7200,
            )
        )  # fmt: skip


@pytest.fixture
def site(folder):
    """Open the site with other thresholds: `site(low_use=0.1)` is a function that gets a path."""
    opened = []

    def open_site(**thresholds):
        auth = AuthOptions(
            trusted_peer=(ipaddress.ip_network(PROXY),), secret_file=str(folder / "secret"),
            admin=("root",),
        )  # fmt: skip
        settings = ServerSettings(
            DatabaseOptions(f"sqlite:///{folder}/jobs.db"),
            ServerWebOptions(threads=4, allowed_host=("testserver",)),
            auth,
            limit=LimitOptions(user_rate=0),
            threshold=SiteThresholds(**thresholds),
        )
        services = build(settings)
        opened.append(services)
        headers = {"X-Grafana-User": "root", "X-Batchjob-Secret": SECRET}
        client = TestClient(app.make(services), client=(PROXY, 50000), headers=headers)

        def get(path, **params):
            answer = client.get(path, params=params or None)
            assert answer.status_code == 200, answer.text
            return answer

        return get

    yield open_site
    for services in opened:
        services.stop()
    use_thresholds(SiteThresholds())


def presets(get):
    """The presets of the list of jobs: title -> address."""
    links = parse_page(get("/jobs")).findall(".//nav[@class='presets']//li/a")
    return {element_text(link): link.get("href") for link in links}


def listed(get, address):
    """The ids of the jobs that a page lists."""
    rows = parse_page(get(address)).findall(".//tbody//th[@scope='row']")
    return {element_text(row) for row in rows}


def test_all_count_the_same_jobs_as_failed(site, folder, capsys):
    get = site()
    failed_preset = presets(get)["Failed"]
    assert listed(get, failed_preset) == FAILED
    query = urlsplit(failed_preset).query
    assert {row["jobid"] for row in get(f"/api/v1/jobs?{query}").json()} == FAILED
    lines = get(f"/api/v1/jobs?{query}&format=csv").text.splitlines()
    assert {row["jobid"] for row in csv.DictReader(lines)} == FAILED

    counts = (len(FAILED), len(ENDED))
    (usage,) = get("/api/v1/usage", by="user").json()
    assert (usage["jobs_failed"], usage["jobs_ended"]) == counts
    (failures,) = get("/api/v1/stats/failures").json()
    assert (failures["jobs_failed"], failures["jobs_ended"]) == counts

    assert main(["stats", "--data", str(folder), "--by", "user", "--format", "json"]) == 0
    total = json.loads(capsys.readouterr().out)[0]
    assert (total["failed"], total["ended"]) == counts


def test_metrics_and_local_runs_count_the_same_jobs_as_failed():
    metrics = PollerMetrics()
    count_ended(metrics, "c1", RECORDS, NOW)
    counted = {
        sample.labels["result"]: sample.value
        for family in metrics.ended_jobs.collect()
        for sample in family.samples
        if sample.name.endswith("_total")
    }
    assert counted == {"failed": len(FAILED), "other": len(ENDED) - len(FAILED)}
    fields = dict.fromkeys(Run._fields) | {"name": "fit", "start_time": 0.0, "submit_time": 0.0}
    runs = [Run(**fields | {"state": each.state, "state_word": ""}) for each in RECORDS]
    (total,) = stats(runs=runs)
    assert total.failed == len(FAILED)


def test_a_site_s_thresholds_hold_in_lists_pages_and_statistics(site):
    get = site()
    assert get("/api/v1/stats/idle-gpus").json() == []
    assert listed(get, presets(get)["Wasteful"]) == set()
    assert "at least 25" in get("/clusters/c1").text

    get = site(idle_gpu=0.05, low_use=0.4)
    assert [row["jobid"] for row in get("/api/v1/stats/idle-gpus").json()] == ["RUNNING"]
    assert listed(get, presets(get)["Wasteful"]) == {"RUNNING"}
    assert listed(get, presets(get)["Idle GPUs"]) == {"RUNNING"}
    cpus = parse_page(get("/clusters/c1")).find(".//section[@aria-labelledby='h-cpus']")
    assert "RUNNING" in element_text(cpus)


def bar_classes(get, jobid):
    """The colours of a job's bars on its page."""
    return re.findall(r'class="bar (\w*)"', get(f"/jobs/{jobid}").text)


def advice(get, jobid):
    return {each["rule"] for each in get(f"/api/v1/jobs/{jobid}/report").json()["advice"]}


def test_a_site_s_thresholds_hold_in_reports_and_colours(site):
    before = bar_classes(site(), "FAILED")
    assert "gpu-low" not in advice(site(), "FAILED")
    get = site(advised_gpu_use=0.6, low_use=0.55)
    assert "gpu-low" in advice(get, "FAILED")
    assert bar_classes(get, "FAILED") != before


def test_page_cache_alone_is_not_called_high(site):
    get = site()
    assert "high" not in bar_classes(get, "TIMEOUT")
    assert "high" in bar_classes(get, "COMPLETED")
    listed_bars = re.findall(r'class="bar (\w*)"', get("/jobs?state=TIMEOUT").text)
    assert listed_bars
    assert "high" not in listed_bars


def test_what_processes_moved_is_said_to_be_a_lower_bound(site):
    get = site()
    (row,) = get("/api/v1/jobs?state=COMPLETED").json()
    assert row["process_io_basis"] == "at least"
    (line,) = csv.DictReader(get("/api/v1/jobs?state=COMPLETED&format=csv").text.splitlines())
    assert line["process_io_basis"] == "at least"
    assert "Storage, at least" in get("/jobs/COMPLETED").text
    assert "Storage, at least" in get("/api/v1/jobs/COMPLETED/report?format=text").text
    (row,) = get("/api/v1/jobs?state=TIMEOUT").json()
    assert row["process_io_basis"] is None


def test_absent_samples_are_an_error_of_health_and_page(folder, site, tmp_path):
    site()
    settings = ServerSettings(
        DatabaseOptions(f"sqlite:///{folder}/jobs.db"),
        ServerWebOptions(threads=4, allowed_host=("testserver",)),
        AuthOptions(
            trusted_peer=(ipaddress.ip_network(PROXY),), secret_file=str(folder / "secret"),
            admin=("root",),
        ),
        samples=SamplesOptions(str(tmp_path / "samples")),
    )  # fmt: skip
    services = build(settings)
    headers = {"X-Grafana-User": "root", "X-Batchjob-Secret": SECRET}
    client = TestClient(app.make(services), client=(PROXY, 50000), headers=headers)
    answer = client.get("/-/ready")
    assert (answer.status_code, answer.text) == (503, "the directory of samples is absent\n")
    assert "No such file or directory" in client.get("/admin").text
    (tmp_path / "samples").mkdir()
    assert client.get("/-/ready").status_code == 200
    assert "it contains samples of no job" in client.get("/admin").text
    services.stop()


def test_a_site_s_worth_of_a_gpu_orders_waste(site):
    page = site(gpu_weight=0.0)("/clusters/c1")
    assert "bob" in page.text
    sums = {"cpu_unused_seconds": 10.0, "gpu_unused_seconds": 2.0}
    assert judgements.unused_cpu_seconds(sums) == 10.0
    use_thresholds(SiteThresholds())
    assert judgements.unused_cpu_seconds(sums) == 74.0


def test_the_configuration_names_a_wrong_threshold():
    from batchjob_stats_server.options import settings

    with pytest.raises(ValueError, match=r"threshold\.low-use: expected a fraction"):
        settings({"threshold.low-use": "300%"}, "")
    assert settings({"threshold.low-use": "20%"}, "").threshold.low_use == 0.2


def hourly_growth(db):
    """By how much the run time of running jobs grows in sums within an hour."""
    seconds = []
    for hours in (1, 2):
        for day in {day_of(NOW + more * 3600) for more in (-2, 0, 2)}:
            roll_up(db, "c1", day, NOW + hours * 3600)
        seconds.append(
            db.execute(sa.select(sa.func.sum(schema.daily_usage.c.wall_seconds))).scalar()
        )
    return seconds[1] - seconds[0]


def test_clock_stops_when_all_nodes_have_seen_the_end(site, folder):
    usage, ended_at = schema.job_usage, NOW - 600
    engine = writer_engine(parse_url(f"sqlite:///{folder}/jobs.db"))
    get = site()
    (before,) = get("/api/v1/jobs?state=RUNNING").json()
    mine = usage.c.job_id == before["id"]
    words = "ended, state not yet known"
    with engine.begin() as db:
        old = db.execute(sa.select(usage).where(mine)).mappings().one()
        grown = hourly_growth(db)
        changed = {"caveats": ENDED_ON_NODES, "until_time": ended_at}
        db.execute(sa.update(usage).where(mine).values(changed))
        assert hourly_growth(db) == grown - 3600  # others go on
    try:
        (row,) = get("/api/v1/jobs?state=RUNNING").json()
        assert (row["as_of_time"], row["as_of_basis"]) == (ended_at * 1000, "nodes")
        assert row["elapsed_seconds"] == row["observed_seconds"] == 7200 - 600
        (line,) = csv.DictReader(get("/api/v1/jobs?state=RUNNING&format=csv").text.splitlines())
        assert line["as_of_basis"] == "nodes"
        for path in ("/jobs?state=RUNNING", "/embed/jobs/RUNNING", "/clusters/c1/nodes/n001"):
            assert words in " ".join(get(path).text.split()), path
        for path in ("/jobs/RUNNING", "/api/v1/jobs/RUNNING/report?format=text"):
            assert "All its nodes have seen it end" in " ".join(get(path).text.split()), path
    finally:
        with engine.begin() as db:
            db.execute(sa.update(usage).where(mine).values(dict(old)))
        engine.dispose()


def test_state_and_clock_are_as_of_the_last_read_of_a_source_that_fails(site, folder):
    """The job may have ended since, whatever the time is now."""
    state, read_at = schema.poll_state, NOW - 600
    engine = writer_engine(parse_url(f"sqlite:///{folder}/jobs.db"))
    failing = {"cluster": "c1", "source": "sacct", "success_time": read_at, "error_time": NOW}
    get = site()
    (before,) = get("/api/v1/jobs?state=RUNNING").json()
    assert before["as_of_time"] is None
    assert "as of" not in element_text(parse_page(get("/jobs?state=RUNNING")).find(".//tbody"))
    try:
        with engine.begin() as db:
            db.execute(sa.insert(state).values(**failing))
            for day in {day_of(NOW + more * 3600) for more in (-2, 0, 2)}:
                roll_up(db, "c1", day, NOW + 3600)
            sums = sa.select(sa.func.sum(schema.daily_usage.c.wall_seconds))
            stopped = db.execute(sums).scalar()
            for day in {day_of(NOW + more * 3600) for more in (-2, 0, 2)}:
                roll_up(db, "c1", day, NOW + 7200)
            assert db.execute(sums).scalar() == stopped
        (row,) = get("/api/v1/jobs?state=RUNNING").json()
        assert row["as_of_time"] == read_at * 1000
        assert row["elapsed_seconds"] == 7200 - 600
        (line,) = csv.DictReader(get("/api/v1/jobs?state=RUNNING&format=csv").text.splitlines())
        assert float(line["elapsed_seconds"]) == 7200 - 600
        words = f"as of {format_time(read_at, UTC)}"
        assert words in element_text(parse_page(get("/jobs?state=RUNNING")).find(".//tbody"))
        for path in ("/jobs/RUNNING", "/api/v1/jobs/RUNNING/report?format=text"):
            assert " ".join(get(path).text.split()).count(words) == 1
        assert get("/api/v1/jobs/RUNNING/report").json()["job"]["elapsed_seconds"] == 7200 - 600
        (ended,) = get("/api/v1/jobs?state=COMPLETED").json()
        assert ended["as_of_time"] is None
    finally:
        with engine.begin() as db:
            db.execute(sa.delete(state).where(state.c.source == "sacct"))
        engine.dispose()
