"""Every place that shows what a job used, read as its readers do.

Each place gives what it shows as `Shown`: the figures it has, None for those it leaves out, and
what it says of age and coverage.
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
from batchjob_stats_db.queries.job_rows import COLUMN_NAMES, rows_by_ids
from tests.life import dashboards
from tests.life.exporters import exporter
from tests.life.looked import Looked
from tests.life.truth import Subject

Shown = Mapping[str, Any]
"""Figures by their names in `Use`; `state`; `until`, `coverage`, `final` where it says so."""

Place = Callable[[Looked, Subject], Shown]


def _get(site: Looked, path: str, **parameters: Any) -> str:
    query = urllib.parse.urlencode(parameters, doseq=True)
    request = urllib.request.Request(f"{site.url}{path}?{query}", headers=dict(site.headers))
    with urllib.request.urlopen(request, timeout=30) as answer:
        return str(answer.read().decode())


def _json(site: Looked, path: str, **parameters: Any) -> Any:
    return json.loads(_get(site, f"/api/v1{path}", **parameters))


def _one(rows: Any, run: Subject) -> Mapping[str, Any]:
    """The row of this run; jobs of one id differ in their submit times."""
    (row,) = (
        row
        for row in rows
        if row["jobid"] == run.jobid and int(row["submit_time"]) == run.submit * 1000
    )
    return dict(row)


def _of_row(row: Mapping[str, Any], unit: int = 1000) -> Shown:
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


def database(site: Looked, run: Subject) -> Shown:
    """The row with its derived columns."""
    with site.reader.connect() as db:
        found = db.exec_driver_sql("SELECT id, jobid, submit_time FROM job").all()
        (number,) = (row.id for row in found if row[1:] == (run.jobid, run.submit))
        (row,) = rows_by_ids(db, [number], COLUMN_NAMES)
        return _of_row(row, unit=1)


def api_list(site: Looked, run: Subject) -> Shown:
    """`/jobs`."""
    return _of_row(_one(_json(site, "/jobs", user=run.user), run))


def api_job(site: Looked, run: Subject) -> Shown:
    """`/jobs/ID`, with all runs of the id."""
    return _of_row(_one(_json(site, f"/jobs/{run.jobid}"), run))


def api_report(site: Looked, run: Subject) -> Shown:
    """`/jobs/ID/report`, which measures what is not known yet."""
    found = _json(site, f"/jobs/{run.jobid}/report", run=_number(site, run))
    ratios = {each["what"]: each["ratio"] for each in found["efficiency"]}
    used, basis = found["use"], found["basis"]
    (source,) = (each["source"] for each in found["efficiency"] if each["what"] == "cpu")
    return {
        "basis": source,
        "state": found["job"]["state"],
        "elapsed": found["job"]["elapsed_seconds"],
        "cpu_seconds": used["cpu_seconds"],
        "memory_bytes": used["peak_memory_bytes"],
        "cpu_efficiency": ratios.get("cpu"),
        "memory_efficiency": ratios.get("memory"),
        "gpu_ratio": ratios.get("gpu"),
        "written_bytes": used["written_bytes"],
        "energy_joules": found["energy"]["total_joules"],
        "until": basis["until_time"] and basis["until_time"] / 1000,
        "coverage": basis["coverage"] if basis["samples"] else None,
        "final": basis["final"],
    }


def api_course(site: Looked, run: Subject) -> Shown:
    """`/jobs/ID/metrics`: what the curve of CPUs adds up to."""
    path = f"/jobs/{run.jobid}/metrics"
    try:
        rows = _json(site, path, metric="cpu", points=3000, run=_number(site, run))
    except urllib.error.HTTPError as error:
        if error.code != 503:  # the store is away, and the place says so
            raise
        return {}
    seconds, ends = 0.0, {}
    for row in sorted(rows, key=lambda row: row["time"]):
        line = row["line"]
        seconds += row["mean"] * (row["time"] / 1000 - ends.get(line, run.start))
        ends[line] = row["time"] / 1000
    return {"cpu_seconds": seconds if rows else None}


def _number(site: Looked, run: Subject) -> int:
    return int(_one(_json(site, f"/jobs/{run.jobid}", fields="id,jobid,submit_time"), run)["id"])


def api_usage(site: Looked, run: Subject) -> Shown:
    """`/usage`: the sums of a user who has only this run."""
    found = _json(site, "/usage", by="user", user=run.user)
    if not found:
        return {"cpu_seconds": None, "energy_joules": None}
    energy = found[0]["energy_host_joules"] + found[0]["energy_gpu_joules"]
    return {"cpu_seconds": found[0]["cpu_seconds"] or None, "energy_joules": energy or None}


def usage_page(site: Looked, run: Subject) -> Shown:
    """The same as a page: what was used of what was allocated and measured."""
    page = _get(site, "/usage", user=run.user, show="cpu")
    return {"cpu_efficiency": _percent(_cell(page, run.user, "used"))}


def _cell(page: str, row: str, column: str) -> str | None:
    """The cell of a table by the first cell of its row and the title of its column."""
    for table in re.findall(r"<table.*?</table>", page, re.S):
        heads = [
            _text(each)
            for each in re.findall(r"<t[hd][^>]*>.*?</t[hd]>", table.partition("</thead>")[0], re.S)
        ]
        if column not in heads:
            continue
        for line in re.findall(r"<tr[^>]*>.*?</tr>", table.partition("</thead>")[2], re.S):
            cells = [_text(each) for each in re.findall(r"<t[hd][^>]*>.*?</t[hd]>", line, re.S)]
            if cells and cells[0].startswith(row):
                return cells[heads.index(column)]
    return None


def _text(markup: str) -> str:
    return " ".join(re.sub("<[^>]*>", " ", markup).split()).replace("\u202f", " ")


def _percent(text: str | None) -> float | None:
    found = re.search(r"(\d+(?:\.\d+)?)\s*%", text or "")
    return float(found[1]) / 100 if found else None


def list_page(site: Looked, run: Subject) -> Shown:
    """`/jobs` as people see it."""
    found = re.findall(r'data-label="([^"]*)">(.*?)</td>', _listed(site, run), re.S)
    cells = {name: _text(text) for name, text in found}
    return {
        "state": cells["State"].upper(),
        "cpu_efficiency": _percent(cells.get("CPU used")),
        "memory_efficiency": _percent(cells.get("Memory used")),
        "gpu_ratio": _percent(cells.get("GPU used")),
    }


def list_gpus(site: Looked, run: Subject) -> Shown:
    """The cells that `/jobs` has for each GPU."""
    told = re.search(r'aria-label="Use of its GPUs: ([^"]*)"', _listed(site, run))
    ratios = [_percent(each) for each in told[1].split(",")] if told else []
    known = [ratio for ratio in ratios if ratio is not None]
    return {"gpu_ratio": sum(known) / len(known) if known else None}


def _listed(site: Looked, run: Subject) -> str:
    """The run's row of `/jobs`."""
    reference = f'name="job" value="{site.cluster}:{run.submit}:1:{run.jobid}"'
    page = _get(site, "/jobs", user=run.user)
    (row,) = (row for row in re.findall(r'<tr role="row">.*?</tr>', page, re.S) if reference in row)
    return str(row)


