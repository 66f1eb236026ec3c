"""A job's samples from the first one on, and then new ones as they arrive."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from batchjob.quantities.sample import END, JobSample, SampleHeader
from batchjob_stats_db.samples.file import SampleFile
from batchjob_stats_db.samples.folder import files_of, folder_of

_PATIENCE_SECONDS = 2.0


class SamplePair(NamedTuple):
    """A sample, and the previous one on the same node."""

    header: SampleHeader
    sample: JobSample
    before: JobSample | None


class Replay:
    """Reads all files of one job in order; each call returns what is new."""

    def __init__(
        self, samples: Path, jobid: str, wanted: Callable[[SampleHeader], bool] = lambda _: True
    ) -> None:
        """`wanted`: selects samples, since several users may have used an id."""
        self.damages: list[str] = []
        self._folder = folder_of(samples, jobid)
        self._wanted = wanted
        self._open: dict[Path, SampleFile] = {}
        self._done: set[Path] = set()
        self._last: dict[tuple[str, ...], SamplePair] = {}
        self._last_path: dict[tuple[str, ...], Path] = {}  # the file of the last sample

    def close(self) -> None:
        """Close all open files."""
        for file in self._open.values():
            file.close()
        self._open.clear()

    def read(self) -> Iterator[SamplePair]:
        """The samples that are new since the last call; raises OSError."""
        for path in files_of(self._folder):
            if path in self._done:
                continue
            file = self._open.get(path) or SampleFile(path)
            self._open[path] = file
            # Check before reading, so that the old file is read to its end.
            replaced = file.is_replaced
            for sample in file.read():
                if (pair := self._next_pair(path, file.header, sample)) is not None:
                    yield pair
            if file.damage:
                self.damages.append(f"{path}: partly read: {file.damage}")
            if file.damage or file.is_complete or replaced:
                self._done.add(path)
                self._open.pop(path).close()

    @property
    def has_samples(self) -> bool:
        """Whether there has been a sample."""
        return bool(self._last)

    def is_over(self, now: float) -> bool:
        """Whether no more samples are expected: the job has ended, or is no longer recorded."""
        if any(file.is_being_written for file in self._open.values()):
            return bool(self._last) and all(END in x.sample.values for x in self._last.values())
        return all(
            END in pair.sample.values
            or now - pair.sample.at > 3 * pair.header.interval_seconds + _PATIENCE_SECONDS
            for pair in self._last.values()
        )

    def _next_pair(
        self, path: Path, header: SampleHeader | None, sample: JobSample
    ) -> SamplePair | None:
        if header is None or not self._wanted(header):
            return None
        key = header[:4]
        last = self._last.get(key)
        if last is not None and sample.at <= last.sample.at and path != self._last_path[key]:
            return None  # already recorded, by another recorder
        pair = SamplePair(header, sample, last and last.sample)
        self._last[key], self._last_path[key] = pair, path
        return pair
