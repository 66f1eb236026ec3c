"""The location of samples: `<samples>/<jobid>/<YYYYmmdd-HHMMSS>.jsonl.gz`, times in UTC."""

import hashlib
import shutil
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import quote, unquote

from batchjob.local_runs.directory import RUNS, SAMPLES
from batchjob.quantities.sample import SampleHeader
from batchjob_stats_db.samples.file import SampleFile
from batchjob_stats_db.samples.writer import SUFFIX

_UNESCAPED = "[]+,:@="  # not escaped in names, like letters, digits and -._~
_MAX_NAME_BYTES = 200  # file systems allow 255


def samples_problem(samples: Path) -> str:
    """Why there are no samples in a configured directory; "" if there are some.

    The directory that `up` made in its data directory may be empty: nothing has run yet.
    """
    try:
        has_jobs = any(each.is_dir() for each in samples.iterdir())
    except OSError as error:
        return f"{samples}: {error.strerror}"
    is_ours = samples.name == SAMPLES and (samples.parent / RUNS).is_dir()
    return "" if has_jobs or is_ours else f"{samples}: it contains samples of no job"


def folder_of(samples: Path, jobid: str) -> Path:
    """The folder of a job. Characters that no path may contain become %XX; a long id is cut."""
    name = quote(jobid, safe=_UNESCAPED, errors="surrogateescape")
    if name.startswith(".") or not name:
        name = f"%2E{name[1:]}" if name else "%"
    if len(name) > _MAX_NAME_BYTES:
        digest = hashlib.sha256(jobid.encode("utf-8", "surrogateescape")).hexdigest()
        name = f"{name[:100]}%{digest}"
    return samples / name


def files_of(folder: Path) -> list[Path]:
    """The job's files, oldest first; none if there is no folder."""
    try:
        names = sorted(
            entry.name
            for entry in folder.iterdir()
            if entry.name.endswith(SUFFIX) and not entry.name.startswith(".")
        )
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [folder / name for name in names]


def folders(samples: Path) -> list[Path]:
    """The folders of all jobs; raises OSError."""
    try:
        return sorted(entry for entry in samples.iterdir() if entry.is_dir())
    except FileNotFoundError:
        return []


def headers_of(folder: Path) -> set[SampleHeader]:
    """The distinct headers of a folder's files, as far as they can be read."""
    found = set()
    for path in files_of(folder):
        try:
            with SampleFile(path) as file:
                next(iter(file.times()), None)
                if file.header is not None:
                    found.add(file.header._replace(interval_seconds=0.0))
        except OSError:
            continue
    return found


def jobid_of(folder: Path) -> str:
    name = folder.name
    if len(name) > _MAX_NAME_BYTES // 2 + 64:
        full_ids = {header.jobid for header in headers_of(folder)}
        if len(full_ids) == 1:
            return full_ids.pop()
    return unquote(name, errors="surrogateescape")


def find_jobid(samples: Path, prefix: str, running: Iterable[str] = ()) -> str:
    """The id `prefix`, or else the only id with this prefix; raises ValueError, OSError."""
    known = sorted({*map(jobid_of, folders(samples)), *running})
    if prefix in known:
        return prefix
    matches = [jobid for jobid in known if prefix and jobid.startswith(prefix)]
    if len(matches) == 1:
        return matches[0]
    if not matches:
        raise ValueError(f"no samples of a job {prefix!r} in {samples}")
    some = ", ".join(matches[:10]) + (f" and {len(matches) - 10} more" if len(matches) > 10 else "")
    raise ValueError(f"{prefix!r} matches the ids of {len(matches)} jobs: {some}")


def delete_job(samples: Path, jobid: str) -> bool:
    """Delete a job's samples; False if there were none. Raises OSError."""
    folder = folder_of(samples, jobid)
    if not folder.is_dir():
        return False
    shutil.rmtree(folder)
    return True
