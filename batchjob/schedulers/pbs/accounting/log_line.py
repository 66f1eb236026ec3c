"""Lines of PBS' and Torque's accounting logs, and what they say of arrays.

A line is `MM/DD/YYYY HH:MM:SS;type;id;attributes`. The timestamp is local time without a zone, so
epoch seconds of the attributes are preferred. A subjob that waits has no line of its own.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, tzinfo
from pathlib import Path
from typing import NamedTuple

from batchjob.runtime.json_reader import unique_pairs
from batchjob.schedulers.fields import FieldReader, RowError

_KEY = re.compile(r"[A-Za-z_][\w.@-]*=", re.ASCII)
_CLOSING = {quote: re.compile(rf"{quote}(?= +[A-Za-z_][\w.@-]*=| *$)", re.ASCII) for quote in "'\""}
# The server writes them first, before anything of the user.
_LEADING = frozenset(("user", "group"))

# What the server does not write in records of a type, so that it is a user's text there.
_END, _RUN, _JOB = (
    frozenset(names.split())
    for names in (
        "end session Exit_status run_count",
        "start exec_host exec_vnode",
        "user group ctime",
    )
)
_WITHOUT_SEMICOLON = _END | _RUN | _JOB | {"queue"}
_USED, _ASSIGNED = "resources_used.", "resource_assigned."
_NOT_WRITTEN: dict[str, tuple[frozenset[str], tuple[str, ...]]] = {
    **dict.fromkeys("SsTc", (_END, (_USED,))),
    "Q": (_END | _RUN, (_USED, _ASSIGNED)),
    **dict.fromkeys("arCD", (_END | _RUN | _JOB, (_USED, _ASSIGNED))),
    "z": (_END | _RUN | _JOB, (_ASSIGNED,)),
}


class PbsLogRecord(NamedTuple):
    """An accounting record: type, job id, the attributes, and their text."""

    timestamp: int
    record_type: str
    jobid: str
    row: FieldReader
    message: str


def parse_line(text: str, zone: tzinfo | None, not_before: int) -> PbsLogRecord:
    """Parse a line; raises RowError. `not_before`: the time of the previous line.

    A name that stands twice has no value, nor has one where the server writes none: it is part of a
    text of the user, which the server does not escape.
    """
    parts = text.split(";", 3)
    if len(parts) != 4 or len(parts[1]) != 1:
        raise RowError("expected stamp;type;id;attributes")
    timestamp = _parse_timestamp(parts[0], zone, not_before)
    values = unique_pairs(parse_attributes(parts[3]), _LEADING)
    absent, prefixes = _NOT_WRITTEN.get(parts[1], (frozenset(), ()))
    misplaced = [name for name in values if name in absent or name.startswith(prefixes)]
    for name in misplaced:
        del values[name]
    if any(";" in values.get(name, "") for name in _WITHOUT_SEMICOLON):
        raise RowError("another line begins within this one")
    row = FieldReader(values)
    row.parse_errors += [f"the server writes no {name} here" for name in misplaced]
    return PbsLogRecord(timestamp, parts[1], parts[2], row, parts[3])


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


def zone_error(line: PbsLogRecord, zone: tzinfo | None, known: int) -> int:
    """Seconds by which stamps are ahead because the server is not in `zone`; `known` if unclear.

    The server writes the stamp of an end and its time in epoch seconds at once.
    """
    written = line.row.values.get("end", "") if line.record_type in ("E", "R") else ""
    local = datetime.fromtimestamp(line.timestamp, zone)
    occurs_twice = local.replace(fold=0).timestamp() != local.replace(fold=1).timestamp()
    if occurs_twice or not written.isdecimal():
        return known
    ahead = line.timestamp - int(written[:12])
    quarters = round(ahead / 900) * 900
    return quarters if abs(ahead - quarters) <= 60 and abs(quarters) <= 26 * 3600 else known


def parse_attributes(message: str) -> list[tuple[str, str]]:
    """Names and values of `a=1 b="two words" c='{}'`.

    The server escapes no quote within a value: one that closes it is followed by the next name. A
    word without a name is appended to the value before it.
    """
    pairs: list[tuple[str, str]] = []
    position = 0
    while position < len(message):
        if message[position] == " ":
            position += 1
            continue
        key = _KEY.match(message, position)
        begin = key.end() if key else position
        quote = message[begin : begin + 1] if key else ""
        closing = _CLOSING[quote].search(message, begin + 1) if quote in _CLOSING else None
        if closing:
            value, position = message[begin + 1 : closing.start()], closing.end()
        else:
            end = message.find(" ", begin)
            end = len(message) if end < 0 else end
            value, position = message[begin:end], end
        if key:
            pairs.append((key[0][:-1], value))
        elif pairs:
            pairs[-1] = (pairs[-1][0], f"{pairs[-1][1]} {value}")
    return pairs


_SPAN = re.compile(r"(\d{1,7})(?:-(\d{1,7})(?::(\d{1,7}))?)?(?:%\d+)?", re.ASCII)


class Array(NamedTuple):
    """The attributes of an array; {}: not known. The ids of its subjobs that no longer wait."""

    attributes: Mapping[str, str]
    begun: set[str]

    def waiting(self, array_id: str) -> Iterator[str]:
        head, _, tail = array_id.partition("[]")
        for span in self.attributes.get("array_indices", "").split(","):
            if match := _SPAN.fullmatch(span):
                first, last, step = (int(number or 0) for number in match.groups())
                for index in range(first, max(first, last) + 1, step or 1):
                    if (jobid := f"{head}[{index}]{tail}") not in self.begun:
                        yield jobid


def array_id_of(jobid: str) -> str:
    """`12[].server` of `12[3].server`; "" for a job that is no subjob."""
    head, bracket, rest = jobid.partition("[")
    return f"{head}[]{rest.partition(']')[2]}" if bracket else ""


def find_array(files: Sequence[Path], array_id: str, deleted: str) -> Array:
    """An array by its lines in the logs, which were read before; the newest with this id.

    The subjob `deleted` counts as waiting until it has started.
    """
    begun: set[str] = set()
    needle = f";{array_id.partition('[]')[0]}[".encode()
    for path in reversed(files):
        try:
            with path.open("rb") as file:
                lines = [line.decode("utf-8", "replace") for line in file if needle in line]
        except OSError:
            continue
        for text in reversed(lines):
            _, letter, jobid, *_ = (*text.split(";", 3), "", "", "")
            if letter == "Q" and jobid == array_id:
                try:
                    return Array(parse_line(text.rstrip(), None, 0).row.values, begun)
                except RowError:
                    return Array({}, begun)
            if letter == "S" or (letter == "D" and jobid != deleted):
                begun.add(jobid)
    return Array({}, begun)
