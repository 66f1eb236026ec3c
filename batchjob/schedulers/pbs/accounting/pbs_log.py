"""PBS' and Torque's accounting logs, one file for each day, followed as they grow.

A line is `MM/DD/YYYY HH:MM:SS;type;id;attributes`. The stamp is local time without a zone, so the
attributes' epoch seconds are used wherever there are some. Arrays' own records (`12[].server`)
are left out: their sub-jobs have records of their own.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, tzinfo
from pathlib import Path
from typing import NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from batchjob.runtime.settings import option
from batchjob.runtime.values import one_of, text
from batchjob.schedulers.accounting import AccountingModule, Batch, SourceError, Unfinished
from batchjob.schedulers.fields import FieldReader, RowError, epoch, integer, quarantined
from batchjob.schedulers.log_follower import follow, unreadable, watermark_since
from batchjob.schedulers.pbs.accounting.records import (
    ACCOUNTS,
    NOT_LOGGED,
    Incarnation,
    end_state,
    job_id,
    job_record,
)
from batchjob.schedulers.records import JobRecord, Quarantined, folded
from batchjob.schedulers.states import JobState

SOURCE = "pbs_log"
_REMEMBERED = 10_000  # runs that are over
_DAY = re.compile(r"\d{8}", re.ASCII)
_KEY = re.compile(r"[A-Za-z_][\w.@-]*=", re.ASCII)


def zone(value: object) -> str:
    """A time zone such as Europe/Berlin; "" is this machine's."""
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
        parse=zone,
    )
    account: str = option(
        "account", "Attribute that contains the account, if any.", parse=one_of(*ACCOUNTS)
    )


def build(cluster: str, options: PbsLogOptions) -> "PbsLog":
    """The source for one cluster."""
    return PbsLog(cluster, options)


class PbsLogRecord(NamedTuple):
    """An accounting record: type, job id, and the attributes."""

    at: int
    kind: str
    jobid: str
    row: FieldReader


class EndedRun(NamedTuple):
    """The last run of a job that is over: lines of it may come late."""

    submit_time: int
    run: int
    start_time: float
    end_time: float
    lost: bool  # its end was not logged when the next run began


class PbsLog:
    """Follows the logs; what a record leaves out comes from the database's unfinished jobs."""

    name = SOURCE

    def __init__(self, cluster: str, options: PbsLogOptions) -> None:
        self.cluster = cluster
        self._options = options
        self._zone = ZoneInfo(options.time_zone) if options.time_zone else None
        self._ended_runs: dict[str, EndedRun] = {}
        self._watermark = ""

    def check(self) -> tuple[str, ...]:
        """See Source."""
        try:
            return unreadable(self._files(), self._options.path)
        except SourceError as error:
            return (str(error),)

    def watermark_at(self, since: int) -> str:
        """See Source."""
        return watermark_since(since)

    def read(self, watermark: str, unfinished: Mapping[str, Unfinished]) -> Iterator[Batch]:
        """See Source."""
        jobs = PbsLogReplay(self.cluster, self._options.account, dict(unfinished), self._ended_runs)
        if watermark != self._watermark:  # it begins elsewhere, perhaps before what we remember
            self._ended_runs.clear()
        at = _last_time(watermark)
        for chunk in follow(self._files(), watermark):
            records: list[JobRecord] = []
            bad: list[Quarantined] = []
            for raw in chunk.lines:
                text = raw.decode("utf-8", "backslashreplace")
                try:
                    line = parse_line(text, self._zone, at)
                    at = line.at
                    records += jobs.records(line)
                except RowError as error:
                    bad.append(quarantined(SOURCE, str(error), text))
                else:
                    if line.row.complaints:
                        bad.append(quarantined(SOURCE, "; ".join(line.row.complaints), text))
            self._watermark = _with_time(chunk.watermark, at)
            yield Batch(folded(records), tuple(bad), self._watermark, at)

    def _files(self) -> list[Path]:
        """The logs by day; their names sort as their days do."""
        try:
            names = list(Path(self._options.path).iterdir())
        except OSError as error:
            raise SourceError(f"{self._options.path}: {error.strerror}") from error
        return sorted(path for path in names if _DAY.fullmatch(path.name))


def _last_time(watermark: str) -> int:
    """When the line before the watermark was written; the hour that comes twice is told by it."""
    try:
        return int(json.loads(watermark).get("at", 0))
    except (ValueError, TypeError, AttributeError):
        return 0


def _with_time(watermark: str, at: int) -> str:
    return json.dumps({**json.loads(watermark), "at": at})


def parse_line(text: str, zone: tzinfo | None, not_before: int) -> PbsLogRecord:
    """Take a line apart; raises RowError. `not_before`: the time of the line before."""
    parts = text.split(";", 3)
    if len(parts) != 4 or len(parts[1]) != 1:
        raise RowError("expected stamp;type;id;attributes")
    return PbsLogRecord(
        _stamp(parts[0], zone, not_before), parts[1], parts[2], FieldReader(attributes(parts[3]))
    )


