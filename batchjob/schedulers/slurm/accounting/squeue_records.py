"""Records of slurmctld's jobs that have not ended, from squeue or slurmrestd.

Facts: squeue(1), "--Format", whose fields have a width and a suffix; width 0 is as wide as the
value. A waiting job has an estimated start, and requested instead of allocated resources.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from batchjob.schedulers.fields import FieldReader, count, epoch, quarantined_row, row_problem
from batchjob.schedulers.records import JobRecord, QuarantinedRow
from batchjob.schedulers.slurm import formats, json_format
from batchjob.schedulers.slurm.accounting.exit_codes import wait_status_code
from batchjob.schedulers.slurm.accounting.queries import ParsedJob
from batchjob.schedulers.slurm.accounting.sacct_records import parse_display_id
from batchjob.schedulers.slurm.hostlist import node_shares
from batchjob.schedulers.slurm.json_format import rows as json_rows
from batchjob.schedulers.slurm.states import live_state, of_started_job, shown_word
from batchjob.schedulers.states import JobState

QUEUE_FIELDS = (
    "JobID", "JobArrayID", "UserName", "UserID", "GroupName", "Account", "Partition", "QOS",
    "State", "Reason", "SubmitTime", "EligibleTime", "StartTime", "EndTime", "ResizeTime",
    "TimeUsed", "TimeLimit", "tres-alloc", "NodeList", "Dependency", "Reservation", "Name",
    "WorkDir", "PriorityLong", "RestartCnt", "STDOUT",
)  # fmt: skip
_EMPTY_VALUES = ("(null)", "N/A", "None", "n/a")
NO_RESIZE = ("", "0", *_EMPTY_VALUES)


def parse_json_queue(document: Any) -> Iterator[FieldReader]:
    """The jobs of /slurm/.../jobs with squeue's names, without those that have ended."""
    for raw in json_rows(document, "jobs"):
        job = json_format.unwrap_numbers(raw)
        words = json_format.state_words(job.get("job_state"))
        values = {field: job.get(name) for field, name in _JSON_NAMES.items()}
        has_started = live_state(words) is not JobState.PENDING
        tres = _text(job.get("tres_alloc_str" if has_started else "tres_req_str"))
        values["tres-alloc"] = _with_gpus(job, tres)
        row = {field: _text(value) for field, value in values.items()}
        row |= {
            "State": shown_word(words),
            "job_state": "+".join(words),
            "JobArrayID": _display_id(job),
            "SLUID": _sluid(job),
            # Up to v0.0.42 the expanded path has the name that the pattern has since then.
            "STDOUT": _text(job.get("stdout_expanded", job.get("standard_output"))),
            **_json_suspension_times(job, words),
        }
        if isinstance(code := job.get("exit_code"), int):  # an object where accounting has it too
            row["exit_code"] = str(code)
        if is_wanted(row):
            yield FieldReader(row)


_JSON_NAMES = {
    "JobID": "job_id", "UserName": "user_name", "UserID": "user_id", "GroupName": "group_name",
    "Account": "account", "Partition": "partition", "QOS": "qos", "Reason": "state_reason",
    "SubmitTime": "submit_time", "EligibleTime": "eligible_time", "StartTime": "start_time",
    "EndTime": "end_time", "ResizeTime": "resize_time", "TimeLimit": "time_limit",
    "NodeList": "nodes", "Dependency": "dependency", "Reservation": "resv_name", "Name": "name",
    "WorkDir": "current_working_directory", "PriorityLong": "priority",
    "RestartCnt": "restart_cnt", "SubmitLine": "submit_line",
}  # fmt: skip


def _with_gpus(job: Mapping[str, Any], tres: str) -> str:
    """The TRES, with the GPUs that they lack unless AccountingStorageTRES has gres/gpu."""
    try:
        gpus = 0 if "gres/gpu" in tres else json_format.count_job_gpus(job, tres)
    except ValueError:  # the row is quarantined for it
        return tres
    return f"{tres},gres/gpu={gpus}" if gpus and tres else tres


def _sluid(job: Mapping[str, Any]) -> str:
    """The SLUID (26.05)."""
    step = job.get("step_id")
    return _text(step.get("sluid")) if isinstance(step, dict) else ""


def _json_suspension_times(job: Mapping[str, Any], words: Sequence[str]) -> dict[str, str]:
    """`suspend_time` is when a job was suspended or, once it runs again, resumed."""
    names = ("start_time", "suspend_time", "pre_sus_time")
    times = [value for name in names if isinstance(value := job.get(name), int)]
    if len(times) < len(names) or not times[1]:
        return {}
    start, changed, run_seconds = times
    if "SUSPENDED" in words:
        return {"Elapsed": str(run_seconds)}
    return {"Suspended": str(changed - start - run_seconds)}


def add_suspension_times(
    rows: Iterable[FieldReader | QuarantinedRow], queried_at: float, answered_at: float
) -> Iterator[FieldReader | QuarantinedRow]:
    """Add `Elapsed` of suspended jobs, and `Suspended` of resumed ones, to squeue's rows.

    squeue computes the run time by its own clock, between `queried_at` and `answered_at`.
    """
    for row in rows:
        if isinstance(row, FieldReader):
            row.values = {
                **row.values,
                **_suspension_times(row.values, int(queried_at), int(answered_at)),
            }
        yield row


