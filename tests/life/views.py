"""All views of what a job used: database, API, pages, commands, dashboards and exporters.

Each view returns its `Figures`, with None for those that are not shown, and the age and coverage
that it displays.
"""

import contextlib
import io
import json
import re
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from batchjob_cli import job as job_command
from batchjob_cli import jobs as jobs_command
from batchjob_stats_db.queries.job_list import COLUMN_NAMES, rows_by_ids
from tests.helpers.waiting import scaled
from tests.life import dashboard_views
from tests.life.exporters import exporter_view
from tests.life.ground_truth import KnownRun
from tests.life.observed_site import ObservedSite

_ENDED = " ended, state not yet known"

Figures = Mapping[str, Any]
"""Figures by their names in `Usage`; `state`; `until`, `coverage` and `final` if displayed."""

View = Callable[[ObservedSite, KnownRun], Figures]


def _fetch(site: ObservedSite, path: str, **parameters: Any) -> str:
    query = urllib.parse.urlencode(parameters, doseq=True)
    request = urllib.request.Request(f"{site.url}{path}?{query}", headers=dict(site.headers))
    with urllib.request.urlopen(request, timeout=scaled(30)) as answer:
        return str(answer.read().decode())


def _fetch_json(site: ObservedSite, path: str, **parameters: Any) -> Any:
    return json.loads(_fetch(site, f"/api/v1{path}", **parameters))


def _row_of_run(rows: Any, run: KnownRun) -> Mapping[str, Any]:
    """The row of this run; runs of one id differ in their submit times."""
    (row,) = (
        row
        for row in rows
        if row["jobid"] == run.jobid and int(row["submit_time"]) == run.submit * 1000
    )
    return dict(row)


def _figures_of_row(row: Mapping[str, Any], unit: int = 1000) -> Figures:
    """A job's row, as the database and the API have it; times in `unit` to the second."""
    until = row["usage_until_time"] if row["usage_samples"] else None
    return {
        "state": row["state"],
        "elapsed": row["elapsed_seconds"],
        "cpu_seconds": row["cpu_used_seconds"],
        "cpu_efficiency": row["cpu_efficiency"],
        "memory_bytes": row["memory_used_bytes"],
        "memory_efficiency": row["memory_efficiency"],
        "gpu_ratio": row["usage_gpu_utilization_ratio"],
        "written_bytes": row["usage_process_io_written_bytes"],
        "energy_joules": row["usage_energy_joules"],
        "until": None if until is None else until / unit,
        "coverage": row["usage_coverage"] if row["usage_samples"] else None,
        "basis": row["cpu_basis"],
        "final": bool(row["usage_final"]),
    }


def database_row(site: ObservedSite, run: KnownRun) -> Figures:
    """The row with its derived columns."""
    with site.reader.connect() as db:
        jobs = db.exec_driver_sql("SELECT id, jobid, submit_time FROM job").all()
        (number,) = (row.id for row in jobs if row[1:] == (run.jobid, run.submit))
        (row,) = rows_by_ids(db, [number], COLUMN_NAMES)
        return _figures_of_row(row, unit=1)


def api_list(site: ObservedSite, run: KnownRun) -> Figures:
    """`/jobs`."""
    return _figures_of_row(_row_of_run(_fetch_json(site, "/jobs", user=run.user), run))


def api_job(site: ObservedSite, run: KnownRun) -> Figures:
    """`/jobs/ID`, with all runs of the id."""
    return _figures_of_row(_row_of_run(_fetch_json(site, f"/jobs/{run.jobid}"), run))


def api_report(site: ObservedSite, run: KnownRun) -> Figures:
    """`/jobs/ID/report`, which measures the job if it was not measured yet."""
    report = _fetch_json(site, f"/jobs/{run.jobid}/report", run=_job_number(site, run))
    ratios = {each["what"]: each["ratio"] for each in report["efficiency"]}
    used, basis = report["use"], report["basis"]
    (source,) = (each["source"] for each in report["efficiency"] if each["what"] == "cpu")
    return {
        "basis": source,
        "state": report["job"]["state"],
        "elapsed": report["job"]["elapsed_seconds"],
        "cpu_seconds": used["cpu_seconds"],
        "memory_bytes": used["peak_memory_bytes"],
        "cpu_efficiency": ratios.get("cpu"),
        "memory_efficiency": ratios.get("memory"),
        "gpu_ratio": ratios.get("gpu"),
        "written_bytes": used["written_bytes"],
        "energy_joules": report["energy"]["total_joules"],
        "until": basis["until_time"] and basis["until_time"] / 1000,
        "coverage": basis["coverage"] if basis["samples"] else None,
        "final": basis["final"],
    }


