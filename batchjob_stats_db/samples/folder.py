"""The location of samples: `<samples>/<jobid>/<YYYYmmdd-HHMMSS>.jsonl.gz`, times in UTC."""

import hashlib
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from urllib.parse import quote, unquote

from batchjob.quantities.sample import SampleHeader
from batchjob_stats_db.samples.file import SampleFile
from batchjob_stats_db.samples.writer import SUFFIX

_PLAIN = "[]+,:@="  # not escaped in names, nor are letters, digits and -._~
_LONGEST = 200  # maximum bytes of a name; file systems allow 255


class NoSuchJob(ValueError):
    """No samples of an id, or of several ids with this prefix; the text says which."""


def folder_of(samples: Path, jobid: str) -> Path:
    """The folder of a job. Characters that no path may contain become %XX; a long id is cut."""
    name = quote(jobid, safe=_PLAIN, errors="surrogateescape")
    if name.startswith(".") or not name:
        name = f"%2E{name[1:]}" if name else "%"
    if len(name) > _LONGEST:
        digest = hashlib.sha256(jobid.encode("utf-8", "surrogateescape")).hexdigest()
        name = f"{name[:100]}%{digest}"
    return samples / name


def files_of(folder: Path) -> list[Path]:
    """The job's files, oldest first; none if there is no folder."""
    try:
        names = sorted(
            entry.name for entry in folder.iterdir()
            if entry.name.endswith(SUFFIX) and not entry.name.startswith(".")
        )  # fmt: skip
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [folder / name for name in names]


def folders(samples: Path) -> list[Path]:
    """The folders of all jobs; raises OSError."""
    try:
        return sorted(entry for entry in samples.iterdir() if entry.is_dir())
    except FileNotFoundError:
        return []


def owners(folder: Path) -> set[SampleHeader]:
    """The users of a folder's samples, as far as they can be read."""
    found = set()
    for path in files_of(folder):
        try:
            with SampleFile(path) as file:
                next(iter(file.times()), None)
                if file.who is not None:
                    found.add(file.who._replace(interval_seconds=0.0))
        except OSError:
            continue
    return found


def jobid_of(folder: Path) -> str:
    """The job id of a folder."""
    name = folder.name
    if len(name) > _LONGEST // 2 + 64:
        whole = {who.jobid for who in owners(folder)}
        if len(whole) == 1:
            return whole.pop()
    return unquote(name, errors="surrogateescape")


def matching(samples: Path, text: str, running: Iterable[str] = ()) -> str:
    """The id `text`, or the only id with this prefix; raises NoSuchJob, OSError."""
    known = sorted({*map(jobid_of, folders(samples)), *running})
    if text in known:
        return text
    found = [jobid for jobid in known if text and jobid.startswith(text)]
    if len(found) == 1:
        return found[0]
    if not found:
        raise NoSuchJob(f"no samples of a job {text!r} in {samples}")
    some = ", ".join(found[:10]) + (f" and {len(found) - 10} more" if len(found) > 10 else "")
    raise NoSuchJob(f"{text!r} matches the ids of {len(found)} jobs: {some}")


def remove(samples: Path, jobid: str) -> bool:
    """Delete a job's samples; False if there were none. Raises OSError."""
    folder = folder_of(samples, jobid)
    if not folder.is_dir():
        return False
    shutil.rmtree(folder)
    return True


def sizes(folder: Path) -> Iterator[tuple[float, int]]:
    """Time of the last change and size on disk of a folder's files."""
    for path in files_of(folder):
        try:
            status = path.stat()
        except OSError:
            continue
        yield status.st_mtime, status.st_blocks * 512
