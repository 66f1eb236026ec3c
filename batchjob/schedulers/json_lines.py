"""Jobs of other systems, as JSON lines in append-only files (format: json_record.py)."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from batchjob.runtime.json_reader import parse_json
from batchjob.runtime.settings import option
from batchjob.schedulers.accounting import AccountingModule, Batch, SourceError, UnfinishedJob
from batchjob.schedulers.fields import RowError, quarantined_row, row_problem
from batchjob.schedulers.json_record import decode
from batchjob.schedulers.log_follower import check_readable, follow, watermark_since
from batchjob.schedulers.reallocation import held_beyond
from batchjob.schedulers.records import (
    RAW_LIMIT,
    JobRecord,
    QuarantinedRow,
    merge_by_key,
    run_time,
    withdraws_allocation,
)

_SOURCE = "jsonl"
_MAX_LINE_BYTES = 16 * 1024 * 1024  # parsed JSON takes up to 25 times as much memory


@dataclass(frozen=True)
class JsonLinesOptions:
    path: str = option(
        "", "A file, or a directory of *.jsonl files whose names sort in the order of writing."
    )


def job_record(document: Any, cluster: str) -> tuple[JobRecord, tuple[str, ...]]:
    """The record of a line, and what of it could not be used; raises RowError for no job."""
    job, parse_errors = decode(document, cluster, _SOURCE)
    if job.start_time is not None and job.end_time is not None:
        elapsed, suspended = run_time(
            job.start_time, job.end_time, job.elapsed_seconds, job.suspended_seconds
        )
        job = job._replace(elapsed_seconds=elapsed, suspended_seconds=suspended)
    if withdraws_allocation(job.allocated_cpus, job.resized_cpu_seconds):  # not by a partial line
        job = job._replace(resized_cpu_seconds=None)
    unsaid = {name: sum_ for name, sum_ in held_beyond(job).items() if getattr(job, name) is None}
    return job._replace(**unsaid), parse_errors


class Jsonl:
    name = _SOURCE

    def __init__(self, cluster: str, options: JsonLinesOptions) -> None:
        self.cluster = cluster
        self._path = Path(options.path)

    def check(self) -> tuple[str, ...]:
        return check_readable(self._files, str(self._path))

    def watermark_at(self, since: int) -> str:
        return watermark_since(since)

    def read(self, watermark: str, unfinished: Mapping[str, UnfinishedJob]) -> Iterator[Batch]:
        """See AccountingSource. The end of a job is a line of its own: `unfinished` is not used."""
        del unfinished
        covered = 0
        for lines, position, _ in follow(self._files(), watermark):
            jobs: list[JobRecord] = []
            quarantine: list[QuarantinedRow] = []
            for raw in lines:
                if not raw.strip():
                    continue
                line = raw[:RAW_LIMIT].decode("utf-8", "backslashreplace")
                try:
                    job, parse_errors = job_record(_parse_line(raw), self.cluster)
                except Exception as error:
                    quarantine.append(quarantined_row(_SOURCE, row_problem(error), line))
                    continue
                jobs.append(job)
                covered = max(covered, int(job.end_time or job.start_time or job.submit_time))
                if parse_errors:
                    quarantine.append(quarantined_row(_SOURCE, "; ".join(parse_errors), line))
            yield Batch(merge_by_key(jobs), tuple(quarantine), position, covered)

    def _files(self) -> list[Path]:
        try:
            if self._path.is_dir():
                # Anything else than a file, such as a pipe, might never answer.
                return sorted(path for path in self._path.glob("*.jsonl") if path.is_file())
        except OSError as error:
            raise SourceError(f"{self._path}: {error.strerror}") from error
        if not self._path.exists():
            raise SourceError(f"{self._path}: No such file or directory")
        return [self._path]


def _parse_line(line: bytes) -> Any:
    """Parse a line; a byte that is not UTF-8 becomes U+FFFD. Raises RowError."""
    try:
        return parse_json(line, _MAX_LINE_BYTES)
    except ValueError as error:
        raise RowError(f"not JSON: {error}") from error


ACCOUNTING = AccountingModule(JsonLinesOptions, Jsonl)
