"""The meaning of each column, in one line; units are part of the columns' names.

Measured columns of `job_usage` are defined by their quantities. A name means the same in every
table, unless the table has a line of its own.
"""

from collections.abc import Mapping

from batchjob.judgements import FAILED_MEANS, USED_MEMORY_MEANS
from batchjob.quantities.usage import ENERGY_COLUMNS, USAGE_COLUMNS, UsageColumn

# fmt: off
EVERYWHERE: Mapping[str, str] = {
    # Owner and identity.
    "cluster": "the cluster's name in the poller's configuration",
    "username": "login name of the user on the cluster",
    "account": "account that the job is charged to",
    "partition": "the scheduler's partition or queue",
    "job_id": "`id` of the run in `job`",
    "jobid": "job id of the scheduler, which may be reused",
    "node": "name of the node in the scheduler",
    "source": "the source of job records, such as `sacct`",
    "day": "the day's midnight",
    "month": "midnight of the month's first day",
    "provider": "provider of the emission factor",
    "grams": "CO2e emissions of the measured energy",
    "id": "primary key",
    "created_time": "time of creation",
    "expiry_time": "expiry time",
    # Reported by the scheduler for jobs and steps.
    "state": "state, in terms common to all schedulers",
    "state_word": "state as named by the scheduler",
    "name": "name given by the user",
    "start_time": "start time",
    "end_time": "end time",
    "elapsed_seconds": "run time, measured by the scheduler",
    "exit_code": "exit status",
    "exit_signal": "signal that terminated it; 0: none",
    "exit_code_or_128_more":
        "where exit_code is not known: it is this or 128 more; sacct up to 25.05 prints both alike",
    "node_list": "host list, in the notation of the scheduler",
    "user_cpu_seconds": "user CPU time from accounting",
    "system_cpu_seconds": "system CPU time from accounting",
    "cpu_seconds": "CPU time used: measured, or from accounting where that is complete",
    "energy_joules": "energy measured by the scheduler",
    "submit_line": "command line of the submission",
    "doubt": "reasons why a number may be wrong; empty: none",
    # Daily and monthly sums.
    "jobs_started": "jobs that started in the period",
    "jobs_ended": "jobs that ended in the period",
    "jobs_failed": f"ended jobs that failed. {FAILED_MEANS}",
    "wait_seconds": "total wait of the jobs that started, from eligible to start",
    "wall_seconds": "run time in the period, without time suspended, as `elapsed_seconds`",
    "cpu_allocated_seconds": "allocated CPUs times run time, without time suspended",
    "gpu_allocated_seconds": "allocated GPUs times run time",
    "memory_allocated_byte_seconds": "allocated memory times run time",
    "measured_cpu_allocated_seconds": "the part of `cpu_allocated_seconds` whose CPU time is known",
    "measured_gpu_allocated_seconds": "the part of `gpu_allocated_seconds` whose use is known",
    "measured_memory_allocated_byte_seconds":
        "the part of `memory_allocated_byte_seconds` whose mean use is known",
    "measured_memory_peak_allocated_byte_seconds":
        "the part of `memory_allocated_byte_seconds` whose peak is known",
    "measured_energy_cpu_allocated_seconds":
        "the part of `cpu_allocated_seconds` whose energy is known, and in the sums",
    "gpu_seconds": "the part of `measured_gpu_allocated_seconds` in which a kernel or copy ran",
    "memory_byte_seconds": "mean memory in use times run time",
    "memory_peak_byte_seconds": f"peak memory times run time. {USED_MEMORY_MEANS}",
    "energy_host_joules":
        "energy without GPUs, including idle power; in sums, only what was measured",
    "energy_gpu_joules": "energy of GPUs, including idle power",
}
OF_TABLES: Mapping[str, Mapping[str, str]] = {
    "cluster":
        {"name": EVERYWHERE["cluster"], "first_time": ("time at which the poller first saw it")},
    "account": {
        "account": "the account's name",
        "parent": "parent account",
        "limits": "limits as named by the scheduler, such as `GrpJobs=10 MaxWall=2-00:00:00`",
    },
    "association": {
        "account": "the account; empty for operators and administrators",
        "role": "`member` or `coordinator`; without an account `operator` or `administrator`",
        "is_default": "1: the account of jobs that do not specify one",
        "since_time": "time at which it was first seen",
    },
    "job": {
        "submit_time": "submission time",
        "run": "number of the run of one submission; a requeue starts another run",
        "record_id": "the scheduler's own id of the record, such as Slurm's DBIndex",
        "sluid": "Slurm's SLUID of the run, as in the path of its cgroup (24.11 and later); a "
            "requeue gets a new one, a resize keeps it",
        "uid": "numeric user id",
        "groupname": "group under which the job ran",
        "qos": "Slurm's quality of service",
        "reservation": "reservation in which the job ran",
        "priority": "priority computed by the scheduler",
        "expected_start_time": "expected start of a pending job, from the scheduler",
        "eligible_time": "time at which the job became eligible to start",
        "suspended_seconds": "time for which the job was suspended",
        "time_limit_seconds": "time limit; also NULL if there is no limit",
        "derived_exit_code": "highest exit status of its steps",
        "derived_exit_signal": "signal that terminated that step",
        "reason": "reason for its state",
        "cancelled_by": "name or uid of the user who cancelled it",
        "restarts": "number of restarts",
        "requested_cpus": "requested CPUs",
        "requested_memory_bytes": "requested memory",
        "requested_gpus": "requested GPUs",
        "requested_nodes": "requested nodes",
        "requested_resources": "all requested resources, in the notation of the scheduler",
        "allocated_cpus": "allocated CPUs, at last if the allocation changed; may be a fraction",
        "allocated_memory_bytes": "allocated memory, over all nodes",
        "allocated_gpus": "allocated GPUs",
        "allocated_nodes": "allocated nodes",
        "resized_cpu_seconds": "CPU seconds that a job whose allocation changed held beyond "
            "`allocated_cpus` times its run time; negative: less",
        "resized_gpu_seconds": "the same for `allocated_gpus`",
        "resized_memory_byte_seconds": "the same for `allocated_memory_bytes`",
        "allocated_resources": "all allocated resources, in the notation of the scheduler",
        "array_jobid": "job id of the array that the job is a task of",
        "array_index": "index of the task in the array",
        "het_jobid": "job id of the heterogeneous job that the job is a part of",
        "het_offset": "index of the part, starting at 0",
        "dependencies": "jobs that the job depends on, in the notation of the scheduler",
        "work_dir": "working directory",
        "stdout_path": "path of the standard output",
        "tool": "the program that tracked the work; empty for a scheduler's jobs",
        "parameters": "a JSON object; tracked work only",
        "error": "error message; tracked work only",
        "result_type": "type of the returned value; tracked work only",
        "cpu_at_least": "accounting's CPU time is a lower bound: 1: it may lack processes in the "
            "background, 2: it lacks killed ones",
        "cpu_seconds": "user and system CPU time from accounting",
        "peak_memory_bytes": "peak memory from accounting",
        "update_time": "time of the last change of the row",
        "usage_due_time": "time of the next measurement; NULL: none is due",
    },
    "job_node": {
        "cpus": "allocated CPUs on the node; may be a fraction",
        "memory_bytes": "allocated memory on the node",
        "gpus": "allocated GPUs on the node",
        "until_time": "when the job gave the node back; NULL if it had it to its end",
        "start_time": "start time of the job, for queries of the newest jobs of a node",
    },
    "job_reallocation": {
        "until_time": "time of the change",
        "cpus": "CPUs that the job had until then and not from then on; negative: it got them",
        "memory_bytes": "the same of memory",
        "gpus": "the same of GPUs",
    },
    "job_step": {
        "step": "`batch`, `extern`, `interactive` or a number; in a heterogeneous job `0+1`",
        "nodes": "number of nodes",
        "tasks": "number of tasks",
        "cpus": "allocated CPUs",
        "gpus": "allocated GPUs",
        "cpu_seconds": "user and system CPU time from accounting",
        "peak_task_memory_bytes": "peak memory of its largest task",
        "memory_bytes": "sum of the peaks of its tasks",
        "read_bytes": "bytes read by its processes",
        "written_bytes": "bytes written by its processes",
    },
    "job_usage": {
        "source": "source of the samples: `prometheus` or `samples`",
        "measured_time": "time of the measurement",
        "until_time": "end of the measured time; before `end_time` if the job ran on",
        "samples": "number of samples of CPU time, over all nodes",
        "dropped_series":
            "number of series excluded because they belong to another user or are not numbers",
        "nodes": "nodes with samples",
        "coverage": "fraction of the job's node time that the totals cover, 0 to 1",
        "gpus": "GPUs that the job held, whether or not they could be identified",
        "gpu_utilization_ratio": "`gpu_busy_seconds` / `gpu_observed_seconds`, 0 to 1",
        "gpu_busy_seconds": "time in which a kernel or copy ran on its GPUs, added up",
        "gpu_observed_seconds": "time that `gpu_busy_seconds` covers, added up over its GPUs: "
        "without that in which others held them as well, or MPS ran",
        "gpu_memory_peak_bytes": "maximum memory in use on one GPU",
    },
    "job_gpu": {
        "uuid": "the GPU's UUID; `unidentified` and a number for one that was allocated, and of "
        "which it is not known which of the node's GPUs it is",
        "gpu_instance": "the MIG instance; empty for a whole GPU",
        "gpu": "the GPU's number on its node",
        "utilization_ratio": "mean over `observed_seconds`, 0 to 1",
        "observed_seconds": "time in which its use was observed and no other job held it",
        "shared_seconds": "time in which others held or used it as well",
        "mps_seconds": "time in which processes ran under MPS",
        "memory_peak_bytes": "maximum memory of the job on the GPU",
        "samples": "number of samples of the utilization",
        "memory_total_bytes": "memory of the GPU, or assigned to the instance",
    },
    "job_node_usage": {
        "cpus": "CPUs of the job on the node",
        "cpu_seconds": "CPU time on the node",
        "memory_peak_bytes": "maximum memory on the node, with page cache",
        "memory_without_cache_bytes":
            "largest anonymous and largest shared memory of the samples, added up",
        "memory_limit_bytes": "memory limit of the job on the node",
    },
    "job_emissions": {},
    "batch_script": {
        "digest": "SHA-256 of the submitted script, in hexadecimal",
        "script": "the script, truncated to the maximum size that the site keeps",
        "whole_bytes": "size of the submitted script",
    },
    "job_script": {"digest": "digest of the script in `batch_script`; empty: the job has none"},
    "daily_wait": {
        "day": "midnight of the day on which the jobs started",
        "wait_mean_seconds": "mean wait time",
        "wait_p50_seconds": "median of the wait times",
        "wait_p90_seconds": "90th percentile of the wait times",
        "wait_p99_seconds": "99th percentile of the wait times",
        "wait_max_seconds": "longest wait time",
    },
    "daily_node_coverage": {
        "day": "midnight of the day on which the jobs ended",
        "jobs_ended":
            "jobs of two minutes or more that ended on the node, except those still to be measured",
        "jobs_unmeasured": "of these jobs, those without any sample",
        "run_seconds": "run time of these jobs",
        "covered_seconds": "part of this run time that is covered by measurements",
    },
    "api_token": {
        "digest": "SHA-256 of the token, in hexadecimal",
        "username": "user of the token",
        "cluster": "cluster for which it is valid; empty: all",
        "role": "maximum role: `user`, `viewer` or `admin`",
        "label": "description given by its creator",
        "last_used_time": "time of the last use",
        "parent_id": "token with which it was created, and with which it is revoked",
        "maker": "creator; empty: created on the server",
        "maker_via": "how the creator was authenticated: header, certificate, session or process",
        "maker_certificate": "certificate of the creator, or the process of `batchjob up`",
    },
    "login": {
        "username": "name of the user",
        "groups": "JSON: groups from the provider at the last log-in",
        "login_time": "time of the last log-in",
    },
    "login_session": {
        "digest": "SHA-256 of the cookie, in hexadecimal",
        "username": "name of the user",
        "subject": "the provider's `sub`",
        "provider_session": "the provider's `sid`",
    },
    "subscription": {
        "event": "end, failure, started, idle, memory or digest",
        "channel": "mail, webhook, ntfy; off: this person is not told",
        "target": "address, URL or topic; empty: the address that the site knows",
        "cluster": "cluster whose jobs are meant; empty: all",
        "jobid": "job that is meant; empty: all",
        "account": "account of a weekly digest; empty: the person's own jobs",
        "quiet_hours": "hours in which nothing is sent, such as 22:00-07:00",
        "threshold": "seconds of idle GPUs, or per cent of the memory",
    },
    "outbox": {
        "username": "person who is told",
        "event": "end, failure, started, idle, memory or digest",
        "cause": "what happened; there is one message for it",
        "channel": "mail, webhook or ntfy",
        "target": "address, URL or topic; empty: the address that the site knows",
        "quiet_hours": "hours in which nothing is sent",
        "account": "account of a weekly digest",
        "state": "waiting, sent, failed or dropped",
        "detail": "what to tell in addition; afterwards, why it failed or was dropped",
        "due_time": "time from which it is sent without final figures",
        "next_time": "time of the next attempt",
        "tries": "number of attempts",
        "batch": "rows with the same number become one message",
        "done_time": "time at which it was sent or given up",
    },
    "message_site": {
        "name": "what is stored",
        "value": "its value; the secret signs links and webhooks",
    },
    "poll_state": {
        "watermark": "position up to which the source was read, in the format of the source",
        "success_time": "time of the last successful read",
        "error_time": "time of the last failed read",
        "error": "reason of the last failure",
        "rows": "records in the last read",
        "seconds": "duration of the last read",
    },
    "quarantine": {
        "digest": "SHA-256 of the record",
        "time": "time at which the record was read",
        "reason": "reason for the rejection",
        "rule": "the rule that it breaks, such as `range`, `time` or `energy`",
        "raw": "the original record",
    },
}
# fmt: on


def meaning(table: str, column: str) -> str:
    """One line without a full stop. Raises KeyError for a column without a meaning."""
    if table == "job_usage" and column in _MEASURED_MEANINGS:
        return _MEASURED_MEANINGS[column]
    own = OF_TABLES.get(table, {})
    return own[column] if column in own else EVERYWHERE[column]


def _measured_meaning(column: UsageColumn) -> str:
    which = ", ".join(f"{key} {value}" for key, value in (*column.quantity.labels, *column.labels))
    help_text = column.quantity.metric.help.rstrip(".")
    return f"{column.statistic.value} of: {help_text}" + (f" ({which})" if which else "")


_MEASURED_MEANINGS = {
    column.name: _measured_meaning(column) for column in (*USAGE_COLUMNS, *ENERGY_COLUMNS)
}
