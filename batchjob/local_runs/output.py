"""Standard output and error of a run: `<data>/logs/<uuid>/<stream>.<number>.gz`.

Lines have the format of Kubernetes' container runtimes (CRI logging), which log shippers can read:
time, stream, `F` or `P` (the line continues in the next record), and the text as it was written:

    2026-04-04T12:53:20.123456Z stdout F epoch 1

A file is one gzip stream that is flushed about once a second, so that it can be read while the run
continues and after a crash. Each flush is a full one (zlib's manual, Z_FULL_FLUSH): reading can
start behind it, so that the last lines cost the last bytes. When a stream exceeds its limit, its
second oldest file is deleted: the beginning and the end are kept.
"""

import errno
import heapq
import math
import os
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import chain, islice, takewhile
from pathlib import Path
from typing import BinaryIO, NamedTuple

from batchjob.runtime.user_files import create_file, list_directory, open_regular_file

STREAMS = ("stdout", "stderr")
_MAX_FILES = 8  # files per stream; the first one and the newest ones are kept
_MAX_LISTED_FILES, _MAX_DIGITS = 1000, 18  # of a directory that others may have filled
_MAX_LINE_BYTES = 64 << 10  # bytes; longer lines are split into several records
_READ_BYTES = 4 << 10  # bytes read at once
_TEXT_BYTES = 256 << 10  # bytes of text unpacked at once, whatever they were packed to
_BLOCK_TEXT_BYTES = 1 << 20  # bytes of text between two full flushes
_MAX_FOREIGN_LINES = 1000  # lines that are no records, after which a file is not a log
_MAX_SEARCHED_BYTES = 16 << 20  # bytes read and unpacked to find the last lines of a stream
_USUAL_LINE_BYTES = 256
_MAX_RESTARTS = 1000  # places tried in this search, and two for each line
_MAX_CLOCK_STEP_SECONDS = 60.0  # by which a line may be older than the one before it
_FLUSHED = b"\0\0\xff\xff"  # the empty stored block of a flush (RFC 1951, 3.2.4)
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
        self._block_text_bytes = 0  # since the last full flush
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
        if self._incomplete_line:
            self._write_record(self._incomplete_line, at, is_complete=False)
            self._incomplete_line = b""
        if self.dirty:
            self._flush_block()
            self.dirty = False

    def close(self, at: float) -> None:
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
        time = datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        head = f"{time} {self._stream} {mark} ".encode("ascii")
        self._write(self._compressor.compress(head + text + b"\n"))
        self._block_text_bytes += len(head) + len(text) + 1
        if self._block_text_bytes >= _BLOCK_TEXT_BYTES:
            self._flush_block()

    def _flush_block(self) -> None:
        self._write(self._compressor.flush(zlib.Z_FULL_FLUSH))
        self._block_text_bytes = 0

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
        self._descriptor = create_file(_file_path(self._directory, self._stream, number))
        self._compressor = zlib.compressobj(_COMPRESSION_LEVEL, wbits=_GZIP_WBITS)
        self._file_bytes = 0


def _file_path(directory: Path, stream: str, number: int) -> Path:
    return directory / f"{stream}.{number:06}.gz"


def list_files(directory: Path, stream: str) -> list[tuple[int, Path]]:
    """Numbers and paths of a stream's files, oldest first; raises OSError."""
    found = []
    for path, _ in list_directory(directory):
        name, _, number = path.name.removesuffix(".gz").partition(".")
        if name == stream and number.isdecimal() and len(number) < _MAX_DIGITS:
            found.append((int(number), path))
    return sorted(found)[-_MAX_LISTED_FILES:]


class Reader:
    """Reads one stream from its beginning, and later what has been added."""

    def __init__(self, directory: Path, stream: str, owner: int | None = None) -> None:
        """`owner`: the uid of the run; files of other users are not read. None: any owner."""
        self._directory = directory
        self._stream = stream
        self._owners = None if owner is None else (owner,)
        self._file_number = -1  # of the file being read
        self._after_gap = False
        self._offset = 0
        self._decompressor = _decompressor(0)
        self._incomplete_line = b""
        self._deadline = math.inf  # in monotonic seconds

    def limit_time(self, seconds: float) -> None:
        """Raise TimeoutError, an OSError, where reading goes on for longer than this from now."""
        self._deadline = time.monotonic() + seconds

    def seek_to_last(self, count: int, until: float | None = None) -> None:
        """Skip to a place before the last `count` lines, of those up to `until`; raises OSError.

        The newest place that can be found within the limits, if its file is too large or is none
        that StreamLog wrote. If the file has fewer lines, they are all that is read.
        """
        budget = _Budget(_MAX_SEARCHED_BYTES + _USUAL_LINE_BYTES * count, self._check_time)
        for number, path in reversed(list_files(self._directory, self._stream)):
            with open_regular_file(path, self._owners) as (file, _):
                offset, found = _find_last_lines(file, count, until, budget)
            self._file_number, self._offset = number, offset
            self._decompressor = _decompressor(offset)
            count -= found
            if offset or count < 0:
                return

    def read(self) -> Iterator[OutputLine]:
        """All lines that have not been read yet; raises OSError."""
        for number, path in list_files(self._directory, self._stream):
            if number < self._file_number:
                continue
            if number > self._file_number:
                self._after_gap = number > self._file_number + 1
                self._file_number, self._offset, self._incomplete_line = number, 0, b""
                self._decompressor = _decompressor(0)
            try:
                yield from self._read_file(path)
            except FileNotFoundError:  # removed while reading
                continue

    def _check_time(self) -> None:
        if time.monotonic() > self._deadline:
            raise TimeoutError(errno.ETIMEDOUT, "reading took too long", str(self._directory))

    def _read_file(self, path: Path) -> Iterator[OutputLine]:
        foreign = 0
        with open_regular_file(path, self._owners) as (file, _):
            file.seek(self._offset)
            for text in self._unpack(file):
                *lines, self._incomplete_line = (self._incomplete_line + text).split(b"\n")
                if len(self._incomplete_line) > 2 * _MAX_LINE_BYTES:  # not written by StreamLog
                    return
                for line in lines:
                    parsed = parse_record(line)
                    if parsed is not None:
                        yield parsed._replace(after_gap=self._after_gap)
                        self._after_gap = False
                    elif (foreign := foreign + 1) > _MAX_FOREIGN_LINES:
                        return

    def _unpack(self, file: BinaryIO) -> Iterator[bytes]:
        """The text of a file from here on, in parts of limited size; it ends at any damage."""
        while data := self._decompressor.unconsumed_tail or file.read(_READ_BYTES):
            self._check_time()
            if not self._decompressor.unconsumed_tail:
                self._offset += len(data)
            try:
                yield self._decompressor.decompress(data, _TEXT_BYTES)
            except zlib.error:  # damaged: keep what was read so far
                return
            if self._decompressor.eof:
                return