def _suspension_times(
    values: Mapping[str, str], queried_at: int, answered_at: int
) -> dict[str, str]:
    try:
        used = formats.slurm_duration(values["TimeUsed"])
        start = epoch(values["StartTime"])
    except ValueError:  # "INVALID": the clocks differ
        return {}
    if used is None or start is None:
        return {}
    if values["State"] == "SUSPENDED":
        return {"Elapsed": str(int(used))}
    if values["State"] == "RUNNING" and queried_at - start - used > 0:
        return {"Suspended": str(int(answered_at - start - used))}
    return {}


def _text(value: Any) -> str:
    return "" if value is None or value == json_format.INFINITE else str(value)


def _display_id(job: Mapping[str, Any]) -> str:
    if job.get("array_job_id"):
        task = job.get("array_task_id")
        return f"{job['array_job_id']}_{task if not job.get('array_task_string') else '['}"
    if job.get("het_job_id"):
        return f"{job['het_job_id']}+{job.get('het_job_offset')}"
    return str(job.get("job_id"))


def queued_jobs(
    source: str, cluster: str, rows: Iterable[FieldReader | QuarantinedRow]
) -> Iterator[ParsedJob]:
    """A record for each row; only completing jobs have an end time."""
    for row in rows:
        if isinstance(row, QuarantinedRow):
            yield ParsedJob(None, (row,))
            continue
        if not is_wanted(row.values):
            continue
        raw, jobid = "\x1f".join(row.values.values()), row.values["JobID"]
        row.values = {
            name: "" if name != "Name" and value in _EMPTY_VALUES else value
            for name, value in row.values.items()
        } | {"tres-alloc": _sort_tres(row.values["tres-alloc"])}
        try:
            job = queued_job(source, cluster, row)
        except Exception as error:
            yield ParsedJob(None, (quarantined_row(source, row_problem(error), raw, jobid),))
            continue
        reason = "; ".join(row.parse_errors)
        yield ParsedJob(job, (quarantined_row(source, reason, raw, jobid),) if reason else ())


def is_wanted(row: Mapping[str, str]) -> bool:
    """Whether a job has not ended, or with an exit code that accounting may not have."""
    return queued_state(row).is_live or row.get("exit_code", "0") != "0"


def queued_state(row: Mapping[str, str]) -> JobState:
    return live_state(json_format.state_words(row.get("job_state", row["State"])))


def queued_job(source: str, cluster: str, row: FieldReader) -> JobRecord:
    """A job from its row; raises RowError."""
    word = row.text("State")
    state = queued_state(row.values)
    resized = row.get("ResizeTime", epoch)  # accounting has a separate record since the resize
    has_started = state is not JobState.PENDING
    tres = row.text("tres-alloc")
    resources = row.get("tres-alloc", formats.parse_resources) or formats.Resources()
    node_list = row.text("NodeList") if has_started else ""
    return JobRecord(
        cluster=cluster,
        jobid=str(row.require("JobID", count)),
        submit_time=resized or row.require("SubmitTime", epoch),
        state=state,
        state_word=word,
        source=source,
        user=row.text("UserName"),
        uid=row.get("UserID", count),
        group=row.text("GroupName"),
        account=row.text("Account"),
        partition=row.text("Partition"),
        qos=row.text("QOS"),
        name=row.text("Name"),
        reservation=row.text("Reservation"),
        expected_start_time=None if has_started else row.get("StartTime", _round_up_to_minute),
        eligible_time=row.get("EligibleTime", epoch),
        start_time=(resized or row.get("StartTime", epoch)) if has_started else None,
        end_time=row.get("EndTime", epoch) if word == "COMPLETING" or not state.is_live else None,
        elapsed_seconds=None if resized else row.get("Elapsed", count),
        suspended_seconds=None if resized else row.get("Suspended", count),
        time_limit_seconds=row.get("TimeLimit", formats.whole_seconds),
        exit_code=row.get("exit_code", wait_status_code) if not state.is_live else None,
        # A resized job has a new one here, and keeps its first in accounting.
        sluid="" if resized else row.text("SLUID"),
        priority=row.get("PriorityLong", count),
        reason=of_started_job(row.text("Reason")) if has_started else row.text("Reason"),
        restarts=row.get("RestartCnt", count),
        **resources.fields("allocated" if has_started else "requested"),
        requested_resources="" if has_started else tres,
        allocated_resources=tres if has_started else "",
        node_list=node_list,
        nodes=node_shares(node_list, resources, "NodeList", row.parse_errors),
        **parse_display_id(row.values["JobArrayID"]),
        dependencies=row.text("Dependency"),
        submit_line=row.text("SubmitLine"),
        work_dir=row.text("WorkDir"),
        stdout_path=row.text("STDOUT"),
    )


def _sort_tres(tres: str) -> str:
    return "" if tres in _EMPTY_VALUES else ",".join(sorted(tres.split(",")))


def _round_up_to_minute(text: str) -> int | None:
    """Round up to a minute, so that an estimate that moves by seconds is not a change."""
    at = epoch(text)
    return None if at is None else -(-at // 60) * 60