def _stamp(text: str, zone: tzinfo | None, not_before: int) -> int:
    """Epoch seconds; of an hour that comes twice, the one that does not go back in the log."""
    try:
        local = datetime.strptime(text, "%m/%d/%Y %H:%M:%S")  # noqa: DTZ007 (zone put in below)
    except ValueError as error:
        raise RowError(
            f"expected a stamp such as 04/30/2026 12:00:00, got {text[:40]!r}"
        ) from error
    first, second = (int(local.replace(tzinfo=zone, fold=fold).timestamp()) for fold in (0, 1))
    return second if first < not_before - 60 and second > first else first


def attributes(message: str) -> dict[str, str]:
    """Names and values of `a=1 b="two words" c='{}'`; a word without a name goes on the value
    before it. What is said first holds.
    """
    found: dict[str, str] = {}
    name, at = "", 0
    while at < len(message):
        if message[at] == " ":
            at += 1
            continue
        key = _KEY.match(message, at)
        begin = key.end() if key else at
        quote = message[begin : begin + 1] if key else ""
        if quote in ("'", '"') and (close := message.find(quote, begin + 1)) > 0:
            value, at = message[begin + 1 : close], close + 1
        else:
            end = message.find(" ", begin)
            end = len(message) if end < 0 else end
            value, at = message[begin:end], end
        if key:
            name = key[0][:-1]
            found.setdefault(name, value)
        elif name:
            found[name] += f" {value}"
    return found


