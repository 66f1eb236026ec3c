"""Builds job records from the lines of PBS' accounting logs.

A line is an event of a job; what it omits is taken from the database's unfinished jobs. Arrays
themselves (`12[].server`) have no records: their sub-jobs do.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from batchjob.schedulers import reallocation
from batchjob.schedulers.accounting import UnfinishedJob
from batchjob.schedulers.fields import FieldReader, clock_duration, epoch, integer, sanitize_text
from batchjob.schedulers.pbs.accounting import records as pbs_records
from batchjob.schedulers.pbs.accounting.log_line import Array, PbsLogRecord, array_id_of, find_array
from batchjob.schedulers.pbs.states import EXIT_STATUSES
from batchjob.schedulers.records import JobRecord, dropped_values, run_time, withdraws_allocation
from batchjob.schedulers.states import JobState

_MAX_REMEMBERED = 10_000  # maximum number of ended runs, and of arrays, to remember
_DELETION_SECONDS = 600  # after which a deleted job without an end is taken for ended
_DELETION_DAYS = 7  # after which no end of it is expected any more
_LAUNCH_SECONDS = 60  # in which a job has started, and does not run yet
_NODE_LOST = -20


class EndedRun(NamedTuple):
    """The last ended run of a job, for lines that arrive late."""

    submit_time: int
    run: int
    start_time: float
    end_time: float
    end_not_logged: bool  # the next run began before its end was logged
    suspended_seconds: int | None


class PbsLogReplay:
    """Turns lines into records, with knowledge of the unfinished jobs and of earlier lines.

    Arrays whose first lines were read before a restart are looked up in `files`.
    """

    def __init__(self, options: pbs_records.RecordOptions) -> None:
        self.files: Sequence[Path] = ()
        self.unfinished: dict[str, UnfinishedJob] = {}
        self.deleted: dict[str, int] = {}  # when the deletion of running jobs was logged
        self._options = options
        self._ended_runs: dict[str, EndedRun] = {}
        self._arrays: dict[str, Array] = {}  # by their ids

    def forget_lines(self, deleted: Mapping[str, int]) -> None:
        """Forget what earlier lines said, but for these deletions."""
        self._ended_runs, self._arrays, self.deleted = {}, {}, dict(deleted)

    def records(self, line: PbsLogRecord) -> list[JobRecord]:
        """The records of a line; none for reservations, licences and arrays."""
        handler = RECORD_TYPES.get(line.record_type, "")
        if isinstance(handler, str):
            return []
        array_jobid, task = pbs_records.parse_job_id(line.jobid)
        if array_jobid and task is None:
            return self._on_array(line)
        if line.record_type in "SER" and (array := self._arrays.get(array_id_of(line.jobid))):
            array.begun.add(line.jobid)
        return handler(self, line)

    def unfinished_after_deletion(self, now: float) -> list[JobRecord]:
        """The ends of jobs whose deletion was logged, but no end: their nodes had lost them."""
        records = []
        for jobid, at in list(self.deleted.items()):
            if now - at > _DELETION_DAYS * 86400:
                del self.deleted[jobid]
            if now - at > _DELETION_SECONDS and (job := self.unfinished.pop(jobid, None)):
                record = self._partial_record(jobid, job, JobState.CANCELLED, "D")
                records.append(self._remember_ended(record, job, at))
        return records

    def _job_record(
        self,
        line: PbsLogRecord,
        run: int,
        state: JobState,
        word: str,
        suspended: float | None = None,
    ) -> JobRecord:
        row, jobid = line.row, line.jobid
        return pbs_records.job_record(self._options, jobid, row, run, state, word, suspended)

    def _record_unfinished(
        self, line: PbsLogRecord, run: int, state: JobState, word: str
    ) -> JobRecord:
        """The record of a run, which is the job's unfinished run from now on."""
        return self._know(self._job_record(line, run, state, word))

    def _know(self, record: JobRecord) -> JobRecord:
        values = {name: getattr(record, name) for name in UnfinishedJob._fields}
        known = self.unfinished.get(record.jobid)
        if known and (known.submit_time, known.run) == (record.submit_time, record.run):
            is_withdrawn = withdraws_allocation(record.allocated_cpus, record.resized_cpu_seconds)
            dropped = dropped_values(known.state, record.state, is_withdrawn)
            for name, value in values.items():
                if value is None and name not in dropped:
                    values[name] = getattr(known, name)
        self.unfinished[record.jobid] = UnfinishedJob(**values)
        return record

    def _run_number(self, line: PbsLogRecord) -> int:
        """The run to which a line belongs: the one with its start, else the one it names.

        The server's run_count also counts starts of which the log has no record.
        """
        job, start = self._find_unfinished(line), line.row.get("start", epoch)
        if job and (job.start_time == start or (start and not job.start_time)):
            return job.run
        ended = self._ended_runs.get(line.jobid)
        if ended and start == ended.start_time and _is_of(line, ended.submit_time):
            return ended.run
        return line.row.get("run_count", integer) or (job.run if job else 1)

    def _find_unfinished(self, line: PbsLogRecord) -> UnfinishedJob | None:
        """The unfinished job of a line, unless it is an earlier job with the same id."""
        job = self.unfinished.get(line.jobid)
        return job if job and _is_of(line, job.submit_time) else None

    def _find_ended_run(self, line: PbsLogRecord, before: int | None) -> EndedRun | None:
        """The run that ended before this line was written, if the line belongs to it."""
        run = self._ended_runs.get(line.jobid)
        if run is None or before is None or not _is_of(line, run.submit_time):
            return None
        return run if before < run.end_time else None

    def _remember_ended(self, record: JobRecord, job: UnfinishedJob | None, at: int) -> JobRecord:
        """Complete the record of a run that ended at a time, unless it states one; remember it."""
        start = record.start_time or (job.start_time if job else None)
        if record.end_time is None:
            elapsed, suspended = run_time(start, at, None, _suspended(job, at))
            record = record._replace(
                end_time=at, elapsed_seconds=elapsed, suspended_seconds=suspended
            )
        began, end = start or record.submit_time, record.end_time or at
        is_lost = record.reason == pbs_records.NOT_LOGGED
        suspended = record.suspended_seconds
        ended = EndedRun(record.submit_time, record.run, began, end, is_lost, suspended)
        _remember(self._ended_runs, record.jobid, ended)
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
        if job and job.start_time and start and start != job.start_time:
            if start < job.start_time:  # a line of an earlier run, logged too late
                return []
            # The end of the previous run was not logged: the server was down, or its log is lost.
            # All that is known is that the run ended before the next one began.
            lost = self._partial_record(line.jobid, job, JobState.REQUEUED, "lost")
            lost = lost._replace(reason=pbs_records.NOT_LOGGED)
            records, run = [self._remember_ended(lost, job, start)], job.run + 1
        started = self._record_unfinished(line, run, JobState.RUNNING, "R")
        if started.start_time is None:  # it stood twice: the server logs a start at once
            started = self._know(started._replace(start_time=line.timestamp))
        return [*records, started]

    def _on_restarted(self, line: PbsLogRecord) -> list[JobRecord]:
        """The line has no attributes."""
        job = self._find_unfinished(line)
        if job is None or job.start_time:
            return []
        record = self._partial_record(line.jobid, job, JobState.RUNNING, "R")
        return [self._know(record._replace(start_time=line.timestamp))]

    def _on_phase_ended(self, line: PbsLogRecord) -> list[JobRecord]:
        """The line repeats what the job held in the phase, for a job whose start was not read.

        What it held before is not known, unless this was the first phase.
        """
        job, start = self._find_unfinished(line), line.row.get("start", epoch)
        if (job and job.start_time) or start is None or self._find_ended_run(line, start):
            return []
        walltime = line.row.get("resources_used.walltime", clock_duration) or 0
        run = self._run_number(line)
        record = self._job_record(_without_end(line), run, JobState.RUNNING, "R")
        is_first = walltime > line.timestamp - start - _LAUNCH_SECONDS
        return [self._know(record if is_first else reallocation.not_known(record))]

    def _on_reallocated(self, line: PbsLogRecord) -> list[JobRecord]:
        """The job holds something else from now on: it released nodes, or never had them all."""
        job = self._find_unfinished(line)
        record = self._job_record(line, self._run_number(line), JobState.RUNNING, "R")
        held = job.allocated_cpus if job and job.start_time else None
        if job is None or held is None or record.allocated_cpus is None:
            return [self._know(reallocation.not_known(record))]
        change = reallocation.returned(job, record, line.timestamp)
        record = record._replace(reallocations=(change,), **reallocation.held_before(job, change))
        if line.record_type == "c":  # nodes on which it ran remain nodes of the job
            record = record._replace(allocated_nodes=None, node_list="", allocated_resources="")
        return [self._know(record)]

    def _on_ended(self, line: PbsLogRecord) -> list[JobRecord]:
        job, run = self._find_unfinished(line), self._run_number(line)
        deleted = self.deleted.pop(line.jobid, None) is not None
        state = pbs_records.end_state(line.row, deleted=deleted)
        if state is JobState.UNKNOWN:
            line.row.parse_errors.append("Exit_status is missing")
        record = self._job_record(line, run, state, "F", _suspended(job, line.timestamp))
        self.unfinished.pop(line.jobid, None)
        return [self._remember_ended(_keep_allocation(record, job, line), job, line.timestamp)]

    def _on_rerun(self, line: PbsLogRecord) -> list[JobRecord]:
        """This run has ended, and the job waits for its next one."""
        if ended := self._find_ended_run(line, line.timestamp):
            if not ended.end_not_logged or line.timestamp < ended.start_time:
                return []
            ended_run = UnfinishedJob(*ended[:3], suspended_seconds=ended.suspended_seconds)
            record = self._partial_record(line.jobid, ended_run, JobState.REQUEUED, "R")
            record = record._replace(reason="rerun")
            return [self._remember_ended(record, ended_run, line.timestamp)]
        job = self._find_unfinished(line)
        self.deleted.pop(line.jobid, None)
        if "ctime" not in line.row.values and job:  # Torque logs only the id
            ended_record = self._partial_record(line.jobid, job, JobState.REQUEUED, "R")
            next_run = UnfinishedJob(job.submit_time, job.run + 1, None)
            self.unfinished[line.jobid] = next_run
            ended_record = self._remember_ended(ended_record, job, line.timestamp)
            return [ended_record, self._partial_record(line.jobid, next_run, JobState.PENDING, "Q")]
        run = self._run_number(line)
        waiting = _without_end(line, "start", "exec_host", "exec_vnode")
        if pbs_records.never_ran(line.row):  # a start that PBS gave up is no run
            again = self._record_unfinished(waiting, run, JobState.PENDING, "Q")
            return [again._replace(reason=_rerun_reason(line))]
        ended_record = self._job_record(
            line, run, JobState.REQUEUED, "R", _suspended(job, line.timestamp)
        )._replace(reason=_rerun_reason(line))
        if line.row.values.get("Exit_status") == "0":
            ended_record = ended_record._replace(exit_code=None, exit_signal=None)
        ended_record = _keep_allocation(ended_record, job, line)
        ended_record = self._remember_ended(ended_record, job, line.timestamp)
        return [ended_record, self._record_unfinished(waiting, run + 1, JobState.PENDING, "Q")]

    def _on_deleted(self, line: PbsLogRecord) -> list[JobRecord]:
        """A waiting job ends with this line; a running one has an E line later, or never."""
        job = self._find_unfinished(line)
        cancelled_by = line.row.text("requestor").partition("@")[0]
        if job is None:
            return self._on_deleted_subjob(line, cancelled_by)
        if job.start_time:
            self.deleted[line.jobid] = line.timestamp
            state = JobState(job.state or JobState.RUNNING)
            record = self._partial_record(line.jobid, job, state, "R")
            return [record._replace(cancelled_by=cancelled_by)]
        del self.unfinished[line.jobid]
        ended = self._partial_record(line.jobid, job, JobState.CANCELLED, "D")
        ended = ended._replace(cancelled_by=cancelled_by)
        return [self._remember_ended(ended, job, line.timestamp)]

    def _find_array(self, array_id: str, deleted: str) -> Array:
        if array_id not in self._arrays:
            _remember(self._arrays, array_id, find_array(self.files, array_id, deleted))
        return self._arrays[array_id]

    def _on_array(self, line: PbsLogRecord) -> list[JobRecord]:
        """The ends of its waiting subjobs; those that have begun have lines of their own.

        Of waiting subjobs that are deleted by a range of indices the server logs nothing: all that
        is known is that they ended before the array.
        """
        if line.record_type == "Q":
            _remember(self._arrays, line.jobid, Array(line.row.values, set()))
        if line.record_type != "D" and not (line.record_type == "E" and line.jobid in self._arrays):
            return []
        waiting = set(self._find_array(line.jobid, "").waiting(line.jobid))
        waiting |= {
            jobid
            for jobid, job in self.unfinished.items()
            if not job.start_time and array_id_of(jobid) == line.jobid
        }
        records = []
        for jobid in sorted(waiting):
            records += self._on_deleted(line._replace(jobid=jobid))
        return records

    def _on_deleted_subjob(self, line: PbsLogRecord, cancelled_by: str) -> list[JobRecord]:
        """The record of a waiting subjob, whose attributes only its array's line has."""
        array_id = array_id_of(line.jobid)
        if not array_id or line.jobid in self._ended_runs:
            return []
        array = self._find_array(array_id, line.jobid)
        if not array.attributes or line.jobid in array.begun:
            return []
        array.begun.add(line.jobid)
        line = line._replace(row=FieldReader(array.attributes))
        ended = self._job_record(line, 1, JobState.CANCELLED, "D")
        ended = ended._replace(cancelled_by=cancelled_by)
        return [self._remember_ended(ended, None, line.timestamp)]

    def _on_aborted_or_moved(self, line: PbsLogRecord) -> list[JobRecord]:
        job = self.unfinished.pop(line.jobid, None)
        self.deleted.pop(line.jobid, None)
        if job is None:
            return []
        state = JobState.MOVED if line.record_type == "M" else JobState.CANCELLED
        ended = self._partial_record(line.jobid, job, state, line.record_type)
        reason = sanitize_text(line.message) if state is JobState.CANCELLED else ""
        return [ended._replace(end_time=line.timestamp, reason=reason)]

    def _on_suspended(self, line: PbsLogRecord) -> list[JobRecord]:
        job = self._find_unfinished(line)
        if job is None or not job.start_time or job.state == JobState.SUSPENDED:
            return []
        ran = line.timestamp - job.start_time - (job.suspended_seconds or 0)
        return self._changed(line, job, JobState.SUSPENDED, "S", elapsed_seconds=max(0.0, ran))

    def _on_resumed(self, line: PbsLogRecord) -> list[JobRecord]:
        job = self._find_unfinished(line)
        if job is None:
            return []
        suspended = _suspended(job, line.timestamp)
        return self._changed(line, job, JobState.RUNNING, "R", suspended_seconds=suspended)

    def _on_altered(self, line: PbsLogRecord) -> list[JobRecord]:
        """Only the named attributes change; `UNSET` removes one."""
        job = self._find_unfinished(line)
        if job is None:
            return []
        default = JobState.RUNNING if job.start_time else JobState.PENDING
        state = JobState(job.state or default)
        word = "Q" if state is JobState.PENDING else state.name[0]
        return self._changed(line, job, state, word)

    def _changed(
        self, line: PbsLogRecord, job: UnfinishedJob, state: JobState, word: str, **values: Any
    ) -> list[JobRecord]:
        unset = [name for name, value in line.row.values.items() if value == "UNSET"]
        named = {_ALTERED_NAMES.get(name, name): value for name, value in line.row.values.items()}
        for name in unset:
            is_number = name in _CLEARED or name.partition(".")[2] in self._options.gpu_resources
            named[name] = "0" if is_number else ""
        line.row.values = {**named, "ctime": str(job.submit_time)}
        record = self._job_record(line, job.run, state, word)
        return [self._know(record._replace(**values))]

    def _partial_record(
        self, jobid: str, job: UnfinishedJob, state: JobState, word: str
    ) -> JobRecord:
        cluster, source = self._options.cluster, self._options.source
        return JobRecord(cluster, jobid, job.submit_time, state, word, source, job.run)


