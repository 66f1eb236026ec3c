"""Follows log files across rotation, by inode and offset.

A watermark is `{"inode", "offset", "head"}` of the file that was being read, where `head` is a
digest of its beginning (inodes are reused after a file is deleted), or `{"since"}` at first.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from batchjob.runtime.json_reader import parse_json
from batchjob.schedulers.accounting import SourceError

CUT = "the file ends within this record"
_CHUNK_LINES = 2000  # lines per chunk
_CHUNK_BYTES = 16 * 1024 * 1024  # of the lines of a chunk, without the last one
_MAX_LINE_BYTES = 64 * 1024 * 1024  # maximum bytes of a line; longer lines are split
_HEAD_BYTES = 1024


Chunk = tuple[tuple[bytes, ...], str, bool]
"""Lines without line ends, the watermark after them, and whether the file ends within the last."""


def watermark_since(since: int) -> str:
    """The watermark that starts with the files changed since a time (epoch seconds)."""
    return json.dumps({"since": since})


def follow(
    files: Sequence[Path], watermark: str, begins_record: Callable[[bytes], bool] = lambda _: True
) -> Iterator[Chunk]:
    """Whole lines after the watermark; `files` are in the order in which they were written.

    A chunk ends before a line for which `begins_record` is true, and at the end of its file. An
    incomplete last line is left for later, unless a newer file follows: then it is cut. If the file
    of the watermark and its copies are gone, all files are read: repeated records are harmless.

    Raises SourceError for files that cannot be read.
    """
    if not files:
        raise SourceError("no log file to read")
    unread, offset = _unread_files(files, parse_watermark(watermark))
    for index, path in enumerate(unread):
        last = index == len(unread) - 1
        try:
            with path.open("rb") as file:
                yield from _read_chunks(file, 0 if index else offset, begins_record, last=last)
        except FileNotFoundError:
            # The file was renamed in the meantime. The last watermark still finds it.
            return
        except OSError as error:
            raise SourceError(f"{path}: {error.strerror}") from error


def _unread_files(files: Sequence[Path], state: dict[str, Any]) -> tuple[list[Path], int]:
    """The files that have not been read yet, and the offset in the first of them."""
    try:
        if "since" in state:
            changed = [path for path in files if path.stat().st_mtime >= state["since"]]
            return changed or list(files[-1:]), 0
        inode, offset, head = int(state["inode"]), int(state["offset"]), str(state["head"])
        same_inode = [path.stat().st_ino == inode for path in files]
        for index in sorted(range(len(files)), key=lambda candidate: not same_inode[candidate]):
            # The copy of a file that was then truncated has a different inode.
            if same_inode[index] or offset >= _HEAD_BYTES:
                with files[index].open("rb") as file:
                    is_long_enough = os.fstat(file.fileno()).st_size >= offset
                    if is_long_enough and _head_digest(file, offset) == head:
                        return list(files[index:]), offset
    except (KeyError, ValueError, TypeError) as error:
        raise SourceError(f"not a watermark of a log: {json.dumps(state)[:80]}") from error
    except OSError as error:
        raise SourceError(f"{error.filename}: {error.strerror}") from error
    return list(files), 0


def parse_watermark(watermark: str) -> dict[str, Any]:
    """The parts of a watermark, a source's own included; raises SourceError."""
    try:
        state = parse_json(watermark)
    except ValueError as error:
        raise SourceError(f"not a watermark of a log: {watermark[:80]!r}") from error
    return state if isinstance(state, dict) else {}


def _head_digest(file: BinaryIO, offset: int) -> str:
    file.seek(0)
    return hashlib.sha256(file.read(min(_HEAD_BYTES, offset))).hexdigest()[:16]


def _read_chunks(
    file: BinaryIO, offset: int, begins_record: Callable[[bytes], bool], *, last: bool
) -> Iterator[Chunk]:
    inode = os.fstat(file.fileno()).st_ino
    lines: list[bytes] = []
    is_complete, begin = True, offset
    file.seek(offset)
    while line := file.readline(_MAX_LINE_BYTES):
        is_complete = line.endswith(b"\n") or len(line) == _MAX_LINE_BYTES
        if not is_complete and last:
            break
        is_full = len(lines) >= _CHUNK_LINES or offset - begin >= _CHUNK_BYTES
        if is_full and begins_record(line):
            yield tuple(lines), _format_watermark(file, inode, offset), False
            file.seek(offset + len(line))
            lines, begin = [], offset
        offset += len(line)
        lines.append(line.rstrip(b"\r\n"))
    is_cut = bool(lines) and not is_complete and not last
    yield tuple(lines), _format_watermark(file, inode, offset), is_cut


def _format_watermark(file: BinaryIO, inode: int, offset: int) -> str:
    return json.dumps({"inode": inode, "offset": offset, "head": _head_digest(file, offset)})


NO_PATH = "path is missing; expected a file or directory to read"


def check_readable(list_files: Callable[[], Sequence[Path]], location: str) -> tuple[str, ...]:
    """For `AccountingSource.check()`: why the logs cannot be read, and what to grant.

    `list_files` lists them, or raises SourceError.
    """
    if location == ".":  # Path("")
        return (NO_PATH,)
    try:
        paths = list_files()
    except SourceError as error:
        return (str(error),)
    if not paths:
        return (f"{location}: no log file found (check the path and its permissions)",)
    newest = paths[-1]
    if newest.is_dir():
        return (f"{newest}: is a directory; expected a file",)
    if os.access(newest, os.R_OK):
        return ()
    user = os.geteuid()
    return (
        f"{newest}: uid {user} may not read it; grant access with `setfacl -m u:{user}:rX "
        f"{newest.parent} {newest}` and, for new files, "
        f"`setfacl -d -m u:{user}:r {newest.parent}`",
    )
