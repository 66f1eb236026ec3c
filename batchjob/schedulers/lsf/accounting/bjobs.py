"""LSF's running, waiting and recently ended jobs, from `bjobs -json`.

Facts: bjobs(1). Times have no year unless the cluster is configured to show it, and are in the
client's zone, which is UTC here. Ended jobs are kept for CLEAN_PERIOD (default: an hour), so
lsb.acct or lsb.stream should be read as well.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from batchjob.runtime.settings import option
from batchjob.runtime.values import duration, size_bytes
from batchjob.schedulers.accounting import AccountingModule, UnfinishedJob
from batchjob.schedulers.fields import FieldReader, clock_duration, count, integer
from batchjob.schedulers.lsf.accounting import records
from batchjob.schedulers.lsf.formats import lsf_duration, lsf_time, query_bjobs
from batchjob.schedulers.lsf.states import LSF, LSF_EXIT_INFO
from batchjob.schedulers.records import JobRecord, run_time
from batchjob.schedulers.snapshot import SnapshotOptions, SnapshotSource
from batchjob.schedulers.states import JobState

_SOURCE = "bjobs"

# As named by bjobs; the keys of its answer are in upper case.
_FIELDS = (
    "jobid", "jobindex", "stat", "user", "queue", "job_name", "proj_name", "command", "dependency",
    "exit_code", "exit_reason", "alloc_slot", "exec_host", "nreq_slot", "submit_time",
    "start_time", "finish_time", "cpu_used", "max_mem", "memlimit", "run_time", "runtimelimit",
    "gpu_num", "effective_resreq", "output_file", "sub_cwd", "kill_reason", "pend_reason",
)  # fmt: skip
_JOB_ID = re.compile(r"\d+(\[\d+\])?", re.ASCII)


@dataclass(frozen=True)
class BjobsOptions(SnapshotOptions):
    bjobs: str = option("bjobs", "The command bjobs, or its path.")
    history: float = option(
        3600.0, "How long LSF remembers ended jobs (CLEAN_PERIOD in lsb.params).", parse=duration
    )


class Bjobs(SnapshotSource):
    name = _SOURCE
    jobid_pattern = _JOB_ID

    def check(self) -> tuple[str, ...]:
        """See AccountingSource. LSF shows all jobs unless SECURE_JOB_INFO_LEVEL forbids it."""
        next(self.query_jobs(), None)  # raises SchedulerError
        return ()

    def query_jobs(self) -> Iterator[tuple[str, FieldReader]]:
        for values in query_bjobs(self._options, self._options.bjobs, _FIELDS):
            yield values.get("JOBID", ""), FieldReader(values)

    def records(
        self, jobid: str, row: FieldReader, unfinished: Mapping[str, UnfinishedJob], now: int
    ) -> tuple[JobRecord, ...]:
        """See SnapshotSource; the id with its index is in the record."""
        del jobid
        record = records.with_known_submit_time(job_record(self.cluster, row, now), unfinished)
        known = unfinished.get(record.jobid)
        if known and known.state == JobState.SUSPENDED and record.state is JobState.RUNNING:
            stopped = _suspended_seconds(row, record.start_time, now)
            record = record._replace(suspended_seconds=stopped)
        return (record,)


def job_record(cluster: str, row: FieldReader, now: int) -> JobRecord:
    """A job from its record; raises RowError."""

    def parse_time(text: str) -> int | None:
        return lsf_time(text, now)

    number = row.require("JOBID", integer)
    index = row.get("JOBINDEX", count) or 0
    word = row.text("STAT")
    state = LSF.get(word, JobState.UNKNOWN)
    start, ended = row.get("START_TIME", parse_time), not state.is_live
    code = row.get("EXIT_CODE", integer)
    reason = row.text("EXIT_REASON")
    if state is JobState.FAILED:
        state = next((s for name, s, _ in LSF_EXIT_INFO.values() if reason.startswith(name)), state)
    end = row.get("FINISH_TIME", parse_time) if ended else None  # otherwise an estimate
    counted = row.get("RUN_TIME", lsf_duration)
    elapsed, suspended = run_time(start, end, counted or None)
    slots = row.text("ALLOC_SLOT") or row.text("EXEC_HOST")
    nodes = records.node_shares(row, "ALLOC_SLOT", () if slots == "-" else slots.split(":"))
    return JobRecord(
        cluster=cluster,
        jobid=records.format_job_id(str(number), index),
        submit_time=row.require("SUBMIT_TIME", parse_time),
        state=state,
        state_word=word,
        source=_SOURCE,
        user=row.text("USER"),
        account=row.text("PROJ_NAME"),
        partition=row.text("QUEUE"),
        name=row.text("JOB_NAME"),
        start_time=start,
        end_time=end,
        elapsed_seconds=counted if state is JobState.SUSPENDED else elapsed,
        suspended_seconds=suspended,
        time_limit_seconds=row.get("RUNTIMELIMIT", _limit_seconds),
        exit_code=(0 if code is None and state is JobState.COMPLETED else code) if ended else None,
        reason=row.text("PEND_REASON") if state is JobState.PENDING else reason,
        requested_cpus=row.get("NREQ_SLOT", count),
        requested_memory_bytes=row.get("MEMLIMIT", size_bytes),
        allocated_gpus=row.get("GPU_NUM", count) if start else None,
        requested_resources=row.text("EFFECTIVE_RESREQ"),
        allocated_cpus=sum(node.cpus or 0 for node in nodes) or None,
        allocated_nodes=len(nodes) or None,
        node_list=slots,
        nodes=nodes,
        array_jobid=str(number) if index else "",
        array_index=index or None,
        dependencies=row.text("DEPENDENCY"),
        submit_line=row.text("COMMAND"),
        work_dir=row.text("SUB_CWD"),
        stdout_path=row.text("OUTPUT_FILE"),
        cpu_seconds=row.get("CPU_USED", lsf_duration),
        peak_memory_bytes=row.get("MAX_MEM", size_bytes),
    )


def _suspended_seconds(row: FieldReader, start: float | None, now: int) -> int | None:
    """Seconds for which a job that runs again was suspended, by its run time so far."""
    counted = row.get("RUN_TIME", lsf_duration)
    return None if counted is None or start is None else max(0, round(now - start - counted))


def _limit_seconds(text: str) -> int:
    """Seconds of a limit in minutes, `1440.0` or `1440.0/host1`.

    With LSB_HMS_TIME_FORMAT it is `24:00:00`.
    """
    amount = text.partition("/")[0]
    try:
        return int(clock_duration(amount)) if ":" in amount else int(float(amount) * 60)
    except (ValueError, OverflowError) as error:
        raise ValueError(f"expected minutes or H:MM:SS, got {text[:40]!r}") from error


ACCOUNTING = AccountingModule(BjobsOptions, Bjobs)
