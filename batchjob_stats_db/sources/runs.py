"""Local runs, from the files that `batchjob run` writes (batchjob/runs.py has the form)."""

import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from batchjob.runs import RunFileError, alive, read
from batchjob.settings import option, text
from batchjob_stats_db.records import JobRecord, Quarantined
from batchjob_stats_db.sources.json_record import Decoded, decode
from batchjob_stats_db.sources.row import RowError, quarantined
from batchjob_stats_db.sources.source import Batch, SourceError, Unfinished, epoch_watermark, own

SOURCE = "runs"
_RUN_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII)
_BATCH = 2000
_OVERLAP = 5  # seconds; file systems' clocks are coarse


@dataclass(frozen=True)
class Options:
    """Local runs."""

    path: str = option("", "The directory of the runs' files, <data>/runs.", parse=text)


def build(cluster: str, options: Options) -> "Runs":
    """The source for one machine."""
    return Runs(cluster, options)


class Runs:
    """Reads the files that have changed, and looks whether unfinished runs still live."""

    name = SOURCE

    def __init__(
        self,
        cluster: str,
        options: Options,
        clock: Callable[[], float] = time.time,
        procfs: str = "/proc",
    ) -> None:
        self.cluster = cluster
        self._path = Path(options.path)
        self._clock = clock
        self._procfs = procfs
        self._node = os.uname().nodename

    def check(self) -> tuple[str, ...]:
        """See Source."""
        if os.access(self._path, os.R_OK | os.X_OK):
            return ()
        return (f"{self._path}: uid {os.geteuid()} may not list it, or it is not there",)

    def watermark_at(self, since: int) -> str:
        """Watermarks are epoch seconds: the files changed since then are read."""
        return str(since)

    def read(self, watermark: str, unfinished: Mapping[str, Unfinished]) -> Iterator[Batch]:
        """See Source."""
        now = int(self._clock())
        since = min(epoch_watermark(SOURCE, watermark), now) - _OVERLAP
        found: list[JobRecord] = []
        bad: list[Quarantined] = []
        for path in self._changed(since):
            try:
                job, complaints = self._record(path.stem, read(path))
            except FileNotFoundError:  # its retention ended meanwhile
                continue
            except (OSError, RunFileError, RowError) as error:
                bad.append(quarantined(SOURCE, f"{path.name}: {error}", _raw(path)))
                continue
            found.append(job)
            if complaints:
                bad.append(quarantined(SOURCE, "; ".join(complaints), _raw(path)))
        for at in range(0, len(found), _BATCH):
            yield Batch(tuple(found[at : at + _BATCH]), (), watermark, since)
        ended = {job.jobid for job in found if not job.state.live}
        mine = own(unfinished, _RUN_ID)
        gone = tuple(jobid for jobid in mine if jobid not in ended and self._gone(jobid))
        yield Batch((), tuple(bad), str(now), now, gone)

    def _changed(self, since: int) -> list[Path]:
        try:
            with os.scandir(self._path) as entries:
                changed = [
                    (entry.stat().st_mtime, entry.path)
                    for entry in entries
                    if entry.name.endswith(".json") and not entry.name.startswith(".")
                ]
        except OSError as error:
            raise SourceError(f"{self._path}: {error.strerror}") from error
        return [Path(path) for at, path in sorted(changed) if at >= since]

    def _record(self, jobid: str, document: dict[str, Any]) -> Decoded:
        if document.get("jobid") != jobid:
            raise RowError("jobid: expected the file's name")
        node = document.get("node")
        share = {
            "node": node,
            "cpus": document.get("allocated_cpus"),
            "memory_bytes": document.get("allocated_memory_bytes"),
            "gpus": document.get("allocated_gpus"),
        }
        kept = {k: v for k, v in document.items() if k not in ("version", "supervisor", "node")}
        job, complaints = decode(kept | {"nodes": [share]}, self.cluster, SOURCE)
        return Decoded(_summed(job)._replace(node_list=str(node), allocated_nodes=1), complaints)

    def _gone(self, jobid: str) -> bool:
        """Whether a run ended without anybody to write it down: killed, or the machine went down.

        Of a run on another machine that shares the directory we cannot tell.
        """
        try:
            document = read(self._path / f"{jobid}.json")
        except FileNotFoundError:
            return True
        except (OSError, RunFileError):
            return False
        return document.get("node") == self._node and not alive(document, self._procfs)


def _summed(job: JobRecord) -> JobRecord:
    if job.end_time is None or job.start_time is None:
        return job
    parts = (job.user_cpu_seconds, job.system_cpu_seconds)
    cpu = None if None in parts else sum(part or 0.0 for part in parts)
    return job._replace(elapsed_seconds=max(0, job.end_time - job.start_time), cpu_seconds=cpu)


def _raw(path: Path) -> str:
    try:
        return path.read_bytes()[:10_000].decode("utf-8", "backslashreplace")
    except OSError:
        return ""
