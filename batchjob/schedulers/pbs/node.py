"""PBS and Torque on a compute node: cgroups, environment, the MoM's files on GPUs."""

import os
import re
from collections.abc import Sequence

from batchjob.schedulers.layout import V1, V2, layout, unescape_unit_name
from batchjob.schedulers.node import GpuNames, JobManager, read_lines, split_gpu_list

# OpenPBS: src/hooks/cgroups/pbs_cgroups.PY at v18.1, v19.1, v20 to v23.06. A cgroup that the hook
# could not remove is renamed to end in `.orphan`.
_PBS_ID = r"\d+(?:\[\d+\])?(?:\.(?!orphan$)[\w-]+)+"
_PBS_ESCAPED_ID = r"\d+(?:\\x5b\d+\\x5d)?(?:\.(?!orphan\.slice$)(?:\w|\\x2d)+)+"

# fmt: off
_LAYOUTS = (
    # The name of the service is `cgroup_prefix` in the hook's configuration.
    layout("pbs", "pbs", rf"**/(?P<prefix>.+)\.service/jobid/(?P<jobid>{_PBS_ID})", versions=V1),
    # On v2, in commercial PBS only, subjobs are named 12345.2; their processes have the real id.
    layout("pbs-v2", "pbs", rf"**/(?P<prefix>.+)\.service/(?:jobs|jobid)/(?P<alias>{_PBS_ID})",
        versions=V2, jobid_variable="PBS_JOBID"),
    layout("pbs-19-systemd", "pbs", rf"**/pbspro\.slice/pbspro-(?P<jobid>{_PBS_ESCAPED_ID})\.slice",
        versions=V1, decode_jobid=unescape_unit_name),
    layout("pbs-18", "pbs", rf"**/pbspro/(?P<jobid>{_PBS_ID})", versions=V1),
)
_TORQUE_LAYOUTS = (
    # Torque: src/resmom/trq_cgroups.c.
    layout("torque", "torque", r"**/torque/(?P<jobid>\d+(?:\[\d+\])?\.[\w.-]+)", versions=V1),
)
# fmt: on

_TORQUE_GPU = re.compile(r"(\S+)-gpu(\d+)")


def _gpus_from_files(homes: Sequence[str], jobid: str, hostname: str) -> GpuNames | None:
    """GPUs from OpenPBS' aux/<jobid>.env and Torque's aux/<jobid>gpu, which root's MoM writes."""
    for home in homes:
        path = os.path.join(home, "aux", jobid)
        environ = dict(line.partition("=")[::2] for line in read_lines(path + ".env"))
        names = split_gpu_list(environ.get("CUDA_VISIBLE_DEVICES"))
        if names:
            pci_order = environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
            return GpuNames("pbs", tuple(names), "visible", pci_order)
        gpus = [
            match for line in read_lines(path + "gpu") if (match := _TORQUE_GPU.fullmatch(line))
        ]
        numbers = [gpu[2] for gpu in gpus if gpu[1].partition(".")[0] == hostname]
        if numbers:
            return GpuNames("pbs", tuple(numbers), "index")
    return None


JOB_MANAGERS = (
    JobManager(
        "pbs",
        _LAYOUTS,
        re.compile(r"pbs_jobs\.service|pbspro(\.slice)?|jobid|jobs"),
        variables={  # as seen with OpenPBS 23.06
            "account": "PBS_ACCOUNT",
            "partition": "PBS_QUEUE",
            "array_job_id": "PBS_ARRAY_ID",
            "array_task_id": "PBS_ARRAY_INDEX",
            "name": "PBS_JOBNAME",
        },
        launchers=frozenset({"pbs_mom"}),
        gpus_from_files=_gpus_from_files,
        may_be_empty=True,
        daemons=frozenset({"pbs_mom"}),
        advice="enable the cgroup hook: qmgr -c 'set hook pbs_cgroups enabled=true'; see "
        "docs/schedulers/pbs.md",
        controllers={
            (1, "cpuacct"): "enable cpuacct in the hook's configuration",
            (1, "memory"): "enable memory in the hook's configuration",
            (1, "cpuset"): "enable cpuset in the hook's configuration",
            (1, "blkio"): "none: the hook does not support blkio",
            (1, "pids"): "none: the hook does not support pids",
        },
    ),
    JobManager(
        "torque",
        _TORQUE_LAYOUTS,
        re.compile("torque"),
        variables={"partition": "PBS_QUEUE", "array_task_id": "PBS_ARRAYID", "name": "PBS_JOBNAME"},
        gpus_from_files=_gpus_from_files,
        may_be_empty=True,
        # No daemons: Torque's daemon is also called pbs_mom.
        advice="build Torque with --enable-cgroups; see docs/schedulers/pbs.md",
    ),
)
