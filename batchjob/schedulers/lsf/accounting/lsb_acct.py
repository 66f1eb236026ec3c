"""LSF's accounting file lsb.acct, followed across its rotation to lsb.acct.1, .2 (1 is newest)."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from batchjob.runtime.settings import option
from batchjob.runtime.values import text
from batchjob.schedulers.accounting import AccountingModule, Batch, SourceError, Unfinished
from batchjob.schedulers.fields import FieldReader, RowError, quarantined
from batchjob.schedulers.log_follower import follow, unreadable, watermark_since
from batchjob.schedulers.lsf.accounting.event_records import finish
from batchjob.schedulers.lsf.accounting.lsb_line import Word, begins, records, words
from batchjob.schedulers.lsf.accounting.records import aligned, ended_job
from batchjob.schedulers.records import JobRecord, Quarantined, folded

SOURCE = "lsb_acct"

Parse = Callable[[str, Sequence[Word]], tuple[JobRecord, list[str]]]


@dataclass(frozen=True)
class LsbAcctOptions:
    """LSF's lsb.acct."""

    path: str = option(
        "", "The file lsb.acct: $LSB_SHAREDIR/<cluster>/logdir/lsb.acct.", parse=text
    )


def build(cluster: str, options: LsbAcctOptions) -> "LsfLog":
    """The source for one cluster."""
    return LsfLog(SOURCE, cluster, Path(options.path), "JOB_FINISH", job_finish)


class LsfLog:
    """Follows one of LSF's event files for records of one type."""

    def __init__(self, name: str, cluster: str, path: Path, kind: str, parse: Parse) -> None:
        self.name = name
        self.cluster = cluster
        self._path = path
        self._kind = kind
        self._parse = parse

    def check(self) -> tuple[str, ...]:
        """See AccountingSource."""
        return unreadable(self._files, str(self._path))

    def watermark_at(self, since: int) -> str:
        """See AccountingSource."""
        return watermark_since(since)

    def read(self, watermark: str, unfinished: Mapping[str, Unfinished]) -> Iterator[Batch]:
        """See AccountingSource."""
        covered = 0
        for chunk in follow(self._files(), watermark, begins):
            found: list[JobRecord] = []
            bad: list[Quarantined] = []
            for raw in records(chunk.lines):
                line = words(raw)
                if not line or line[0].text != self._kind:
                    if not line or not line[0].quoted:
                        bad.append(quarantined(self.name, "not a record of LSF", raw))
                    continue
                try:
                    job, complaints = self._parse(self.cluster, line)
                except RowError as error:
                    bad.append(quarantined(self.name, str(error), raw))
                    continue
                found.append(aligned(job, unfinished))
                covered = max(covered, int(job.end_time or 0))
                if complaints:
                    bad.append(quarantined(self.name, "; ".join(complaints), raw))
            yield Batch(folded(found), tuple(bad), chunk.watermark, covered)

    def _files(self) -> list[Path]:
        """The rotated files, oldest first, then the current one."""
        pattern = re.compile(re.escape(self._path.name) + r"\.(\d+)")
        try:
            rotated = [
                (int(match[1]), path)
                for path in self._path.parent.iterdir()
                if (match := pattern.fullmatch(path.name))
            ]
        except OSError as error:
            raise SourceError(f"{self._path.parent}: {error.strerror}") from error
        if not self._path.exists():
            raise SourceError(f"{self._path}: No such file")
        # lsb.acct.2 is older than lsb.acct.1; lsb.stream.<time> grows with time.
        rotated.sort(key=lambda pair: pair[0] if pair[0] > _TIME else -pair[0])
        return [*(path for _, path in rotated), self._path]


_TIME = 1_000_000_000  # a larger number is epoch seconds and not a rotation count


def job_finish(cluster: str, line: Sequence[Word]) -> tuple[JobRecord, list[str]]:
    """The record of a JOB_FINISH, and the fields that could not be parsed."""
    fields = finish(line[2:])
    row = FieldReader({**fields.values, "endTime": fields.values.get("eventTime", "")})
    job = ended_job(cluster, SOURCE, row, fields.hosts, fields.slots)
    trouble = fields.values.get("trouble")
    return job, [*row.complaints, trouble] if trouble else row.complaints


ACCOUNTING = AccountingModule(LsbAcctOptions, build)
