"""Slurm on a compute node: cgroups, environment, GPUs."""

import re
from collections.abc import Iterator, Mapping, Sequence

from batchjob.schedulers.layout import V1, V2, layout
from batchjob.schedulers.node import Environment, GpuNames, JobManager, split_gpu_list

# Slurm: src/plugins/cgroup/v1 and v2, doc/html/cgroups.shtml. The id is always the raw one: each
# task of an array and each part of a het job has its own. `slurm_<node>` and `<node>_slurm...` come
# from builds for several slurmd on a host, including Debian's.
# slurmstepd is in `step_0/slurm` on v2; the external step has a placeholder (sleep).
_SCHEDULER_PATHS = re.compile(r"step_extern(/.*)?|step_[^/]+/slurm")
_SLURM_SCOPE = r"(?:(?P<node>.+)_)?slurmstepd\.scope"
# A SLUID (src/common/sluid.c: s and 13 digits of Crockford's base 32) names one run of a job: a
# requeue gets a new one, and with it a new directory. A resize gets a new one in accounting, but
# keeps the directory, whose name is then accounting's OriginalSLUID (seen with 26.05).
_SLURM_JOB = r"job_(?P<jobid>\d+)|(?P<alias>(?P<sluid>s[0-9A-HJKMNP-TV-Z]{13}))"

# fmt: off
_LAYOUTS = (
    layout("slurm-v1", "slurm", r"**/slurm(?:_(?P<node>.+))?/uid_(?P<uid>\d+)/job_(?P<jobid>\d+)",
        versions=V1, scheduler_paths=_SCHEDULER_PATHS),
    # The scope is in the slice of CgroupSlice= (25.11 and later) or, with IgnoreSystemd=yes and in
    # containers, where slurmd was started. Jobs are named by SLUID since 26.05.
    layout("slurm-v2", "slurm", rf"**/{_SLURM_SCOPE}/{_SLURM_JOB}", versions=V2,
        scheduler_paths=_SCHEDULER_PATHS, jobid_variable="SLURM_JOB_ID"),
)
# fmt: on

# sbatch(1), "OUTPUT ENVIRONMENT VARIABLES".
_VARIABLES = {
    "account": "SLURM_JOB_ACCOUNT",
    "partition": "SLURM_JOB_PARTITION",
    "qos": "SLURM_JOB_QOS",
    "array_job_id": "SLURM_ARRAY_JOB_ID",
    "array_task_id": "SLURM_ARRAY_TASK_ID",
    "het_job_id": "SLURM_JOB_ID_HET_GROUP_0",
    "name": "SLURM_JOB_NAME",
}

_MAX_HET_PARTS = 128  # slurm.h, MAX_HET_JOB_COMPS
_HET_VARIABLES = ("SLURM_JOB_ACCOUNT", "SLURM_JOB_PARTITION", "SLURM_JOB_QOS", "SLURM_JOB_NAME")


def _select_variables(jobid: str, environ: Environment) -> Mapping[str, str]:
    """In a step over several parts of a het job, Slurm's variables are those of the first part
    (real Slurm 22.05 to 26.05); those of the others end in the number of the part.
    """
    if environ.get("SLURM_JOB_ID", jobid) == jobid:
        return _VARIABLES
    for part in range(1, _MAX_HET_PARTS):
        if environ.get(f"SLURM_JOB_ID_HET_GROUP_{part}") == jobid:
            parts = {
                label: f"{name}_HET_GROUP_{part}"
                for label, name in _VARIABLES.items()
                if name in _HET_VARIABLES
            }
            return {"het_job_id": _VARIABLES["het_job_id"], **parts}
    return {"het_job_id": _VARIABLES["het_job_id"]}


def jobid_from_title(title: bytes) -> str | None:
    """The job id in slurmstepd's title, `slurmstepd: [4749.batch]` (Slurm: slurmstepd's main)."""
    match = re.match(rb"slurmstepd: \[(\d+)[.\]]", title)
    return match[1].decode() if match else None


def _gpus_from_variables(environs: Sequence[Environment]) -> Iterator[GpuNames]:
    """Places in the node's list of GPUs.

    Tasks inherit SLURM_JOB_GPUS from the batch script, hence from the first node: on the others
    only SLURM_STEP_GPUS is of this node. Measured with 22.05 and 24.11; the latter gives both
    tasks of `--gpus-per-task=1` the same SLURM_STEP_GPUS, so the job's list goes first.
    """
    job_gpus = [
        environ["SLURM_JOB_GPUS"]
        for environ in environs
        if "SLURM_JOB_GPUS" in environ
        and ("SLURM_STEPID" not in environ or environ.get("SLURM_JOB_NUM_NODES") == "1")
    ]
    step_gpus = [environ["SLURM_STEP_GPUS"] for environ in environs if "SLURM_STEP_GPUS" in environ]
    for source, texts in (("SLURM_JOB_GPUS", job_gpus), ("SLURM_STEP_GPUS", step_gpus)):
        yield GpuNames(
            source, tuple(word for text in texts for word in split_gpu_list(text)), "listed"
        )


_EXTRA_CONTROLLERS = (
    "EnableExtraControllers=io,pids in cgroup.conf (Slurm 25.05 and later); before that, after "
    "each start of slurmd: echo '+io +pids' > {tree}/cgroup.subtree_control"
)

JOB_MANAGERS = (
    JobManager(
        "slurm",
        _LAYOUTS,
        re.compile(r"slurm(_.+)?|(.+_)?slurmstepd\.scope"),
        variables=_VARIABLES,
        additional_variables=frozenset(
            {"SLURM_JOB_ID"}
            | {
                f"{name}_HET_GROUP_{part}"
                for name in ("SLURM_JOB_ID", *_HET_VARIABLES)
                for part in range(1, _MAX_HET_PARTS)
            }
        ),
        select_variables=_select_variables,
        launchers=frozenset({"slurmstepd"}),
        jobid_from_title=jobid_from_title,
        gpu_variables="SLURM_(JOB_GPUS|STEP_GPUS|STEPID|JOB_NUM_NODES|SHARDS_ON_NODE)",
        gpus_from_variables=_gpus_from_variables,
        gpu_shards="SLURM_SHARDS_ON_NODE",
        lists_devices=False,  # it only denies devices: `a *:* rwm` stays
        daemons=frozenset({"slurmd"}),
        advice="set ProctrackType=proctrack/cgroup and TaskPlugin=task/cgroup in slurm.conf; see "
        "docs/schedulers/slurm.md",
        controllers={
            (1, "cpuacct"): "JobAcctGatherType=jobacct_gather/cgroup in slurm.conf",
            (1, "memory"): "ConstrainRAMSpace=yes in cgroup.conf",
            (1, "cpuset"): "ConstrainCores=yes in cgroup.conf and TaskPlugin=task/cgroup",
            (1, "blkio"): "none: Slurm does not use this controller on version 1",
            (1, "pids"): "none: Slurm does not use this controller on version 1",
            (2, "io"): _EXTRA_CONTROLLERS,
            (2, "pids"): _EXTRA_CONTROLLERS,
            (2, "cpuset"): "systemd 244 or later, which can delegate cpuset",
        },
    ),
)
