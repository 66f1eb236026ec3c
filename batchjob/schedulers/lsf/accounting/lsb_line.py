"""Lines of LSF's event files: words and quoted strings, in which a quote is doubled.

Facts: lsb.acct(5), lsb.stream(5). There are no other escapes. A record that contains a line break
continues until the next line that begins a record.
"""

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

_WORD = re.compile(r'"((?:[^"]|"")*)"(?= |$)|(\S+)')
_RECORD = re.compile(rb'"(?:JOB|EVENT)_[A-Z0-9_]+" "')
_MAX_RECORD_LINES = 64  # maximum lines of a record


def begins_record(line: bytes) -> bool:
    """Whether this line begins a record."""
    return line.startswith(b"#") or _RECORD.match(line) is not None


class Word(NamedTuple):
    """One value; numbers are not quoted, most strings are."""

    text: str
    quoted: bool


def split_words(line: str) -> list[Word]:
    """The values of a line."""
    return [
        Word(match[2], quoted=False) if match[2] is not None
        else Word(match[1].replace('""', '"'), quoted=True)
        for match in _WORD.finditer(line)
    ]  # fmt: skip


def join_records(lines: Iterable[bytes]) -> Iterator[str]:
    """Join lines into whole records, without comment lines."""
    parts: list[bytes] = []
    for line in lines:
        if line.startswith(b"#"):
            continue
        if parts and (begins_record(line) or len(parts) == _MAX_RECORD_LINES):
            yield _text(parts)
            parts = []
        if line.strip() or parts:
            parts.append(line)
    if parts:
        yield _text(parts)


def _text(parts: list[bytes]) -> str:
    return b" ".join(parts).decode("utf-8", "backslashreplace").strip()
