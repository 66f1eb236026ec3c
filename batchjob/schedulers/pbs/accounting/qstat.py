"""PBS jobs and their history, from `qstat -x`."""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from batchjob.runtime.settings import option
from batchjob.runtime.subprocesses import CommandOptions, SchedulerError, run
from batchjob.runtime.values import boolean, duration, one_of, text
from batchjob.schedulers.accounting import AccountingModule, UnfinishedJob
from batchjob.schedulers.fields import FieldReader, epoch, integer
from batchjob.schedulers.pbs.accounting.records import (
    ACCOUNTS,
    JOB_ID,
    NOT_LOGGED,
    Incarnation,
    end_state,
    job_record,
    parse_job_id,
)
from batchjob.schedulers.pbs.qstat_jobs import query_qstat
from batchjob.schedulers.pbs.states import PBS
from batchjob.schedulers.records import JobRecord
from batchjob.schedulers.snapshot import SnapshotJob, SnapshotSource
from batchjob.schedulers.states import JobState

SOURCE = "qstat"


@dataclass(frozen=True)
class QstatOptions(CommandOptions):
    """PBS' jobs by qstat."""

    qstat: str = option("qstat", "The command qstat, or its path.", parse=text)
    account: str = option(
        "account", "Attribute that contains the account, if any.", parse=one_of(*ACCOUNTS)
    )
    history: float = option(
        14 * 86400.0,
        "How long PBS remembers ended jobs (the server's job_history_duration).",
        parse=duration,
    )
    trust_missing: bool = option(
        False, "Accept an answer in which most unfinished jobs are missing.", parse=boolean
    )


def build(cluster: str, options: QstatOptions) -> "Qstat":
    """The source for one cluster."""
    return Qstat(cluster, options)


class Qstat(SnapshotSource):
    """Lists the server's jobs and their history."""

    name = SOURCE
    jobid_pattern = JOB_ID

    def __init__(
        self, cluster: str, options: QstatOptions, clock: Callable[[], float] = time.time
    ) -> None:
        super().__init__(cluster, options, clock)
        self._options = options

    def check(self) -> tuple[str, ...]:
        """See AccountingSource."""
        try:
            shown = self._run("-B", "-f").decode("utf-8", "replace")
        except SchedulerError as error:
            return (f"cannot query the PBS server: {error}",)
        settings = {line.replace(" ", "").lower() for line in shown.splitlines()}
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

    def query_jobs(self) -> Iterator[SnapshotJob]:
        """See SnapshotSource."""
        for jobid, attributes in query_qstat(self._options, self._options.qstat, "-x").items():
            yield SnapshotJob(jobid, FieldReader(attributes), {jobid: attributes})

    def records(
        self, job: SnapshotJob, unfinished: Mapping[str, UnfinishedJob], now: int
    ) -> tuple[JobRecord, ...]:
        """See SnapshotSource; arrays are known by their sub-jobs."""
        del now
        if parse_job_id(job.jobid).is_array:
            return ()
        record = self.record(job.jobid, job.row)
        return (*_previous_run(record, job.row, unfinished.get(record.jobid)), record)

    def _run(self, *arguments: str) -> bytes:
        return run(self._options, [self._options.qstat, *arguments]).stdout

    def record(self, jobid: str, row: FieldReader) -> JobRecord:
        """The newest run of a job."""
        letter = row.text("job_state")
        state = PBS.get(letter, JobState.UNKNOWN)
        runs = row.get("run_count", integer) or 0
        if letter in ("F", "X", "C"):
            # A deleted subjob that never ran has the start time of its array, and exit status 1.
            ran = "exec_host" in row.values
            state = end_state(row) if ran else JobState.CANCELLED
            row.values = with_end_time(row.values, ran=ran)
        else:
            row.values = {k: v for k, v in row.values.items() if k != "Exit_status"}
            if state is JobState.PENDING:
                row.values = {k: v for k, v in row.values.items() if k != "start"}
                runs += 1  # the run that it is waiting for
        incarnation = Incarnation(jobid, max(1, runs), state, letter)
        record = job_record(self.cluster, SOURCE, self._options.account, incarnation, row)
        return record._replace(
            reason=row.text("comment") if state is JobState.PENDING else record.reason,
            submit_line=f"qsub {row.text('Submit_arguments')}".strip()
            if row.text("Submit_arguments")
            else "",
            work_dir=row.text("Variable_List.PBS_O_WORKDIR"),
            stdout_path=row.text("Output_Path"),
        )


def _previous_run(
    record: JobRecord, row: FieldReader, unfinished: UnfinishedJob | None
) -> tuple[JobRecord, ...]:
    """The run seen last, if the job was rerun since then: qstat shows only the newest run.

    It ended before the next one began, or before the server last changed the job.
    """
    if unfinished is None or unfinished.submit_time != record.submit_time:
        return ()
    if unfinished.run >= record.run:
        return ()
    end = record.start_time or row.get("mtime", epoch)
    return (
        JobRecord(
            record.cluster, record.jobid, record.submit_time, JobState.REQUEUED, "", SOURCE,
            unfinished.run, end_time=end, reason=NOT_LOGGED,
        ),
    )  # fmt: skip


def with_end_time(values: Mapping[str, str], *, ran: bool) -> dict[str, str]:
    """Add `end`: when the server moved the job to its history, else when it was notified of it."""
    end = values.get("history_timestamp") or values.get("obittime") or values.get("mtime", "")
    dropped = () if ran else ("start", "Exit_status")
    return {**{k: v for k, v in values.items() if k not in dropped}, "end": end}


ACCOUNTING = AccountingModule(QstatOptions, build)