def api_curve(site: ObservedSite, run: KnownRun) -> Figures:
    """`/jobs/ID/metrics`: the integral of the curve of CPUs."""
    path = f"/jobs/{run.jobid}/metrics"
    try:
        rows = _fetch_json(site, path, metric="cpu", points=3000, run=_job_number(site, run))
    except urllib.error.HTTPError as error:
        if error.code != 503:  # the store is down, and the view reports it
            raise
        return {}
    seconds, ends = 0.0, {}
    for row in sorted(rows, key=lambda row: row["time"]):
        line = row["line"]
        seconds += row["mean"] * (row["time"] / 1000 - ends.get(line, run.start))
        ends[line] = row["time"] / 1000
    return {"cpu_seconds": seconds if rows else None}


def _job_number(site: ObservedSite, run: KnownRun) -> int:
    return int(
        _row_of_run(_fetch_json(site, f"/jobs/{run.jobid}", fields="id,jobid,submit_time"), run)[
            "id"
        ]
    )


def api_usage(site: ObservedSite, run: KnownRun) -> Figures:
    """`/usage`: the sums of a user who has only this run."""
    rows = _fetch_json(site, "/usage", by="user", user=run.user)
    if not rows:
        return {"cpu_seconds": None, "energy_joules": None}
    energy = rows[0]["energy_host_joules"] + rows[0]["energy_gpu_joules"]
    return {"cpu_seconds": rows[0]["cpu_seconds"] or None, "energy_joules": energy or None}


def usage_page(site: ObservedSite, run: KnownRun) -> Figures:
    """The page `/usage`: the used part of what was allocated and measured."""
    page = _fetch(site, "/usage", user=run.user, show="cpu")
    return {"cpu_efficiency": _parse_percent(_table_cell(page, run.user, "Of these used"))}


def _table_cell(page: str, row: str, column: str) -> str | None:
    """The cell of a table by the first cell of its row and the title of its column."""
    for table in re.findall(r"<table.*?</table>", page, re.S):
        titles = [
            _markup_text(each)
            for each in re.findall(r"<t[hd][^>]*>.*?</t[hd]>", table.partition("</thead>")[0], re.S)
        ]
        if column not in titles:
            continue
        for line in re.findall(r"<tr[^>]*>.*?</tr>", table.partition("</thead>")[2], re.S):
            cells = [
                _markup_text(each) for each in re.findall(r"<t[hd][^>]*>.*?</t[hd]>", line, re.S)
            ]
            if cells and cells[0].startswith(row):
                return cells[titles.index(column)]
    return None


def _markup_text(markup: str) -> str:
    return " ".join(re.sub("<[^>]*>", " ", markup).split()).replace("\u202f", " ")


def _state(cell: str) -> Figures:
    """The state, and whether all nodes have seen an end that its scheduler has not told yet."""
    state = cell.removesuffix(_ENDED)
    return {"state": state.upper(), "has_ended": state != cell}


def _parse_percent(text: str | None) -> float | None:
    match = re.search(r"(\d+(?:\.\d+)?)\s*%", text or "")
    return float(match[1]) / 100 if match else None


def list_page(site: ObservedSite, run: KnownRun) -> Figures:
    """The page `/jobs`."""
    pairs = re.findall(r'data-label="([^"]*)">(.*?)</td>', _list_row(site, run), re.S)
    cells = {name: _markup_text(text) for name, text in pairs}
    return {
        **_state(cells["State"]),
        "cpu_efficiency": _parse_percent(cells.get("CPU used")),
        "memory_efficiency": _parse_percent(cells.get("Memory used")),
        "gpu_ratio": _parse_percent(cells.get("GPU used")),
    }


