"""Jobs as other collectors see them: energy needs their CPU time, GPUs need their holders."""

import re
from collections.abc import Mapping
from typing import NamedTuple, Protocol, runtime_checkable

from batchjob.schedulers import registry
from collectors.metric import Labels

GPU_VARIABLES = re.compile(
    "|".join(
        (
            *(
                side.gpu_variables
                for side in registry.job_managers().values()
                if side.gpu_variables
            ),
            r"CUDA_VISIBLE_DEVICES\d*|CUDA_DEVICE_ORDER|CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
            "ROCR_VISIBLE_DEVICES",
        )
    )
)
"""Pattern of the names (`fullmatch`) of environment variables that name a job's GPUs."""


class JobName(NamedTuple):
    """The identity of a job. Readings with equal names belong to one job and share its series."""

    manager: str  # slurm, pbs, lsf, flux, ..., local
    jobid: str  # the id in accounting: 123, 2[1].pbs01, 123[4], a UUID
    user: str  # login name, or the decimal uid if the name is unknown
    labels: Labels  # manager, jobid and user, rendered once


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


@runtime_checkable
class JobsView(Protocol):
    """The part of the jobs collector that other collectors need. Thread-safe."""

    def usage(self) -> list[JobCpu]:
        """The CPU usage of every known job, read now, including ended ones that linger."""

    def holders(self) -> list[JobHolder]:
        """The running jobs from the last scan; reads nothing."""


@runtime_checkable
class JobStarts(Protocol):
    """The start times of jobs, at which the counters of every collector were 0."""

    def created(self) -> Mapping[Labels, float]:
        """Epoch seconds by the job's labels; empty if the option is disabled."""
