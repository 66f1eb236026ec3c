"""Who a job is: the owner by the kernel's word, the rest by what the owner's processes say."""

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from collectors.jobs.layouts import LayoutMatch
from collectors.jobs.processes.proc import Process
from collectors.jobs.view import JobName
from collectors.metric import Labels, labels

LONGEST_VALUE = 128  # one hostile value over a site's label_value_length_limit fails a whole scrape

# Variables that schedulers set in the environment of a job's processes, by info label. Sources:
# Slurm's sbatch(1) "OUTPUT ENVIRONMENT VARIABLES", real OpenPBS 23.06, LSF's bsub(1).
DETAILS: Mapping[str, Mapping[str, str]] = {
    "slurm": {
        "account": "SLURM_JOB_ACCOUNT",
        "partition": "SLURM_JOB_PARTITION",
        "qos": "SLURM_JOB_QOS",
        "array_job_id": "SLURM_ARRAY_JOB_ID",
        "array_task_id": "SLURM_ARRAY_TASK_ID",
        "het_job_id": "SLURM_JOB_ID_HET_GROUP_0",
        "name": "SLURM_JOB_NAME",
    },
    "pbs": {
        "account": "PBS_ACCOUNT",
        "partition": "PBS_QUEUE",
        "array_job_id": "PBS_ARRAY_ID",
        "array_task_id": "PBS_ARRAY_INDEX",
        "name": "PBS_JOBNAME",
    },
    "torque": {"partition": "PBS_QUEUE", "array_task_id": "PBS_ARRAYID", "name": "PBS_JOBNAME"},
    "lsf": {
        "account": "LSB_PROJECT_NAME",
        "partition": "LSB_QUEUE",
        "array_task_id": "LSB_JOBINDEX",
        "name": "LSB_JOBNAME",
    },
    "sge": {"partition": "QUEUE", "name": "JOB_NAME"},
    "flux": {"name": "FLUX_JOB_NAME"},
    "oar": {"account": "OAR_PROJECT_NAME", "name": "OAR_JOB_NAME"},
    "local": {"name": "BATCHJOB_NAME"},
}

INFO_LABELS = (
    "uid", "account", "partition", "qos", "array_job_id", "array_task_id", "het_job_id", "sluid",
    "node", "cluster_name", "cgroup", "name",
)  # fmt: skip


class JobIdentity(NamedTuple):
    """A job's name and what is known of it beside; `info` are the labels of batchjob_job_info."""

    name: JobName
    uid: int | None
    info: Labels


def make(
    found: LayoutMatch,
    jobid: str,
    uid: int | None,
    user: str,
    details: Mapping[str, str],
    cgroup: str,
    job_name: bool,
) -> JobIdentity:
    """Build the identity and render its labels, once."""
    name = JobName(
        found.manager,
        jobid,
        user,
        labels(manager=found.manager, jobid=_cut(jobid), user=_cut(user)),
    )
    known = {"uid": "" if uid is None else str(uid), "sluid": found.sluid or "", "cgroup": cgroup}
    known.update(details)
    known.update((key.replace("cluster", "cluster_name"), value) for key, value in found.info)
    if not job_name:
        known.pop("name", None)
    pairs = {key: _cut(known[key]) for key in INFO_LABELS if known.get(key)}
    return JobIdentity(name, uid, labels(**pairs))


def details(manager: str, jobid: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Account, partition and so on from the environment of one of the owner's processes.

    In a step over several parts of a het job, Slurm's variables are those of the first part
    (real Slurm 22.05 and 24.11): what another id signs is another job's.
    """
    wanted = DETAILS.get(manager, {})
    said = environ.get("SLURM_JOB_ID", jobid)
    if manager == "slurm" and said != jobid:
        wanted = {"het_job_id": wanted["het_job_id"]}
    return {label: environ[name] for label, name in wanted.items() if environ.get(name)}


def variables(manager: str) -> frozenset[str]:
    """The variables of `details`."""
    return frozenset(DETAILS.get(manager, {}).values()) | {"SLURM_JOB_ID"}


def slurm_job_of_title(title: bytes) -> str | None:
    """The job id in slurmstepd's title, `slurmstepd: [4749.batch]` (Slurm: slurmstepd's main)."""
    match = re.match(rb"slurmstepd: \[(\d+)[.\]]", title)
    return match[1].decode() if match else None


def owner(found: LayoutMatch, processes: Iterable[Process]) -> int | None:
    """The uid in the path, or that of the job's earliest process that is not root's.

    At its birth a job holds only root's processes; containers in it may bring mapped uids later.
    """
    if found.uid is not None:
        return found.uid
    others = [process for process in processes if process.uid != 0]
    return min(others, key=lambda process: process.started).uid if others else None


def _cut(value: str) -> str:
    return value[:LONGEST_VALUE]
