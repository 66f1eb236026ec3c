"""A real site with meters for the table of truth, and every place that shows what its jobs used."""

import contextlib
import csv
import io
import json
import re
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from batchjob_cli import job as job_command
from batchjob_cli import jobs as jobs_command
from batchjob_stats_db.admin.migrate import migrate
from batchjob_stats_db.database.engine import parse_url, writer_engine
from batchjob_stats_db.database.tokens import TokenRole, create
from grafana.generate.__main__ import FOLDER
from tests.e2e import exporter, prometheus, slurm
from tests.e2e.life_measurements import prometheus_at, scraping
from tests.e2e.life_site import alone, configuration, environ_of
from tests.grafana import dashboard_client, stack
from tests.helpers.processes import free_ports
from tests.helpers.waiting import scaled, until
from tests.simulated.powercap import Powercap, Zone

NODES, CPUS = 4, 2
SCRAPE = LIVE = 5  # seconds: between scrapes, and between measurements of running jobs
WATTS = {"package-0": 100.0, "dram": 20.0}
TICK = 0.25  # seconds between readings of the meters
LIST = "API, list"

Row = Mapping[str, Any]


class Site(NamedTuple):
    """The running programs."""

    url: str
    slurm: slurm.Cluster
    exporters: Mapping[str, exporter.Target]
    token: str
    tsdb: prometheus.Server
    metered: Mapping[str, float]  # joules, by node

    def get(self, path: str, **parameters: Any) -> str:
        """An answer to an operator."""
        query = urllib.parse.urlencode(parameters, doseq=True)
        headers = {"X-Grafana-User": stack.OPERATOR, "X-Batchjob-Secret": stack.SECRET}
        request = urllib.request.Request(f"{self.url}{path}?{query}", headers=headers)
        with urllib.request.urlopen(request, timeout=scaled(60)) as answer:
            return str(answer.read().decode())

    def command(self, command: Any, *arguments: str) -> str:
        """What a command prints."""
        out = io.StringIO()
        with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out):
            patch.setenv("BATCHJOB_TOKEN", self.token)
            assert command.run([*arguments, f"--server={self.url}"]) == 0
        return out.getvalue()

    def rows(self, **parameters: Any) -> dict[str, Row]:
        """All rows of the API, by `key_of`."""
        rows = json.loads(self.get("/api/v1/jobs", limit=1000, **parameters))
        return {key_of(row): row for row in rows}


def key_of(row: Row) -> str:
    """An id and its time of submission."""
    return f"{row['jobid']} {int(float(row['submit_time'])) // 1000}"


@contextlib.contextmanager
def running(folder: Path, users: Sequence[str], conf: str) -> Iterator[Site]:
    """Start everything."""
    with contextlib.ExitStack() as made:
        cluster = made.enter_context(
            slurm.cluster(cgroup=1, nodes=NODES, cpus=CPUS, conf=conf, users=users)
        )
        first = cluster.submit("dave", "srun true", f"--nodes={NODES}", f"--ntasks={NODES}")
        cluster.wait(first)
        metered: dict[str, float] = {}
        exporters = {}
        for node in cluster.nodes:
            powercap = Powercap(folder / node)
            zones = {
                powercap.zone(f"intel-rapl:0{':0' * number}", name): watts
                for number, (name, watts) in enumerate(WATTS.items())
            }
            made.enter_context(_metered(node, zones, metered))
            flags = (
                f"--path.sysfs={powercap.sysfs}", "--collector.jobs.linger=30s",
                "--collector.energy.source=rapl", "--collector.energy.interval=2s",
                "--collector.energy.idle-watts=40",
            )  # fmt: skip
            exporters[node] = made.enter_context(
                exporter.running(*flags, inside=alone(cluster, node))
            )
        ports = free_ports(3)
        poller, server, store = (f"127.0.0.1:{port}" for port in ports)
        config = configuration(folder, cluster, store, poller, server, None)
        settings = yaml.safe_load((config / "stats_db.yml").read_text())
        settings["tsdb"]["live"] = f"{LIVE}s"
        (config / "stats_db.yml").write_text(yaml.safe_dump(settings))
        scraped = scraping(folder, exporters, poller, server, SCRAPE)
        prometheus_at(ports[2], folder, scraped, made)
        engine = writer_engine(parse_url(f"sqlite:///{folder}/jobs.db"), create=True)
        migrate(engine)
        with engine.begin() as db:
            token = create(db, stack.OPERATOR, TokenRole.VIEWER, "test", 0)
        engine.dispose()
        made.enter_context(
            stack.running_program(
                "batchjob_stats_db", config / "stats_db.yml", inside=cluster.inside(),
                environ=environ_of(cluster),
            )
        )  # fmt: skip
        made.enter_context(stack.running_program("batchjob_stats_server", config / "server.yml"))
        grafana = dashboard_client.GrafanaClient(f"http://{server}", stack.data_source_headers)
        until(lambda: stack.api_rows(grafana, "/jobs") is not None, "the server", 300, 1)
        tsdb = prometheus.Server(f"http://{store}")
        yield Site(f"http://{server}", cluster, exporters, token, tsdb, metered)


