"""Builds reports, for the server and for commands that read the database themselves."""

import logging
from collections.abc import Callable
from typing import Protocol

from sqlalchemy.engine import Engine, RowMapping

from batchjob_stats_db.database.access import Access
from batchjob_stats_db.timeseries.base import TimeSeriesError
from batchjob_stats_server.options import ServerSettings
from batchjob_stats_server.promql.histories import TimeSeriesPool
from batchjob_stats_server.report import gather
from batchjob_stats_server.report.build import build_report
from batchjob_stats_server.report.model import Report, ReportInput
from batchjob_stats_server.report.rules import AdviceRule

log = logging.getLogger(__name__)


class ReportSources(Protocol):
    """What a report is built from; a server's services have these attributes."""

    @property
    def settings(self) -> ServerSettings:
        """How measurements are read, how many similar jobs are compared, the site's PUE."""

    @property
    def reader(self) -> Engine:
        """The database."""

    @property
    def histories(self) -> TimeSeriesPool | None:
        """Measurements; None: none are kept."""

    @property
    def rules(self) -> tuple[AdviceRule, ...]:
        """Of the advice."""

    @property
    def clock(self) -> Callable[[], float]:
        """The time, in epoch seconds."""


def report_of(sources: ReportSources, access: Access, run: RowMapping) -> Report:
    """The report of a run that the caller may see."""
    return report_from_input(sources, gather_report_input(sources, access, run))


def report_from_input(sources: ReportSources, material: ReportInput) -> Report:
    """The report of a job from what is known of it."""
    return build_report(material, sources.rules, sources.settings.report.pue or None)


def gather_report_input(sources: ReportSources, access: Access, run: RowMapping) -> ReportInput:
    """What is known of a run that the caller may see.

    Without an answer of the time series database, the usage by node is left out.
    """
    settings = sources.settings
    now = int(sources.clock())
    with sources.reader.connect() as db:
        material, job = gather.from_database(
            db, access, run, settings.tsdb.policy(), now, settings.report.similar
        )
    if job and sources.histories:
        try:
            with sources.histories.acquire() as history:
                material = gather.add_measurements(material, job, history)
        except TimeSeriesError as error:
            log.warning("the report of job %s has no usage by node: %s", job.jobid, error)
    return material
