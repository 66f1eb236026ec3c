"""Records from the output of sacct.

Facts: sacct(1) of Slurm 20.11 to 26.05. Fields and rows are separated by a delimiter that is new
for each call, since sacct escapes nothing: names and submit lines contain bars, quotes and
newlines, and a known delimiter would let a user write other people's records.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from batchjob.runtime.logins import login_of
from batchjob.runtime.values import size_bytes
from batchjob.schedulers.accounting import SourceError
from batchjob.schedulers.fields import (
    FieldReader,
    RowError,
    count,
    epoch,
    integer,
    quarantined_row,
    row_problem,
    sanitize_text,
)
from batchjob.schedulers.records import JobRecord, QuarantinedRow, StepRecord, run_time
from batchjob.schedulers.slurm import formats
from batchjob.schedulers.slurm.accounting import queries
from batchjob.schedulers.slurm.accounting.exit_codes import parse_exit_pair, sacct_exit
from batchjob.schedulers.slurm.accounting.site_accounting import AS_PRINTED, SiteAccounting
from batchjob.schedulers.slurm.hostlist import node_shares
from batchjob.schedulers.slurm.states import of_started_job, of_unstarted_job, slurm_state
from batchjob.schedulers.states import JobState

SOURCE = "sacct"

# The command leaves out fields that the installed release lacks (`sacct --helpformat` lists them).
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


def parse_jobs(
    cluster: str, rows: Iterable[FieldReader | QuarantinedRow], site: SiteAccounting = AS_PRINTED
) -> Iterator[queries.ParsedJob]:
    """Join each job's row with those of its steps, which follow it."""
    group: list[FieldReader] = []
    following: queries.Following = {}
    for row in rows:
        if isinstance(row, QuarantinedRow):
            yield queries.ParsedJob(None, (row,))
        elif group and "." in row.values["JobIDRaw"]:
            group.append(row)
        else:
            if group:
                yield parse_group(cluster, group, site, following)
            group = [row]
    if group:
        yield parse_group(cluster, group, site, following)


def parse_group(
    cluster: str, group: Sequence[FieldReader], site: SiteAccounting, following: queries.Following
) -> queries.ParsedJob:
    """The job of a group: its own row, then its steps' rows."""
    quarantine: list[QuarantinedRow] = []
    job, steps = None, []
    if group[0].values["State"] == "RESIZING":
        _restore_allocation(group, following)
    for row in group:
        try:
            jobid, step = _parse_raw_id(row)
            if not step:
                job = job_record(cluster, jobid, row, site)
            elif job is None or job.jobid != jobid:
                raise RowError("a step without its job before it")
            else:
                steps.append(step_record(step, row, site))
        except Exception as error:
            quarantine.append(_quarantined_row(row, row_problem(error)))
        else:
            if row.parse_errors:
                quarantine.append(_quarantined_row(row, "; ".join(row.parse_errors)))
    return queries.ParsedJob(
        queries.with_steps(job, steps, site) if job else None, tuple(quarantine)
    )


def _restore_allocation(group: Sequence[FieldReader], following: queries.Following) -> None:
    job, *steps = group
    held_now = job.text("AllocTRES")
    by_step = {row.values["JobIDRaw"].partition(".")[2]: row.text("AllocTRES") for row in steps}
    submit, end, nodes = (
        job.get("Submit", epoch),
        job.get("End", epoch),
        job.get("AllocNodes", count),
    )
    held = queries.held_before_resize(
        following, job.values["JobIDRaw"], submit, end, held_now, by_step, nodes
    )
    job.values = {**job.values, "AllocTRES": held or ""}


def _quarantined_row(row: FieldReader, reason: str) -> QuarantinedRow:
    raw = "\x1f".join(row.values.values())
    return quarantined_row(SOURCE, reason, raw, row.text("JobIDRaw"))


