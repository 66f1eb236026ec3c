"""Reports and scripts of jobs from this machine's database, as a server makes them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from sqlalchemy.engine import Engine, RowMapping

from batchjob.local_runs.directory import SAMPLES
from batchjob.runtime.settings import SettingsError
from batchjob_cli.client.local_jobs import open_database
from batchjob_cli.client.problems import NotFoundError
from batchjob_stats_db.database import scripts as batch_scripts
from batchjob_stats_db.database.access import EVERYTHING
from batchjob_stats_db.measure.current_use import current_use
from batchjob_stats_db.queries.jobs import AmbiguousIdError, find_jobs
from batchjob_stats_db.timeseries.sample_store import SampleHistory
from batchjob_stats_server import options
from batchjob_stats_server.api import present
from batchjob_stats_server.api.reports import ReportSources, report_of
from batchjob_stats_server.report.forms import FORMS, as_json, document_as_text
from batchjob_stats_server.report.rules import load_rules
from batchjob_stats_server.turns import TimeSeriesPool


def report(data: Path, jobid: str, cluster: str | None, form: str, zone: str) -> str:
    """The report of a job's latest run in the format of `--format`; raises SettingsError."""
    with open_database(data) as engine:
        runs = _find_runs(engine, jobid, cluster)
        if not runs:
            raise NotFoundError(f"job {jobid} does not exist, or is not yours to see")
        job_report = report_of(_open_sources(engine, data), EVERYTHING, runs[0])
    if form == "json":
        return as_json(job_report).decode()
    _, write = FORMS[form]
    return write(job_report, ZoneInfo(zone))


def present_text(data: Path) -> str:
    """The runs of this machine at present, as a server tells them; raises SettingsError."""
    with open_database(data) as engine:
        sources = _open_sources(engine, data)
        found = _gather_present(sources)
        changes = present.find_changes(sources, EVERYTHING, found.ended)
    return document_as_text(present.document(found._replace(changes=changes)))


def current_uses(data: Path) -> list[dict[str, Any]]:
    """What the running jobs use now, with the keys of the API; raises SettingsError."""
    with open_database(data) as engine:
        found = _gather_present(_open_sources(engine, data))
    return [present.use_row(row, use) for row in found.running if (use := found.use.get(row["id"]))]


def _gather_present(sources: ReportSources) -> present.Present:
    found = present.gather(sources, EVERYTHING, None)
    with sources.stores.acquire() as store:
        interval = sources.settings.tsdb.scrape_interval
        use = current_use(store, found.to_measure, interval, found.now)
    return found._replace(use=use)


def scripts(data: Path, jobid: str, cluster: str | None) -> Sequence[RowMapping]:
    """`script` and `whole_bytes` of a job's runs, the latest first; raises SettingsError."""
    with open_database(data) as engine:
        numbers = [run["id"] for run in _find_runs(engine, jobid, cluster)]
        with engine.connect() as db:
            return batch_scripts.of_jobs(db, EVERYTHING, numbers)


def _find_runs(engine: Engine, jobid: str, cluster: str | None) -> Sequence[RowMapping]:
    with engine.connect() as db:
        try:
            return find_jobs(db, EVERYTHING, jobid, cluster)
        except AmbiguousIdError as error:
            raise SettingsError(str(error)) from error


def _open_sources(engine: Engine, data: Path) -> ReportSources:
    url = engine.url.render_as_string(hide_password=False)
    settings = options.settings({"db.url": url, "samples.directory": str(data / SAMPLES)}, "")
    stores = TimeSeriesPool([SampleHistory(data / SAMPLES)])
    return ReportSources(settings, engine, stores, load_rules())