Handler = Callable[[PbsLogReplay, PbsLogRecord], list[JobRecord]]

RECORD_TYPES: Mapping[str, Handler | str] = {
    "Q": PbsLogReplay._on_queued,
    "S": PbsLogReplay._on_started,
    "T": PbsLogReplay._on_restarted,  # from a checkpoint
    "s": PbsLogReplay._on_reallocated,  # a reliable start gave back nodes that failed
    "u": PbsLogReplay._on_phase_ended,  # of a job that releases nodes
    "c": PbsLogReplay._on_reallocated,  # the next phase
    "e": PbsLogReplay._on_phase_ended,  # the last one
    "E": PbsLogReplay._on_ended,
    "R": PbsLogReplay._on_rerun,
    "D": PbsLogReplay._on_deleted,
    "A": PbsLogReplay._on_aborted_or_moved,
    "M": PbsLogReplay._on_aborted_or_moved,
    "z": PbsLogReplay._on_suspended,
    "r": PbsLogReplay._on_resumed,
    "a": PbsLogReplay._on_altered,
    "C": "a checkpoint ends no run; R follows where the job is held",
    "L": "licences are no jobs",
    "U": "reservations are no jobs",
    "Y": "reservations are no jobs",
    "B": "reservations are no jobs",
    "F": "reservations are no jobs",
    "K": "reservations are no jobs",
    "k": "reservations are no jobs",
    "P": "a node is provisioned between the job's start and its script",
    "p": "a node is provisioned between the job's start and its script",
}
"""All letters of PBS' acct.h and of Torque: the handler of the lines, or why they are ignored."""

