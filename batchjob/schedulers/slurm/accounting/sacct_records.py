"""Records from the output of sacct.

Facts: sacct(1) of Slurm 20.11 to 26.05. Fields and rows are separated by a delimiter that is new
for each call, since sacct escapes nothing: names and submit lines contain bars, quotes and
newlines, and a known delimiter would let a user write other people's records.
"""

import pwd
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from batchjob.runtime.values import size_bytes
from batchjob.schedulers.accounting import SourceError
from batchjob.schedulers.fields import (
    FieldReader,
    RowError,
    count,
    epoch,
    integer,
    quarantined_row,
    sanitize_text,
)
from batchjob.schedulers.records import JobRecord, QuarantinedRow, StepRecord
from batchjob.schedulers.slurm.accounting.queries import ParsedJob
from batchjob.schedulers.slurm.formats import (
    Resources,
    parse_resources,
    parse_tres,
    parse_tres_count,
    slurm_duration,
)
from batchjob.schedulers.slurm.hostlist import node_shares
from batchjob.schedulers.slurm.reasons import of_started_job
from batchjob.schedulers.slurm.states import slurm_state

SOURCE = "sacct"

# Fields that the installed release does not have are omitted from the command (`sacct --helpformat`
# lists them).
FIELDS = (
    "JobIDRaw", "JobID", "DBIndex", "SLUID", "OriginalSLUID", "State", "ExitCode",
    "DerivedExitCode",
    "User", "UID", "Group", "Account", "Partition", "QOS", "Reservation", "Priority",
    "Submit", "Eligible", "Start", "End", "ElapsedRaw", "Suspended", "TimelimitRaw",
    "ReqCPUS", "ReqNodes", "ReqTRES", "AllocCPUS", "AllocNodes", "AllocTRES", "NodeList",
    "NTasks", "TotalCPU", "UserCPU", "SystemCPU", "MaxRSS", "TRESUsageInTot", "TRESUsageOutTot",
    "ConsumedEnergyRaw", "Reason", "Restarts", "JobName", "WorkDir", "StdOut", "SubmitLine",
)  # fmt: skip
REQUIRED_FIELDS = frozenset(("JobIDRaw", "JobID", "State", "Submit", "Start", "End"))

_CHUNK_BYTES = 1 << 16  # bytes split at once, to keep few fields in memory
_RAW_ID = re.compile(r"(\d{1,12})(?:\.(.+))?", re.ASCII)
_ARRAY = re.compile(r"(\d+)_(?:(\d+)|\[)", re.ASCII)
_HET = re.compile(r"(\d+)\+(\d+)", re.ASCII)

_PEAK_MEMORY, _STEPS = map(JobRecord._fields.index, ("peak_memory_bytes", "steps"))


def parse_rows(
    output: bytes, fields: Sequence[str], delimiter: str
) -> Iterator[FieldReader | QuarantinedRow]:
    """The rows of `sacct --parsable`, where a delimiter follows each field.

    Raises SourceError if the answer ends within a row: more may be missing than that row.
    """
    end, width = delimiter.encode(), len(fields)
    cells: list[str] = []
    begin = 0
    while (end_of_chunk := _last_delimiter(output, end, begin)) >= 0:
        cells += output[begin:end_of_chunk].decode("utf-8", "backslashreplace").split(delimiter)
        begin = end_of_chunk + len(end)
        complete = len(cells) - len(cells) % width
        for at in range(0, complete, width):
            stray_text, _, cells[at] = cells[at].rpartition("\n")
            if stray_text and not stray_text.isspace():
                yield quarantined_row(SOURCE, "text among the rows", stray_text.strip())
            yield FieldReader(dict(zip(fields, cells[at : at + width], strict=True)))
        del cells[:complete]
    rest = output[begin:].decode("utf-8", "backslashreplace")
    if cells:
        cut_off = sanitize_text(delimiter.join((*cells, rest))[-200:])
        raise SourceError(f"sacct's answer ends within a row: {cut_off!r}")
    if rest.strip():
        yield quarantined_row(SOURCE, "text among the rows", rest.strip())


def _last_delimiter(output: bytes, delimiter: bytes, begin: int) -> int:
    """Position of the last delimiter in the next chunk, or of the first one after it."""
    last = output.rfind(delimiter, begin, begin + _CHUNK_BYTES)
    return last if last >= 0 else output.find(delimiter, begin)


def parse_jobs(cluster: str, rows: Iterable[FieldReader | QuarantinedRow]) -> Iterator[ParsedJob]:
    """Join each job's row with those of its steps, which follow it."""
    group: list[FieldReader] = []
    for row in rows:
        if isinstance(row, QuarantinedRow):
            yield ParsedJob(None, (row,))
        elif group and "." in row.values["JobIDRaw"]:
            group.append(row)
        else:
            if group:
                yield _job(cluster, group)
            group = [row]
    if group:
        yield _job(cluster, group)


