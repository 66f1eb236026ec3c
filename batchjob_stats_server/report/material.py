"""What a report is made from."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from batchjob_stats_server.report.model import NodeUse

Row = Mapping[Any, Any]


class ReportInput(NamedTuple):
    """Rows as the database has them (queries/jobs.py), and what only the measurements tell."""

    job: Row  # with its usage under usage_...
    now: int
    gpus: Sequence[Row] = ()
    emissions: Sequence[Row] = ()
    nodes: Sequence[NodeUse] = ()  # empty: not known node by node
    gpu_memory: Mapping[str, float] = {}  # installed, by UUID and instance
    similar: Sequence[Row] = ()  # jobs with usage, the latest first
    alike: str = ""  # in what they are
    short_jobs: int | None = None  # of this user, a minute long or less, in the day before
    steps: Sequence[Row] = ()
    usual_wait: float | None = None  # seconds; of a job that waits: of others in its partition