def _parse_raw_id(row: FieldReader) -> tuple[str, str]:
    match = _RAW_ID.fullmatch(row.values["JobIDRaw"])
    if not match:
        raise RowError(f"JobIDRaw: expected a job id, got {row.values['JobIDRaw'][:40]!r}")
    return match[1], match[2] or ""


def job_record(
    cluster: str, jobid: str, row: FieldReader, site: SiteAccounting = AS_PRINTED
) -> JobRecord:
    """A job from its own row; raises RowError."""
    word, _, cancelled_by = row.text("State").partition(" by ")
    if not word:
        raise RowError("State is missing")
    state = slurm_state(word)
    derived_code, derived_signal = row.get("DerivedExitCode", parse_exit_pair) or (None, None)
    requested = row.get("ReqTRES", formats.parse_resources) or formats.Resources()
    end = row.get("End", epoch)
    start = row.get("Start", epoch)
    if end is not None and row.values.get("NodeList") == "None assigned":
        start = None  # cancelled while pending: some releases repeat the end time here
    submit, elapsed = row.require("Submit", epoch), row.get("ElapsedRaw", count)
    has_started = start is not None
    has_ended = has_started and end is not None
    suspended = row.get("Suspended", formats.whole_seconds) if has_started else None
    ran: float | None = elapsed
    if has_ended and elapsed is not None:
        ran, suspended = run_time(start, end, elapsed, suspended)
    allocated = (
        row.get("AllocTRES", formats.parse_resources) if has_started else None
    ) or formats.Resources()
    # In its first second, a row may be PENDING on a node, with no CPUs.
    node_list = row.text("NodeList").replace("None assigned", "") if has_started else ""
    reason = "" if row.text("Reason") == "None" else row.text("Reason")
    exit_pair = row.get("ExitCode", parse_exit_pair) if has_ended else None
    code, signal, code_or_128_more = sacct_exit(exit_pair, state, exact=site.exact_exits)
    # slurmdbd's sums over the steps, for a job without steps; 0 if none of them has reported.
    has_cpu = has_ended and state is not JobState.RESIZED
    user_cpu, system_cpu, cpu = (
        (row.get(name, formats.slurm_duration) or None) if has_cpu else None
        for name in ("UserCPU", "SystemCPU", "TotalCPU")
    )
    return JobRecord(
        cluster=cluster,
        jobid=jobid,
        submit_time=submit,
        state=state,
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
        elapsed_seconds=ran if has_started else None,
        suspended_seconds=suspended,
        time_limit_seconds=row.get("TimelimitRaw", _limit_seconds),
        exit_code=code,
        exit_signal=signal,
        exit_code_or_128_more=code_or_128_more,
        derived_exit_code=derived_code if has_ended else None,
        derived_exit_signal=derived_signal if has_ended else None,
        reason=(
            of_started_job(reason) if has_started else of_unstarted_job(reason, state, cancelled_by)
        ),
        cancelled_by=_user_name(cancelled_by, row),
        restarts=row.get("Restarts", count),
        requested_cpus=requested.cpus or row.get("ReqCPUS", count) or None,
        requested_memory_bytes=requested.memory_bytes,
        requested_gpus=requested.gpus,
        requested_nodes=requested.nodes or row.get("ReqNodes", count) or None,
        requested_resources=row.text("ReqTRES"),
        # AllocCPUS and AllocNodes of a pending job repeat its request; AllocTRES is empty.
        **allocated.fields("allocated"),
        allocated_resources=row.text("AllocTRES") if has_started else "",
        node_list=node_list,
        nodes=node_shares(node_list, allocated, "NodeList", row.parse_errors),
        **parse_display_id(row.values["JobID"]),
        submit_line=row.text("SubmitLine"),
        work_dir=row.text("WorkDir"),
        stdout_path=row.text("StdOut"),
        user_cpu_seconds=user_cpu,
        system_cpu_seconds=system_cpu,
        cpu_seconds=cpu,
        energy_joules=row.get("ConsumedEnergyRaw", _parse_energy),
    )


