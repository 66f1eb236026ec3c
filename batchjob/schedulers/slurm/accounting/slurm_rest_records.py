"""Records from the JSON of slurmrestd and `sacct --json`.

Facts: the OpenAPI documents of v0.0.37 to v0.0.45 and answers of Slurm 22.05 and 24.11. The numeric
user id is not included; in a step, `tres.requested` is what it used (TRESUsageIn) and
`tres.consumed` what it wrote (TRESUsageOut).
"""

import json
from collections.abc import Iterator
from typing import Any

from batchjob.schedulers.fields import RowError, quarantined_row, sanitize_text
from batchjob.schedulers.records import JobRecord, StepRecord
from batchjob.schedulers.slurm.accounting.exit_codes import ExitStatus, json_exit
from batchjob.schedulers.slurm.accounting.queries import (
    ParsedJob,
    ResizedParts,
    part_since_resize,
    with_steps,
)
from batchjob.schedulers.slurm.accounting.site_accounting import AS_PRINTED, SiteAccounting
from batchjob.schedulers.slurm.hostlist import node_shares
from batchjob.schedulers.slurm.json_format import (
    SlurmJsonError,
    cpu_seconds,
    epoch,
    parse_count,
    parse_resources,
    raise_for_errors,
    rows,
    state_words,
    tres_counts,
    unwrap_numbers,
)
from batchjob.schedulers.slurm.states import (
    of_started_job,
    of_unstarted_job,
    shown_word,
    slurm_state,
)
from batchjob.schedulers.states import JobState

_CPU_TIMES = ("user", "system", "total")


def parse_jobs(
    source: str, cluster: str, document: Any, site: SiteAccounting = AS_PRINTED
) -> Iterator[ParsedJob]:
    """The jobs of an answer; raises SlurmJsonError if it is not one."""
    raise_for_errors(document)
    parts: ResizedParts[Any] = ResizedParts()
    for raw in rows(document, "jobs"):
        parse_errors: list[str] = []
        jobid = str(raw.get("job_id") or "")
        try:
            job = job_record(source, cluster, unwrap_numbers(raw), parse_errors, site, parts)
        except (RowError, SlurmJsonError) as error:
            yield ParsedJob(None, (quarantined_row(source, str(error), json.dumps(raw), jobid),))
            continue
        quarantine = (
            [quarantined_row(source, "; ".join(parse_errors), json.dumps(raw), jobid)]
            if parse_errors
            else []
        )
        yield ParsedJob(job, tuple(quarantine))


def job_record(
    source: str,
    cluster: str,
    job: dict[str, Any],
    parse_errors: list[str],
    site: SiteAccounting = AS_PRINTED,
    parts: ResizedParts[Any] | None = None,
) -> JobRecord:
    """A job from its object, after unwrap_numbers(); raises RowError."""
    jobid, times = parse_count(job.get("job_id")), _dict(job, "time")
    submit = epoch(times.get("submission"))
    word = shown_word(state_words(_dict(job, "state").get("current")))
    if not jobid or submit is None or not word:
        raise RowError("expected job_id, time.submission and state.current")
    state = slurm_state(word)
    start, end = epoch(times.get("start")), epoch(times.get("end"))
    node_list = _text(job, "nodes").replace("None assigned", "")
    if end is not None and not node_list:
        start = None  # cancelled while pending
    by_step = {
        _step_name(_dict(step, "step")): _dict(step, "tres").get("allocated")
        for step in (rows(job, "steps") if job.get("steps") else ())
    }
    elapsed = parse_count(times.get("elapsed"))
    start, elapsed = part_since_resize(submit, start, end, elapsed, by_step)
    has_started = start is not None
    node_list = node_list if has_started else ""  # as it starts, a job may be PENDING on a node
    has_ended = has_started and end is not None
    exit_code = _meaningful_exit(json_exit(job.get("exit_code")), state, has_ended=has_ended)
    derived = _derived_exit(job.get("derived_exit_code")) if has_ended else ExitStatus()
    reason = _text(_dict(job, "state"), "reason").replace("None", "", 1)
    # A preempted job has one as well: the user of slurmctld.
    cancelled_by = _text(job, "kill_request_user") if state is JobState.CANCELLED else ""
    tres = _dict(job, "tres")
    requested = parse_resources(tres.get("requested"))
    held = tres.get("allocated") if has_started else None
    if has_started and state is JobState.RESIZED:
        nodes = parse_count(job.get("allocation_nodes"))
        held = (parts or ResizedParts()).held(str(jobid), submit, end, held, by_step, nodes)
    allocated = parse_resources(held)
    array, het = _dict(job, "array"), _dict(job, "het")
    array_job, het_job = parse_count(array.get("job_id")), parse_count(het.get("job_id"))
    limit = parse_count(times.get("limit"))  # infinity becomes None
    record = JobRecord(
        cluster=cluster,
        jobid=str(jobid),
        submit_time=submit,
        state=state,
        state_word=word,
        source=source,
        sluid=_text(job, "original_sluid") or _text(job, "sluid"),
        user=_text(job, "user"),
        group=_text(job, "group"),
        account=_text(job, "account"),
        partition=_text(job, "partition"),
        qos=_text(job, "qos"),
        name=_text(job, "name"),
        reservation=_text(_dict(job, "reservation"), "name"),
        priority=parse_count(job.get("priority")),
        eligible_time=epoch(times.get("eligible")),
        start_time=start,
        end_time=end,
        elapsed_seconds=elapsed if has_started else None,
        suspended_seconds=parse_count(times.get("suspended")) if has_started else None,
        time_limit_seconds=limit * 60 if limit else None,
        exit_code=exit_code.code,
        exit_signal=exit_code.signal,
        derived_exit_code=derived.code,
        derived_exit_signal=derived.signal,
        reason=(
            of_started_job(reason) if has_started else of_unstarted_job(reason, state, cancelled_by)
        ),
        cancelled_by=cancelled_by,
        restarts=parse_count(job.get("restart_cnt")),
        requested_cpus=requested.cpus or parse_count(_dict(job, "required").get("CPUs")) or None,
        requested_memory_bytes=requested.memory_bytes,
        requested_gpus=requested.gpus,
        requested_nodes=requested.nodes,
        requested_resources=_tres_text(tres.get("requested")),
        allocated_cpus=allocated.cpus,
        allocated_memory_bytes=allocated.memory_bytes,
        allocated_gpus=allocated.gpus,
        allocated_nodes=allocated.nodes,
        allocated_resources=_tres_text(held),
        node_list=node_list,
        nodes=node_shares(node_list, allocated, "nodes", parse_errors),
        array_jobid=str(array_job) if array_job else "",
        array_index=parse_count(array.get("task_id")) if array_job else None,
        het_jobid=str(het_job) if het_job else "",
        het_offset=parse_count(het.get("job_offset")) if het_job else None,
        submit_line=_text(job, "submit_line"),
        work_dir=_text(job, "working_directory"),
        stdout_path=_text(job, "stdout_expanded") or _text(job, "stdout"),
        energy_joules=allocated.energy_joules or None,
    )
    return with_steps(record, tuple(_steps(job, site)), site)