_ALTERED_NAMES = {"Job_Name": "jobname", "Account_Name": "account"}
_CLEARED = frozenset(("Resource_List.mem", "Resource_List.walltime"))  # 0 removes them


def _remember(memory: dict[str, Any], jobid: str, value: object) -> None:
    memory.pop(jobid, None)
    memory[jobid] = value
    if len(memory) > _MAX_REMEMBERED:
        del memory[next(iter(memory))]


def _is_of(line: PbsLogRecord, submit_time: int) -> bool:
    """Whether a line is not of another job that had the same id."""
    return line.row.values.get("ctime") in (None, str(submit_time))


def _suspended(job: UnfinishedJob | None, at: int) -> float | None:
    """Seconds for which the job had been suspended by then; None if its beginning was not read."""
    if job is None or not job.start_time:
        return None
    if job.state != JobState.SUSPENDED or job.elapsed_seconds is None:
        return job.suspended_seconds
    return max(0, at - round(job.start_time + job.elapsed_seconds))


def _keep_allocation(record: JobRecord, job: UnfinishedJob | None, line: PbsLogRecord) -> JobRecord:
    """Keep what the start and the phases of a run said: its end names the nodes it began with.

    Nor does it repeat `resource_assigned`, which says what exclusive placement holds.
    """
    is_exclusive = "excl" in line.row.text("Resource_List.place")
    if job is None or job.run != record.run:
        return record
    if job.resized_cpu_seconds is None and not (is_exclusive and job.allocated_cpus):
        return record
    if reallocation.exceeds_run(job, record):  # a change is dated after the end
        return reallocation.not_known(record)
    return reallocation.without_allocation(record)


def _without_end(line: PbsLogRecord, *others: str) -> PbsLogRecord:
    """The line without the attributes of an end, and without these others."""
    kept = {
        name: value
        for name, value in line.row.values.items()
        if name not in ("end", "Exit_status", "session", *others)
        and not name.startswith("resources_used.")
    }
    return line._replace(row=FieldReader(kept))


def _rerun_reason(line: PbsLogRecord) -> str:
    """Why a run ended; the server writes status 0 for one whose node it lost."""
    status = line.row.get("Exit_status", integer)
    status = _NODE_LOST if status == 0 else status
    return "" if status is None else EXIT_STATUSES.get(status, "")