def _user_name(uid: str, job: FieldReader) -> str:
    """The name of who cancelled a job, as slurmrestd gives it; a uid that has none stays."""
    if uid and uid == job.text("UID"):
        return job.text("User")
    return login_of(int(uid)) if uid.isdecimal() else uid


def parse_display_id(display: str) -> dict[str, Any]:
    """The fields of arrays and het jobs of a JobRecord.

    The id is `10_3`, `10_[4-9%2]` (all tasks that have not started) or `25+1`.
    """
    array = _ARRAY.match(display)
    if array:
        index = None if array[2] is None else int(array[2])
        return {"array_jobid": array[1], "array_index": index}
    het = _HET.match(display)
    return {"het_jobid": het[1], "het_offset": int(het[2])} if het else {}


def step_record(step: str, row: FieldReader, site: SiteAccounting = AS_PRINTED) -> StepRecord:
    """A step from its row; raises RowError."""
    word = row.text("State").partition(" by ")[0]
    if not word:
        raise RowError("State is missing")
    state = slurm_state(word)
    allocated = row.get("AllocTRES", formats.parse_resources) or formats.Resources()
    end = row.get("End", epoch)
    exit_pair = row.get("ExitCode", parse_exit_pair) if end is not None else None
    code, signal, code_or_128_more = sacct_exit(exit_pair, state, exact=site.exact_exits)
    elapsed = row.get("ElapsedRaw", count) if end is not None else None
    # What is left of a step after a resize is accounted for nowhere up to 22.05.
    has_cpu = end is not None and state is not JobState.RESIZED
    return StepRecord(
        step=step,
        state=state,
        state_word=word,
        name=row.text("JobName"),
        start_time=row.get("Start", epoch),
        end_time=end,
        elapsed_seconds=elapsed,
        exit_code=code,
        exit_signal=signal,
        exit_code_or_128_more=code_or_128_more,
        nodes=allocated.nodes or row.get("AllocNodes", count),
        node_list=row.text("NodeList"),
        tasks=row.get("NTasks", count),
        cpus=allocated.cpus,
        gpus=allocated.gpus,
        user_cpu_seconds=row.get("UserCPU", formats.slurm_duration) if has_cpu else None,
        system_cpu_seconds=row.get("SystemCPU", formats.slurm_duration) if has_cpu else None,
        cpu_seconds=row.get("TotalCPU", formats.slurm_duration) if has_cpu else None,
        **(_step_usage(row) if site.sampled(elapsed) else {}),
        energy_joules=row.get("ConsumedEnergyRaw", _parse_energy),
        submit_line=row.text("SubmitLine"),
    )


def _step_usage(row: FieldReader) -> dict[str, Any]:
    """Bytes that a step used, by the names of a StepRecord; none if it was never sampled.

    Zero memory is that of a step which ended before its first sample: no process has none.
    """
    read = row.get("TRESUsageInTot", formats.parse_tres) or {}
    written = row.get("TRESUsageOutTot", formats.parse_tres) or {}
    memory = _parse_usage(row, read, "mem")
    if memory == 0:
        return {}
    return {
        "peak_task_memory_bytes": row.get("MaxRSS", size_bytes) or None,
        "memory_bytes": memory,
        "read_bytes": _parse_usage(row, read, "fs/disk"),
        "written_bytes": _parse_usage(row, written, "fs/disk"),
    }


def _parse_usage(row: FieldReader, usage: Mapping[str, str], name: str) -> int | None:
    try:
        return formats.parse_tres_count(usage.get(name))
    except ValueError as error:
        row.parse_errors.append(f"TRESUsage {name}: {error}")
        return None


def _limit_seconds(text: str) -> int | None:
    """Seconds of a time limit: TimelimitRaw counts minutes."""
    if text in ("UNLIMITED", "Partition_Limit", "INVALID"):
        return None
    return integer(text) * 60


def _parse_energy(text: str) -> int | None:
    """Joules; None for 0, which a site without an energy plugin has."""
    return formats.parse_tres_count(text) or None