def _job(cluster: str, group: Sequence[FieldReader]) -> ParsedJob:
    """The job of a group: its own row, then its steps' rows."""
    quarantine: list[QuarantinedRow] = []
    job, steps = None, []
    for row in group:
        try:
            jobid, step = _parse_raw_id(row)
            if not step:
                job = job_record(cluster, jobid, row)
            elif job is None or job.jobid != jobid:
                raise RowError("a step without its job before it")
            else:
                steps.append(step_record(step, row))
        except RowError as error:
            quarantine.append(_quarantined_row(row, str(error)))
        else:
            if row.parse_errors:
                quarantine.append(_quarantined_row(row, "; ".join(row.parse_errors)))
    return ParsedJob(with_steps(job, steps) if job else None, tuple(quarantine))


def _quarantined_row(row: FieldReader, reason: str) -> QuarantinedRow:
    return quarantined_row(SOURCE, reason, "\x1f".join(row.values.values()))


def _parse_raw_id(row: FieldReader) -> tuple[str, str]:
    match = _RAW_ID.fullmatch(row.values["JobIDRaw"])
    if not match:
        raise RowError(f"JobIDRaw: expected a job id, got {row.values['JobIDRaw'][:40]!r}")
    return match[1], match[2] or ""


def job_record(cluster: str, jobid: str, row: FieldReader) -> JobRecord:
    """A job from its own row; raises RowError."""
    word, _, cancelled_by = row.text("State").partition(" by ")
    if not word:
        raise RowError("State is missing")
    exit_code, exit_signal = row.get("ExitCode", parse_exit_pair) or (None, None)
    derived_code, derived_signal = row.get("DerivedExitCode", parse_exit_pair) or (None, None)
    requested = row.get("ReqTRES", parse_resources) or Resources()
    allocated = row.get("AllocTRES", parse_resources) or Resources()
    membership = parse_display_id(row.values["JobID"])
    end = row.get("End", epoch)
    start = row.get("Start", epoch)
    if end is not None and row.values.get("NodeList") == "None assigned":
        start = None  # cancelled while pending: some releases repeat the end time here
    has_started = start is not None
    has_ended = has_started and end is not None
    reason = "" if row.text("Reason") == "None" else row.text("Reason")
    return JobRecord(
        cluster=cluster,
        jobid=jobid,
        submit_time=row.require("Submit", epoch),
        state=slurm_state(word),
        state_word=word,
        source=SOURCE,
        record_id=row.text("DBIndex"),
        sluid=row.text("OriginalSLUID") or row.text("SLUID"),
        user=row.text("User"),
        uid=row.get("UID", count),
        group=row.text("Group"),
        account=row.text("Account"),
        partition=row.text("Partition"),
        qos=row.text("QOS"),
        name=row.text("JobName"),
        reservation=row.text("Reservation"),
        priority=row.get("Priority", count),
        eligible_time=row.get("Eligible", epoch),
        start_time=start,
        end_time=end,
        elapsed_seconds=row.get("ElapsedRaw", count) if has_started else None,
        suspended_seconds=row.get("Suspended", _whole_seconds) if has_started else None,
        time_limit_seconds=row.get("TimelimitRaw", _limit_seconds),
        exit_code=exit_code if has_ended else None,
        exit_signal=exit_signal if has_ended else None,
        derived_exit_code=derived_code if has_ended else None,
        derived_exit_signal=derived_signal if has_ended else None,
        reason=of_started_job(reason) if has_started else reason,
        cancelled_by=_user_name(cancelled_by, row),
        restarts=row.get("Restarts", count),
        requested_cpus=requested.cpus or row.get("ReqCPUS", count),
        requested_memory_bytes=requested.memory_bytes,
        requested_gpus=requested.gpus,
        requested_nodes=requested.nodes or row.get("ReqNodes", count),
        requested_resources=row.text("ReqTRES"),
        # AllocCPUS and AllocNodes of a pending job repeat its request; AllocTRES is empty.
        allocated_cpus=allocated.cpus,
        allocated_memory_bytes=allocated.memory_bytes,
        allocated_gpus=allocated.gpus,
        allocated_nodes=allocated.nodes,
        allocated_resources=row.text("AllocTRES"),
        node_list="" if row.text("NodeList") == "None assigned" else row.text("NodeList"),
        nodes=node_shares(row.text("NodeList"), allocated, "NodeList", row.parse_errors),
        array_jobid=membership.array_jobid,
        array_index=membership.array_index,
        het_jobid=membership.het_jobid,
        het_offset=membership.het_offset,
        submit_line=row.text("SubmitLine"),
        work_dir=row.text("WorkDir"),
        stdout_path=row.text("StdOut"),
        # For a running job they cover only the steps that have ended.
        user_cpu_seconds=row.get("UserCPU", slurm_duration) if has_ended else None,
        system_cpu_seconds=row.get("SystemCPU", slurm_duration) if has_ended else None,
        cpu_seconds=row.get("TotalCPU", slurm_duration) if has_ended else None,
        energy_joules=row.get("ConsumedEnergyRaw", _parse_energy),
    )


