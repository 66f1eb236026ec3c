"""What is known of a job's use: what was measured, else what the scheduler has accounted."""

from collections.abc import Mapping
from typing import Any

Row = Mapping[str, Any]

FIELDS = (
    "usage_user_cpu_seconds", "usage_system_cpu_seconds", "cpu_seconds", "user_cpu_seconds",
    "system_cpu_seconds", "usage_memory_peak_bytes", "peak_memory_bytes", "usage_energy_joules",
    "energy_joules",
)  # fmt: skip
"""The keys of a row that these functions look at."""


def cpu_seconds(row: Row) -> float | None:
    """CPU time."""
    measured = _sum(row, "usage_user_cpu_seconds", "usage_system_cpu_seconds")
    if measured is not None:
        return measured
    accounted = row.get("cpu_seconds")
    if accounted is not None:
        return float(accounted)
    return _sum(row, "user_cpu_seconds", "system_cpu_seconds")


def _sum(row: Row, *keys: str) -> float | None:
    values = [row[key] for key in keys if row.get(key) is not None]
    return float(sum(values)) if len(values) == len(keys) else None


def peak_memory_bytes(row: Row) -> int | None:
    """Largest memory in use."""
    peak = _first(row, "usage_memory_peak_bytes", "peak_memory_bytes")
    return None if peak is None else int(peak)


def energy_joules(row: Row) -> float | None:
    """Energy of all components."""
    return _first(row, "usage_energy_joules", "energy_joules")


def _first(row: Row, *keys: str) -> float | None:
    return next((row[key] for key in keys if row.get(key) is not None), None)
