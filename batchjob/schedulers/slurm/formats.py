"""Durations and resource strings (TRES) in the forms that Slurm prints.

Everything comes out in base units: seconds, bytes. What Slurm writes for "none" is None;
what cannot be read raises ValueError saying what was expected.
"""

import re
from functools import lru_cache
from typing import NamedTuple

from batchjob.runtime.values import size_bytes

_NO_DURATION = frozenset(
    ("", "UNLIMITED", "Partition_Limit", "INVALID", "NOT_SET", "Unknown", "None", "N/A", "-")
)
# The number of digits is limited, so that every value fits into a database column.
_PARTS = re.compile(r"(?:(\d{1,9})-)?(\d{1,9})(?::(\d{1,9}))?(?::(\d{1,9}))?(\.\d{1,9})?", re.ASCII)


def slurm_duration(text: str) -> float | None:
    """Seconds of `1-02:03:04`, `02:03:04.567`, `03:04`, `1-02`, or minutes alone: `90`.

    sbatch(1) --time and sacct(1) know these forms; UNLIMITED and Partition_Limit are None.
    """
    if text in _NO_DURATION:
        return None
    match = _PARTS.fullmatch(text)
    if not match:
        raise ValueError(f"expected a duration such as 1-02:03:04, got {text[:40]!r}")
    days, hours, minutes, seconds, fraction = match.groups()
    if days is None and seconds is None:  # MM[:SS]
        hours, minutes, seconds = 0, hours, minutes
    whole = int(days or 0) * 86400 + int(hours) * 3600 + int(minutes or 0) * 60 + int(seconds or 0)
    return whole + float(fraction) if fraction else float(whole)


def tres(text: str) -> dict[str, str]:
    """Names and values of `billing=6,cpu=6,gres/gpu:a100=2,mem=10000M`."""
    if not text:
        return {}
    pairs = [item.partition("=") for item in text.split(",")]
    wrong = next((name for name, equals, _ in pairs if not name or not equals), None)
    if wrong is not None:
        raise ValueError(f"expected name=value,... (TRES), got {text[:80]!r}")
    return {name: value for name, _, value in pairs}


class Resources(NamedTuple):
    """What of a TRES string everybody counts; None where it is not in it."""

    cpus: int | None = None
    memory_bytes: int | None = None
    nodes: int | None = None
    gpus: int | None = None
    energy_joules: int | None = None


@lru_cache(maxsize=1000)  # many jobs of a site have the same request
def resources(text: str) -> Resources:
    """Read a TRES string; memory without a letter is in megabytes, as slurmctld keeps it."""
    values = tres(text)
    memory = values.get("mem")
    return Resources(
        tres_count(values.get("cpu")),
        None if memory is None else size_bytes(memory, "M"),
        tres_count(values.get("node")),
        gpus(values),
        tres_count(values.get("energy")),
    )


_NOT_SET = 2**63


def tres_count(text: str | None) -> int | None:
    """A count, `3` or `10K`; None for what is not there and for Slurm's "not set".

    "Not set" is near 2^64, or below 0 where it was printed as a signed number.
    """
    if text is None or text.startswith("-"):
        return None
    if text.isdecimal() and text.isascii():
        number = int(text)
        return None if number >= _NOT_SET else number
    return size_bytes(text)


def gpus(values: dict[str, str]) -> int | None:
    """GPUs of a TRES mapping: the untyped entry, which includes the typed ones, if it is there."""
    if "gres/gpu" in values:
        return tres_count(values["gres/gpu"])
    typed = [tres_count(value) for name, value in values.items() if name.startswith("gres/gpu:")]
    return sum(count or 0 for count in typed) if typed else None
