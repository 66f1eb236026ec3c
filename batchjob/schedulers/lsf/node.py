"""LSF on a compute node: cgroups, environment, GPUs under MPS."""

import re
from collections.abc import Iterator, Sequence

from batchjob.schedulers.layout import layout
from batchjob.schedulers.lsf import cpus
from batchjob.schedulers.node import Environment, GpuNames, JobManager, split_gpu_list

_LAYOUTS = (
    # LSF: IBM support pages on cgroups. The third number is similar to a pid, the last one is the
    # start time.
    layout(
        "lsf",
        "lsf",
        r"**/lsf/(?P<cluster>.+)/job\.(?P<jobid>\d+(?:\[(?P<array_index>\d+)\])?)"
        r"\.(?P<serial>\d+)\.(?P<started>\d+)",
        steps=r"(?P<user>leaf)(?:/.*)?|(?P<scheduler>job-mps-service)",
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
        additional_variables=frozenset(cpus.VARIABLES),
        cpus=cpus.count_on_this_node,
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
