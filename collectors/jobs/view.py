"""The identity of jobs, and jobs as other collectors see them.

Energy needs their CPU time, GPUs need their holders.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from batchjob.schedulers import registry
from collectors.metric import Labels, join, labels

# A single value over a site's label_value_length_limit makes the whole scrape fail.
MAX_LABEL_LENGTH = 128

INFO_LABELS = (
    "uid", "account", "partition", "qos", "array_job_id", "array_task_id", "het_job_id", "sluid",
    "node", "cluster_name", "cgroup", "name", "image", "container_user",
)  # fmt: skip

_OF_MANAGERS = (manager.gpu_variables for manager in registry.job_managers().values())
_OF_ALL = r"CUDA_VISIBLE_DEVICES\d*|CUDA_(DEVICE_ORDER|MPS_ACTIVE_THREAD_PERCENTAGE)"
GPU_VARIABLES = re.compile("|".join((*filter(None, _OF_MANAGERS), _OF_ALL, "ROCR_VISIBLE_DEVICES")))
"""Pattern of the names (`fullmatch`) of environment variables that name a job's GPUs."""


class JobName(NamedTuple):
    """The identity of a job. Readings with equal names belong to one job and share its series."""

    manager: str  # slurm, pbs, lsf, flux, ..., local
    jobid: str  # the id in accounting: 123, 2[1].pbs01, 123[4], a UUID
    user: str  # login name, or the decimal uid if the name is unknown
    labels: Labels  # manager, jobid and user, rendered once


class JobIdentity(NamedTuple):
    """A job's name and owner: the owner from the kernel, the rest from the owner's processes."""

    name: JobName
    uid: int | None
    info: Labels  # all labels of batchjob_job_info


def make_identity(name: JobName, uid: int | None, values: Mapping[str, str]) -> JobIdentity:
    """Build the identity and render its labels, once; `values` by the names in INFO_LABELS."""
    pairs = {key: values[key][:MAX_LABEL_LENGTH] for key in INFO_LABELS if values.get(key)}
    return JobIdentity(name, uid, join(name.labels, labels(**pairs)))


def make_name(manager: str, jobid: str, user: str) -> JobName:
    """Build the name and render its labels; equal names have equal labels."""
    rendered = labels(manager=manager, jobid=jobid[:MAX_LABEL_LENGTH], user=user[:MAX_LABEL_LENGTH])
    return JobName(manager, jobid, user, rendered)


def parse_name(row: Sequence[Any]) -> JobName:
    """The name that a state file has at the beginning of a row."""
    manager, jobid, user = (str(each) for each in row[:3])
    return make_name(manager, jobid, user)


class JobCpu(NamedTuple):
    """A job's CPU usage at one moment. `None`: not readable, which is not zero."""

    name: JobName
    cpu_seconds: float | None  # increases; final once `ended_at` is set
    cpus: float | None  # CPUs allocated on this node
    ended_at: float | None  # Host.monotonic(); None while it runs
    started_at: float | None = None  # Host.monotonic(); None: unknown


class JobHolder(NamedTuple):
    """What identifies the devices of a running job."""

    name: JobName
    uid: int
    pids: tuple[int, ...]
    # The distinct sets of GPU variables of processes owned by the job's owner. The tasks of a step
    # name the GPUs of their step, and a job started by srun alone has no process that names all of
    # them.
    environs: tuple[Mapping[str, str], ...]
    directories: tuple[str, ...]  # its cgroup directories in all hierarchies


class JobLifetime(NamedTuple):
    """When a job began and ended on this node, in epoch seconds."""

    started_at: float | None  # None: before the exporter
    ended_at: float | None  # None while it runs
