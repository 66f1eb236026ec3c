"""Pages of a job: its usage and efficiency, with advice; a small one for frames; its script."""

import asyncio
import json
import math
import re
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import anyio.from_thread
from fastapi import APIRouter, Response
from pydantic import Field
from sqlalchemy.engine import Connection, RowMapping

from batchjob.judgements import AT_LEAST
from batchjob.local_runs.directory import LOGS
from batchjob.local_runs.output import STREAMS, Reader, merge_streams
from batchjob.quantities import curves
from batchjob.runtime.formatting import to_printable
from batchjob.schedulers.states import JobState
from batchjob_stats_db.database import scripts
from batchjob_stats_db.database.access import Access
from batchjob_stats_db.queries import jobs
from batchjob_stats_db.queries import nodes as queries
from batchjob_stats_db.queries.filters import Filter
from batchjob_stats_db.queries.job_list import Page, list_jobs
from batchjob_stats_db.queries.jobs import find_jobs
from batchjob_stats_db.queries.similar import MOST_NAMED_RUNS
from batchjob_stats_server.api.answers import TurnRoute
from batchjob_stats_server.api.jobs import JobId
from batchjob_stats_server.api.params import InQuery, QueryParams, Time, Word
from batchjob_stats_server.api.reports import gather_report_input, report_from_input
from batchjob_stats_server.api.rows import window_begin, window_end
from batchjob_stats_server.auth.rights import log_jobs_seen, script_access
from batchjob_stats_server.http.problems import Problem
from batchjob_stats_server.pages.rendering import links, run_strip, template_filters, usage_bars
from batchjob_stats_server.pages.rendering.fragments import depends_on
from batchjob_stats_server.pages.rendering.frame import PageRenderer, RequestPage
from batchjob_stats_server.pages.rendering.links import find_run
from batchjob_stats_server.promql.query_limits import TooMany, Unavailable
from batchjob_stats_server.report.explain import elapsed_seconds, energy_of
from batchjob_stats_server.report.facts import evaluate_quantities
from batchjob_stats_server.report.model import ReportInput

router = APIRouter(include_in_schema=False, route_class=TurnRoute)

_MAX_SIBLINGS, _MAX_PENDING = 12, 200
_MAX_SHADED_STEPS = 40
_MAIN_CURVES = {curves.CPU, curves.MEMORY, curves.GPU_UTILIZATION, curves.GPU_MEMORY}
_LAST_LINES, _LAST_RECORDS = 10, 40  # a line may be written in parts
_MAX_LINE_CHARACTERS = 300
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_MAX_FILE_SECONDS = 1.0  # after which the page is shown without these lines


class JobForm(QueryParams):
    """Selects a run if the id alone is ambiguous."""

    cluster: Word | None = None
    submitted: Time | None = None
    run: int | None = Field(None, ge=1, lt=2**31)


@router.get("/jobs/{jobid}")
def job(page: RequestPage, jobid: JobId, form: InQuery[JobForm]) -> Response:
    """One run, or a list if the id matches several jobs."""
    services, principal, access = page.services, page.principal, page.access
    with services.reader.connect() as db:
        runs, run = _find_runs(db, page, jobid, form)
        if len({(row["cluster"], row["jobid"]) for row in runs}) > 1:
            log_jobs_seen(principal, f"job {jobid}", runs)
            return page.render("runs.html", jobid=jobid, runs=runs)
        if run is None:
            raise Problem(404, f"job {jobid} does not exist, or is not yours to see")
        # The other tasks of its array, or parts of its het job.
        group = run["array_jobid"] or run["het_jobid"]
        siblings = [
            row
            for row in (jobs.members_of(db, access, group) if group else ())
            if row["cluster"] == run["cluster"] and row["id"] != run["id"]
        ]
        stored_scripts = scripts.of_jobs(db, script_access(principal, access), [run["id"]])
        neighbours = queries.neighbours(db, run, page.now)
        dependents = _dependents(db, access, run) if run["end_time"] is None else []
    inputs, shown = _report_values(page, jobid, run)
    report, start = shown["report"], run["start_time"]
    named_runs = inputs.runs_of_name
    if start is not None and len(named_runs) < MOST_NAMED_RUNS:
        named_runs = sorted([*named_runs, run], key=lambda each: (each["start_time"], each["id"]))
    grafana_url = page.grafana_url(
        "job", window_begin(start), window_end(start, run["end_time"]),
        cluster=run["cluster"], job=run["jobid"],
    )  # fmt: skip
    return page.render(
        "job.html", uses_plotly=True, runs=runs, siblings=siblings[:_MAX_SIBLINGS],
        strip=run_strip.build_strip(named_runs, page.now), run_links=run_strip.run_links,
        neighbours=neighbours,
        dependents=dependents,
        script=stored_scripts[0] if stored_scripts else None,
        output=_last_output(page, run),
        is_own_script=run["username"] == principal.user and not principal.token_creator,
        has_more_siblings=len(siblings) > _MAX_SIBLINGS,
        nodes=_node_rows(inputs.shares, report.nodes), steps=inputs.steps,
        shaded_steps=_shaded_steps_json(inputs.steps), gpus=_gpu_rows(report.gpus),
        has_raw_samples=bool(services.settings.samples.directory) and start is not None,
        grafana_url=grafana_url, help_url=services.settings.report.help_url, **shown,
    )  # fmt: skip


