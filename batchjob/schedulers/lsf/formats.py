"""The output of LSF's commands: times, and with `-json` a list of records of text values.

Facts: bjobs(1). Names are in capitals; text may precede the JSON.
"""

import re
import time
from collections.abc import Iterable, Sequence

from batchjob.runtime import subprocesses
from batchjob.runtime.json_reader import damaged, repeated_names
from batchjob.schedulers.fields import (
    clock_duration,
    merged_shares,
    parse_host_list_number,
    utc_time,
)
from batchjob.schedulers.records import NodeShare

_SUFFIX = re.compile(r" [LEX]$")
_DAY = 86_400
_TIMES = ("%b %d %H:%M:%S %Y", "%b %d %H:%M %Y")


def lsf_time(text: str, now: int) -> int | None:
    """Epoch seconds of `Apr 12 18:20:00 2026 L`, UTC; without a year, the last one in the past.

    ` L` (run limit), ` E` and ` X` (estimates) may follow.
    """
    text = " ".join(_SUFFIX.sub("", text).split())
    if text in ("", "-"):
        return None
    if (at := utc_time(text, *_TIMES)) is not None:
        return at
    this_year = time.gmtime(now).tm_year
    for year in range(this_year, this_year - 5, -1):  # four years back, because of 29 February
        at = utc_time(f"{text} {year}", *_TIMES)
        if at is not None and at <= now + _DAY:
            return at
    raise ValueError(f"expected a time such as Apr 12 18:20:00 2026, got {text[:40]!r}")


def lsf_duration(text: str) -> float | None:
    """Seconds of bjobs' `16038 second(s)`, `1.5 minute(s)` or, with -hms, `1:02:03`."""
    if text in ("", "-"):
        return None
    number, _, unit = text.partition(" ")
    scale = _LSF_UNITS.get(unit.removesuffix("(s)").removesuffix("s"))
    if scale is None:
        raise ValueError(f"expected a duration such as 90 second(s), got {text[:40]!r}")
    return clock_duration(number) * scale


_LSF_UNITS = {"": 1, "second": 1, "minute": 60, "hour": 3600, "day": 86400}


def lsf_hosts(words: Iterable[str]) -> tuple[NodeShare, ...]:
    """Hosts of `h1 h1 h2` or `2*h1 h2`: each mention of a host is a slot."""
    return merged_shares(_lsf_host(word) for word in words if word)


def _lsf_host(word: str) -> NodeShare:
    count, star, host = word.partition("*")
    return NodeShare(host, parse_host_list_number(count, word)) if star else NodeShare(word, 1)


JsonRecord = dict[str, str]


def query_bjobs(
    options: subprocesses.CommandOptions, bjobs: str, fields: Sequence[str]
) -> list[JsonRecord]:
    """These fields of all jobs that bjobs lists. Raises SchedulerError."""
    argv = [bjobs, "-u", "all", "-a", "-json", "-o", " ".join(fields)]
    try:
        return parse_records(subprocesses.run(options, argv, {"LSB_DISPLAY_YEAR": "Y"}))
    except subprocesses.CommandFailedError as error:
        if b"job found" in error.output:
            return []  # "No unfinished job found" comes with a non-zero exit status
        raise


def parse_records(output: bytes) -> list[JsonRecord]:
    """The list RECORDS of an answer. Raises NotJsonError."""
    found = subprocesses.parse_json_object(output).get("RECORDS")
    if not isinstance(found, list):
        raise subprocesses.NotJsonError("expected a JSON object with RECORDS")
    return [
        damaged({name: str(value) for name, value in record.items()}, repeated_names(record))
        for record in found
        if isinstance(record, dict)
    ]