def _decompressor(offset: int) -> "zlib._Decompress":
    """For a file from its beginning, or from behind a full flush, where no header is."""
    return zlib.decompressobj(_GZIP_WBITS if offset == 0 else -zlib.MAX_WBITS)


class _Budget:
    """What a search may still read and unpack.

    Both count: a packed file may have much text, and a sparse one much to read and no text.
    """

    def __init__(self, bytes_left: int, check_time: Callable[[], None]) -> None:
        self.bytes_left = bytes_left
        self._check_time = check_time

    def read(self, file: BinaryIO, size: int) -> bytes:
        """The next bytes of a file, none when the budget is spent; raises TimeoutError."""
        self._check_time()
        data = file.read(size) if self.bytes_left > 0 else b""
        self.bytes_left -= len(data)
        return data

    def unpack(self, decompressor: "zlib._Decompress", data: bytes) -> bytes:
        """Some of their text; raises TimeoutError, zlib.error."""
        self._check_time()
        text = decompressor.decompress(data, _TEXT_BYTES)
        self.bytes_left -= len(text)
        return text


def _find_last_lines(
    file: BinaryIO, count: int, until: float | None, budget: _Budget
) -> tuple[int, int]:
    """The offset of a place before the last lines of a file, and how many lines follow it.

    0 if the whole file has no more; the newest place that was found if the limits were reached.
    With `until`, lines after it are not counted, nor are those of the block that contains it.
    """
    place = end = file.seek(0, os.SEEK_END)
    found = 0
    if until is not None:
        first, _ = _count_lines(file, 0, end, budget, until)
        if first is not None and first.at > until:
            return 0, 0
    flushes = islice(_flushes_from_end(file, end, budget), _MAX_RESTARTS + 2 * count)
    for start in chain(flushes, (0,)):
        first, lines = _count_lines(file, start, end, budget, until)
        if budget.bytes_left <= 0:
            break
        if first is not None:
            place = end = start
            if until is None:
                found += lines
            elif first.at <= until:
                until = None
        if found > count:
            break
    return place if until is None else 0, found


def _flushes_from_end(file: BinaryIO, end: int, budget: _Budget) -> Iterator[int]:
    """The offsets behind what may be flushes, the last first, as far as the budget reaches."""
    overlap = len(_FLUSHED) - 1
    while end > overlap:
        begin = max(0, end - _TEXT_BYTES)
        file.seek(begin)
        window = budget.read(file, end - begin)
        if not window:
            return
        at = len(window)
        while (at := window.rfind(_FLUSHED, 0, at + overlap)) >= 0:
            yield begin + at + len(_FLUSHED)
        end = begin + overlap if begin else 0


def _count_lines(
    file: BinaryIO, start: int, end: int, budget: _Budget, until: float | None
) -> tuple[OutputLine | None, int]:
    """The first line between two places, and how many there are.

    None if they are no records. A long line that was stored in parts counts once, and perhaps not
    at all. With `until`, they are not counted.
    """
    decompressor, lines = _decompressor(start), 0
    first: OutputLine | None = None
    file.seek(start)
    while budget.bytes_left > 0 and not decompressor.eof:
        data = decompressor.unconsumed_tail or budget.read(
            file, min(_READ_BYTES, end - file.tell())
        )
        if not data:
            break
        try:
            text = budget.unpack(decompressor, data)
        except zlib.error:
            return None, 0
        if text and first is None:
            first = parse_record(text.partition(b"\n")[0])
            if first is None or until is not None:
                return first, 0
        lines += text.count(b"\n") - text.count(b" P ")
    return first, max(0, lines)


def merge_streams(
    readers: Sequence[Reader], since: float | None, until: float | None
) -> Iterator[OutputLine]:
    """The new lines of several streams in order of time, from `since` to `until`."""
    lines: Iterator[OutputLine] = heapq.merge(
        *(reader.read() for reader in readers), key=lambda line: line.at
    )
    if until is not None:  # a little is read beyond it, since clocks are set back
        lines = takewhile(lambda line: line.at <= until + _MAX_CLOCK_STEP_SECONDS, lines)
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