def _user_name(uid: str, job: FieldReader) -> str:
    """The name of who cancelled a job, as slurmrestd gives it; a uid that has none stays."""
    return job.text("User") if uid and uid == job.text("UID") else _name_of_uid(uid)


@lru_cache(maxsize=1000)
def _name_of_uid(uid: str) -> str:
    try:
        return pwd.getpwuid(int(uid)).pw_name
    except (KeyError, ValueError, OverflowError):
        return uid


class ArrayMembership(NamedTuple):
    """The array or heterogeneous job to which a job belongs."""

    array_jobid: str = ""
    array_index: int | None = None
    het_jobid: str = ""
    het_offset: int | None = None


def parse_display_id(display: str) -> ArrayMembership:
    """Array and het ids of `10_3`, `10_[4-9%2]` (all tasks that have not started) or `25+1`."""
    array = _ARRAY.match(display)
    if array:
        return ArrayMembership(array[1], None if array[2] is None else int(array[2]))
    het = _HET.match(display)
    return ArrayMembership(het_jobid=het[1], het_offset=int(het[2])) if het else ArrayMembership()


def step_record(step: str, row: FieldReader) -> StepRecord:
    """A step from its row; raises RowError."""
    word = row.text("State").partition(" by ")[0]
    if not word:
        raise RowError("State is missing")
    exit_code, exit_signal = row.get("ExitCode", parse_exit_pair) or (None, None)
    allocated = row.get("AllocTRES", parse_resources) or Resources()
    end = row.get("End", epoch)
    read = row.get("TRESUsageInTot", parse_tres) or {}
    written = row.get("TRESUsageOutTot", parse_tres) or {}
    return StepRecord(
        step=step,
        state=slurm_state(word),
        state_word=word,
        name=row.text("JobName"),
        start_time=row.get("Start", epoch),
        end_time=end,
        elapsed_seconds=row.get("ElapsedRaw", count) if end is not None else None,
        exit_code=exit_code if end is not None else None,
        exit_signal=exit_signal if end is not None else None,
        nodes=allocated.nodes or row.get("AllocNodes", count),
        node_list=row.text("NodeList"),
        tasks=row.get("NTasks", count),
        cpus=allocated.cpus,
        gpus=allocated.gpus,
        user_cpu_seconds=row.get("UserCPU", slurm_duration) if end is not None else None,
        system_cpu_seconds=row.get("SystemCPU", slurm_duration) if end is not None else None,
        cpu_seconds=row.get("TotalCPU", slurm_duration) if end is not None else None,
        peak_task_memory_bytes=row.get("MaxRSS", size_bytes),
        memory_bytes=_parse_usage(row, read, "mem"),
        read_bytes=_parse_usage(row, read, "fs/disk"),
        written_bytes=_parse_usage(row, written, "fs/disk"),
        energy_joules=row.get("ConsumedEnergyRaw", _parse_energy),
        submit_line=row.text("SubmitLine"),
    )


def _parse_usage(row: FieldReader, usage: Mapping[str, str], name: str) -> int | None:
    try:
        return parse_tres_count(usage.get(name))
    except ValueError as error:
        row.parse_errors.append(f"TRESUsage {name}: {error}")
        return None


def with_steps(job: JobRecord, steps: Sequence[StepRecord]) -> JobRecord:
    """The job with its steps; its peak memory is that of its largest step."""
    peaks = [step.memory_bytes for step in steps if step.memory_bytes]
    values = list(job)  # takes a quarter of the time of _replace(), and runs for each job of a site
    values[_PEAK_MEMORY] = max(peaks, default=None)
    values[_STEPS] = tuple(steps)
    return JobRecord._make(values)


def without_steps(parsed: ParsedJob) -> ParsedJob:
    """Clear the totals over steps, which are 0 in an answer without steps."""
    job = parsed.job
    if job is None:
        return parsed
    without_totals = job._replace(user_cpu_seconds=None, system_cpu_seconds=None, cpu_seconds=None)
    return parsed._replace(job=without_totals)


@lru_cache(maxsize=1000)  # the most common value is 0:0
def parse_exit_pair(text: str) -> tuple[int, int]:
    """Exit code and signal of `3:0`."""
    code, _, signal = text.partition(":")
    return integer(code), integer(signal or "0")


def _limit_seconds(text: str) -> int | None:
    """Seconds of a time limit: TimelimitRaw counts minutes."""
    if text in ("UNLIMITED", "Partition_Limit", "INVALID"):
        return None
    return integer(text) * 60


def _whole_seconds(text: str) -> int | None:
    duration = slurm_duration(text)
    return None if duration is None else int(duration)


def _parse_energy(text: str) -> int | None:
    """Joules; None for 0, which a site without an energy plugin has."""
    return parse_tres_count(text) or None
