"""Follows log files across rotation, by inode and offset.

A watermark is `{"inode", "offset", "head"}` of the file that was being read, where `head` is a
digest of its beginning (inodes are reused after a file is deleted), or `{"since"}` at first.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from batchjob.schedulers.accounting import SourceError

_LINES = 2000  # lines per chunk
_LONGEST = 64 * 1024 * 1024  # maximum bytes of a line; longer lines are split
_HEAD = 1024


class Chunk(NamedTuple):
    """Some lines, without line ends, and the watermark after them."""

    lines: tuple[bytes, ...]
    watermark: str


class _Mark(NamedTuple):
    inode: int
    offset: int
    head: str


def watermark_since(since: int) -> str:
    """The watermark that starts with the files changed since a time (epoch seconds)."""
    return json.dumps({"since": since})


def follow(
    files: Sequence[Path],
    watermark: str,
    begins: Callable[[bytes], bool] = lambda _: True,
) -> Iterator[Chunk]:
    """Whole lines after the watermark; `files` are in the order in which they were written.

    A chunk ends before a line that `begins` a record, and at the end of its file. An incomplete
    last line is left for later, unless a newer file follows. If the file of the watermark and its
    copies are gone, all files are read: repeated records do no harm, missing ones do.

    Raises SourceError for files that cannot be read.
    """
    if not files:
        raise SourceError("no log file to read")
    todo, mark = _todo(files, _parsed(watermark))
    for at, path in enumerate(todo):
        last = at == len(todo) - 1
        try:
            with path.open("rb") as file:
                offset = mark.offset if mark is not None and at == 0 else 0
                yield from _chunks(file, offset, begins, last=last)
        except FileNotFoundError:
            # The file was renamed in the meantime. The last watermark still finds it.
            return
        except OSError as error:
            raise SourceError(f"{path}: {error.strerror}") from error


def _todo(files: Sequence[Path], known: dict[str, Any]) -> tuple[list[Path], _Mark | None]:
    """The files that have not been read yet, and the offset in the first of them."""
    try:
        if "since" in known:
            fresh = [path for path in files if path.stat().st_mtime >= known["since"]]
            return fresh or list(files[-1:]), None
        mark = _Mark(int(known["inode"]), int(known["offset"]), str(known["head"]))
        marked = [path.stat().st_ino == mark.inode for path in files]
        for at in sorted(range(len(files)), key=lambda each: not marked[each]):
            # The copy of a file that was then truncated has a different inode.
            if (marked[at] or mark.offset >= _HEAD) and _begins_as(files[at], mark):
                return list(files[at:]), mark
    except (KeyError, ValueError, TypeError) as error:
        raise SourceError(f"not a watermark of a log: {json.dumps(known)[:80]}") from error
    except OSError as error:
        raise SourceError(f"{error.filename}: {error.strerror}") from error
    return list(files), None


def _begins_as(path: Path, mark: _Mark) -> bool:
    """Whether the file begins with what had been read of the watermark's file."""
    with path.open("rb") as file:
        return os.fstat(file.fileno()).st_size >= mark.offset and (
            _head(file, mark.offset) == mark.head
        )


def _parsed(watermark: str) -> dict[str, Any]:
    try:
        known = json.loads(watermark)
    except ValueError as error:
        raise SourceError(f"not a watermark of a log: {watermark[:80]!r}") from error
    return known if isinstance(known, dict) else {}


def _head(file: BinaryIO, offset: int) -> str:
    file.seek(0)
    return hashlib.sha256(file.read(min(_HEAD, offset))).hexdigest()[:16]


def _chunks(
    file: BinaryIO, offset: int, begins: Callable[[bytes], bool], *, last: bool
) -> Iterator[Chunk]:
    inode = os.fstat(file.fileno()).st_ino
    lines: list[bytes] = []
    file.seek(offset)
    while line := file.readline(_LONGEST):
        whole = line.endswith(b"\n") or len(line) == _LONGEST
        if not whole and last:
            break
        if len(lines) >= _LINES and begins(line):
            yield Chunk(tuple(lines), _text(file, inode, offset))
            file.seek(offset + len(line))
            lines = []
        offset += len(line)
        lines.append(line.rstrip(b"\r\n"))
    yield Chunk(tuple(lines), _text(file, inode, offset))


def _text(file: BinaryIO, inode: int, offset: int) -> str:
    return json.dumps(_Mark(inode, offset, _head(file, offset))._asdict())


def unreadable(files: Callable[[], Sequence[Path]], where: str) -> tuple[str, ...]:
    """For check(): why the logs cannot be read, in a line with what to grant.

    `files` lists them, or raises SourceError.
    """
    try:
        found = files()
    except SourceError as error:
        return (str(error),)
    if not found:
        return (f"{where}: no log file found (check the path and its permissions)",)
    newest = found[-1]
    if os.access(newest, os.R_OK):
        return ()
    user = os.geteuid()
    return (
        f"{newest}: uid {user} may not read it; grant access with `setfacl -m u:{user}:rX "
        f"{newest.parent} {newest}` and, for new files, "
        f"`setfacl -d -m u:{user}:r {newest.parent}`",
    )
