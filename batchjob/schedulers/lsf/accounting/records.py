"""Records of LSF's ended jobs, from the fields that lsb.acct and lsb.stream share."""

import re
from collections.abc import Iterable, Mapping

from batchjob.schedulers import fields
from batchjob.schedulers.accounting import UnfinishedJob
from batchjob.schedulers.lsf.formats import lsf_hosts
from batchjob.schedulers.lsf.states import LSF_EXIT_INFO, lsf_end_state
from batchjob.schedulers.records import JobRecord, NodeShare, Reallocation, run_time
from batchjob.schedulers.states import JobState

_GPUS = re.compile(r"ngpus_physical=(\d+(?:\.\d+)?)", re.ASCII)


def format_job_id(jobid: str, index: int) -> str:
    """A job id as LSF writes it: `4242`, or `4242[3]` in an array."""
    return f"{jobid}[{index}]" if index else jobid


def ended_job(
    cluster: str, source: str, row: fields.FieldReader, hosts: Iterable[str], slots: Iterable[str]
) -> JobRecord:
    """A record from the fields of JOB_FINISH or JOB_FINISH2; raises RowError."""
    number = row.require("jobId", fields.integer)
    index = row.get("idx", fields.count) or 0
    status = row.require("jStatus", fields.integer)
    exit_info = row.get("exitInfo", fields.integer) or 0
    start, end = row.get("startTime", fields.epoch), row.require("endTime", fields.epoch)
    if status & 0x60 == 0:
        raise fields.RowError(f"jStatus {status} is not a final status")
    nodes = node_shares(row, "execHosts", slots) or node_shares(row, "execHosts", hosts)
    nodes = nodes if start else ()  # hosts of a job that never started were only planned
    wait_status = row.get("exitStatus", fields.integer) if start else None  # wait(2)
    state = lsf_end_state(status, exit_info)
    changed = row.get("lastResizeTime", fields.epoch)  # the start, if its allocation never changed
    user_cpu, system_cpu = row.get("utime", fields.seconds), row.get("stime", fields.seconds)
    if user_cpu is None or system_cpu is None:
        total_cpu = row.get("cpuTime", fields.seconds)
    else:
        total_cpu = user_cpu + system_cpu
    elapsed, suspended = run_time(start, end, row.get("runTime", fields.seconds) or None)
    return JobRecord(
        cluster=cluster,
        jobid=format_job_id(str(number), index),
        submit_time=row.require("submitTime", fields.epoch),
        state=state,
        state_word="DONE" if status & 0x40 else "EXIT",
        source=source,
        # LSF does not number runs: the runs of a requeued job are distinguished by start time.
        run=start if state is JobState.REQUEUED and start else 1,
        user=row.text("userName"),
        uid=row.get("userId", fields.count),
        account=row.text("projectName"),
        partition=row.text("queue"),
        name=row.text("jobName"),
        start_time=start,
        end_time=end,
        elapsed_seconds=elapsed,
        suspended_seconds=suspended,
        time_limit_seconds=row.get("runLimit", fields.count) or None,
        exit_code=None if wait_status is None else wait_status >> 8 & 0xFF,
        exit_signal=None if wait_status is None else wait_status & 0x7F,
        reason=LSF_EXIT_INFO.get(exit_info, ("",))[0],
        requested_cpus=row.get("numProcessors", fields.count) or None,
        requested_gpus=_requested_gpus(row.text("effectiveResReq"), len(nodes)),
        requested_resources=row.text("effectiveResReq") or row.text("resReq"),
        allocated_cpus=sum(each.cpus or 0 for each in nodes) or None,
        allocated_nodes=len(nodes) or None,
        node_list=" ".join(f"{each.cpus}*{each.node}" for each in nodes),
        nodes=nodes,
        reallocations=(Reallocation(changed),) if start and changed and changed > start else (),
        array_jobid=str(number) if index else "",
        array_index=index or None,
        dependencies=row.text("dependCond"),
        submit_line=row.text("command"),
        work_dir=row.text("cwd"),
        stdout_path=row.text("outFile"),
        user_cpu_seconds=user_cpu if start else None,
        system_cpu_seconds=system_cpu if start else None,
        cpu_seconds=total_cpu if start else None,
        peak_memory_bytes=(row.get("maxRMem", fields.count) or 0) * 1024 or None,
    )


def node_shares(row: fields.FieldReader, field: str, hosts: Iterable[str]) -> tuple[NodeShare, ...]:
    """The job's share of each host; none, and an error for `field`, if a host cannot be parsed."""
    try:
        return lsf_hosts(hosts)
    except ValueError as error:
        row.parse_errors.append(f"{field}: {error}")
        return ()


def _requested_gpus(requirement: str, hosts: int) -> int | None:
    """Requested GPUs; None for jobs on several hosts.

    Whether the amount is per host or per job depends on the cluster's configuration.
    """
    found = _GPUS.search(requirement)
    return round(float(found[1])) if found and hosts <= 1 else None


def with_known_submit_time(job: JobRecord, unfinished: Mapping[str, UnfinishedJob]) -> JobRecord:
    """The job with the submit time under which the database has it.

    bjobs may omit the seconds of times; the files always have them.
    """
    known = unfinished.get(job.jobid)
    if known is None or known.submit_time // 60 != job.submit_time // 60:
        return job
    is_rounded = known.submit_time % 60 == 0 or job.submit_time % 60 == 0
    return job._replace(submit_time=known.submit_time) if is_rounded else job