def list_gpus(site: ObservedSite, run: KnownRun) -> Figures:
    """The cells that `/jobs` has for each GPU."""
    match = re.search(r'aria-label="Use of its GPUs: ([^"]*)"', _list_row(site, run))
    ratios = [_parse_percent(each) for each in match[1].split(",")] if match else []
    known = [ratio for ratio in ratios if ratio is not None]
    return {"gpu_ratio": sum(known) / len(known) if known else None}


def _list_row(site: ObservedSite, run: KnownRun) -> str:
    """The run's row of `/jobs`."""
    reference = f'name="job" value="{site.cluster}:{run.submit}:1:{run.jobid}"'
    page = _fetch(site, "/jobs", user=run.user)
    (row,) = (row for row in re.findall(r'<tr role="row">.*?</tr>', page, re.S) if reference in row)
    return str(row)


def job_page(site: ObservedSite, run: KnownRun) -> Figures:
    """The page `/jobs/ID`."""
    page = _fetch(site, f"/jobs/{run.jobid}", submitted=run.submit)
    shares = {
        name: _parse_percent(_markup_text(text))
        for name, text in re.findall(
            r'<th scope="row">(CPU|Memory|GPU)</th><td>(.*?)</td>', page, re.S
        )
    }
    return {
        "cpu_efficiency": shares.get("CPU"),
        "memory_efficiency": shares.get("Memory"),
        "gpu_ratio": shares.get("GPU"),
    }


def compare_page(site: ObservedSite, run: KnownRun) -> Figures:
    """The page `/compare`."""
    page = _fetch(site, "/compare", job=f"{site.cluster}:{run.submit}:1:{run.jobid}")
    cells = {
        _markup_text(name): _markup_text(text)
        for name, text in re.findall(r'<tr><th scope="row">(.*?)</th><td>(.*?)</td>', page, re.S)
    }
    return {
        **_state(cells["State"]),
        "cpu_efficiency": _parse_percent(cells["CPU used"]),
        "memory_efficiency": _parse_percent(cells["Memory used"]),
        "gpu_ratio": _parse_percent(cells.get("GPU used")),
    }


def text_report(site: ObservedSite, run: KnownRun) -> Figures:
    """`batchjob job`, which shows the latest run."""
    text = _run_command(site, run, job_command, run.jobid)
    pairs = re.findall(r"^\s+(CPU|Memory|GPUs)\s+(.*)$", text.partition("Efficiency")[2], re.M)
    lines = dict(reversed(pairs))  # the first of a name: other sections follow
    return {
        "cpu_efficiency": _parse_percent(lines.get("CPU")),
        "memory_efficiency": _parse_percent(lines.get("Memory")),
        "gpu_ratio": _parse_percent(lines.get("GPUs")),
    }


def command_list(site: ObservedSite, run: KnownRun) -> Figures:
    """`batchjob jobs --format=json`."""
    text = _run_command(site, run, jobs_command, "--format=json", f"--user={run.user}")
    return _figures_of_row(_row_of_run(json.loads(text), run))


def command_table(site: ObservedSite, run: KnownRun) -> Figures:
    """The table of `batchjob jobs`; runs of one id are listed newest first."""
    head, *rows = _run_command(site, run, jobs_command, f"--user={run.user}").splitlines()
    begin = head.index("CPUS") + len("CPUS")
    row = next(row for row in rows if row.split()[0] == run.jobid)
    cells = row[begin : head.index("CPU EFF.") + len("CPU EFF.")]
    return {"state": row.split()[3].upper(), "cpu_efficiency": _parse_percent(cells)}


def _run_command(site: ObservedSite, run: KnownRun, command: Any, *arguments: str) -> str:
    out = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out):
        patch.setenv("BATCHJOB_TOKEN", site.tokens[run.user])
        assert command.run([*arguments, f"--server={site.url}"]) == 0
    return out.getvalue()


DATA_SOURCES = ("infinity", "json-api")
PER_GPU_VIEWS = frozenset(
    ("page, list by GPU", *(f"dashboard, GPUs ({name})" for name in DATA_SOURCES))
)
"""Views with means of each GPU; their mean is the job's if all were measured equally long."""
CURVE_VIEWS = frozenset(("API, curve", *(f"dashboard, power ({name})" for name in DATA_SOURCES)))
"""Views of curves, which are complete only without gaps in the samples."""


