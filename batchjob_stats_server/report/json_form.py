"""A report as JSON, separate from the other formats, which need slow libraries."""

from pydantic import TypeAdapter

from batchjob_stats_server.report.model import Report

_JSON = TypeAdapter(Report)


def as_json(report: Report) -> bytes:
    """The keys of the API."""
    return _JSON.dump_json(report)
