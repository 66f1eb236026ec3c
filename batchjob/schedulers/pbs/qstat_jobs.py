"""Jobs from qstat: their attributes, flat, all text, times as epoch seconds.

Traps (OpenPBS' source and issues): a value that looks like JSON is printed as JSON, so that a job
named 1e5 or true is a number or a boolean; before 2024 some characters are not escaped and the
whole output is not JSON, in which case `qstat -f` without -F is read instead. Times are text in the
client's zone, which is UTC here.
"""

import json
from typing import Any

from batchjob.runtime.json_reader import damaged, repeated_names, unique_pairs
from batchjob.runtime.subprocesses import CommandOptions, NotJsonError, parse_json_object, run
from batchjob.schedulers.fields import utc_time

Attributes = dict[str, str]
"""Of a job; DamagedPairs, if some stood twice."""

# qstat's names for attributes that have another name in the accounting log.
_LOG_NAMES = {
    "Job_Name": "jobname", "euser": "user", "egroup": "group", "Account_Name": "account",
    "stime": "start", "session_id": "session", "reserve_ID": "resvID",
}  # fmt: skip
_LEADING = ("jobname", "Job_Owner", "job_state", "queue", "server")
_TIMES = ("ctime", "estimated.start_time", "etime", "qtime", "start", "end", "obittime", "mtime")


def query_qstat(options: CommandOptions, qstat: str, *flags: str) -> dict[str, Attributes]:
    """Attributes of each job by id. Raises SchedulerError."""
    argv = [qstat, *flags, "-t", "-f"]
    try:
        return parse_json_jobs(run(options, [*argv, "-F", "json"]))
    except NotJsonError:
        return parse_text_jobs(run(options, argv))


def parse_json_jobs(output: bytes) -> dict[str, Attributes]:
    """Parse the output of `-F json`; a job that stands twice has no attributes.

    Raises NotJsonError.
    """
    jobs = parse_json_object(output, numbers_as_text=True).get("Jobs", {})
    if not isinstance(jobs, dict):
        raise NotJsonError("qstat: expected an object with Jobs")
    found = {jobid: _flatten(job) for jobid, job in jobs.items() if isinstance(job, dict)}
    return found | {jobid: {} for jobid in repeated_names(jobs)}


def _flatten(job: dict[str, Any]) -> Attributes:
    flat: list[tuple[str, str]] = []
    repeated = [_LOG_NAMES.get(name, name) for name in repeated_names(job)]
    for name, value in job.items():
        if name == "Variable_List":  # the rest of it is private to the user
            if isinstance(value, dict) and "PBS_O_WORKDIR" in value:
                flat.append((f"{name}.PBS_O_WORKDIR", _format_scalar(value["PBS_O_WORKDIR"])))
        elif isinstance(value, dict):
            flat += [(f"{name}.{inner}", _format_scalar(each)) for inner, each in value.items()]
            repeated += [f"{name}.{inner}" for inner in repeated_names(value)]
        else:
            flat.append((_LOG_NAMES.get(name, name), _format_scalar(value)))
    values = unique_pairs(flat)
    return _convert_times(damaged(values, (*repeated, *repeated_names(values))))


def _format_scalar(value: Any) -> str:
    if isinstance(value, str):
        return value
    return json.dumps(value)  # true, null, and names that were parsed as a list


def parse_text_jobs(output: bytes) -> dict[str, Attributes]:
    """Parse the output without -F: `Job Id: X`, `    name = value`, continued after a tab.

    What a user wrote (Account_Name, Variable_List) may contain any line, so a name that stands
    twice has no value, unless the server writes it before these; and a job that stands twice has no
    attributes.
    """
    repeated: set[str] = set()
    jobs: dict[str, list[tuple[str, str]]] = {}
    pairs: list[tuple[str, str]] = []
    for line in output.decode("utf-8", "backslashreplace").split("\n"):
        if line.startswith("Job Id: "):
            jobid, pairs = line.removeprefix("Job Id: ").strip(), []
            if jobid in jobs:
                repeated.add(jobid)
            jobs[jobid] = pairs
        elif line.startswith("\t") and pairs:
            name, value = pairs[-1]
            pairs[-1] = (name, value + line[1:])
        elif line.startswith("    ") and " = " in line:
            name, _, value = line.strip().partition(" = ")
            pairs.append((_LOG_NAMES.get(name, name), value))
    return {
        jobid: {}
        if jobid in repeated
        else _convert_times(_keep_work_dir(unique_pairs(pairs, _LEADING)))
        for jobid, pairs in jobs.items()
    }


def _keep_work_dir(job: Attributes) -> Attributes:
    """Keep only PBS_O_WORKDIR of Variable_List, as of JSON."""
    for pair in job.pop("Variable_List", "").split(","):
        if pair.startswith("PBS_O_WORKDIR="):
            job["Variable_List.PBS_O_WORKDIR"] = pair.partition("=")[2]
    return job


def _convert_times(job: Attributes) -> Attributes:
    owner = {"user": job.get("Job_Owner", "").partition("@")[0]}  # used until there is an euser
    times = {name: utc_time(job.get(name, ""), "%a %b %d %H:%M:%S %Y") for name in _TIMES}
    known = {name: str(at) for name, at in times.items() if at is not None}
    return damaged(owner | job | known, repeated_names(job))