class PbsLogReplay:
    """Turns lines into records, knowing which jobs have not ended."""

    def __init__(
        self,
        cluster: str,
        account_from: str,
        unfinished: dict[str, Unfinished],
        ended_runs: dict[str, EndedRun],
    ) -> None:
        self._cluster = cluster
        self._account_from = account_from
        self._unfinished = unfinished
        self._ended_runs = ended_runs
        self._kinds: dict[str, Callable[[PbsLogRecord], list[JobRecord]]] = {
            "Q": self._queued,
            "S": self._started,
            "c": self._started,  # the next phase of a job that gave nodes back
            "E": self._ended,
            "R": self._rerun,
            "D": self._deleted,
            "A": self._gone,
            "M": self._gone,
            "z": self._changed,
            "r": self._changed,
            "a": self._changed,
        }

    def records(self, line: PbsLogRecord) -> list[JobRecord]:
        """The records a line makes: none for reservations, licences, checkpoints and arrays."""
        kind = self._kinds.get(line.kind)
        if kind is None or job_id(line.jobid).parent:
            return []
        return kind(line)

    def _made(self, line: PbsLogRecord, run: int, state: JobState, word: str) -> JobRecord:
        which = Incarnation(line.jobid, run, state, word)
        return job_record(self._cluster, SOURCE, self._account_from, which, line.row)

    def _record(self, line: PbsLogRecord, run: int, state: JobState, word: str) -> JobRecord:
        record = self._made(line, run, state, word)
        self._unfinished[line.jobid] = Unfinished(record.submit_time, run, record.start_time)
        return record

    def _run(self, line: PbsLogRecord) -> int:
        """The run a line belongs to: the one it names, or the one that is not finished."""
        stated = line.row.get("run_count", integer)
        known = self._known(line)
        return stated or (known.run if known else 1)

    def _known(self, line: PbsLogRecord) -> Unfinished | None:
        known = self._unfinished.get(line.jobid)
        submitted = line.row.values.get("ctime")
        return known if known and submitted in (None, str(known.submit_time)) else None

    def _is_of_ended(self, line: PbsLogRecord, at: int | None) -> EndedRun | None:
        """The run that ended before this line was written, if the line is of that run."""
        ended = self._ended_runs.get(line.jobid)
        submitted = line.row.values.get("ctime")
        if ended is None or at is None or submitted not in (None, str(ended.submit_time)):
            return None
        return ended if at < ended.end_time else None

    def _over(
        self, record: JobRecord, line: PbsLogRecord, known_start: float | None = None
    ) -> JobRecord:
        """A record of a run that is over, and remembered as such."""
        if record.end_time is None:
            record = record._replace(end_time=line.at)
        end = record.end_time or line.at
        self._ended_runs.pop(line.jobid, None)
        start = record.start_time or known_start or record.submit_time
        self._ended_runs[line.jobid] = EndedRun(
            record.submit_time, record.run, start, end, bool(record.reason == NOT_LOGGED)
        )
        if len(self._ended_runs) > _REMEMBERED:
            del self._ended_runs[next(iter(self._ended_runs))]
        return record

    def _queued(self, line: PbsLogRecord) -> list[JobRecord]:
        if "ctime" not in line.row.values:  # old servers write the queue alone
            return []
        known = self._known(line)
        if known and known.start_time:  # this line comes late
            return [self._made(line, known.run, JobState.RUNNING, "R")]
        return [self._record(line, self._run(line), JobState.PENDING, "Q")]

    def _started(self, line: PbsLogRecord) -> list[JobRecord]:
        known, run = self._known(line), self._run(line)
        start = line.row.get("start", epoch)
        if ended := self._is_of_ended(line, start):
            own = start is not None and start >= ended.start_time
            return [self._made(line, ended.run, JobState.RUNNING, "R")] if own else []
        records = []
        if known and known.start_time and line.kind == "S" and start and start != known.start_time:
            if start < known.start_time:  # of a run before, of which we heard too late
                return []
            # The run before ended unseen: the server was down, or its log is lost. It ended before
            # the next one began, which is all that is known.
            lost = self._partial(line, known, JobState.REQUEUED, "lost")
            lost = lost._replace(
                end_time=start,
                elapsed_seconds=start - known.start_time,
                reason=NOT_LOGGED,
            )
            records, run = [self._over(lost, line, known.start_time)], known.run + 1
        return [*records, self._record(line, run, JobState.RUNNING, "R")]

    def _ended(self, line: PbsLogRecord) -> list[JobRecord]:
        record = self._record(line, self._run(line), end_state(line.row), "F")
        del self._unfinished[line.jobid]
        return [self._over(record, line)]

    def _rerun(self, line: PbsLogRecord) -> list[JobRecord]:
        """This run is over; the job waits for its next one."""
        if ended := self._is_of_ended(line, line.at):
            if not ended.lost or line.at < ended.start_time:
                return []
            there = Unfinished(ended.submit_time, ended.run, ended.start_time)
            late = self._partial(line, there, JobState.REQUEUED, "R")
            elapsed = line.at - ended.start_time
            return [late._replace(end_time=line.at, elapsed_seconds=elapsed, reason="rerun")]
        known = self._known(line)
        if "ctime" not in line.row.values and known:  # Torque writes the id alone
            over = self._partial(line, known, JobState.REQUEUED, "R")
            if known.start_time:
                over = over._replace(elapsed_seconds=max(0, line.at - known.start_time))
            again = Unfinished(known.submit_time, known.run + 1, None)
            self._unfinished[line.jobid] = again
            over = self._over(over, line, known.start_time)
            return [over, self._partial(line, again, JobState.PENDING, "Q")]
        run = self._run(line)
        over = self._over(self._record(line, run, JobState.REQUEUED, "R"), line)
        left = dict(line.row.values)
        for name in ("start", "end", "exec_host", "exec_vnode", "Exit_status"):
            left.pop(name, None)
        kept = {k: v for k, v in left.items() if not k.startswith("resources_used.")}
        waits = self._record(line._replace(row=FieldReader(kept)), run + 1, JobState.PENDING, "Q")
        return [over, waits]

    def _deleted(self, line: PbsLogRecord) -> list[JobRecord]:
        """A job that waits ends with this line; one that runs has an E line to come."""
        known = self._known(line)
        if known is None:
            return []
        by = line.row.text("requestor").partition("@")[0]
        if known.start_time:
            return [self._partial(line, known, JobState.RUNNING, "R")._replace(cancelled_by=by)]
        del self._unfinished[line.jobid]
        ended = self._partial(line, known, JobState.CANCELLED, "D")
        return [ended._replace(end_time=line.at, cancelled_by=by)]

    def _gone(self, line: PbsLogRecord) -> list[JobRecord]:
        known = self._unfinished.pop(line.jobid, None)
        if known is None:
            return []
        state = JobState.MOVED if line.kind == "M" else JobState.CANCELLED
        return [self._partial(line, known, state, line.kind)._replace(end_time=line.at)]

    def _changed(self, line: PbsLogRecord) -> list[JobRecord]:
        """Suspended, resumed, or attributes altered: only what is named changes."""
        known = self._known(line)
        if known is None:
            return []
        runs = JobState.RUNNING if known.start_time else JobState.PENDING
        state = JobState.SUSPENDED if line.kind == "z" else runs
        line.row.values = {"ctime": str(known.submit_time), **line.row.values}
        which = Incarnation(line.jobid, known.run, state, {"z": "S"}.get(line.kind, state.name[0]))
        return [job_record(self._cluster, SOURCE, self._account_from, which, line.row)]

    def _partial(
        self, line: PbsLogRecord, known: Unfinished, state: JobState, word: str
    ) -> JobRecord:
        return JobRecord(
            self._cluster, line.jobid, known.submit_time, state, word, SOURCE, known.run
        )


ACCOUNTING = AccountingModule(PbsLogOptions, build)
