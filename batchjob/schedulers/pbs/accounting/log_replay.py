"""Builds job records from the lines of PBS' accounting logs.

A line is an event of a job; what it omits is taken from the database's unfinished jobs. Records of
arrays themselves (`12[].server`) are ignored: their sub-jobs have records of their own.
"""

from collections.abc import Callable
from typing import NamedTuple

from batchjob.schedulers.accounting import Unfinished
from batchjob.schedulers.fields import FieldReader, epoch, integer
from batchjob.schedulers.pbs.accounting.log_line import PbsLogRecord
from batchjob.schedulers.pbs.accounting.records import (
    NOT_LOGGED,
    Incarnation,
    end_state,
    job_id,
    job_record,
)
from batchjob.schedulers.records import JobRecord
from batchjob.schedulers.states import JobState

SOURCE = "pbs_log"
_REMEMBERED = 10_000  # maximum number of ended runs to remember


class EndedRun(NamedTuple):
    """The last ended run of a job, for lines that arrive late."""

    submit_time: int
    run: int
    start_time: float
    end_time: float
    lost: bool  # the next run began before its end was logged


class PbsLogReplay:
    """Turns lines into records, with knowledge of the unfinished jobs."""

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
            "c": self._started,  # the next phase of a job that released nodes
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
        """The records of a line; none for reservations, licences, checkpoints and arrays."""
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
        """The run to which a line belongs: the one it names, or the unfinished one."""
        stated = line.row.get("run_count", integer)
        known = self._known(line)
        return stated or (known.run if known else 1)

    def _known(self, line: PbsLogRecord) -> Unfinished | None:
        known = self._unfinished.get(line.jobid)
        submitted = line.row.values.get("ctime")
        return known if known and submitted in (None, str(known.submit_time)) else None

    def _is_of_ended(self, line: PbsLogRecord, at: int | None) -> EndedRun | None:
        """The run that ended before this line was written, if the line belongs to it."""
        ended = self._ended_runs.get(line.jobid)
        submitted = line.row.values.get("ctime")
        if ended is None or at is None or submitted not in (None, str(ended.submit_time)):
            return None
        return ended if at < ended.end_time else None

    def _over(
        self, record: JobRecord, line: PbsLogRecord, known_start: float | None = None
    ) -> JobRecord:
        """The record of an ended run, which is remembered."""
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
        if "ctime" not in line.row.values:  # old servers log only the queue
            return []
        known = self._known(line)
        if known and known.start_time:  # logged late: the job has already started
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
            if start < known.start_time:  # a line of an earlier run, logged too late
                return []
            # The end of the previous run was not logged: the server was down, or its log is lost.
            # All that is known is that the run ended before the next one began.
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
        """This run has ended, and the job waits for its next one."""
        if ended := self._is_of_ended(line, line.at):
            if not ended.lost or line.at < ended.start_time:
                return []
            there = Unfinished(ended.submit_time, ended.run, ended.start_time)
            late = self._partial(line, there, JobState.REQUEUED, "R")
            elapsed = line.at - ended.start_time
            return [late._replace(end_time=line.at, elapsed_seconds=elapsed, reason="rerun")]
        known = self._known(line)
        if "ctime" not in line.row.values and known:  # Torque logs only the id
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
        """A waiting job ends with this line; a running one has an E line later."""
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
        """The job was suspended, resumed or altered: only the named attributes change."""
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
