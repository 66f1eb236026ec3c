"""Records from the JSON of slurmrestd and `sacct --json`, read as the rows that sacct prints.

Facts: the OpenAPI documents of v0.0.37 to v0.0.45 and answers of Slurm 22.05 and 24.11. The numeric
user id is not included; in a step, `tres.requested` is what it used (TRESUsageIn) and
`tres.consumed` what it wrote (TRESUsageOut).
"""

import json
from collections.abc import Iterator
from typing import Any

from batchjob.schedulers.fields import FieldReader, quarantined_row
from batchjob.schedulers.slurm import json_format
from batchjob.schedulers.slurm.accounting.exit_codes import json_exit
from batchjob.schedulers.slurm.accounting.queries import Following, ParsedJob
from batchjob.schedulers.slurm.accounting.sacct_records import parse_group
from batchjob.schedulers.slurm.accounting.site_accounting import AS_PRINTED, SiteAccounting
from batchjob.schedulers.slurm.states import shown_word


def parse_jobs(
    source: str, cluster: str, document: Any, site: SiteAccounting = AS_PRINTED
) -> Iterator[ParsedJob]:
    """The jobs of an answer; raises SlurmJsonError if it is not one."""
    json_format.raise_for_errors(document)
    following: Following = {}
    for raw in json_format.rows(document, "jobs"):
        job, bad_rows = parse_group(cluster, _rows(raw), site, following)
        reason = "; ".join(row.reason for row in bad_rows)
        jobid = str(raw.get("job_id") or "")
        quarantined = (quarantined_row(source, reason, json.dumps(raw), jobid),) if reason else ()
        yield ParsedJob(job and job._replace(source=source), quarantined)


def _rows(job: dict[str, Any]) -> list[FieldReader]:
    steps = json_format.rows(job, "steps") if job.get("steps") else []
    found = [_job_row(job), *(_step_row(job, step) for step in steps)]
    return [FieldReader(row) for row in found if row is not None]


def _job_row(job: dict[str, Any]) -> dict[str, str]:
    times, tres = _dict(job, "time"), _dict(job, "tres")
    state = shown_word(json_format.state_words(_dict(job, "state").get("current")))
    user, derived = _text(job, "kill_request_user"), _dict(job, "derived_exit_code")
    allocated, limit = json_format.tres_counts(tres.get("allocated")), _count(times.get("limit"))
    return _common_row(job, state, tres) | {
        "JobIDRaw": _number(job.get("job_id")),
        "JobID": _display_id(job),
        "SLUID": _text(job, "sluid"),
        "OriginalSLUID": _text(job, "original_sluid"),
        # A preempted job has one as well: the user of slurmctld.
        "State": f"{state} by {user}" if state == "CANCELLED" and user else state,
        # 0 where none of the steps reported one, as sacct prints.
        "DerivedExitCode": _exit(derived, "0:0" if isinstance(derived.get("status"), list) else ""),
        "User": _text(job, "user"),
        "Group": _text(job, "group"),
        "Account": _text(job, "account"),
        "Partition": _text(job, "partition"),
        "QOS": _text(job, "qos"),
        "Reservation": _text(_dict(job, "reservation"), "name"),
        "Priority": _number(job.get("priority")),
        "Submit": _number(times.get("submission")),
        "Eligible": _number(times.get("eligible")),
        "Suspended": _clock(_count(times.get("suspended"))),
        "TimelimitRaw": str(limit) if limit else "",  # infinity is none
        "ReqCPUS": _number(_dict(job, "required").get("CPUs")),
        "ReqTRES": _tres_text(json_format.tres_counts(tres.get("requested"))),
        "AllocNodes": _number(job.get("allocation_nodes")),
        "NodeList": _text(job, "nodes") or "None assigned",
        "ConsumedEnergyRaw": _number(allocated.get("energy")),
        "Reason": _text(_dict(job, "state"), "reason"),
        "Restarts": _number(job.get("restart_cnt")),
        "JobName": _text(job, "name"),
        "WorkDir": _text(job, "working_directory"),
        "StdOut": _text(job, "stdout_expanded") or _text(job, "stdout"),
    }


