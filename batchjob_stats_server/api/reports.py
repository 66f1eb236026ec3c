"""Reports, with what the services know."""

import logging

from sqlalchemy.engine import RowMapping

from batchjob_stats_db.database.access import Access
from batchjob_stats_db.timeseries.base import TimeSeriesError
from batchjob_stats_server.report import gather
from batchjob_stats_server.report.build import report
from batchjob_stats_server.report.model import Report
from batchjob_stats_server.services import Services

log = logging.getLogger(__name__)


def report_of(services: Services, access: Access, run: RowMapping) -> Report:
    """The report of a run that the caller may see.

    Where measurements do not answer, it says what the database knows.
    """
    settings = services.settings
    now = int(services.clock())
    with services.reader.connect() as db:
        material, job = gather.known(
            db, access, run, settings.tsdb.policy(), now, settings.report.similar
        )
    if job and services.histories:
        try:
            with services.histories.lent() as history:
                interval = settings.tsdb.scrape_interval
                material = gather.measured(material, job, history, interval)
        except TimeSeriesError as error:
            log.warning("the report of job %s goes without measurements: %s", job.jobid, error)
    return report(material, services.rules, settings.report.pue or None)