@contextlib.contextmanager
def _metered(node: str, zones: Mapping[Zone, float], joules: dict[str, float]) -> Iterator[None]:
    """Let a node's meters run at constant watts."""
    ended = threading.Event()
    joules[node] = 0.0

    def run() -> None:
        before = time.monotonic()
        while not ended.wait(TICK):
            now = time.monotonic()
            for zone, watts in zones.items():
                zone.run(watts * (now - before))
                joules[node] += watts * (now - before)
            before = now

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


# --- Places: each yields the rows or figures that it shows, by the key of the run.

Shown = Mapping[str, Mapping[str, Any]]


def csv_rows(site: Site) -> Shown:
    """The CSV, read as its columns are."""
    text = site.get("/api/v1/jobs", limit=1000, format="csv")
    return {key_of(row): row for row in csv.DictReader(io.StringIO(text))}


def command_rows(site: Site) -> Shown:
    """`batchjob jobs --format=json`."""
    arguments = ("--format=json", "--limit=1000")
    return {key_of(row): row for row in json.loads(site.command(jobs_command, *arguments))}


def list_page(site: Site) -> Shown:
    """The page of jobs."""
    shown = {}
    page = site.get("/jobs", limit=200)
    for row in re.findall(r'<tr role="row">.*?</tr>', page, re.S):
        found = re.search(r'name="job" value="[^":]*:(\d+):1:([^"]*)"', row)
        if not found:
            continue
        pairs = re.findall(r'data-label="([^"]*)">(.*?)</td>', row, re.S)
        cells = {name: _text(cell) for name, cell in pairs}
        shown[f"{found[2]} {found[1]}"] = {
            "state": _state(cells["State"]),
            "cpu_efficiency": _percent(cells.get("CPU used")),
            "memory_efficiency": _percent(cells.get("Memory used")),
        }
    return shown


def node_pages(site: Site) -> Shown:
    """The tables of the pages of nodes."""
    shown: dict[str, Mapping[str, Any]] = {}
    for node in site.slurm.nodes:
        page = site.get(f"/clusters/{stack.CLUSTER}/nodes/{node}")
        table = page.partition('id="h-jobs"')[2].partition("<tbody>")[2].partition("</tbody>")[0]
        for row in re.findall(r"<tr>.*?</tr>", table, re.S):
            link = re.search(r'href="/jobs/([^"?]*)\?([^"]*)"', row)
            assert link, row
            query = urllib.parse.parse_qs(link[2].replace("&amp;", "&"))
            cells = [_text(cell) for cell in re.findall(r"<td[^>]*>.*?</td>", row, re.S)]
            shown[f"{urllib.parse.unquote(link[1])} {query['submitted'][0]}"] = {
                "state": _state(cells[1]),
                "cpu_efficiency": _percent(cells[-3]),
                "memory_efficiency": _percent(cells[-2]),
            }
    return shown


def dashboard_rows(site: Site) -> Shown:
    """Grafana's list of the jobs that started."""
    frame = _frames(site, "infinity/jobs", "Started in this period")[0]
    rows: dict[str, Mapping[str, Any]] = {}
    for number, jobid in enumerate(frame["jobid"]):
        row = {name: values[number] for name, values in frame.items()}
        rows[f"{jobid} started {row['start_time'] // 1000}"] = row
    return rows


def _frames(site: Site, name: str, title: str, **variables: str) -> list[dashboard_client.Frame]:
    dashboard = json.loads((FOLDER / f"{name}.json").read_text())
    client = dashboard_client.GrafanaClient(site.url, stack.data_source_headers)
    now = time.time()
    viewer = dashboard_client.open_dashboard(
        client, dashboard, stack.OPERATOR, (now - 7200, now), 5, cluster=stack.CLUSTER, **variables
    )
    panels = (each for each in dashboard["panels"] if each["type"] != "row")
    (panel,) = (each for each in panels if each["title"] == title)
    return [frame for target in panel["targets"] for frame in client.frames(target, viewer)]


