"""What each column means, in one line; units are in the columns' names.

Measured columns of `job_usage` are not here: their quantities say what they are. A name means the
same in every table, unless the table has a line of its own.
"""

from collections.abc import Mapping

from batchjob.quantities.usage import ENERGY_COLUMNS, USAGE_COLUMNS, UsageColumn

EVERYWHERE: Mapping[str, str] = {
    # Whose, and which.
    "cluster": "the cluster's name in the poller's configuration",
    "username": "the login on the cluster",
    "account": "what the scheduler charges the job to",
    "partition": "the scheduler's partition or queue",
    "job_id": "`id` of the run in `job`",
    "jobid": "the scheduler's number, used again after some time",
    "node": "the node's name, as the scheduler has it",
    "source": "the source of job records, such as `sacct`",
    "day": "the day's midnight",
    "month": "midnight of the month's first day",
    "provider": "who gave the emission factor",
    "grams": "CO2e of the energy that was measured",
    "id": "our own number of the row",
    "created_time": "when it was made",
    "expiry_time": "when it ends",
    # What a scheduler says of jobs and steps.
    "state": "one of the states that all schedulers share",
    "state_word": "the scheduler's own word for the state",
    "name": "the name its user gave it",
    "start_time": "when it began to run",
    "end_time": "when it ended",
    "elapsed_seconds": "how long it ran, by the scheduler's clock",
    "exit_code": "the status it ended with",
    "exit_signal": "the signal that ended it; 0: none",
    "node_list": "its nodes, in the scheduler's short form",
    "user_cpu_seconds": "CPU time outside the kernel, as accounting has it",
    "system_cpu_seconds": "CPU time in the kernel, as accounting has it",
    "cpu_seconds": "CPU time used: as measured, or as accounting has it where that is whole",
    "energy_joules": "energy, as the scheduler measured it",
    "submit_line": "the command line it was started with",
    "doubt": "words that say why a number may be wrong; empty: none",
    # Sums of days and months.
    "jobs_started": "jobs that started in it",
    "jobs_ended": "jobs that ended in it",
    "jobs_failed": "of these, how many failed, ran out of time or memory, or lost their node",
    "wait_seconds": "how long those that started had waited since they could have",
    "wall_seconds": "run time in it",
    "cpu_allocated_seconds": "CPUs held times run time, without times of suspension",
    "gpu_allocated_seconds": "GPUs held times run time",
    "memory_allocated_byte_seconds": "memory held times run time",
    "measured_cpu_allocated_seconds": "the part of `cpu_allocated_seconds` whose CPU time is known",
    "measured_gpu_allocated_seconds": "the part of `gpu_allocated_seconds` whose use is known",
    "measured_memory_allocated_byte_seconds": (
        "the part of `memory_allocated_byte_seconds` whose use is known"
    ),
    "gpu_seconds": "GPUs held times their utilization",
    "memory_byte_seconds": "memory in use times run time",
    "energy_host_joules": "energy of all but GPUs, idle power included",
    "energy_gpu_joules": "energy of GPUs, idle power included",
}
OF_TABLES: Mapping[str, Mapping[str, str]] = {
    "cluster": {"name": EVERYWHERE["cluster"], "first_time": "when the poller first knew of it"},
    "account": {
        "account": "the account's name",
        "parent": "the account above it",
        "limits": "as the scheduler names them, such as `GrpJobs=10 MaxWall=2-00:00:00`",
    },
    "association": {
        "account": "the account; empty for operators and administrators",
        "role": "`member` or `coordinator`; without an account `operator` or `administrator`",
        "is_default": "1: the account of jobs that name none",
        "since_time": "when it was first seen",
    },
    "job": {
        "submit_time": "when it was submitted",
        "run": "counts runs of one submission, as after a requeue",
        "record_id": "the scheduler's own number of the record, as Slurm's DBIndex",
        "sluid": "Slurm's SLUID, from 25.11 on",
        "uid": "the user's number",
        "groupname": "the group it ran as",
        "qos": "Slurm's quality of service",
        "reservation": "the reservation it ran in",
        "priority": "as the scheduler reckoned it",
        "expected_start_time": "of a job that waits, as the scheduler plans",
        "eligible_time": "from when on it could have started",
        "suspended_seconds": "how long it was suspended",
        "time_limit_seconds": "the longest it may run; NULL also without a limit",
        "derived_exit_code": "the highest status of its steps",
        "derived_exit_signal": "the signal that ended that step",
        "reason": "why it waits, or ended so",
        "cancelled_by": "name or number of who cancelled it",
        "restarts": "how often it was begun anew",
        "requested_cpus": "CPUs asked for",
        "requested_memory_bytes": "memory asked for",
        "requested_gpus": "GPUs asked for",
        "requested_nodes": "nodes asked for",
        "requested_resources": "all it asked for, in the scheduler's words",
        "allocated_cpus": "CPUs held; may be half a one",
        "allocated_memory_bytes": "memory held, over all nodes",
        "allocated_gpus": "GPUs held",
        "allocated_nodes": "nodes held",
        "allocated_resources": "all it held, in the scheduler's words",
        "array_jobid": "number of the array it is a task of",
        "array_index": "its index in the array",
        "het_jobid": "number of the heterogeneous job it is a part of",
        "het_offset": "which part it is, from 0 on",
        "dependencies": "jobs it waits for, in the scheduler's words",
        "work_dir": "the directory it began in",
        "stdout_path": "the file of its output",
        "tool": "the program that tracked the work; empty for a scheduler's jobs",
        "parameters": "a JSON object; of tracked work alone",
        "error": "what went wrong, in words; of tracked work alone",
        "result_type": "type of what it returned; of tracked work alone",
        "cpu_seconds": "CPU time in the kernel and outside, as accounting has it",
        "peak_memory_bytes": "most memory that accounting saw",
        "update_time": "when the row was last changed",
        "usage_due_time": "when it is to be measured, or again; NULL: there is nothing to do",
    },
    "job_node": {
        "cpus": "CPUs held there; may be half a one",
        "memory_bytes": "memory held there",
        "gpus": "GPUs held there",
        "start_time": "the job's, so that the newest jobs of a node are found at once",
    },
    "job_step": {
        "step": "`batch`, `extern`, `interactive` or a number; in a heterogeneous job `0+1`",
        "nodes": "how many nodes it had",
        "tasks": "how many tasks it had",
        "cpus": "CPUs held",
        "gpus": "GPUs held",
        "cpu_seconds": "CPU time in the kernel and outside, as accounting has it",
        "peak_task_memory_bytes": "most memory of its largest task",
        "memory_bytes": "its tasks' peaks, added up",
        "read_bytes": "what its processes read",
        "written_bytes": "what its processes wrote",
    },
    "job_usage": {
        "source": "where the samples were: `prometheus` or `samples`",
        "measured_time": "when it was measured",
        "until_time": "the end of what was measured; before `end_time`: the job ran on",
        "samples": "how many samples of CPU time there were, over all nodes",
        "dropped_series": "series left out: of another user, or no numbers",
        "nodes": "nodes that any sample came from",
        "coverage": "the part of the job's node time that the totals stand for, 0 to 1",
        "gpus": "GPUs seen in use by it",
        "gpu_utilization_ratio": "mean over its GPUs and the time they were held; 1 is all",
        "gpu_memory_peak_bytes": "most memory of the fullest GPU",
    },
    "job_gpu": {
        "uuid": "the GPU's UUID",
        "gpu_instance": "the MIG instance; empty for a whole GPU",
        "gpu": "the GPU's number on its node",
        "utilization_ratio": "mean over the time it was held; 1 is all",
        "memory_peak_bytes": "most memory of the job on it",
        "samples": "how many samples of its utilization there were",
    },
    "job_emissions": {},
    "batch_script": {
        "digest": "SHA-256 of what was submitted, in hexadecimal",
        "script": "the script, or its beginning where it is longer than the site keeps",
        "whole_bytes": "size of what was submitted",
    },
    "job_script": {"digest": "of the script in `batch_script`; empty: the job has none"},
    "daily_wait": {
        "day": "the midnight of the day on which the jobs started",
        "wait_mean_seconds": "mean of the waits",
        "wait_p50_seconds": "half of the jobs had waited no longer",
        "wait_p90_seconds": "nine jobs in ten had waited no longer",
        "wait_p99_seconds": "99 jobs in 100 had waited no longer",
        "wait_max_seconds": "the longest wait",
    },
    "api_token": {
        "digest": "SHA-256 of the token, in hexadecimal",
        "username": "whose it is",
        "cluster": "the cluster it is for; empty: all",
        "role": "`user`, `viewer` or `admin`; what it may do at most",
        "label": "what it is for, in its maker's words",
        "last_used_time": "when it was last used",
        "parent_id": "the token it was made with, and ends with",
        "maker": "who made it; empty: somebody on the server",
        "maker_via": "how the maker was known: header, certificate or session",
        "maker_certificate": "the certificate that the maker was known by",
    },
    "login": {
        "username": "who logged in",
        "groups": "JSON: the groups that the provider told at the last log-in",
        "login_time": "when that was",
    },
    "login_session": {
        "digest": "SHA-256 of the cookie, in hexadecimal",
        "username": "who logged in",
        "subject": "the provider's `sub`",
        "provider_session": "the provider's `sid`",
    },
    "poll_state": {
        "watermark": "how far it was read, in the source's own words",
        "success_time": "when it was last read well",
        "error_time": "when reading it last failed",
        "error": "why it failed",
        "rows": "records of the last reading",
        "seconds": "how long the last reading took",
    },
    "quarantine": {
        "digest": "SHA-256 of the record, so that it is kept once",
        "time": "when it was read",
        "reason": "why it was not understood",
        "raw": "the record as it was",
    },
}


def meaning(table: str, column: str) -> str:
    """One line without a full stop. Raises KeyError for a column that nobody has explained."""
    if table == "job_usage" and column in _MEASURED:
        return _MEASURED[column]
    own = OF_TABLES.get(table, {})
    return own[column] if column in own else EVERYWHERE[column]


def _measured(column: UsageColumn) -> str:
    which = ", ".join(f"{key} {value}" for key, value in (*column.quantity.labels, *column.labels))
    help_text = column.quantity.metric.help.rstrip(".")
    return f"{column.statistic.value} of: {help_text}" + (f" ({which})" if which else "")


_MEASURED = {column.name: _measured(column) for column in (*USAGE_COLUMNS, *ENERGY_COLUMNS)}
