"""Builds job records from the lines of PBS' accounting logs.

A line is an event of a job; what it omits is taken from the database's unfinished jobs. Records of
arrays themselves (`12[].server`) are ignored: their sub-jobs have records of their own.
"""

from collections.abc import Callable
from typing import NamedTuple

from batchjob.schedulers.accounting import UnfinishedJob
from batchjob.schedulers.fields import FieldReader, epoch, integer
from batchjob.schedulers.pbs.accounting.log_line import PbsLogRecord
from batchjob.schedulers.pbs.accounting.records import (
    NOT_LOGGED,
    Incarnation,
    end_state,
    job_record,
    parse_job_id,
)
from batchjob.schedulers.records import JobRecord
from batchjob.schedulers.states import JobState

SOURCE = "pbs_log"
_MAX_ENDED_RUNS = 10_000  # maximum number of ended runs to remember


class EndedRun(NamedTuple):
    """The last ended run of a job, for lines that arrive late."""

    submit_time: int
    run: int
    start_time: float
    end_time: float
    end_not_logged: bool  # the next run began before its end was logged


class PbsLogReplay:
    """Turns lines into records, with knowledge of the unfinished jobs."""

    def __init__(
        self,
        cluster: str,
        account_from: str,
        unfinished: dict[str, UnfinishedJob],
        ended_runs: dict[str, EndedRun],
    ) -> None:
        self._cluster = cluster
        self._account_from = account_from
        self._unfinished = unfinished
        self._ended_runs = ended_runs
        self._handlers: dict[str, Callable[[PbsLogRecord], list[JobRecord]]] = {
            "Q": self._on_queued,
            "S": self._on_started,
            "c": self._on_started,  # the next phase of a job that released nodes
            "E": self._on_ended,
            "R": self._on_rerun,
            "D": self._on_deleted,
            "A": self._on_aborted_or_moved,
            "M": self._on_aborted_or_moved,
            "z": self._on_changed,
            "r": self._on_changed,
            "a": self._on_changed,
        }

    def records(self, line: PbsLogRecord) -> list[JobRecord]:
        """The records of a line; none for reservations, licences, checkpoints and arrays."""
        handler = self._handlers.get(line.record_type)
        if handler is None or parse_job_id(line.jobid).is_array:
            return []
        return handler(line)

    def _job_record(self, line: PbsLogRecord, run: int, state: JobState, word: str) -> JobRecord:
        incarnation = Incarnation(line.jobid, run, state, word)
        return job_record(self._cluster, SOURCE, self._account_from, incarnation, line.row)

    def _record_unfinished(
        self, line: PbsLogRecord, run: int, state: JobState, word: str
    ) -> JobRecord:
        """The record of a run, which is the job's unfinished run from now on."""
        record = self._job_record(line, run, state, word)
        self._unfinished[line.jobid] = UnfinishedJob(record.submit_time, run, record.start_time)
        return record

    def _run_number(self, line: PbsLogRecord) -> int:
        """The run to which a line belongs: the one it names, or the unfinished one."""
        stated = line.row.get("run_count", integer)
        job = self._find_unfinished(line)
        return stated or (job.run if job else 1)

    def _find_unfinished(self, line: PbsLogRecord) -> UnfinishedJob | None:
        """The unfinished job of a line, unless it is an earlier job with the same id."""
        job = self._unfinished.get(line.jobid)
        submitted = line.row.values.get("ctime")
        return job if job and submitted in (None, str(job.submit_time)) else None

    def _find_ended_run(self, line: PbsLogRecord, before: int | None) -> EndedRun | None:
        """The run that ended before this line was written, if the line belongs to it."""
        run = self._ended_runs.get(line.jobid)
        submitted = line.row.values.get("ctime")
        if run is None or before is None or submitted not in (None, str(run.submit_time)):
            return None
        return run if before < run.end_time else None

    def _remember_ended(
        self, record: JobRecord, line: PbsLogRecord, known_start: float | None = None
    ) -> JobRecord:
        """Complete the record of an ended run, and remember the run."""
        if record.end_time is None:
            record = record._replace(end_time=line.timestamp)
        end = record.end_time or line.timestamp
        self._ended_runs.pop(line.jobid, None)
        start = record.start_time or known_start or record.submit_time
        self._ended_runs[line.jobid] = EndedRun(
            record.submit_time, record.run, start, end, bool(record.reason == NOT_LOGGED)
        )
        if len(self._ended_runs) > _MAX_ENDED_RUNS:
            del self._ended_runs[next(iter(self._ended_runs))]
        return record

    def _on_queued(self, line: PbsLogRecord) -> list[JobRecord]:
        if "ctime" not in line.row.values:  # old servers log only the queue
            return []
        job = self._find_unfinished(line)
        if job and job.start_time:  # logged late: the job has already started
            return [self._job_record(line, job.run, JobState.RUNNING, "R")]
        return [self._record_unfinished(line, self._run_number(line), JobState.PENDING, "Q")]

    def _on_started(self, line: PbsLogRecord) -> list[JobRecord]:
        job, run = self._find_unfinished(line), self._run_number(line)
        start = line.row.get("start", epoch)
        if ended := self._find_ended_run(line, start):
            belongs = start is not None and start >= ended.start_time
            return [self._job_record(line, ended.run, JobState.RUNNING, "R")] if belongs else []
        records = []
        if job and job.start_time and line.record_type == "S" and start and start != job.start_time:
            if start < job.start_time:  # a line of an earlier run, logged too late
                return []
            # The end of the previous run was not logged: the server was down, or its log is lost.
            # All that is known is that the run ended before the next one began.
            lost = self._partial_record(line, job, JobState.REQUEUED, "lost")
            lost = lost._replace(
                end_time=start,
                elapsed_seconds=start - job.start_time,
                reason=NOT_LOGGED,
            )
            records, run = [self._remember_ended(lost, line, job.start_time)], job.run + 1
        return [*records, self._record_unfinished(line, run, JobState.RUNNING, "R")]

    def _on_ended(self, line: PbsLogRecord) -> list[JobRecord]:
        record = self._record_unfinished(line, self._run_number(line), end_state(line.row), "F")
        del self._unfinished[line.jobid]
        return [self._remember_ended(record, line)]

    def _on_rerun(self, line: PbsLogRecord) -> list[JobRecord]:
        """This run has ended, and the job waits for its next one."""
        if ended := self._find_ended_run(line, line.timestamp):
            if not ended.end_not_logged or line.timestamp < ended.start_time:
                return []
            ended_run = UnfinishedJob(ended.submit_time, ended.run, ended.start_time)
            record = self._partial_record(line, ended_run, JobState.REQUEUED, "R")
            end, elapsed = line.timestamp, line.timestamp - ended.start_time
            return [record._replace(end_time=end, elapsed_seconds=elapsed, reason="rerun")]
        job = self._find_unfinished(line)
        if "ctime" not in line.row.values and job:  # Torque logs only the id
            ended_record = self._partial_record(line, job, JobState.REQUEUED, "R")
            if job.start_time:
                elapsed = max(0, line.timestamp - job.start_time)
                ended_record = ended_record._replace(elapsed_seconds=elapsed)
            next_run = UnfinishedJob(job.submit_time, job.run + 1, None)
            self._unfinished[line.jobid] = next_run
            ended_record = self._remember_ended(ended_record, line, job.start_time)
            return [ended_record, self._partial_record(line, next_run, JobState.PENDING, "Q")]
        run = self._run_number(line)
        ended_record = self._record_unfinished(line, run, JobState.REQUEUED, "R")
        ended_record = self._remember_ended(ended_record, line)
        attributes = dict(line.row.values)
        for name in ("start", "end", "exec_host", "exec_vnode", "Exit_status"):
            attributes.pop(name, None)
        kept = {k: v for k, v in attributes.items() if not k.startswith("resources_used.")}
        line = line._replace(row=FieldReader(kept))
        return [ended_record, self._record_unfinished(line, run + 1, JobState.PENDING, "Q")]

    def _on_deleted(self, line: PbsLogRecord) -> list[JobRecord]:
        """A waiting job ends with this line; a running one has an E line later."""
        job = self._find_unfinished(line)
        if job is None:
            return []
        cancelled_by = line.row.text("requestor").partition("@")[0]
        if job.start_time:
            record = self._partial_record(line, job, JobState.RUNNING, "R")
            return [record._replace(cancelled_by=cancelled_by)]
        del self._unfinished[line.jobid]
        ended = self._partial_record(line, job, JobState.CANCELLED, "D")
        return [ended._replace(end_time=line.timestamp, cancelled_by=cancelled_by)]

    def _on_aborted_or_moved(self, line: PbsLogRecord) -> list[JobRecord]:
        job = self._unfinished.pop(line.jobid, None)
        if job is None:
            return []
        state = JobState.MOVED if line.record_type == "M" else JobState.CANCELLED
        ended = self._partial_record(line, job, state, line.record_type)
        return [ended._replace(end_time=line.timestamp)]

    def _on_changed(self, line: PbsLogRecord) -> list[JobRecord]:
        """The job was suspended, resumed or altered: only the named attributes change."""
        job = self._find_unfinished(line)
        if job is None:
            return []
        default_state = JobState.RUNNING if job.start_time else JobState.PENDING
        state = JobState.SUSPENDED if line.record_type == "z" else default_state
        line.row.values = {"ctime": str(job.submit_time), **line.row.values}
        incarnation = Incarnation(
            line.jobid, job.run, state, {"z": "S"}.get(line.record_type, state.name[0])
        )
        return [job_record(self._cluster, SOURCE, self._account_from, incarnation, line.row)]

    def _partial_record(
        self, line: PbsLogRecord, job: UnfinishedJob, state: JobState, word: str
    ) -> JobRecord:
        return JobRecord(self._cluster, line.jobid, job.submit_time, state, word, SOURCE, job.run)
