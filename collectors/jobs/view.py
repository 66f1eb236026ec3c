"""Jobs as the other collectors see them: energy wants their CPU time, GPUs want their holders."""

import re
from collections.abc import Mapping
from typing import NamedTuple, Protocol, runtime_checkable

from batchjob.schedulers import registry
from collectors.metric import Labels

GPU_VARIABLES = re.compile(
    "|".join(
        (
            *(side.gpu_variables for side in registry.nodes().values() if side.gpu_variables),
            r"CUDA_VISIBLE_DEVICES\d*|CUDA_DEVICE_ORDER|CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
            "ROCR_VISIBLE_DEVICES",
        )
    )
)
"""Names (whole, by `fullmatch`) of the environment variables that tell a job's GPUs."""


class JobName(NamedTuple):
    """Who a job is. Two readings with equal names are of one job and share its series."""

    manager: str  # slurm, pbs, lsf, flux, ..., local
    jobid: str  # the text the accounting uses: 123, 2[1].pbs01, 123[4], a UUID
    user: str  # login name, or the decimal uid where no name is known
    labels: Labels  # manager, jobid and user, rendered once


class JobUsage(NamedTuple):
    """A job's CPU at one moment. `None`: not readable, which is not zero."""

    name: JobName
    cpu_seconds: float | None  # counts up; final once `ended_at` is set
    cpus: float | None  # CPUs allocated on this node
    ended_at: float | None  # Host.monotonic(); None while it runs
    started_at: float | None = None  # Host.monotonic(); None: not known


class JobHolder(NamedTuple):
    """What tells the devices of a running job."""

    name: JobName
    uid: int
    pids: tuple[int, ...]
    # The distinct sets of GPU variables among processes of the job's own owner: a step's tasks name
    # the GPUs of their step, and a job started by srun alone has no process that names them all.
    environs: tuple[Mapping[str, str], ...]
    directories: tuple[str, ...]  # its cgroup directories, in every hierarchy


@runtime_checkable
class JobsView(Protocol):
    """The jobs collector, as far as its siblings need it. Both calls are thread-safe."""

    def usage(self) -> list[JobUsage]:
        """Read every known job's CPU now, ended ones (while they linger) included."""

    def holders(self) -> list[JobHolder]:
        """The running jobs as the /proc thread last saw them; reads nothing."""


@runtime_checkable
class JobStarts(Protocol):
    """When jobs' counters were 0, of those of every collector."""

    def created(self) -> Mapping[Labels, float]:
        """Epoch seconds by the job's labels; nothing where the option for it is off."""