@router.get("/embed/jobs/{jobid}")
def embedded_job(page: RequestPage, jobid: JobId, form: InQuery[JobForm]) -> Response:
    """A small page for frames in other sites' pages: one run, its first advice and main plots."""
    with page.services.reader.connect() as db:
        _, run = _find_runs(db, page, jobid, form)
    if run is None:
        raise Problem(404, f"job {jobid} does not exist, or is not yours to see")
    _, shown = _report_values(page, jobid, run)
    main_plots = [plot for plot in shown["plots"] if _MAIN_CURVES & set(plot.curves)]
    return page.render("embed_job.html", uses_plotly=True, **{**shown, "plots": main_plots})


@router.get("/jobs/{jobid}/script")
def script(page: RequestPage, jobid: JobId, form: InQuery[JobForm]) -> Response:
    """The batch script of one run, for its user and administrators only."""
    with page.services.reader.connect() as db:
        _, run = _find_runs(db, page, jobid, form)
        ids = [] if run is None else [run["id"]]
        stored_scripts = scripts.of_jobs(db, script_access(page.principal, page.access), ids)
    if not stored_scripts:
        raise Problem(404, f"there is no batch script of job {jobid} that you may see")
    log_jobs_seen(page.principal, f"script of job {jobid}", stored_scripts)
    return page.render("script.html", job=run, script=stored_scripts[0])


def _find_runs(
    db: Connection, page: PageRenderer, jobid: str, form: JobForm
) -> tuple[Sequence[RowMapping], RowMapping | None]:
    """All runs with this id, and the one that the form selects.

    Without any, the tasks of the array, or the parts of the het job.
    """
    runs = jobs.find_jobs(db, page.access, jobid, form.cluster) or [
        row
        for row in jobs.members_of(db, page.access, jobid)
        if form.cluster in (None, row["cluster"])
    ]
    return runs, find_run(runs, form.cluster, form.submitted, form.run)


def _report_values(
    page: PageRenderer, jobid: str, run: RowMapping
) -> tuple[ReportInput, dict[str, Any]]:
    """What a report is made of, and what the pages of a run show of it and of its plots."""
    inputs = gather_report_input(page.services, page.access, run)
    report = report_from_input(page.services, inputs)
    log_jobs_seen(page.principal, f"job {jobid}", [run])
    has_started = run["start_time"] is not None
    return inputs, {
        "job": run,
        "report": report,
        "efficiency": [
            (each, usage_bars.job_bar(each, run, inputs.now)) for each in report.efficiency
        ],
        "zones": usage_bars.job_zones(page.services.rules, evaluate_quantities(inputs)),
        "plots": curves.plots_for(run["gpus_held"]),
        "has_measurements": page.services.stores.has_store and has_started,
        "since": int(run["start_time"]) if has_started else None,
        "until": math.ceil(run["end_time"] or page.now) if has_started else None,
    }


def _dependents(db: Connection, access: Access, run: RowMapping) -> list[RowMapping]:
    """Jobs of the same user that wait for this one."""
    number = re.split(r"\D", run["array_jobid"] or run["jobid"])[0]
    which = Filter(run["cluster"], run["username"], states=(JobState.PENDING,), depends_on=number)
    found = list_jobs(db, access, which, page=Page(_MAX_PENDING)).rows
    return [row for row in found if depends_on(row, run)][:_MAX_SIBLINGS]


