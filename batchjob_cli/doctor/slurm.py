"""Settings of Slurm that decide what its accounting knows, and who may see it.

Facts: slurm.conf(5), cgroup.conf(5), as `scontrol show config` prints them. What batchjob was tried
with is in docs/schedulers/slurm.md.
"""

from batchjob.schedulers.slurm.accounting.site_accounting import task_sampling_seconds
from batchjob_cli.doctor.finding import Checks, ExaminedNode, Finding

_TRIED = ("22.05", "24.11", "26.05")
_FIRST, _LAST = (20, 11), (26, 5)


def _check_version(node: ExaminedNode) -> Finding | None:
    version = node.slurm_settings.get("SLURM_VERSION", "")
    release = tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())
    tried = f"Slurm {version}; batchjob was tried with {', '.join(_TRIED)}"
    if not version or _FIRST <= release <= _LAST:
        return Finding("ok", tried) if version else None
    return Finding("warning", tried, "compare some jobs with sacct; see docs/schedulers/slurm.md")


def _check_gpus(node: ExaminedNode) -> Finding | None:
    if "gpu" not in node.slurm_settings.get("GresTypes", "").split(","):
        return None
    if "gres/gpu" in node.slurm_settings.get("AccountingStorageTRES", "").split(","):
        return Finding("ok", "accounting has the GPUs of jobs")
    seen = "accounting does not have the GPUs of jobs"
    return Finding("warning", seen, "add gres/gpu to AccountingStorageTRES in slurm.conf")


def _check_private_data(node: ExaminedNode) -> Finding | None:
    private = node.slurm_settings.get("PrivateData")
    if private is None:
        return None
    hidden = sorted({"jobs", "usage", "users", "accounts", "all"} & set(private.lower().split(",")))
    if not hidden:
        return Finding("ok", "PrivateData hides no jobs, users or accounts")
    return Finding(
        "warning",
        f"PrivateData={','.join(hidden)}: who is no operator sees only what is their own, without "
        "an error",
        "run sacctmgr modify user NAME set adminlevel=Operator for the users of the poller, of the "
        "exporter's cluster collector and of slurmrestd",
    )


def _check_gathering(node: ExaminedNode) -> Finding | None:
    """How accounting measures CPU time and memory."""
    plugin = node.slurm_settings.get("JobAcctGatherType", "").rpartition("/")[2]
    interval = node.slurm_settings.get("JobAcctGatherFrequency", "")
    seen = f"JobAcctGatherType={plugin}, JobAcctGatherFrequency={interval}"
    advice = "set JobAcctGatherType=jobacct_gather/cgroup"
    if plugin in ("none", "(null)"):
        return Finding("warning", f"{seen}: accounting has no CPU time and no memory", advice)
    if plugin == "linux":
        lost = "the CPU time of cancelled jobs and of processes that nobody waits for is lost"
        return Finding("warning", f"{seen}: {lost}", advice)
    if task_sampling_seconds(interval) == 0:
        lost = "a peak of memory is seen only at the end of a step"
        return Finding("warning", f"{seen}: {lost}", "set JobAcctGatherFrequency=task=30")
    return Finding("ok", seen) if plugin else None


def _check_paths(node: ExaminedNode) -> Finding | None:
    by_id = node.slurm_settings.get("CgroupJobIdPaths")
    names = "job ids" if by_id == "yes" else "SLUIDs on cgroup v2"
    seen = f"CgroupJobIdPaths={by_id}: the directories of jobs are named by {names}"
    return Finding("ok", seen) if by_id else None


CHECKS: Checks = {
    "slurm version": _check_version,
    "slurm gpus": _check_gpus,
    "slurm private data": _check_private_data,
    "slurm accounting": _check_gathering,
    "slurm cgroups": _check_paths,
}
