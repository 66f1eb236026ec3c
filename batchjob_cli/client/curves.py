"""A job's measurements from a server's time series database, if it stores no samples."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import tzinfo
from typing import Any
from urllib.parse import quote

from batchjob.runtime.formatting import digits, share, size
from batchjob.runtime.times import format_time
from batchjob_cli.client.answer import parse_rows
from batchjob_cli.client.connect import Parameters, QueryFunction
from batchjob_cli.client.sample_table import format_speed
from batchjob_cli.client.table import TableColumn, cell

CURVES: Mapping[str, Sequence[str]] = {
    "overview": ("cpu", "memory", "threads", "file_read", "file_write", "gpu_utilization", "power"),
    "cpu": ("cpu", "cpus", "cpu_throttled", "pressure_cpu"),
    "memory": ("memory", "memory_working_set", "memory_limit", "memory_anonymous", "memory_cache",
               "swap", "major_faults", "pressure_memory"),
    "io": ("io_read", "io_write", "io_reads", "io_writes", "file_read", "file_write",
           "pressure_io"),
    "network": ("network_receive", "network_transmit"),
    "processes": ("processes", "threads", "open_files"),
    "gpu": ("gpu_utilization", "gpu_memory", "gpu_memory_total", "gpu_power", "gpu_temperature",
            "gpu_processes"),
    "energy": ("power", "emissions"),
}  # fmt: skip
"""The server's curves for each type of table; a query may name eight."""

# Averaged over several GPUs; all others are added up.
_AVERAGED_CURVES = frozenset({"gpu_utilization", "gpu_temperature"})


def rows(
    query: QueryFunction, jobid: str, type: str, window: Parameters
) -> Iterator[dict[str, Any]]:
    """One for each moment and node, oldest first: `time` (epoch seconds), `jobid`, `node`, and the
    mean of each curve up to then. Raises SettingsError.
    """
    parameters = {"metric": CURVES[type], **window}
    answer = query(f"jobs/{quote(jobid, safe='')}/metrics", parameters)
    values_by_place: dict[tuple[int, str], dict[str, list[float]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for point in parse_rows(answer, ("time", "node", "metric", "mean")):
        values_by_place[point["time"], point["node"]][point["metric"]].append(point["mean"])
    for (time, node), curves in sorted(values_by_place.items()):
        yield {"time": time / 1000, "jobid": jobid, "node": node} | {
            name: sum(values) / (len(values) if name in _AVERAGED_CURVES else 1)
            for name, values in curves.items()
        }


def columns(type: str, zone: tzinfo | None) -> tuple[TableColumn, ...]:
    """The table of a type; times in a zone, None: local time."""
    return (
        TableColumn("TIME", lambda row: format_time(row["time"], zone)),
        TableColumn("NODE", lambda row: row["node"]),
        *(_column(name) for name in CURVES[type]),
    )


def _column(name: str) -> TableColumn:
    format_value = next(
        (format_value for part, format_value in _FORMATTERS.items() if name.startswith(part)),
        digits,
    )

    return TableColumn(name.replace("_", " ").upper(), cell(name, format_value), right=True)


_FORMATTERS: Mapping[str, Callable[[float], str]] = {
    "memory": size, "swap": size, "gpu_memory": size, "file_": format_speed, "io_reads": digits,
    "io_writes": digits, "io_": format_speed, "network": format_speed, "gpu_utilization": share,
    "cpu_throttled": share, "pressure": share,
}  # fmt: skip