def _last_output(page: PageRenderer, run: RowMapping) -> tuple[str, list[str]]:
    """What it is, and the last lines of a run on this machine: of a failed one, of its errors.

    For the run's user, and whoever else may read its output over the API.
    """
    services, person, cluster = page.services, page.principal, run["cluster"]
    is_own = run["username"] == person.user and cluster in (person.clusters or (cluster,))
    may_read = is_own or (services.run_control is not None and page.access.everything)
    if services.local_data is None or not may_read or run["start_time"] is None:
        return "", []
    failed = run["end_time"] is not None and run["state"] != JobState.COMPLETED
    title, streams = ("standard error", ("stderr",)) if failed else ("output", STREAMS)
    work = partial(last_lines, services.local_data, run["jobid"], run["uid"], streams)
    try:
        with services.threads.while_waiting():
            return title, anyio.from_thread.run(_read_in_time, page, work)
    except (TooMany, Unavailable, TimeoutError):
        return "", []


def last_lines(
    data: Path, jobid: str, uid: int | None, streams: Sequence[str] = STREAMS
) -> list[str]:
    """The last lines that a run in this data directory wrote; none if not kept.

    Of a line that was written over, such as a progress bar, the last state. Colours are left out,
    and what a page cannot show, such as the bytes of a picture, is a question mark.
    """
    if not jobid or {"/", "\0"} & set(jobid) or jobid.startswith("."):
        return []
    try:
        readers = [Reader(data / LOGS / jobid, stream, uid) for stream in streams]
        for reader in readers:
            reader.limit_time(_MAX_FILE_SECONDS)
            reader.seek_to_last(_LAST_RECORDS)
        records = deque(merge_streams(readers, None, None), maxlen=_LAST_RECORDS)
    except OSError:
        return []
    output = b"".join(line.text + b"\n" * line.is_complete for line in records)
    lines = output.removesuffix(b"\n").split(b"\n")[-_LAST_LINES:] if output else []
    texts = (line.rstrip(b"\r").rpartition(b"\r")[2].decode("utf-8", "replace") for line in lines)
    plain = (_COLOUR.sub("", text).expandtabs()[:_MAX_LINE_CHARACTERS] for text in texts)
    return [to_printable(text) for text in plain]


async def _read_in_time(page: PageRenderer, work: Callable[[], list[str]]) -> list[str]:
    """Read on the threads for files, which a file system may hang; raises TimeoutError."""
    files, person = page.services.threads.files, page.principal.person_key()
    reading = asyncio.ensure_future(files.run(person, work))
    return await asyncio.wait_for(asyncio.shield(reading), _MAX_FILE_SECONDS)


def _node_rows(allocations: Sequence[Any], usages: Sequence[Any]) -> list[dict[str, Any]]:
    """One row per node: the job's allocation, and its usage compared with the other nodes."""
    used = {each.node: each for each in usages}
    cpu = usage_bars.compare_parts({node: each.cpu_seconds for node, each in used.items()})
    memory = usage_bars.compare_parts({node: each.memory_peak_bytes for node, each in used.items()})
    return [
        {"held": row, "used": used.get(row["node"]), "cpu": cpu.get(row["node"]),
         "memory": memory.get(row["node"])}
        for row in allocations
    ]  # fmt: skip


def _gpu_rows(usages: Sequence[Any]) -> list[tuple[Any, usage_bars.UsageBar, usage_bars.UsageBar]]:
    ratios = {str(index): each.utilization_ratio for index, each in enumerate(usages)}
    peaks = {str(index): each.memory_peak_bytes for index, each in enumerate(usages)}
    total_bytes = max((each.memory_total_bytes or 0 for each in usages), default=0)
    use = usage_bars.compare_parts(ratios, 1.0).values()
    memory = usage_bars.compare_parts(peaks, float(total_bytes) or None).values()
    return list(zip(usages, use, memory, strict=True))


def _shaded_steps_json(steps: Sequence[Any]) -> str:
    """The steps that plots shade, as JSON, in the order of their start."""
    spans = [
        (step["step"], step["start_time"], step["end_time"])
        for step in steps
        if step["start_time"] is not None and step["step"] not in ("batch", "extern", "interactive")
    ]
    return json.dumps(sorted(spans, key=lambda step: step[1])[:_MAX_SHADED_STEPS])


