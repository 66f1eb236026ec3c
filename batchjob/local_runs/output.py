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

from batchjob.local_runs.directory import open_regular_file

STREAMS = ("stdout", "stderr")
_MAX_FILES = 8  # files per stream; the first one and the newest ones are kept
_MAX_LINE_BYTES = 64 << 10  # bytes; longer lines are split into several records
_READ_BYTES = 4 << 10  # bytes read at once; they decompress to at most a thousand times as much
_GZIP_WBITS = 16 + zlib.MAX_WBITS
_COMPRESSION_LEVEL = 3  # compresses text to a quarter of its size, at 60 MB/s and more


class OutputLine(NamedTuple):
    """A record. `is_complete`: the line ends here; else the stream's next record continues it."""

    at: float  # epoch seconds
    stream: str
    is_complete: bool
    text: bytes  # without the line feed
    after_gap: bool = False  # output before this line was dropped to stay within the size limit


class StreamLog:
    """Writes one stream; used by one thread. Methods raise OSError."""

    def __init__(self, directory: Path, stream: str, limit_bytes: int) -> None:
        self._directory = directory
        self._stream = stream
        self._max_file_bytes = max(1, limit_bytes // _MAX_FILES)
        self._file_numbers: list[int] = []
        self._descriptor = -1
        self._file_bytes = 0
        self._incomplete_line = b""
        self.dirty = False
        self._compressor = zlib.compressobj(_COMPRESSION_LEVEL, wbits=_GZIP_WBITS)
        self._start_file(0)

    def add(self, data: bytes, at: float) -> None:
        """Append text that was written at the time `at`."""
        *lines, self._incomplete_line = (self._incomplete_line + data).split(b"\n")
        for line in lines:
            self._write_line(line, at)
        while len(self._incomplete_line) >= _MAX_LINE_BYTES:
            self._write_record(self._incomplete_line[:_MAX_LINE_BYTES], at, is_complete=False)
            self._incomplete_line = self._incomplete_line[_MAX_LINE_BYTES:]
        self.dirty = True
        if self._file_bytes >= self._max_file_bytes:
            self._start_file(self._file_numbers[-1] + 1)

    def flush(self, at: float) -> None:
        """Write everything to the file, including an incomplete line."""
        if self._incomplete_line:
            self._write_record(self._incomplete_line, at, is_complete=False)
            self._incomplete_line = b""
        if self.dirty:
            self._write(self._compressor.flush(zlib.Z_SYNC_FLUSH))
            self.dirty = False

    def close(self, at: float) -> None:
        """Write everything, and close the file."""
        try:
            self.flush(at)
            self._write(self._compressor.flush(zlib.Z_FINISH))
        finally:
            os.close(self._descriptor)

    def _write_line(self, text: bytes, at: float) -> None:
        while len(text) > _MAX_LINE_BYTES:
            self._write_record(text[:_MAX_LINE_BYTES], at, is_complete=False)
            text = text[_MAX_LINE_BYTES:]
        self._write_record(text, at, is_complete=True)

    def _write_record(self, text: bytes, at: float, is_complete: bool) -> None:
        mark = "F" if is_complete else "P"
        head = f"{_format_time(at)} {self._stream} {mark} ".encode("ascii")
        self._write(self._compressor.compress(head + text + b"\n"))

    def _write(self, data: bytes) -> None:
        while data:
            count = os.write(self._descriptor, data)
            self._file_bytes += count
            data = data[count:]

    def _start_file(self, number: int) -> None:
        if self._file_numbers:
            self._write(self._compressor.flush(zlib.Z_FINISH))
            os.close(self._descriptor)
        self._file_numbers.append(number)
        if len(self._file_numbers) > _MAX_FILES:
            _file_path(self._directory, self._stream, self._file_numbers.pop(1)).unlink(
                missing_ok=True
            )
        path = _file_path(self._directory, self._stream, number)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self._descriptor = os.open(path, flags, 0o600)
        self._compressor = zlib.compressobj(_COMPRESSION_LEVEL, wbits=_GZIP_WBITS)
        self._file_bytes = 0


def _file_path(directory: Path, stream: str, number: int) -> Path:
    return directory / f"{stream}.{number:06}.gz"


def _format_time(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def list_files(directory: Path, stream: str) -> list[tuple[int, Path]]:
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
        self._file_number = -1  # of the file being read
        self._after_gap = False
        self._offset = 0
        self._decompressor = zlib.decompressobj(_GZIP_WBITS)
        self._incomplete_line = b""

    def read(self) -> Iterator[OutputLine]:
        """All lines that have not been read yet; raises OSError."""
        for number, path in list_files(self._directory, self._stream):
            if number < self._file_number:
                continue
            if number > self._file_number:
                self._after_gap = number > self._file_number + 1
                self._file_number, self._offset, self._incomplete_line = number, 0, b""
                self._decompressor = zlib.decompressobj(_GZIP_WBITS)
            try:
                yield from self._read_file(path)
            except FileNotFoundError:  # removed while reading
                continue

    def _read_file(self, path: Path) -> Iterator[OutputLine]:
        with open_regular_file(path) as (file, status):
            if self._owner not in (None, status.st_uid):
                raise OSError(errno.EPERM, f"uid {status.st_uid} wrote it", str(path))
            file.seek(self._offset)
            while data := file.read(_READ_BYTES):
                self._offset += len(data)
                try:
                    text = self._incomplete_line + self._decompressor.decompress(data)
                except zlib.error:  # damaged: keep what was read so far
                    return
                *lines, self._incomplete_line = text.split(b"\n")
                if len(self._incomplete_line) > 2 * _MAX_LINE_BYTES:  # not written by StreamLog
                    return
                for line in lines:
                    parsed = parse_record(line)
                    if parsed is not None:
                        yield parsed._replace(after_gap=self._after_gap)
                        self._after_gap = False


def merge_streams(
    readers: Sequence[Reader], since: float | None, until: float | None
) -> Iterator[OutputLine]:
    """The new lines of several streams in order of time, from `since` to `until`."""
    lines = heapq.merge(*(reader.read() for reader in readers), key=lambda line: line.at)
    return (
        line
        for line in lines
        if (since is None or line.at >= since) and (until is None or line.at <= until)
    )


def parse_record(record: bytes) -> OutputLine | None:
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
