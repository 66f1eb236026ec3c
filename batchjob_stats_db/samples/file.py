"""The lines of sample files, and files of them: complete, truncated, damaged, or being written.

A line is a self-contained JSON object for each sample:

    {"time": 1775300000.0, "manager": "slurm", "jobid": "1", "user": "alice", "node": "n001",
     "interval_seconds": 5.0, "cpu_user_seconds": 19.9, "io": {"sda": {"read_bytes": 4096}}}

Counters are totals since the job began. Values that were not read are not in the line.

A file that is being written is a complete gzip file at every moment: each new sample replaces the
trailer, and is followed by a new one. So the last bytes may be replaced; everything before them
stays.
"""

import contextlib
import fcntl
import json
import math
import os
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self

from batchjob.quantities.quantity import SampleGroup
from batchjob.quantities.sample import (
    BY_NAME,
    BY_NAME_IN_GROUP,
    SAMPLE_GROUPS,
    JobSample,
    SampleHeader,
    SampleKey,
)
from batchjob.runtime.json_reader import parse_json

_TOO_LARGE = 2.0**63
_GZIP = 31  # zlib's wbits for a 32 kB window and a gzip header
_CHUNK_BYTES = 1 << 16
LONGEST_LINE = 1 << 20
_TIME_KEY = b'{"time":'
TRAILER_BYTES = 10
"""An empty last block, checksum and size: RFC 1951, 3.2.3, and RFC 1952, 2.3.1."""


class LineError(ValueError):
    """Not a line of a sample file."""


def encode_line(header: SampleHeader, sample: JobSample) -> bytes:
    document = {"time": round(sample.at, 2), **header._asdict(), **group_values(sample.values)}
    return json.dumps(document, separators=(",", ":")).encode() + b"\n"


def group_values(values: Mapping[SampleKey, float]) -> dict[str, Any]:
    """The values of a sample by name; those of devices, GPUs ... are in nested objects."""
    document: dict[str, Any] = {}
    for name, value in values.items():
        quantity = BY_NAME[name.quantity]
        digits = quantity.digits
        rounded = round(value, digits) if digits else round(value)
        if quantity.group is None:
            document[quantity.name] = rounded
            continue
        group, member = document.setdefault(quantity.group.name, {}), " ".join(name.of)
        if quantity.name_in_group:
            group.setdefault(member, {})[quantity.name_in_group] = rounded
        else:
            group[member] = rounded
    return document


def flatten_values(document: Mapping[str, Any]) -> dict[SampleKey, float]:
    """The values of a document; raises LineError. Names of later versions are ignored."""
    return {
        name: value for key, content in document.items() for name, value in _flatten(key, content)
    }


class Decoder:
    """Reads the lines of one file in order, and reports what has changed."""

    def __init__(self) -> None:
        self.header: SampleHeader | None = None
        self.values: dict[SampleKey, float] = {}
        # Keys that the last line changed; removed ones are not in `values`.
        self.changed: set[SampleKey] = set()
        self._before: Mapping[str, Any] = {}

    def advance(self, text: bytes) -> float:
        """Read the next line into `values`; returns its time. Raises LineError."""
        try:
            document = parse_json(text)
        except ValueError as error:
            raise LineError(f"not JSON: {error}") from error
        if not isinstance(document, dict):
            raise LineError(f"expected an object, got {text[:40]!r}")
        at = document.pop("time", None)
        if not _is_number(at):
            raise LineError("expected a `time`")
        if self.header is None:
            self.header = _read_header(document)
        before, self._before = self._before, document
        self.changed.clear()
        for key in {**before, **document}:
            old, new = before.get(key), document.get(key)
            if old != new or type(old) is not type(new):
                self._change(dict(_flatten(key, old)), dict(_flatten(key, new)))
        return float(at)

    def _change(self, old: dict[SampleKey, float], new: dict[SampleKey, float]) -> None:
        for name in old.keys() - new.keys():
            del self.values[name]
            self.changed.add(name)
        for name, value in new.items():
            if old.get(name) != value:
                self.values[name] = value
                self.changed.add(name)


def _flatten(key: str, content: Any) -> Iterator[tuple[SampleKey, float]]:
    """The numbers under one name of a document."""
    if content is None:
        return
    if (group := SAMPLE_GROUPS.get(key)) is not None:
        yield from _flatten_group(group, content)
    elif key in BY_NAME:
        yield SampleKey(key), _check_number(key, content)


def _flatten_group(group: SampleGroup, content: Any) -> Iterator[tuple[SampleKey, float]]:
    if not isinstance(content, dict):
        raise LineError(f"expected an object as {group.name}, got {content!r:.40}")
    label_count = len(group.labels)
    for text, member in content.items():
        of = tuple(text.split(" ", label_count - 1)) if label_count > 1 else (text,)
        if len(of) != label_count:
            raise LineError(f"expected {label_count} names for {group.name}, got {text!r:.40}")
        for name_in_group, number in (
            member.items() if isinstance(member, dict) else (("", member),)
        ):
            quantity = BY_NAME_IN_GROUP.get((group.name, name_in_group))
            if quantity is not None and number is not None:
                yield SampleKey(quantity.name, of), _check_number(quantity.name, number)


def _check_number(name: str, value: Any) -> float:
    if not _is_number(value):
        raise LineError(f"expected a number as {name}, got {value!r:.40}")
    number: float = value
    return number


def _is_number(value: object) -> bool:
    return type(value) in (int, float) and -_TOO_LARGE < value < _TOO_LARGE  # type: ignore[operator]