def _for_each_data_source(
    name: str, figure: str, title: str, query: int, dashboard: str
) -> dict[str, View]:
    """A panel of a dashboard that exists for each data source."""
    return {
        f"{name} ({source})": dashboard_views.live_panel_view(
            figure, title, query, f"{source}/{dashboard}"
        )
        for source in DATA_SOURCES
    }


STORED_VIEWS: Mapping[str, View] = {
    "database": database_row,
    "API, usage": api_usage,
    "page, usage": usage_page,
    **{f"dashboard, usage ({name})": dashboard_views.usage_view(name) for name in DATA_SOURCES},
}
"""Views that are as old as the last measurement by the poller."""

LIVE_VIEWS: Mapping[str, View] = {
    "API, list": api_list,
    "API, job": api_job,
    "API, report": api_report,
    "API, curve": api_curve,
    "page, list": list_page,
    "page, list by GPU": list_gpus,
    "page, job": job_page,
    "page, compare": compare_page,
    "command, report": text_report,
    "command, list": command_list,
    "command, table": command_table,
    **{f"dashboard, jobs ({name})": dashboard_views.job_list_view(name) for name in DATA_SOURCES},
    **{f"dashboard, job ({name})": dashboard_views.job_view(name) for name in DATA_SOURCES},
    **{f"dashboard, GPUs ({name})": dashboard_views.gpu_view(name) for name in DATA_SOURCES},
    **{f"dashboard, power ({name})": dashboard_views.power_view(name) for name in DATA_SOURCES},
}
"""Views that show the current usage of a job."""

NODE_VIEWS: Mapping[str, View] = {"exporter": exporter_view}
"""Views of a node's exporter, whether or not its samples are stored."""

PROMETHEUS_VIEWS: Mapping[str, View] = {
    "PromQL, memory": dashboard_views.live_panel_view("memory_bytes", "Memory by node"),
    "PromQL, CPUs": dashboard_views.live_panel_view("cpus_in_use", "CPUs in use"),
    "PromQL, modes": dashboard_views.live_panel_view("cpus_in_use", "User and system"),
    "PromQL, written": dashboard_views.live_panel_view("written_per_second", "All file systems", 1),
    "PromQL, energy": dashboard_views.live_panel_view("energy_joules", "Energy"),
    "PromQL, power": dashboard_views.live_panel_view("power_watts", "Power"),
    "PromQL, GPU use": dashboard_views.live_panel_view("gpus_in_use", "GPU use"),
    **_for_each_data_source(
        "PromQL, power by user", "power_watts", "Jobs' power by user", 0, "energy"
    ),
    **_for_each_data_source("PromQL, GPUs", "gpus_in_use", "GPUs over time", 2, "gpus"),
    **_for_each_data_source("PromQL, GPUs by user", "present_gpu_ratio", "Use by user", 0, "gpus"),
    **_for_each_data_source(
        "PromQL, GPUs held", "recent_gpu_ratio", "Utilisation of allocated GPUs", 0, "gpus"
    ),
    **_for_each_data_source(
        "PromQL, GPUs of jobs", "recent_gpu_ratio", "Jobs with GPUs", 1, "gpus"
    ),
    "PromQL, memory of nodes": dashboard_views.node_panel_view("memory_bytes", "Memory by job"),
    "PromQL, CPUs of nodes": dashboard_views.node_panel_view("cpus_in_use", "CPUs by job"),
    "PromQL, written on nodes": dashboard_views.node_panel_view(
        "written_per_second", "Input and output by job", 1
    ),
}
"""Views that query Prometheus through the server."""

LATEST_RUN_VIEWS = frozenset(
    (
        "exporter", "command, report", "command, table", *PROMETHEUS_VIEWS,
        *(
            f"dashboard, {each} ({name})"
            for each in ("job", "power", "GPUs")
            for name in DATA_SOURCES
        ),
    )
)  # fmt: skip
"""Views that show only the latest run of an id."""

ALL_RUNS_VIEWS = frozenset(
    (
        "API, usage", "page, usage",
        *(
            f"{each} ({name})"
            for each in ("dashboard, usage", "PromQL, GPUs held", "PromQL, GPUs of jobs")
            for name in DATA_SOURCES
        ),
    )
)  # fmt: skip
"""Views that add up a user's runs, or show all runs of an id together."""
