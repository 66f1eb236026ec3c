"""Standard output and error of a run: `<data>/logs/<uuid>/<stream>.<number>.gz`.

Lines have the format of Kubernetes' container runtimes (CRI logging), which log shippers can read:
time, stream, `F` or `P` (the line continues in the next record), and the text as it was written:

    2026-04-04T12:53:20.123456Z stdout F epoch 1

A file is one gzip stream that is flushed about once a second, so that it can be read while the run
continues and after a crash. When a stream exceeds its limit, its second oldest file is deleted: the
beginning and the end are kept.
"""

import errno
import heapq
import os
import zlib
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from batchjob.local_runs.directory import plain_file

STREAMS = ("stdout", "stderr")
_FILES = 8  # files per stream; the first one and the newest ones are kept
_LONGEST_LINE = 64 << 10  # bytes; longer lines are split into several records
_AT_ONCE = 4 << 10  # bytes read at once; they decompress to at most a thousand times as much
_GZIP = 16 + zlib.MAX_WBITS
_LEVEL = 3  # compresses text to a quarter of its size, at 60 MB/s and more


class OutputLine(NamedTuple):
    """A record. `whole`: the line ends here, otherwise the stream's next record continues it."""

    at: float  # epoch seconds
    stream: str
    whole: bool
    text: bytes  # without the line feed
    after_gap: bool = False  # output before this line was dropped to stay within the size limit


class StreamLog:
    """Writes one stream; used by one thread. Methods raise OSError."""

    def __init__(self, directory: Path, stream: str, limit_bytes: int) -> None:
        self._directory = directory
        self._stream = stream
        self._file_limit = max(1, limit_bytes // _FILES)
        self._numbers: list[int] = []
        self._descriptor = -1
        self._written = 0
        self._rest = b""
        self.dirty = False
        self._packer = zlib.compressobj(_LEVEL, wbits=_GZIP)
        self._next_file(0)

    def add(self, data: bytes, at: float) -> None:
        """Append text that was written at a time."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._line(line, at)
        while len(self._rest) >= _LONGEST_LINE:
            self._record(self._rest[:_LONGEST_LINE], at, whole=False)
            self._rest = self._rest[_LONGEST_LINE:]
        self.dirty = True
        if self._written >= self._file_limit:
            self._next_file(self._numbers[-1] + 1)

    def flush(self, at: float) -> None:
        """Write everything to the file, including an incomplete line."""
        if self._rest:
            self._record(self._rest, at, whole=False)
            self._rest = b""
        if self.dirty:
            self._write(self._packer.flush(zlib.Z_SYNC_FLUSH))
            self.dirty = False

    def close(self, at: float) -> None:
        """Write the end."""
        try:
            self.flush(at)
            self._write(self._packer.flush(zlib.Z_FINISH))
        finally:
            os.close(self._descriptor)

    def _line(self, text: bytes, at: float) -> None:
        while len(text) > _LONGEST_LINE:
            self._record(text[:_LONGEST_LINE], at, whole=False)
            text = text[_LONGEST_LINE:]
        self._record(text, at, whole=True)

    def _record(self, text: bytes, at: float, whole: bool) -> None:
        mark = "F" if whole else "P"
        head = f"{_written_time(at)} {self._stream} {mark} ".encode("ascii")
        self._write(self._packer.compress(head + text + b"\n"))

    def _write(self, data: bytes) -> None:
        while data:
            count = os.write(self._descriptor, data)
            self._written += count
            data = data[count:]

    def _next_file(self, number: int) -> None:
        if self._numbers:
            self._write(self._packer.flush(zlib.Z_FINISH))
            os.close(self._descriptor)
        self._numbers.append(number)
        if len(self._numbers) > _FILES:
            _path(self._directory, self._stream, self._numbers.pop(1)).unlink(missing_ok=True)
        path = _path(self._directory, self._stream, number)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self._descriptor = os.open(path, flags, 0o600)
        self._packer = zlib.compressobj(_LEVEL, wbits=_GZIP)
        self._written = 0


def _path(directory: Path, stream: str, number: int) -> Path:
    return directory / f"{stream}.{number:06}.gz"


def _written_time(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def files(directory: Path, stream: str) -> list[tuple[int, Path]]:
    """Numbers and paths of a stream's files, oldest first; raises OSError."""
    found = []
    for path in directory.iterdir():
        name, _, number = path.name.removesuffix(".gz").partition(".")
        if name == stream and number.isdecimal():
            found.append((int(number), path))
    return sorted(found)


class Reader:
    """Reads one stream from its beginning, and later what has been added."""

    def __init__(self, directory: Path, stream: str, owner: int | None = None) -> None:
        """`owner`: the uid of the run; files of other users are not read. None: any owner."""
        self._directory = directory
        self._stream = stream
        self._owner = owner
        self._number = -1  # of the file being read
        self._gap = False
        self._offset = 0
        self._unpacker = zlib.decompressobj(_GZIP)
        self._rest = b""

    def read(self) -> Iterator[OutputLine]:
        """All lines that have not been read yet; raises OSError."""
        for number, path in files(self._directory, self._stream):
            if number < self._number:
                continue
            if number > self._number:
                self._gap = number > self._number + 1
                self._number, self._offset, self._rest = number, 0, b""
                self._unpacker = zlib.decompressobj(_GZIP)
            try:
                yield from self._read_file(path)
            except FileNotFoundError:  # removed while reading
                continue

    def _read_file(self, path: Path) -> Iterator[OutputLine]:
        with plain_file(path) as (file, status):
            if self._owner not in (None, status.st_uid):
                raise OSError(errno.EPERM, f"uid {status.st_uid} wrote it", str(path))
            file.seek(self._offset)
            while data := file.read(_AT_ONCE):
                self._offset += len(data)
                try:
                    text = self._rest + self._unpacker.decompress(data)
                except zlib.error:  # damaged: keep what was read so far
                    return
                *lines, self._rest = text.split(b"\n")
                if len(self._rest) > 2 * _LONGEST_LINE:  # not written by StreamLog
                    return
                for line in lines:
                    parsed = parse(line)
                    if parsed is not None:
                        yield parsed._replace(after_gap=self._gap)
                        self._gap = False


def merged(
    readers: Sequence[Reader], since: float | None, until: float | None
) -> Iterator[OutputLine]:
    """The new lines of several streams in order of time, from `since` to `until`."""
    lines = heapq.merge(*(reader.read() for reader in readers), key=lambda line: line.at)
    return (
        line
        for line in lines
        if (since is None or line.at >= since) and (until is None or line.at <= until)
    )


def parse(record: bytes) -> OutputLine | None:
    """Parse a record; None if it is not one."""
    at, _, rest = record.partition(b" ")
    stream, _, rest = rest.partition(b" ")
    mark, space, text = rest.partition(b" ")
    if not space or mark not in (b"F", b"P"):
        return None
    try:
        seconds = datetime.fromisoformat(at.decode("ascii")).timestamp()
        return OutputLine(seconds, stream.decode("ascii"), mark == b"F", text)
    except ValueError:
        return None