def _meaningful_exit(exit_code: ExitStatus, state: JobState, *, has_ended: bool) -> ExitStatus:
    """The exit code, if meaningful: there is none before the end, and it is 0 on success."""
    if not has_ended:
        return ExitStatus()
    return ExitStatus(0, 0) if state is JobState.COMPLETED and exit_code.code is None else exit_code


def _derived_exit(value: Any) -> ExitStatus:
    """The largest exit code of the steps; 0 where none of them reported one, as sacct prints."""
    derived = json_exit(value)
    is_known = isinstance(value, dict) and isinstance(value.get("status"), list)
    return ExitStatus(0, 0) if derived.code is None and is_known else derived


def _steps(job: dict[str, Any], site: SiteAccounting) -> Iterator[StepRecord]:
    for step in rows(job, "steps") if job.get("steps") else ():
        word = shown_word(state_words(step.get("state")))
        name = _step_name(_dict(step, "step"))
        if not word or not name:
            continue
        times, tres, nodes = _dict(step, "time"), _dict(step, "tres"), _dict(step, "nodes")
        end, state = epoch(times.get("end")), slurm_state(word)
        elapsed = parse_count(times.get("elapsed")) if end is not None else None
        exit_code = _meaningful_exit(
            json_exit(step.get("exit_code")), state, has_ended=end is not None
        )
        allocated = parse_resources(tres.get("allocated"))
        used = tres_counts(_dict(tres, "requested").get("total"))
        largest = tres_counts(_dict(tres, "requested").get("max"))
        written = tres_counts(_dict(tres, "consumed").get("total"))
        has_cpu = end is not None and state is not JobState.RESIZED
        cpu = [cpu_seconds(times.get(which)) if has_cpu else None for which in _CPU_TIMES]
        # No process has no memory: the step ended before its first sample.
        if used.get("mem") == 0 or not site.sampled(elapsed):
            used = largest = written = {}
        yield StepRecord(
            step=name,
            state=state,
            state_word=word,
            name=_text(_dict(step, "step"), "name"),
            start_time=epoch(times.get("start")),
            end_time=end,
            elapsed_seconds=elapsed,
            exit_code=exit_code.code,
            exit_signal=exit_code.signal,
            nodes=parse_count(nodes.get("count")),
            node_list=_text(nodes, "range"),
            tasks=parse_count(_dict(step, "tasks").get("count")),
            cpus=allocated.cpus,
            gpus=allocated.gpus,
            user_cpu_seconds=cpu[0],
            system_cpu_seconds=cpu[1],
            cpu_seconds=cpu[2],
            peak_task_memory_bytes=largest.get("mem"),
            memory_bytes=used.get("mem"),
            read_bytes=used.get("fs/disk"),
            written_bytes=written.get("fs/disk"),
            energy_joules=parse_count(_consumed_energy(step)) or None,
            submit_line=_text(step, "submit_line"),
        )


def _consumed_energy(step: dict[str, Any]) -> Any:
    return _dict(_dict(step, "statistics"), "energy").get("consumed")


def _step_name(step: dict[str, Any]) -> str:
    """`batch` of "4749.batch" (v0.0.40), {"id": "batch"} (.38) or {"step_id": "batch"} (.39)."""
    identity = step.get("id", step.get("step_id"))
    if isinstance(identity, dict):
        identity = identity.get("step_id", identity.get("id"))
    text = "" if identity is None else str(identity)
    head, dot, tail = text.partition(".")
    return sanitize_text(tail if dot and head.isdigit() else text)


def _tres_text(value: Any) -> str:
    """A TRES list as the string sacct prints, so that both sources agree."""
    counts = tres_counts(value).items()
    return ",".join(sorted(f"{name}={n}{'M' if name == 'mem' else ''}" for name, n in counts))


def _dict(document: dict[str, Any], name: str) -> dict[str, Any]:
    inner = document.get(name)
    return inner if isinstance(inner, dict) else {}


def _text(document: dict[str, Any], name: str) -> str:
    value = document.get(name)
    return sanitize_text(value) if isinstance(value, str) else ""
