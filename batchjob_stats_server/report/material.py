"""The input of a report."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from batchjob_stats_server.report.model import NodeUse

Row = Mapping[Any, Any]


COMPARED = (
    "state", "start_time", "end_time", "elapsed_seconds", "suspended_seconds", "allocated_nodes",
    "usage_samples", "usage_until_time", "usage_coverage", "usage_doubt", "usage_final",
    "usage_gpu_utilization_ratio", "usage_memory_peak_node_bytes", "cpu_efficiency",
    "memory_used_bytes", "memory_basis", "energy_used_joules",
)  # fmt: skip
"""What is looked at of a similar job."""


class ReportInput(NamedTuple):
    """Rows of the database (queries/jobs.py), and what only the measurements contain."""

    job: Row  # with its usage under usage_...
    now: int
    gpus: Sequence[Row] = ()
    emissions: Sequence[Row] = ()
    nodes: Sequence[NodeUse] = ()  # empty: not known node by node
    gpu_memory: Mapping[str, float] = {}  # installed, by UUID and instance
    similar: Sequence[Row] = ()  # with COMPARED, the latest first
    alike: str = ""  # in what they are
    short_jobs: int | None = None  # of this user, a minute long or less, in the day before
    steps: Sequence[Row] = ()
    shares: Sequence[Row] = ()  # what it had on each node
    usual_wait: float | None = None  # seconds; of a job that waits: of others in its partition