def _read_header(document: Mapping[str, Any]) -> SampleHeader:
    try:
        found = SampleHeader(**{field: document[field] for field in SampleHeader._fields})
    except KeyError as error:
        raise LineError(f"expected {error}") from None
    if not all(isinstance(part, str) for part in found[:-1]) or not _is_number(found[-1]):
        raise LineError("expected names, and a number as interval_seconds")
    return found


class SampleFile:
    """The samples of a gzip file of one or several members, as far as it has been written."""

    def __init__(self, path: Path) -> None:
        """Raises OSError."""
        self.path = path
        self.decoder = Decoder()
        self._file = path.open("rb", buffering=0)
        self._decompressor = zlib.decompressobj(_GZIP)
        self._partial_line = b""  # an incomplete line
        self._offset = 0  # offset up to which the file has been processed
        self._last_size = -1  # file size at the last read
        # Why nothing after this point can be read; "" also if it is only not written yet.
        self.damage = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def descriptor(self) -> int:
        return self._file.fileno()

    @property
    def is_being_written(self) -> bool:
        """Whether a writer has the file open: it holds a lock."""
        try:
            fcntl.flock(self.descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        fcntl.flock(self.descriptor, fcntl.LOCK_UN)
        return False

    def close(self) -> None:
        self._file.close()

    def lines(self) -> Iterator[bytes]:
        """The complete lines that are new since the last call; raises OSError."""
        size = os.fstat(self.descriptor).st_size
        if size == self._last_size:
            return
        self._last_size = size
        self._file.seek(self._offset)
        while not self.damage and self._offset < size - TRAILER_BYTES:
            compressed = self._file.read(min(_CHUNK_BYTES, size - TRAILER_BYTES - self._offset))
            self._offset += len(compressed)
            yield from self._decompressed_lines(compressed)
        if not self.damage:
            yield from self._tail_lines(self._file.read(TRAILER_BYTES))

    def _tail_lines(self, compressed: bytes) -> list[bytes]:
        """The lines in the last bytes; none while a writer replaces them."""
        decompressor, partial_line = self._decompressor.copy(), self._partial_line
        found = list(self._decompressed_lines(compressed))
        if (self.damage or not self._decompressor.eof) and self.is_being_written:
            found, self.damage = [], ""
        self._decompressor, self._partial_line = decompressor, partial_line
        return found

    def _decompressed_lines(self, compressed: bytes) -> Iterator[bytes]:
        while compressed and not self.damage:
            text, compressed = self._decompress(compressed)
            *complete, self._partial_line = (self._partial_line + text).split(b"\n")
            yield from complete
            if len(self._partial_line) > LONGEST_LINE:
                self.damage = f"a line of more than {LONGEST_LINE} bytes"

    def _decompress(self, compressed: bytes) -> tuple[bytes, bytes]:
        """Some text, and the remaining input: in parts, since a malicious file may expand a lot."""
        if self._decompressor.eof:
            self._decompressor = zlib.decompressobj(_GZIP)
        before = self._decompressor.copy()
        try:
            text = self._decompressor.decompress(compressed, _CHUNK_BYTES)
        except zlib.error as error:
            self.damage = f"not gzip after this point: {error}"
            return _decompress_until_damage(before, compressed), b""
        decompressor = self._decompressor
        return text, decompressor.unused_data if decompressor.eof else decompressor.unconsumed_tail

    @property
    def header(self) -> SampleHeader | None:
        """The job of the samples, from the first line; None if there is none yet."""
        return self.decoder.header

    @property
    def is_complete(self) -> bool:
        """Whether the file is complete: it was repacked."""
        return not os.fstat(self.descriptor).st_mode & 0o200

    @property
    def is_replaced(self) -> bool:
        """Whether another file has its name now, or none: it was repacked, or deleted."""
        try:
            there = self.path.stat()
        except OSError:
            return True
        mine = os.fstat(self.descriptor)
        return (there.st_dev, there.st_ino) != (mine.st_dev, mine.st_ino)

    def read(self) -> Iterator[JobSample]:
        """The samples that are new since the last call; raises OSError."""
        return (JobSample(at, dict(self.decoder.values)) for at in self.times())

    def times(self, since: float = -math.inf) -> Iterator[float]:
        """Like `read`, but cheaper: the time of each sample; its values are in `decoder.values`.

        Samples before `since`, but the first, may be left out.
        """
        if self.damage:
            return
        for line in self.lines():
            try:
                if self.header is not None and _time_of(line) < since:
                    continue
                yield self.decoder.advance(line)
            except LineError as error:
                self.damage = str(error)
                return


def _time_of(line: bytes) -> float:
    """The time at the beginning of a line, as `encode_line` writes it; else infinity."""
    key, _, rest = line[: len(_TIME_KEY) + 20].partition(_TIME_KEY)
    time, comma, _ = rest.partition(b",")
    is_time = not key and comma and time.replace(b".", b"", 1).isdigit()
    return float(time) if is_time else math.inf


def _decompress_until_damage(decompressor: "zlib._Decompress", compressed: bytes) -> bytes:
    """What can be decompressed before the damage; zlib itself discards it."""
    text = bytearray()
    with contextlib.suppress(zlib.error):
        for at in range(len(compressed)):
            text += decompressor.decompress(
                decompressor.unconsumed_tail + compressed[at : at + 1], _CHUNK_BYTES
            )
    return bytes(text)
