"""PBS jobs and their history, from `qstat -x`."""

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from batchjob.runtime.json_reader import parse_json, repeated_names
from batchjob.runtime.settings import option
from batchjob.runtime.subprocesses import SchedulerError, run
from batchjob.runtime.values import duration, one_of
from batchjob.schedulers.accounting import AccountingModule, Batch, UnfinishedJob
from batchjob.schedulers.fields import FieldReader, RowError, epoch, integer
from batchjob.schedulers.pbs.accounting import records
from batchjob.schedulers.pbs.qstat_jobs import query_qstat
from batchjob.schedulers.pbs.states import EXIT_STATUSES, PBS, REFUSED_STARTS, STARTING, TERMINATED
from batchjob.schedulers.records import JobRecord
from batchjob.schedulers.snapshot import SnapshotOptions, SnapshotSource
from batchjob.schedulers.states import JobState

_SOURCE = "qstat"


@dataclass(frozen=True)
class QstatOptions(SnapshotOptions):
    qstat: str = option("qstat", "The command qstat, or its path.")
    # fmt: off
    account: str = option("account",
        "Attribute that contains the account, if any.", parse=one_of(*records.ACCOUNTS))
    gpu_resources: str = option("",
        "Resources of this site that count GPUs, separated by commas, besides ngpus, gpus, gpu and "
        "naccelerators.")
    history: float = option(14 * 86400.0,
        "How long PBS remembers ended jobs (the server's job_history_duration).", parse=duration)
    # fmt: on


class Qstat(SnapshotSource):
    name = _SOURCE
    jobid_pattern = records.JOB_ID

    def __init__(
        self, cluster: str, options: QstatOptions, clock: Callable[[], float] = time.time
    ) -> None:
        super().__init__(cluster, options, clock)
        gpu_resources = records.gpu_resources_of(options.gpu_resources)
        self._given_up: dict[str, tuple[int, int]] = {}  # submit time, starts given up
        self._still_given_up: dict[str, tuple[int, int]] = {}
        self._record_options = records.RecordOptions(
            cluster, _SOURCE, options.account, gpu_resources
        )

    def check(self) -> tuple[str, ...]:
        try:
            shown = run(self._options, [self._options.qstat, "-B", "-f"])
        except SchedulerError as error:
            return (f"cannot query the PBS server: {error}",)
        settings = {
            line.replace(" ", "").lower() for line in shown.decode("utf-8", "replace").splitlines()
        }
        problems = []
        if "query_other_jobs=true" not in settings:
            problems.append(
                "PBS shows each user only its own jobs: "
                "`qmgr -c 'set server query_other_jobs = True'`, or make the poller's user "
                "an operator"
            )
        if "job_history_enable=true" not in settings:
            problems.append(
                "PBS forgets a job when it ends: `qmgr -c 'set server job_history_enable = True'`"
                ", or read the accounting logs (pbs_log)"
            )
        return tuple(problems)

    def query_jobs(self) -> Iterator[tuple[str, FieldReader]]:
        for jobid, attributes in query_qstat(self._options, self._options.qstat, "-x").items():
            yield jobid, FieldReader(attributes)

    def records(
        self, jobid: str, row: FieldReader, unfinished: Mapping[str, UnfinishedJob], now: int
    ) -> tuple[JobRecord, ...]:
        """See SnapshotSource; arrays are known by their sub-jobs."""
        if not row.values:
            raise RowError("the job's id stands twice")
        array_jobid, task = records.parse_job_id(jobid)
        if array_jobid and task is None:
            return ()
        shown = FieldReader(row.values)
        if row.text("job_state") in FINISHED:
            record = finished_record(self._record_options, jobid, row)
        else:
            record = live_record(self._record_options, jobid, row)
        refused = shown.get("Exit_status", integer) in REFUSED_STARTS
        record = self._renumbered(record, unfinished.get(record.jobid), refused=refused)
        known = unfinished.get(record.jobid)
        if known is not None and known.submit_time != record.submit_time:
            known = None
        return (*_previous_run(record, shown, known), _with_suspension(record, row, known, now))

    def read(self, watermark: str, unfinished: Mapping[str, UnfinishedJob]) -> Iterator[Batch]:
        time_read, _, starts = watermark.partition(" ")
        self._given_up, self._still_given_up = parse_json(starts or "{}"), {}
        for batch in super().read(time_read, unfinished):
            starts = f" {json.dumps(self._still_given_up)}" if self._still_given_up else ""
            yield batch._replace(watermark=batch.watermark + starts)

    def _renumbered(
        self, record: JobRecord, known: UnfinishedJob | None, *, refused: bool
    ) -> JobRecord:
        """The record with the number of its run among those that began.

        PBS' run_count also counts starts that it gave up: those between two readings in which the
        job waited, or before the first one, if the last of them was `refused`; otherwise it ran
        meanwhile, and was rerun. They are remembered as long as PBS lists the job.
        """
        submit_time, given_up = self._given_up.get(record.jobid, (0, 0))
        given_up = given_up if submit_time == record.submit_time else 0
        if known and known.submit_time == record.submit_time:
            waited, run_before = not known.start_time, known.run
        else:
            waited, run_before = record.state is JobState.PENDING and not given_up, 1
        if waited and refused:
            given_up = max(given_up, record.run - run_before)
        if not given_up:
            return record
        self._still_given_up[record.jobid] = (record.submit_time, given_up)
        run = max(1, record.run - given_up)
        return record._replace(run=run, restarts=run - 1)