def job_page(site: Looked, run: Subject) -> Shown:
    """`/jobs/ID` as people see it."""
    page = _get(site, f"/jobs/{run.jobid}", submitted=run.submit)
    shares = {
        name: _percent(_text(text))
        for name, text in re.findall(
            r'<th scope="row">(CPU|Memory|GPU)</th><td>(.*?)</td>', page, re.S
        )
    }
    return {
        "cpu_efficiency": shares.get("CPU"),
        "memory_efficiency": shares.get("Memory"),
        "gpu_ratio": shares.get("GPU"),
    }


def compare_page(site: Looked, run: Subject) -> Shown:
    """`/compare`."""
    page = _get(site, "/compare", job=f"{site.cluster}:{run.submit}:1:{run.jobid}")
    cells = {
        _text(name): _text(text)
        for name, text in re.findall(r'<tr><th scope="row">(.*?)</th><td>(.*?)</td>', page, re.S)
    }
    return {
        "state": cells["State"].upper(),
        "cpu_efficiency": _percent(cells["CPU used"]),
        "memory_efficiency": _percent(cells["Memory used"]),
        "gpu_ratio": _percent(cells.get("GPU used")),
    }


def text_report(site: Looked, run: Subject) -> Shown:
    """`batchjob job`, which shows the latest run."""
    text = _command(site, run, job_command, run.jobid)
    found = re.findall(r"^\s+(CPU|Memory|GPUs)\s+(.*)$", text.partition("Efficiency")[2], re.M)
    lines = dict(reversed(found))  # the first of a name: other sections follow
    return {
        "cpu_efficiency": _percent(lines.get("CPU")),
        "memory_efficiency": _percent(lines.get("Memory")),
        "gpu_ratio": _percent(lines.get("GPUs")),
    }


def command_list(site: Looked, run: Subject) -> Shown:
    """`batchjob jobs`, all it prints as JSON."""
    text = _command(site, run, jobs_command, "--format=json", f"--user={run.user}")
    return _of_row(_one(json.loads(text), run))


def command_table(site: Looked, run: Subject) -> Shown:
    """`batchjob jobs` as people see it; runs of one id stand newest first."""
    head, *rows = _command(site, run, jobs_command, f"--user={run.user}").splitlines()
    begin = head.index("CPUS") + len("CPUS")
    row = next(row for row in rows if row.split()[0] == run.jobid)
    cells = row[begin : head.index("CPU EFF.") + len("CPU EFF.")]
    return {"state": row.split()[3].upper(), "cpu_efficiency": _percent(cells)}