def _step_row(job: dict[str, Any], step: dict[str, Any]) -> dict[str, str] | None:
    """A step's row, None without its name or state."""
    tres, nodes = _dict(step, "tres"), _dict(step, "nodes")
    state = shown_word(json_format.state_words(step.get("state")))
    name = _step_name(_dict(step, "step"))
    if not state or not name:
        return None
    used, written = _dict(tres, "requested"), _dict(tres, "consumed")
    energy = _dict(_dict(step, "statistics"), "energy").get("consumed")
    return _common_row(step, state, tres) | {
        "JobIDRaw": f"{_number(job.get('job_id'))}.{name}",
        "State": state,
        "JobName": _text(_dict(step, "step"), "name"),
        "AllocNodes": _number(nodes.get("count")),
        "NodeList": _text(nodes, "range"),
        "NTasks": _number(_dict(step, "tasks").get("count")),
        "MaxRSS": _number(json_format.tres_counts(used.get("max")).get("mem")),
        "TRESUsageInTot": _tres_text(json_format.tres_counts(used.get("total")), unit=""),
        "TRESUsageOutTot": _tres_text(json_format.tres_counts(written.get("total")), unit=""),
        "ConsumedEnergyRaw": _number(energy),
    }


def _common_row(record: dict[str, Any], state: str, tres: dict[str, Any]) -> dict[str, str]:
    """What jobs and steps have at the same places."""
    times = _dict(record, "time")
    return {
        "Start": _number(times.get("start")),
        "End": _number(times.get("end")),
        "ElapsedRaw": _number(times.get("elapsed")),
        "ExitCode": _exit(record.get("exit_code"), "0:0" if state == "COMPLETED" else ""),
        "AllocTRES": _tres_text(json_format.tres_counts(tres.get("allocated"))),
        "UserCPU": _clock(json_format.cpu_seconds(times.get("user"))),
        "SystemCPU": _clock(json_format.cpu_seconds(times.get("system"))),
        "TotalCPU": _clock(json_format.cpu_seconds(times.get("total"))),
        "SubmitLine": _text(record, "submit_line"),
    }


def _display_id(job: dict[str, Any]) -> str:
    """The id of a task of an array or of a part of a het job as sacct prints it."""
    array, het = _dict(job, "array"), _dict(job, "het")
    if number := _count(array.get("job_id")):
        return f"{number}_{_number(array.get('task_id')) or '['}"
    number = _count(het.get("job_id"))
    return f"{number}+{_number(het.get('job_offset'))}" if number else ""


def _step_name(step: dict[str, Any]) -> str:
    """`batch` of "4749.batch" (v0.0.40), {"id": "batch"} (.38) or {"step_id": "batch"} (.39)."""
    identity = step.get("id", step.get("step_id"))
    if isinstance(identity, dict):
        identity = identity.get("step_id", identity.get("id"))
    text = "" if identity is None else str(identity)
    head, dot, tail = text.partition(".")
    return tail if dot and head.isdigit() else text


def _exit(value: Any, absent: str) -> str:
    """Code and signal, as `1:0`."""
    code, signal = json_exit(json_format.unwrap_numbers(value))
    return absent if code is None else f"{code}:{signal or 0}"


def _tres_text(counts: dict[str, int], unit: str = "M") -> str:
    """A TRES string as sacct prints it; `unit` is that of memory."""
    units = {"mem": unit}
    return ",".join(sorted(f"{name}={n}{units.get(name, '')}" for name, n in counts.items()))


def _clock(seconds: float | None) -> str:
    return "" if seconds is None else f"00:00:{seconds:.6f}"


def _count(value: Any) -> int | None:
    # Only what is used is unwrapped: most of an answer are lists of TRES, whose counts are plain.
    return json_format.parse_count(json_format.unwrap_numbers(value))


def _number(value: Any) -> str:
    number = _count(value)
    return "" if number is None else str(number)


def _dict(document: dict[str, Any], name: str) -> dict[str, Any]:
    inner = document.get(name)
    return inner if isinstance(inner, dict) else {}


def _text(document: dict[str, Any], name: str) -> str:
    value = document.get(name)
    return value if isinstance(value, str) else ""
