"""Lines of PBS' and Torque's accounting logs.

A line is `MM/DD/YYYY HH:MM:SS;type;id;attributes`. The timestamp is local time without a zone, so
epoch seconds of the attributes are preferred.
"""

import re
from datetime import datetime, tzinfo
from typing import NamedTuple

from batchjob.schedulers.fields import FieldReader, RowError

_KEY = re.compile(r"[A-Za-z_][\w.@-]*=", re.ASCII)


class PbsLogRecord(NamedTuple):
    """An accounting record: type, job id, and the attributes."""

    timestamp: int
    record_type: str
    jobid: str
    row: FieldReader


def parse_line(text: str, zone: tzinfo | None, not_before: int) -> PbsLogRecord:
    """Parse a line; raises RowError. `not_before`: the time of the previous line."""
    parts = text.split(";", 3)
    if len(parts) != 4 or len(parts[1]) != 1:
        raise RowError("expected stamp;type;id;attributes")
    return PbsLogRecord(
        _parse_timestamp(parts[0], zone, not_before),
        parts[1],
        parts[2],
        FieldReader(parse_attributes(parts[3])),
    )


def _parse_timestamp(text: str, zone: tzinfo | None, not_before: int) -> int:
    """Epoch seconds; in an hour that occurs twice, the time that does not go back in the log."""
    try:
        local = datetime.strptime(text, "%m/%d/%Y %H:%M:%S")  # noqa: DTZ007 (zone is added below)
    except ValueError as error:
        raise RowError(
            f"expected a stamp such as 04/30/2026 12:00:00, got {text[:40]!r}"
        ) from error
    first, second = (int(local.replace(tzinfo=zone, fold=fold).timestamp()) for fold in (0, 1))
    return second if first < not_before - 60 and second > first else first


def parse_attributes(message: str) -> dict[str, str]:
    """Names and values of `a=1 b="two words" c='{}'`; the first value of a name counts.

    A word without a name is appended to the value before it.
    """
    values: dict[str, str] = {}
    name, position = "", 0
    while position < len(message):
        if message[position] == " ":
            position += 1
            continue
        key = _KEY.match(message, position)
        begin = key.end() if key else position
        quote = message[begin : begin + 1] if key else ""
        if quote in ("'", '"') and (close := message.find(quote, begin + 1)) > 0:
            value, position = message[begin + 1 : close], close + 1
        else:
            end = message.find(" ", begin)
            end = len(message) if end < 0 else end
            value, position = message[begin:end], end
        if key:
            name = key[0][:-1]
            values.setdefault(name, value)
        elif name:
            values[name] += f" {value}"
    return values
