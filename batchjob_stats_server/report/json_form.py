"""A report as JSON, apart from its other forms: they need no library that is slow to load."""

from pydantic import TypeAdapter

from batchjob_stats_server.report.model import Report

_JSON = TypeAdapter(Report)


def as_json(report: Report) -> bytes:
    """The keys of the API."""
    return _JSON.dump_json(report)
