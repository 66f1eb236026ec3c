"""Parsers of durations and resource strings (TRES, GRES) as Slurm prints them.

Results are in base units: seconds, bytes. What Slurm writes for "none" becomes None; other text
raises ValueError, which says what was expected.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

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


def whole_seconds(text: str) -> int | None:
    """The same, without a fraction."""
    duration = slurm_duration(text)
    return None if duration is None else int(duration)


def parse_tres(text: str) -> dict[str, str]:
    """Names and values of `billing=6,cpu=6,gres/gpu:a100=2,mem=10000M`."""
    if not text:
        return {}
    pairs = [item.partition("=") for item in text.split(",")]
    wrong = next((name for name, equals, _ in pairs if not name or not equals), None)
    if wrong is not None:
        raise ValueError(f"expected name=value,... (TRES), got {text[:80]!r}")
    return {name: value for name, _, value in pairs}


class Resources(NamedTuple):
    """The common resources of a TRES string; None for those that it does not contain."""

    cpus: int | None = None
    memory_bytes: int | None = None
    nodes: int | None = None
    gpus: int | None = None

    def fields(self, prefix: str) -> dict[str, Any]:
        """By the names of a record's fields: `requested_cpus`, `allocated_gpus` and so on."""
        return {f"{prefix}_{name}": number for name, number in self._asdict().items()}


@lru_cache(maxsize=1000)  # many jobs of a site have the same request
def parse_resources(text: str) -> Resources:
    """Parse a TRES string; memory without a unit is in megabytes, as in slurmctld."""
    values = parse_tres(text)
    memory = values.get("mem")
    return Resources(
        parse_tres_count(values.get("cpu")),
        None if memory is None else size_bytes(memory, "M"),
        parse_tres_count(values.get("node")),
        count_gpus(values),
    )


_NOT_SET = 2**63


def parse_tres_count(text: str | None) -> int | None:
    """A count, `3` or `10K`; None for a missing value and for Slurm's "not set".

    "Not set" is near 2^64, or negative if it was printed as a signed number.
    """
    if text is None or text.startswith("-"):
        return None
    if text.isdecimal() and text.isascii():
        number = int(text)
        return None if number >= _NOT_SET else number
    return size_bytes(text)


def count_gpus(values: Mapping[str, str]) -> int | None:
    """GPUs of a TRES mapping: the untyped entry, which includes the typed ones, else their sum."""
    if "gres/gpu" in values:
        return parse_tres_count(values["gres/gpu"])
    typed = [
        parse_tres_count(value) for name, value in values.items() if name.startswith("gres/gpu:")
    ]
    return sum(count or 0 for count in typed) if typed else None


_NOTE = re.compile(r"\((?!null\))[^)]*\)")  # (IDX:0,2-3), (S:0-1)
_GRES_SEPARATOR = re.compile("[:/=]")


def gres_gpus(text: str) -> Counter[str]:
    """GPUs by model of a node's or a job's GRES string, "" for those without a type.

    `gpu:a100:2(IDX:0-1),gpu:(null):3(S:0-1),shard:8` of nodes and allocations, `gres/gpu:2` and
    `gres:gpu:a100:2` of requests (tres_per_node ...), whose number is 1 if it is missing.
    """
    found: Counter[str] = Counter()
    for item in _NOTE.sub("", text).split(","):
        name, *words = _GRES_SEPARATOR.split(item.removeprefix("gres:").removeprefix("gres/"))
        if name == "gpu":
            number = words.pop() if words and words[-1].isdecimal() else "1"
            model = words[0] if words and words[0] != "(null)" else ""
            found[model] += int(number[:9])
    return found


def job_gpus(
    tres: Mapping[str, str], detail: Iterable[str], requests: Iterable[tuple[str, int | None]]
) -> int | None:
    """GPUs of a job: from its TRES, else from what was allocated on each node, else requested.

    TRES have GPUs only with AccountingStorageTRES=gres/gpu. `requests` are the strings of
    tres_per_job, tres_per_node ..., each with the number of jobs, nodes ... it counts for. None if
    that number, or the TRES, are not known.
    """
    if (counted := count_gpus(tres)) is not None:
        return counted
    if allocated := sum(gres_gpus(each).total() for each in detail):
        return allocated
    for text, times in requests:
        if each := gres_gpus(text).total():
            return None if times is None else each * times
    return 0 if tres else None
