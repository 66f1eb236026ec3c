"""Running jobs of the log that PBS no longer runs: their end was not logged, or the log is lost."""

from collections.abc import Mapping
from typing import NamedTuple

from batchjob.runtime.subprocesses import CommandOptions, SchedulerError
from batchjob.schedulers.accounting import UnfinishedJob, check_vanished, with_jobids_like
from batchjob.schedulers.fields import FieldReader, RowError
from batchjob.schedulers.pbs.accounting.qstat import FINISHED, finished_record
from batchjob.schedulers.pbs.accounting.records import JOB_ID, RecordOptions
from batchjob.schedulers.pbs.qstat_jobs import query_qstat
from batchjob.schedulers.records import JobRecord


class LostJobs(NamedTuple):
    """The ends that PBS' history has, and the ids of the jobs that it does not know."""

    ended: tuple[JobRecord, ...] = ()
    unknown: tuple[str, ...] = ()


def find_lost_jobs(
    options: CommandOptions,
    qstat: str,
    record_options: RecordOptions,
    unfinished: Mapping[str, UnfinishedJob],
) -> LostJobs:
    """The running jobs that are not in the queue; raises SchedulerError.

    Only if there are any, PBS' history is queried as well.
    """
    jobs = with_jobids_like(unfinished, JOB_ID)
    running = {jobid: job for jobid, job in jobs.items() if job.start_time}
    if not running:
        return LostJobs()
    queue = query_qstat(options, qstat)
    missing = {jobid: job for jobid, job in running.items() if not _is_live(queue.get(jobid))}
    if not missing:
        return LostJobs()
    history = _query_history(options, qstat)
    ended, unknown = [], []
    for jobid, job in missing.items():
        attributes = history.get(jobid)
        if attributes is None or attributes.get("ctime") != str(job.submit_time):
            unknown.append(jobid)
        elif not _is_live(attributes):
            try:
                record = finished_record(record_options, jobid, FieldReader(dict(attributes)))
            except RowError:
                continue
            ended.append(record._replace(run=job.run))
    gone = check_vanished(
        record_options.source, tuple(unknown), running, nothing_seen=not (queue or history),
        trust_missing=False,
    )  # fmt: skip
    return LostJobs(tuple(ended), gone)


def _query_history(options: CommandOptions, qstat: str) -> Mapping[str, Mapping[str, str]]:
    """Jobs that have ended as well; none of a server that keeps no history, as by default."""
    try:
        return query_qstat(options, qstat, "-x")
    except SchedulerError as error:
        if "history" not in str(error):
            raise
        return {}


def _is_live(attributes: Mapping[str, str] | None) -> bool:
    return attributes is not None and attributes.get("job_state") not in FINISHED