def live_cpu_use(site: Site, row: Row) -> tuple[float, float] | None:
    """Grafana's dashboard of a running job: when it was asked, and the CPU use that it showed."""
    frames = _frames(site, "prometheus/job-live", "CPU use", job=row["jobid"])
    return (frames[0]["Time"][0], frames[0]["Value"][0]) if frames else None


PLACES = {
    "CSV": csv_rows,
    "command, list": command_rows,
    "page, list": list_page,
    "page, nodes": node_pages,
    "Grafana, list": dashboard_rows,
}
"""Places that show all jobs at once."""


def job_row(site: Site, row: Row) -> Mapping[str, Any]:
    """`/jobs/ID`."""
    rows = json.loads(site.get(f"/api/v1/jobs/{row['jobid']}"))
    (found,) = (each for each in rows if key_of(each) == key_of(row))
    return dict(found)


def job_report(site: Site, row: Row) -> Mapping[str, Any]:
    """`/jobs/ID/report`."""
    report = json.loads(site.get(f"/api/v1/jobs/{row['jobid']}/report", run=row["id"]))
    ratios = {each["what"]: each["ratio"] for each in report["efficiency"]}
    used = report["use"]
    return {
        "state": report["job"]["state"],
        "elapsed_seconds": report["job"]["elapsed_seconds"],
        "cpu_used_seconds": used["cpu_seconds"],
        "memory_used_bytes": used["peak_memory_bytes"],
        "usage_process_io_written_bytes": used["written_bytes"],
        "cpu_efficiency": ratios.get("cpu"),
        "memory_efficiency": ratios.get("memory"),
        "time_efficiency": ratios.get("time"),
        "energy_used_joules": report["energy"]["total_joules"],
        "usage_until_time": report["basis"]["until_time"],
    }


def job_page(site: Site, row: Row) -> Mapping[str, Any]:
    """The page of a job."""
    submitted = int(row["submit_time"]) // 1000
    page = site.get(f"/jobs/{row['jobid']}", submitted=submitted)
    shares = dict(re.findall(r'<th scope="row">(CPU|Memory)</th><td>(.*?)</td>', page, re.S))
    return {
        "cpu_efficiency": _percent(_text(shares.get("CPU", ""))),
        "memory_efficiency": _percent(_text(shares.get("Memory", ""))),
    }


def job_text(site: Site, row: Row) -> Mapping[str, Any]:
    """`batchjob job ID`."""
    text = site.command(job_command, row["jobid"])
    pairs = re.findall(r"^\s+(CPU|Memory)\s+(.*)$", text.partition("Efficiency")[2], re.M)
    lines = dict(reversed(pairs))
    return {
        "cpu_efficiency": _percent(lines.get("CPU")),
        "memory_efficiency": _percent(lines.get("Memory")),
    }


JOB_PLACES = {
    "API, job": job_row, "API, report": job_report, "page, job": job_page,
    "command, report": job_text,
}  # fmt: skip
"""Places that show one job."""


EXPORTED = {
    "energy": "batchjob_job_energy_joules_total",
    "written": "batchjob_job_process_io_written_bytes_total",
}


def exported(site: Site, name: str) -> Mapping[str, float]:
    """The last totals of the exporters, by raw id; of several runs of an id, of the last."""
    promql = f"sum by (jobid) (last_over_time({EXPORTED[name]}[2h]))"
    return {each.labels["jobid"]: each.value for each in site.tsdb.query(promql)}


def consumed(site: Site) -> Mapping[str, float]:
    """All joules that each node's exporter has told of, jobs' and others'."""
    return {
        node: target.scrape(timeout=scaled(60)).total("batchjob_node_energy_joules_total")
        for node, target in site.exporters.items()
    }


def _state(cell: str) -> str:
    """Without what is said beside it."""
    return cell.split(" ended,")[0].split(" as of")[0].upper().replace(" ", "_")


def _text(markup: str) -> str:
    return " ".join(re.sub("<[^>]*>", " ", markup).split()).replace("\u202f", " ")


def _percent(text: str | None) -> float | None:
    match = re.search(r"(\d+(?:\.\d+)?)\s*%", text or "")
    return float(match[1]) / 100 if match else None
