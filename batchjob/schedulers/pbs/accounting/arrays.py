"""Arrays in PBS' accounting log, where a subjob that waits has no line of its own."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from batchjob.schedulers.fields import RowError
from batchjob.schedulers.pbs.accounting.log_line import parse_line

_SPAN = re.compile(r"(\d{1,7})(?:-(\d{1,7})(?::(\d{1,7}))?)?(?:%\d+)?", re.ASCII)


class Array(NamedTuple):
    """The attributes of an array; {}: not known. The ids of its subjobs that no longer wait."""

    attributes: Mapping[str, str]
    begun: set[str]

    def waiting(self, array_id: str) -> Iterator[str]:
        """The ids of the subjobs that wait for their first run."""
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