def _command(site: Looked, run: Subject, command: Any, *arguments: str) -> str:
    out = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out):
        patch.setenv("BATCHJOB_TOKEN", site.tokens[run.user])
        assert command.run([*arguments, f"--server={site.url}"]) == 0
    return out.getvalue()


DATA_SOURCES = ("infinity", "json-api")
BY_GPU = frozenset(("page, list by GPU", *(f"dashboard, GPUs ({name})" for name in DATA_SOURCES)))
"""Means of each GPU; their mean is the job's where all were measured equally long."""
COURSES = frozenset(("API, course", *(f"dashboard, power ({name})" for name in DATA_SOURCES)))
"""Places whose curves are whole only where there is no gap."""


def _in_both(name: str, figure: str, title: str, query: int, dashboard: str) -> dict[str, Place]:
    """A panel of dashboards that there are for each data source."""
    return {
        f"{name} ({source})": dashboards.live(figure, title, query, f"{source}/{dashboard}")
        for source in DATA_SOURCES
    }


STORED: Mapping[str, Place] = {
    "database": database,
    "API, usage": api_usage,
    "page, usage": usage_page,
    **{f"dashboard, usage ({name})": dashboards.usage_of(name) for name in DATA_SOURCES},
}
"""Places that are as old as the last measurement that the poller made."""

LIVE: Mapping[str, Place] = {
    "API, list": api_list,
    "API, job": api_job,
    "API, report": api_report,
    "API, course": api_course,
    "page, list": list_page,
    "page, list by GPU": list_gpus,
    "page, job": job_page,
    "page, compare": compare_page,
    "command, report": text_report,
    "command, list": command_list,
    "command, table": command_table,
    **{f"dashboard, jobs ({name})": dashboards.jobs_of(name) for name in DATA_SOURCES},
    **{f"dashboard, job ({name})": dashboards.job_of(name) for name in DATA_SOURCES},
    **{f"dashboard, GPUs ({name})": dashboards.gpus_of(name) for name in DATA_SOURCES},
    **{f"dashboard, power ({name})": dashboards.power_of(name) for name in DATA_SOURCES},
}
"""Places that show a job as of now."""

NODES: Mapping[str, Place] = {"exporter": exporter}
"""Places that show what a node's own exporter sees, whether or not anybody stores it."""

PROMETHEUS: Mapping[str, Place] = {
    "PromQL, memory": dashboards.live("memory_bytes", "Memory by node"),
    "PromQL, CPUs": dashboards.live("cpus_in_use", "CPUs in use"),
    "PromQL, modes": dashboards.live("cpus_in_use", "User and system"),
    "PromQL, written": dashboards.live("written_per_second", "All file systems", 1),
    "PromQL, energy": dashboards.live("energy_joules", "Energy"),
    "PromQL, power": dashboards.live("power_watts", "Power"),
    "PromQL, GPU use": dashboards.live("gpus_in_use", "GPU use"),
    **_in_both("PromQL, power by user", "power_watts", "Jobs' power by user", 0, "energy"),
    **_in_both("PromQL, GPUs", "gpus_in_use", "GPUs over time", 2, "gpus"),
    **_in_both("PromQL, GPUs by user", "present_gpu_ratio", "Use by user", 0, "gpus"),
    **_in_both("PromQL, GPUs held", "recent_gpu_ratio", "Utilization of allocated GPUs", 0, "gpus"),
    **_in_both("PromQL, GPUs of jobs", "recent_gpu_ratio", "Jobs with GPUs", 1, "gpus"),
    "PromQL, memory of nodes": dashboards.on_nodes("memory_bytes", "Memory by job"),
    "PromQL, CPUs of nodes": dashboards.on_nodes("cpus_in_use", "CPUs by job"),
    "PromQL, written on nodes": dashboards.on_nodes(
        "written_per_second", "Input and output by job", 1
    ),
}
"""Places that ask Prometheus through the server."""

LATEST_RUN = frozenset(
    (
        "exporter", "command, report", "command, table", *PROMETHEUS,
        *(
            f"dashboard, {each} ({name})"
            for each in ("job", "power", "GPUs")
            for name in DATA_SOURCES
        ),
    )
)  # fmt: skip
"""Places that show the latest run of an id alone."""

ALL_RUNS = frozenset(
    (
        "API, usage", "page, usage",
        *(
            f"{each} ({name})"
            for each in ("dashboard, usage", "PromQL, GPUs held", "PromQL, GPUs of jobs")
            for name in DATA_SOURCES
        ),
    )
)  # fmt: skip
"""Places that add up a user's runs, or show all runs of an id together."""
