"""PBS' and Torque's accounting logs, one file for each day, followed as they grow.

A line is `MM/DD/YYYY HH:MM:SS;type;id;attributes`. The stamp is local time without a zone, so the
attributes' epoch seconds are used wherever there are some. Arrays' own records (`12[].server`)
are left out: their sub-jobs have records of their own.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, tzinfo
from pathlib import Path
from typing import NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from batchjob.settings import option
from batchjob.states import JobState
from batchjob.values import one_of, text
from batchjob_stats_db.records import JobRecord, Quarantined, folded
from batchjob_stats_db.sources.pbs_rows import ACCOUNTS, Incarnation, end_state, job_id, job_record
from batchjob_stats_db.sources.row import Row, RowError, integer, quarantined
from batchjob_stats_db.sources.source import Batch, SourceError, Unfinished
from batchjob_stats_db.sources.tail import follow, unreadable, watermark_since

SOURCE = "pbs_log"
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
class Options:
    """PBS' accounting logs."""

    path: str = option(
        "/var/spool/pbs/server_priv/accounting", "Directory of the accounting logs.", parse=text
    )
    time_zone: str = option(
        "", "Time zone of the PBS server, such as Europe/Berlin; none: this machine's.", parse=zone
    )
    account: str = option(
        "account", "Which attribute is the account, if there is one.", parse=one_of(*ACCOUNTS)
    )


def build(cluster: str, options: Options) -> "PbsLog":
    """The source for one cluster."""
    return PbsLog(cluster, options)


class Line(NamedTuple):
    """An accounting record: type, job id, and the attributes."""

    at: int
    kind: str
    jobid: str
    row: Row


class PbsLog:
    """Follows the logs; what a record leaves out comes from the database's unfinished jobs."""

    name = SOURCE

    def __init__(self, cluster: str, options: Options) -> None:
        self.cluster = cluster
        self._options = options
        self._zone = ZoneInfo(options.time_zone) if options.time_zone else None

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
        jobs = Jobs(self.cluster, self._options.account, dict(unfinished))
        at = 0
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
            yield Batch(folded(records), tuple(bad), chunk.watermark, at)

    def _files(self) -> list[Path]:
        """The logs by day; their names sort as their days do."""
        try:
            names = list(Path(self._options.path).iterdir())
        except OSError as error:
            raise SourceError(f"{self._options.path}: {error.strerror}") from error
        return sorted(path for path in names if _DAY.fullmatch(path.name))


def parse_line(text: str, zone: tzinfo | None, not_before: int) -> Line:
    """Take a line apart; raises RowError. `not_before`: the time of the line before."""
    parts = text.split(";", 3)
    if len(parts) != 4 or len(parts[1]) != 1:
        raise RowError("expected stamp;type;id;attributes")
    return Line(_stamp(parts[0], zone, not_before), parts[1], parts[2], Row(attributes(parts[3])))


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


class Jobs:
    """Turns lines into records, knowing which jobs have not ended."""

    def __init__(self, cluster: str, account_from: str, unfinished: dict[str, Unfinished]) -> None:
        self._cluster = cluster
        self._account_from = account_from
        self._unfinished = unfinished
        self._kinds: dict[str, Callable[[Line], list[JobRecord]]] = {
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

    def records(self, line: Line) -> list[JobRecord]:
        """The records a line makes: none for reservations, licences, checkpoints and arrays."""
        kind = self._kinds.get(line.kind)
        if kind is None or job_id(line.jobid).parent:
            return []
        return kind(line)

    def _record(self, line: Line, run: int, state: JobState, word: str) -> JobRecord:
        which = Incarnation(line.jobid, run, state, word)
        record = job_record(self._cluster, SOURCE, self._account_from, which, line.row)
        self._unfinished[line.jobid] = Unfinished(record.submit_time, run, record.start_time)
        return record

    def _run(self, line: Line) -> int:
        """The run a line belongs to: the one it names, or the one that is not finished."""
        stated = line.row.get("run_count", integer)
        known = self._known(line)
        return stated or (known.run if known else 1)

    def _known(self, line: Line) -> Unfinished | None:
        known = self._unfinished.get(line.jobid)
        submitted = line.row.values.get("ctime")
        return known if known and submitted in (None, str(known.submit_time)) else None

    def _queued(self, line: Line) -> list[JobRecord]:
        if "ctime" not in line.row.values:  # old servers write the queue alone
            return []
        return [self._record(line, self._run(line), JobState.PENDING, "Q")]

    def _started(self, line: Line) -> list[JobRecord]:
        known, run = self._known(line), self._run(line)
        start = line.row.values.get("start")
        records = []
        if known and known.start_time and line.kind == "S" and start != str(known.start_time):
            # The run before ended unseen: the server was down, or its log is lost.
            lost = self._partial(line, known, JobState.REQUEUED, "lost")
            records, run = [lost], run + 1
        return [*records, self._record(line, run, JobState.RUNNING, "R")]

    def _ended(self, line: Line) -> list[JobRecord]:
        record = self._record(line, self._run(line), end_state(line.row), "F")
        del self._unfinished[line.jobid]
        return [record if record.end_time else record._replace(end_time=line.at)]

    def _rerun(self, line: Line) -> list[JobRecord]:
        """This run is over; the job waits for its next one."""
        run = self._run(line)
        over = self._record(line, run, JobState.REQUEUED, "R")
        over = over if over.end_time else over._replace(end_time=line.at)
        again = dict(line.row.values)
        for name in ("start", "end", "exec_host", "exec_vnode", "Exit_status"):
            again.pop(name, None)
        kept = {k: v for k, v in again.items() if not k.startswith("resources_used.")}
        waits = self._record(line._replace(row=Row(kept)), run + 1, JobState.PENDING, "Q")
        return [over, waits]

    def _deleted(self, line: Line) -> list[JobRecord]:
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

    def _gone(self, line: Line) -> list[JobRecord]:
        known = self._unfinished.pop(line.jobid, None)
        if known is None:
            return []
        state = JobState.MOVED if line.kind == "M" else JobState.CANCELLED
        return [self._partial(line, known, state, line.kind)._replace(end_time=line.at)]

    def _changed(self, line: Line) -> list[JobRecord]:
        """Suspended, resumed, or attributes altered: only what is named changes."""
        known = self._known(line)
        if known is None:
            return []
        runs = JobState.RUNNING if known.start_time else JobState.PENDING
        state = JobState.SUSPENDED if line.kind == "z" else runs
        line.row.values = {"ctime": str(known.submit_time), **line.row.values}
        which = Incarnation(line.jobid, known.run, state, {"z": "S"}.get(line.kind, state.name[0]))
        return [job_record(self._cluster, SOURCE, self._account_from, which, line.row)]

    def _partial(self, line: Line, known: Unfinished, state: JobState, word: str) -> JobRecord:
        return JobRecord(
            self._cluster, line.jobid, known.submit_time, state, word, SOURCE, known.run
        )
