"""PBS' and Torque's accounting logs, one file per day, followed as they grow."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from batchjob.runtime.settings import option
from batchjob.runtime.values import one_of, text
from batchjob.schedulers.accounting import AccountingModule, Batch, SourceError, UnfinishedJob
from batchjob.schedulers.fields import RowError, quarantined_row
from batchjob.schedulers.log_follower import check_readable, follow, watermark_since
from batchjob.schedulers.pbs.accounting.log_line import parse_line
from batchjob.schedulers.pbs.accounting.log_replay import SOURCE, EndedRun, PbsLogReplay
from batchjob.schedulers.pbs.accounting.records import ACCOUNTS
from batchjob.schedulers.records import JobRecord, QuarantinedRow, merge_by_key

_DAY = re.compile(r"\d{8}", re.ASCII)


def parse_time_zone(value: object) -> str:
    """A time zone such as Europe/Berlin; "": this machine's."""
    try:
        if value:
            ZoneInfo(str(value))
    except (ZoneInfoNotFoundError, ValueError) as error:
        raise ValueError(f"expected a time zone such as Europe/Berlin, got {value!r}") from error
    return str(value)


@dataclass(frozen=True)
class PbsLogOptions:
    """PBS' accounting logs."""

    path: str = option(
        "/var/spool/pbs/server_priv/accounting", "Directory of the accounting logs.", parse=text
    )
    time_zone: str = option(
        "",
        "Time zone of the PBS server, such as Europe/Berlin; default: this machine's.",
        parse=parse_time_zone,
    )
    account: str = option(
        "account", "Attribute that contains the account, if any.", parse=one_of(*ACCOUNTS)
    )


def build(cluster: str, options: PbsLogOptions) -> "PbsLog":
    """The source for one cluster."""
    return PbsLog(cluster, options)


class PbsLog:
    """Follows the logs; what a record omits is taken from the database's unfinished jobs."""

    name = SOURCE

    def __init__(self, cluster: str, options: PbsLogOptions) -> None:
        self.cluster = cluster
        self._options = options
        self._zone = ZoneInfo(options.time_zone) if options.time_zone else None
        self._ended_runs: dict[str, EndedRun] = {}
        self._watermark = ""

    def check(self) -> tuple[str, ...]:
        """See AccountingSource."""
        return check_readable(self._files, self._options.path)

    def watermark_at(self, since: int) -> str:
        """See AccountingSource."""
        return watermark_since(since)

    def read(self, watermark: str, unfinished: Mapping[str, UnfinishedJob]) -> Iterator[Batch]:
        """See AccountingSource."""
        replay = PbsLogReplay(
            self.cluster, self._options.account, dict(unfinished), self._ended_runs
        )
        if watermark != self._watermark:  # starts elsewhere, perhaps before the remembered runs
            self._ended_runs.clear()
        last_timestamp = _last_timestamp(watermark)
        for chunk in follow(self._files(), watermark):
            records: list[JobRecord] = []
            quarantine: list[QuarantinedRow] = []
            for raw in chunk.lines:
                text = raw.decode("utf-8", "backslashreplace")
                try:
                    line = parse_line(text, self._zone, last_timestamp)
                    last_timestamp = line.timestamp
                    records += replay.records(line)
                except RowError as error:
                    quarantine.append(quarantined_row(SOURCE, str(error), text))
                else:
                    if line.row.parse_errors:
                        quarantine.append(
                            quarantined_row(SOURCE, "; ".join(line.row.parse_errors), text)
                        )
            self._watermark = _add_timestamp(chunk.watermark, last_timestamp)
            yield Batch(merge_by_key(records), tuple(quarantine), self._watermark, last_timestamp)

    def _files(self) -> list[Path]:
        """The logs by day; their names sort by day."""
        try:
            names = list(Path(self._options.path).iterdir())
        except OSError as error:
            raise SourceError(f"{self._options.path}: {error.strerror}") from error
        return sorted(path for path in names if _DAY.fullmatch(path.name))


def _last_timestamp(watermark: str) -> int:
    """When the line before the watermark was written; needed in the hour that occurs twice."""
    try:
        return int(json.loads(watermark).get("at", 0))
    except (ValueError, TypeError, AttributeError):
        return 0


def _add_timestamp(watermark: str, timestamp: int) -> str:
    return json.dumps({**json.loads(watermark), "at": timestamp})


ACCOUNTING = AccountingModule(PbsLogOptions, build)
