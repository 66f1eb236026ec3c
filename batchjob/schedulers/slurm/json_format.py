"""Plain values from Slurm's JSON of any release.

Slurm's JSON has a version of its own ("data parser" v0.0.37 of 21.08 to v0.0.45 of 26.05), and
shapes change from one to the next: numbers become {"set", "infinite", "number"} objects field by
field from v0.0.39, states become lists and exit codes are nested deeper from v0.0.40. So shapes
are recognized by their keys, not by the version's number. Facts: the OpenAPI documents that
slurmrestd serves, and answers of real releases.
"""

from collections.abc import Mapping
from typing import Any

from batchjob.runtime.subprocesses import SchedulerError
from batchjob.schedulers.slurm.formats import job_gpus, parse_tres

INFINITE = float("inf")
_NOTHING_FOUND = 9003  # reported as an error up to 22.05, together with an empty list


class SlurmJsonError(SchedulerError):
    """Not an answer of Slurm, or one that reports an error."""


def unwrap_numbers(value: Any) -> Any:
    """The same document with number objects replaced: by the number, None, or INFINITE."""
    if isinstance(value, dict):
        if value.keys() == {"set", "infinite", "number"}:
            if value["infinite"]:
                return INFINITE
            return value["number"] if value["set"] else None
        return {key: unwrap_numbers(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [unwrap_numbers(inner) for inner in value]
    return value


def raise_for_errors(document: Any) -> None:
    """Raise SlurmJsonError for an answer with errors, or one that is not from Slurm."""
    if not isinstance(document, dict):
        raise SlurmJsonError("not an answer of Slurm: expected a JSON object")
    errors = [
        _format_error(each)
        for each in document.get("errors") or ()
        if not (isinstance(each, dict) and each.get("error_number") == _NOTHING_FOUND)
    ]
    if errors:
        raise SlurmJsonError(f"Slurm returned an error: {errors[0]}")


def _format_error(item: Any) -> str:
    if not isinstance(item, dict):
        return str(item)
    parts = (item.get("error"), item.get("description"), item.get("source"))
    return ": ".join(str(part) for part in parts if part) or str(item)


def rows(document: Any, root: str) -> list[dict[str, Any]]:
    """The list below `root` ("jobs", "nodes" ...); raises SlurmJsonError if there is none."""
    found = document.get(root) if isinstance(document, dict) else None
    if not isinstance(found, list):
        raise SlurmJsonError(f"not an answer of Slurm: expected a list {root!r}")
    return [row for row in found if isinstance(row, dict)]


def state_words(value: Any) -> tuple[str, ...]:
    """The base state, then flags, from "COMPLETED" or ["RUNNING", "COMPLETING"]."""
    if isinstance(value, str):
        return tuple(value.split("+")) if value else ()
    return tuple(str(word) for word in value) if isinstance(value, list) else ()


def parse_count(value: Any) -> int | None:
    """A whole number; None for null, infinity, "not set" (negative or near 2^64) and text."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return int(value) if 0 <= value < 2**63 else None


def epoch(value: Any) -> int | None:
    """Epoch seconds; 0 stands for none."""
    return parse_count(value) or None


def cpu_seconds(value: Any) -> float | None:
    """Seconds of {"seconds", "microseconds"}; the latter may exceed a million."""
    if not isinstance(value, dict):
        return None
    seconds, micro = parse_count(value.get("seconds")), parse_count(value.get("microseconds"))
    return None if seconds is None else seconds + (micro or 0) / 1e6


def tres_counts(value: Any) -> dict[str, int]:
    """Counts of a TRES list by their names in TRES strings: `cpu`, `gres/gpu:a100`, `fs/disk`."""
    counts = {}
    for item in value if isinstance(value, list) else ():
        if isinstance(item, dict):
            number = parse_count(item.get("count"))
            if number is not None:
                name = item.get("name")
                counts[f"{item.get('type')}/{name}" if name else str(item.get("type"))] = number
    return counts


def count_job_gpus(job: Mapping[str, Any], tres: str) -> int | None:
    """GPUs of a job of squeue or slurmrestd, after unwrap_numbers(); see job_gpus()."""
    times = {"job": 1, "node": job.get("node_count"), "task": job.get("tasks"), "socket": None}
    detail = job.get("gres_detail")
    return job_gpus(
        parse_tres(tres),
        map(str, detail if isinstance(detail, list) else ()),
        ((str(job.get(f"tres_per_{of}") or ""), parse_count(n)) for of, n in times.items()),
    )