FINISHED, _MOVED = ("F", "X", "C", "M"), "M"  # M: to another server


def finished_record(options: records.RecordOptions, jobid: str, row: FieldReader) -> JobRecord:
    """The last run of a finished job; raises RowError.

    A job that ended as it waited has no exec_host, and a status of its array or an earlier run.
    """
    ran = "exec_host" in (*row.values, *repeated_names(row.values))
    deleted = row.text("substate") == TERMINATED
    row.values = with_end_time(row.values, ran=ran)
    state = records.end_state(row, deleted=deleted) if ran else JobState.CANCELLED
    if row.text("job_state") == _MOVED:
        state = JobState.MOVED
    runs = (row.get("run_count", integer) or 0) + (not ran)
    record = _record(options, jobid, row, state, max(1, runs))
    by = _TERMINATED_BY.search(row.text("comment"))
    cancelled_by = by[1] if by and state is JobState.CANCELLED else ""
    return record._replace(cancelled_by=cancelled_by)


_TERMINATED_BY = re.compile(r" terminated by ([^@\s]+)@")


def live_record(options: records.RecordOptions, jobid: str, row: FieldReader) -> JobRecord:
    """The run of a job that waits or runs; raises RowError."""
    state = PBS.get(row.text("job_state"), JobState.UNKNOWN)
    runs = row.get("run_count", integer) or 0
    dropped = {"Exit_status", "session"}
    if row.text("substate") == STARTING:  # its node has not accepted it, and may refuse it
        state = JobState.PENDING
    elif state is JobState.PENDING:
        runs += 1  # the run that it is waiting for
    if state is JobState.PENDING:
        dropped |= {"start", "exec_host", "exec_vnode"}
    row.values = {name: value for name, value in row.values.items() if name not in dropped}
    record = _record(options, jobid, row, state, max(1, runs))
    comment = row.text("comment") if state is JobState.PENDING else ""
    # Jobs that wait in a started array, and those being started, keep a comment of the past.
    return record._replace(reason="" if _OF_A_START.match(comment) else comment)


_OF_A_START = re.compile(r"Job (Array Began|run) at ")


def _record(
    options: records.RecordOptions, jobid: str, row: FieldReader, state: JobState, run: int
) -> JobRecord:
    arguments = row.text("Submit_arguments")
    return records.job_record(options, jobid, row, run, state, row.text("job_state"))._replace(
        submit_line=f"qsub {arguments}" if arguments else "",
        work_dir=row.text("Variable_List.PBS_O_WORKDIR"),
        stdout_path=row.text("Output_Path"),
    )


def _previous_run(
    record: JobRecord, row: FieldReader, known: UnfinishedJob | None
) -> tuple[JobRecord, ...]:
    """The run seen last, if the job was rerun since then: qstat shows only the newest run.

    It ended when the server was last notified of an end, or else before the next run began, or
    before the server last changed the job. A waiting job has the status of the run before.
    """
    if known is None or known.run >= record.run:
        return ()
    notified = row.get("obittime", epoch)
    latest = record.start_time or row.get("mtime", epoch)
    is_its_end = notified and latest and (known.start_time or notified) <= notified <= latest
    status = row.get("Exit_status", integer) if record.state is JobState.PENDING else None
    key = record.cluster, record.jobid, record.submit_time
    previous = JobRecord(*key, JobState.REQUEUED, "", _SOURCE, known.run)
    end = notified if is_its_end else latest
    reason = EXIT_STATUSES.get(status or 0, records.NOT_LOGGED)
    return (previous._replace(end_time=end, reason=reason),)


def _with_suspension(
    record: JobRecord, row: FieldReader, known: UnfinishedJob | None, now: int
) -> JobRecord:
    """The record of a live job with the time for which it has been suspended.

    A suspension begins and ends when the server last changed the job.
    """
    start, known = record.start_time, known if known and known.run == record.run else None
    if start is None or not record.state.is_live:
        return record
    changed = min(row.get("mtime", epoch) or now, now)
    suspended = known.suspended_seconds if known else None
    ran = known.elapsed_seconds if known and known.state == JobState.SUSPENDED else None
    if record.state is JobState.SUSPENDED:
        ran = changed - start - (suspended or 0) if ran is None else ran
        return record._replace(elapsed_seconds=max(0, ran))
    if ran is not None:
        suspended = max(0, round(changed - start - ran))
    return record._replace(suspended_seconds=suspended)


def with_end_time(values: Mapping[str, str], *, ran: bool) -> dict[str, str]:
    """Add `end`: when the server moved the job to its history, else when it was notified of it.

    Without a session, PBS started no script, or suspended the job.
    """
    end = values.get("history_timestamp") or values.get("obittime") or values.get("mtime", "")
    dropped = () if ran else ("start", "Exit_status")
    kept = {name: value for name, value in values.items() if name not in dropped}
    return {"session": "0", **kept, "end": end}


ACCOUNTING = AccountingModule(QstatOptions, Qstat)
