"""The interface of a scheduler's module `node`: how its jobs look on a compute node.

The module defines `JOB_MANAGERS`, a row for each manager. Compute nodes import it, so neither it
nor what it imports may call programs, use HTTP or read accounting.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from batchjob.schedulers.layout import Layout

Environment = Mapping[str, str]


class GpuNames(NamedTuple):
    """How a scheduler names the GPUs of a job, and what numeric names refer to."""

    source: str
    names: tuple[str, ...]
    numbering: Literal["listed", "visible", "index", "minor"]
    """`listed`: places in the scheduler's own list of GPUs; `visible`: as in CUDA_VISIBLE_DEVICES;
    `index`: the driver's; `minor`: of the device file."""
    pci_order: bool = False  # visible GPUs are in PCI bus order


class JobManager(NamedTuple):
    """A job manager: how its jobs and daemons can be recognized on a compute node."""

    manager: str  # value of the label `manager`
    layouts: tuple[Layout, ...] = ()
    trees: re.Pattern[str] | None = None  # directories that only this manager creates

    variables: Mapping[str, str] = {}  # info label → variable in its jobs' environment
    additional_variables: frozenset[str] = frozenset()
    """Further variables that `select_variables` or `cpus` read."""
    select_variables: Callable[[str, Environment], Mapping[str, str]] | None = None
    """Those of `variables` that belong to this job (id, environment); None: all."""
    cpus: Callable[[Environment], int | None] | None = None
    """CPUs allocated on this node, for jobs without a CPU set; may read files."""

    labels_from_files: Callable[[Path, str, Sequence[int]], Mapping[str, str]] | None = None
    """Info labels from files that a container engine writes; arguments: its directory, the job id,
    and the uids whose files are read. Raises OSError and ValueError."""

    launchers: frozenset[str] = frozenset()  # programs that start jobs' processes, 15 bytes at most
    jobid_from_title: Callable[[bytes], str | None] | None = None
    """The job id in the process title of a launcher that runs as root."""

    gpu_variables: str = ""  # regular expression for the names of variables with a job's GPUs
    gpus_from_files: Callable[[Sequence[str], str, str], GpuNames | None] | None = None
    """From files written by root; arguments: the scheduler's directories, job id and host name."""
    gpus_from_variables: Callable[[Sequence[Environment]], Iterable[GpuNames]] | None = None
    """From the environments of the job's processes, the most reliable names first."""
    gpu_shards: str = ""  # the variable with the number of GPU shards of a job
    lists_devices: bool = True  # on cgroup v1, its devices cgroup lists what a job may open

    may_be_empty: bool = False
    """A node of a job may be without processes of it, between tasks that another node starts; its
    daemon is not in the job's cgroup, and removes that at the job's end."""

    daemons: frozenset[str] = frozenset()  # its processes on a compute node (/proc/<pid>/comm)
    advice: str = ""  # how to enable cgroups; "" if it is not a scheduler
    controllers: Mapping[tuple[int, str], str] = {}
    """How to enable a controller in its tree, by cgroup version and controller."""

    def required_variables(self) -> frozenset[str]:
        """The environment variables that `info_labels()` and `cpus` need."""
        return frozenset(self.variables.values()) | self.additional_variables

    def info_labels(self, jobid: str, environ: Environment) -> dict[str, str]:
        """Account, partition and so on, by info label, from the environment of a process."""
        variables = self.variables
        if self.select_variables:
            variables = self.select_variables(jobid, environ)
        return {label: environ[name] for label, name in variables.items() if environ.get(name)}


_MAX_LIST_LENGTH = 4096  # maximum characters; users control the environment, and it may be huge


def split_gpu_list(text: str | None) -> list[str]:
    """The parts of a comma-separated list; `NoDevFiles`, `none` and -1 mean no GPU."""
    words = [word.strip() for word in (text or "")[:_MAX_LIST_LENGTH].split(",")]
    return [word for word in words if word and word.lower() not in ("nodevfiles", "none", "-1")]


def read_lines(path: str) -> list[str]:
    """The lines of a small file; none if it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(65536).splitlines()
    except OSError:
        return []