MAX_JOBS = 24


class CompareForm(QueryParams):
    """Names the jobs to compare."""

    job: list[Word] = Field([], description="Job ids or CLUSTER:ID.")


_FACTS: Mapping[str, tuple[Callable[..., str], str]] = {
    "Submitted": (template_filters.moment, "submit_time"),
    "Started": (template_filters.moment, "start_time"),
    "Ran": (template_filters.duration, "elapsed_seconds"),
    "Time limit": (template_filters.duration, "time_limit_seconds"),
    "Nodes": (template_filters.number, "allocated_nodes"),
    "CPUs": (template_filters.number, "allocated_cpus"),
    "Memory": (template_filters.size, "allocated_memory_bytes"),
    "GPUs": (template_filters.number, "gpus_held"),
    "CPU time": (template_filters.hours, "cpu_used_seconds"),
    "Peak memory": (template_filters.size, "memory_used_bytes"),
    "Peak GPU memory": (template_filters.size, "usage_gpu_memory_peak_bytes"),
    "Read from files, at least": (template_filters.size, "usage_process_io_read_bytes"),
    "Written to files, at least": (template_filters.size, "usage_process_io_written_bytes"),
    "Major page faults": (template_filters.number, "usage_major_page_faults"),
    "OOM kills": (template_filters.number, "usage_oom_kills"),
    "Energy": (template_filters.energy, "energy_used_joules"),
}
"""What is compared: the formatter and the column of each quantity."""
_RESIZED = {
    "allocated_cpus": "resized_cpu_seconds",
    "allocated_memory_bytes": "resized_memory_byte_seconds",
    "gpus_held": "resized_gpu_seconds",
}
"""The column that says of a value that the job held another at other times."""


@router.get("/compare")
def compare(page: RequestPage, form: InQuery[CompareForm]) -> Response:
    """The first of the requested jobs that the caller may see, and a way to the others."""
    chosen = list(dict.fromkeys(form.job))
    with page.services.reader.connect() as db:
        runs = [(text, _find_run(db, page.access, text)) for text in chosen[:MAX_JOBS]]
    rows = [row for _, row in runs if row is not None]
    log_jobs_seen(page.principal, "jobs", rows)
    return page.render(
        "compare.html", uses_plotly=True, jobs=rows,
        missing=[text for text, row in runs if not row],
        chosen=chosen, others=tuple(chosen[MAX_JOBS:]),
        facts=[(name, _compare_fact(*fact, rows, page.now)) for name, fact in _FACTS.items()],
        plots=[plot for plot in curves.PLOTS if set(plot.curves) & set(curves.COMPARED_CURVES)],
        has_measurements=page.services.stores.has_store,
    )  # fmt: skip


def _find_run(db: Connection, access: Access, text: str) -> RowMapping | None:
    jobid, cluster, submit_time, run = links.parse_reference(text)
    return find_run(find_jobs(db, access, jobid, cluster), cluster, submit_time, run)


def _compare_fact(
    format_value: Callable[..., str], column: str, rows: list[RowMapping], now: int
) -> list[tuple[str, float | None]]:
    """The value of each job as text, and its fraction of the largest, for a bar."""
    values: list[float | None] = [
        elapsed_seconds(row, now) if column == "elapsed_seconds" else row[column] for row in rows
    ]
    known_values = [value for value in values if value is not None]
    largest = 0 if format_value is template_filters.moment else max(known_values, default=0)
    format_or_absent = template_filters.or_absent(format_value)
    return [
        (
            _marked(column, row, format_or_absent(value))
            if value is not None
            else format_or_absent(None),
            value / largest if largest and value is not None else None,
        )
        for row, value in zip(rows, values, strict=True)
    ]


def _marked(column: str, row: RowMapping, text: str) -> str:
    """A value with what it is a value of, unless of the whole job."""
    if column == "cpu_used_seconds" and row["cpu_basis"] == AT_LEAST:
        return f"{AT_LEAST} {text}"
    if (resized := _RESIZED.get(column)) and row[resized]:
        return f"{text} at last"
    return energy_of(row, text) if column == "energy_used_joules" else text
