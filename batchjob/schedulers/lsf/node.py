"""LSF on a compute node: cgroups, environment, GPUs under MPS.

CPUs of jobs that have no CPU set, by "Environment variables set for job execution" and "Affinity
hostfile" of IBM Spectrum LSF:

    LSB_AFFINITY_HOSTFILE  a file with a line for each task: host, list of CPUs, NUMA nodes, policy
    LSB_MCPU_HOSTS         `host1 4 host2 2`: hosts, and slots on each

The environment belongs to the user, so the file is read only if root has written it.
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from batchjob.runtime.user_files import open_regular_file
from batchjob.runtime.values import parse_cpu_list
from batchjob.schedulers.layout import layout
from batchjob.schedulers.node import Environment, GpuNames, JobManager, split_gpu_list

AFFINITY_FILE, SLOTS = "LSB_AFFINITY_HOSTFILE", "LSB_MCPU_HOSTS"

_MAX_FILE_BYTES = 1 << 20


def count_on_node(
    environ: Mapping[str, str], hostname: str = "", online: int | None = None
) -> int | None:
    """CPUs of a job on a node, by default this one; None if unknown, or the node has fewer."""
    host = (hostname or os.uname().nodename).partition(".")[0]
    path = environ.get(AFFINITY_FILE)
    cpus = _count_in_affinity_file(path, host) if path else 0
    cpus = cpus or _count_in_slot_list(environ.get(SLOTS, ""), host)
    return cpus if 0 < cpus <= (online or os.cpu_count() or 1) else None


def _count_in_affinity_file(path: str, host: str) -> int:
    try:
        with open_regular_file(Path(path), (0,)) as (file, status):
            is_roots = not status.st_mode & 0o022  # only root may write to it
            text = file.read(_MAX_FILE_BYTES).decode(errors="replace") if is_roots else ""
        cpus: set[int] = set()
        for line in text.splitlines():
            words = line.split()
            if len(words) > 1 and words[0].partition(".")[0] == host:
                cpus.update(parse_cpu_list(words[1]))
    except (OSError, ValueError):
        return 0
    return len(cpus)


def _count_in_slot_list(text: str, host: str) -> int:
    words = text.split()
    slots = 0
    for name, number in zip(words[::2], words[1::2], strict=False):
        if name.partition(".")[0] == host and number.isascii() and number.isdigit():
            slots += int(number[:9])
    return slots


_LAYOUTS = (
    # LSF: IBM support pages on cgroups. The third number is like a pid, the last is the start time.
    layout(
        "lsf",
        "lsf",
        r"**/lsf/(?P<cluster>.+)/job\.(?P<jobid>\d+(?:\[(?P<array_index>\d+)\])?)"
        r"\.(?P<serial>\d+)\.(?P<started>\d+)",
        scheduler_paths=re.compile("job-mps-service"),
    ),
)

_REAL_DEVICES = "CUDA_VISIBLE_DEVICES_ORIG"


def _gpus_from_variables(environs: Sequence[Environment]) -> Iterator[GpuNames]:
    """Under MPS, LSF keeps the real devices (minors) in CUDA_VISIBLE_DEVICES_ORIG."""
    names = tuple(
        name for environ in environs for name in split_gpu_list(environ.get(_REAL_DEVICES))
    )
    yield GpuNames(_REAL_DEVICES, names, "minor")


JOB_MANAGERS = (
    JobManager(
        "lsf",
        _LAYOUTS,
        re.compile("lsf"),
        variables={  # bsub(1)
            "account": "LSB_PROJECT_NAME",
            "partition": "LSB_QUEUE",
            "array_task_id": "LSB_JOBINDEX",
            "name": "LSB_JOBNAME",
        },
        additional_variables=frozenset((AFFINITY_FILE, SLOTS)),
        cpus=count_on_node,
        launchers=frozenset({"sbatchd", "res"}),
        gpu_variables=_REAL_DEVICES,
        gpus_from_variables=_gpus_from_variables,
        may_be_empty=True,
        daemons=frozenset({"sbatchd"}),
        advice="set LSF_PROCESS_TRACKING=Y and LSF_LINUX_CGROUP_ACCT=Y in lsf.conf; see "
        "docs/schedulers/lsf.md",
        controllers={
            (1, "cpuset"): "LSB_RESOURCE_ENFORCE with cpu in lsf.conf",
            (2, "cpuset"): "LSB_RESOURCE_ENFORCE with cpu in lsf.conf",
            (1, "memory"): "LSF_LINUX_CGROUP_ACCT=Y in lsf.conf",
            (1, "cpuacct"): "LSF_LINUX_CGROUP_ACCT=Y in lsf.conf",
        },
    ),
)
