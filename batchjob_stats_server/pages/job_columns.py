"""The optional columns of lists of jobs, and the user's choice of them.

The choice is stored in a cookie, so that it needs no account; it is not confidential.
"""

from collections.abc import Sequence
from enum import StrEnum

from fastapi import Request, Response

from batchjob_stats_server.auth.identity import cookie_name
from batchjob_stats_server.pages.rendering.sparklines import SparklineKind

COOKIE_NAME = "batchjob_columns"
_COOKIE_AGE_SECONDS = 365 * 86400


class Column(StrEnum):
    """An optional column; id, name and state are always shown."""

    ACCOUNT = "account"
    PARTITION = "partition"
    QOS = "qos"
    SUBMITTED = "submitted"
    STARTED = "started"
    ENDED = "ended"
    ELAPSED = "elapsed"
    NODES = "nodes"
    CPUS = "cpus"
    GPUS = "gpus"
    TIME = "time"
    CPU = "cpu"
    MEMORY = "memory"
    GPU = "gpu"
    PEAK = "peak"
    CPU_LINE = "cpu_line"
    MEMORY_LINE = "memory_line"
    GPU_LINE = "gpu_line"
    ENERGY = "energy"
    EXIT = "exit"


TITLES = {
    Column.ACCOUNT: "Account",
    Column.PARTITION: "Partition",
    Column.QOS: "QOS",
    Column.SUBMITTED: "Submitted",
    Column.STARTED: "Started",
    Column.ENDED: "Ended",
    Column.ELAPSED: "Elapsed",
    Column.NODES: "Nodes",
    Column.CPUS: "CPUs",
    Column.GPUS: "GPUs",
    Column.TIME: "Time used",
    Column.CPU: "CPU",
    Column.MEMORY: "Memory",
    Column.GPU: "GPU, with a cell for each",
    Column.PEAK: "Peak memory",
    Column.CPU_LINE: "CPU over time",
    Column.MEMORY_LINE: "Memory over time",
    Column.GPU_LINE: "GPU over time",
    Column.ENERGY: "Energy",
    Column.EXIT: "Exit",
}

SPARKLINES = {
    Column.CPU_LINE: SparklineKind.CPU,
    Column.MEMORY_LINE: SparklineKind.MEMORY,
    Column.GPU_LINE: SparklineKind.GPU,
}
_DEFAULT = frozenset(Column) - {
    Column.QOS, Column.SUBMITTED, Column.ENDED, Column.PEAK, Column.MEMORY_LINE, Column.GPU_LINE,
    Column.EXIT,
}  # fmt: skip


def chosen_columns(request: Request) -> frozenset[Column]:
    """The columns chosen in this browser; unknown names are ignored."""
    names = request.cookies.get(COOKIE_NAME, "").split(".")
    return frozenset(column for column in Column if column in names) or _DEFAULT


def sparkline_kinds(columns: frozenset[Column]) -> list[SparklineKind]:
    """The sparklines that they need."""
    return [kind for column, kind in SPARKLINES.items() if column in columns]


def store_choice(request: Request, response: Response, columns: Sequence[Column]) -> None:
    """Store the choice in the browser."""
    secure = cookie_name(request).startswith("__Host-")
    response.set_cookie(
        COOKIE_NAME, ".".join(columns), max_age=_COOKIE_AGE_SECONDS, httponly=True, samesite="lax",
        secure=secure,
    )  # fmt: skip
