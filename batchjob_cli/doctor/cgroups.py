"""The cgroup hierarchies, and which values the kernel provides for a job in them."""

import errno
import os
import uuid
from functools import partial
from pathlib import Path

from batchjob.schedulers import registry
from batchjob_cli.doctor.finding import (
    Checks,
    ExaminedNode,
    Finding,
    Result,
    SchedulerTree,
    missing,
    ok,
    warning,
)
from batchjob_cli.run import cgroup as run_cgroup
from batchjob_cli.run import user_scope
from batchjob_cli.run.limits import CgroupError, RunLimits
from collectors.host import read_text


def _check_hierarchies(node: ExaminedNode) -> Finding:
    found = node.survey.hierarchies
    if not found:
        return missing(
            f"no cgroup hierarchy at {node.host.cgroupfs}",
            "mount it (mount -t cgroup2 cgroup2 /sys/fs/cgroup), or set --path.cgroupfs; in "
            "a container, mount the host's /sys/fs/cgroup read-only",
        )
    parts = [f"v2 at {each.root}" for each in found if each.version == 2]
    first = [",".join(sorted(each.controllers)) for each in found if each.version == 1]
    if first:
        parts.append(f"v1 at {node.host.cgroupfs} with {' '.join(each for each in first if each)}")
    return ok("; ".join(parts))


def _check_version(node: ExaminedNode) -> Finding | None:
    versions = {each.version for each in node.survey.hierarchies}
    if 2 in versions:
        if versions == {2}:
            return ok("version 2 only")
        return warning(
            "versions 1 and 2 (hybrid): version 2 has no controllers, and Slurm's cgroup/v2 "
            "plugin does not start",
            "boot with systemd.unified_cgroup_hierarchy=1 (cgroup_no_v1=all without systemd)",
        )
    if not versions:
        return None
    return warning(
        "version 1: no pressure per job, and the end of a job is detected by the removal of "
        "its cgroups",
        "boot with systemd.unified_cgroup_hierarchy=1 if the scheduler supports version 2",
    )


def _check_whole_tree(node: ExaminedNode) -> Finding | None:
    """A cgroup2 root has no cgroup.type and no cgroup.events (cgroup-v2.rst, "Core Interface")."""
    roots = [each.root for each in node.survey.hierarchies if each.version == 2]
    if not roots:
        return None
    parts = [root for root in roots if os.path.exists(f"{root}/cgroup.type")]
    if not parts:
        return ok("the root of the whole tree")
    return missing(
        f"{parts[0]} is one cgroup of a larger tree: a container sees only its own processes",
        "run the container with the host's cgroup and pid namespaces (--cgroupns=host --pid=host)",
    )


HIERARCHY_CHECKS: Checks = {
    "hierarchies": _check_hierarchies,
    "version": _check_version,
    "whole tree": _check_whole_tree,
}


_SOME_LIMITS = RunLimits(1.0, 1 << 30, 1 << 20)


def _check_runs(_: ExaminedNode) -> Finding:
    """Whether this user may use `batchjob run` with limits, tried with an empty cgroup."""
    try:
        cgroup = run_cgroup.create(str(uuid.uuid4()), _SOME_LIMITS)
    except (CgroupError, OSError) as error:
        if user_scope.is_possible():
            return ok("with --cpus and --memory, in a scope of your own systemd")
        return warning(
            f"without a cgroup ({error}): --memory and --io are left out, and --cpus binds to CPUs",
            "run it as root, or, with cgroup version 2, after a log-in that starts a systemd "
            "for you (systemctl --user status)",
        )
    try:
        left_out = cgroup.limit(_SOME_LIMITS, str(Path.cwd()))[1]
    finally:
        cgroup.remove()
    if left_out:
        return warning(f"with limits, but not {'; '.join(left_out)}")
    return ok("with --cpus, --memory and --io")


RUN_CHECKS: Checks = {"batchjob run": _check_runs}


def _check_number(
    what: str, v1: str, v2: str | None, without: Result, instead: str, node: ExaminedNode
) -> Finding | None:
    """`v1`, `v2`: the controller that counts it, if one is needed; `instead`: its other source."""
    lacking = [
        (tree, controller)
        for tree in _trees(node)
        if (controller := _missing_controller(tree, v1, v2, node)) is not None
    ]
    if not _trees(node):
        return None
    # In version 1 hierarchies, Slurm creates its tree with the first job that it confines there.
    if lacking and all(
        tree.hierarchy.version == 1 and not node.survey.jobids(tree.manager) for tree, _ in lacking
    ):
        return None
    if not lacking:
        return ok(f"{what} of each job")
    tree, controller = lacking[0]
    version = tree.hierarchy.version
    default = f"enable the controller {controller} in the scheduler's cgroups"
    advice = registry.job_manager(tree.manager).controllers.get((version, controller), default)
    managers = ", ".join(sorted({each.manager for each, _ in lacking}))
    source = f"; taken from {instead}" if instead else ""
    return Finding(
        without,
        f"jobs of {managers} have no controller {controller}{source}",
        advice.format(tree=f"{tree.hierarchy.root}/{tree.path}"),
    )


def _trees(node: ExaminedNode) -> list[SchedulerTree]:
    """The trees of one hierarchy per scheduler and version; on v1, all hierarchies have the same.

    Without v2 trees that do not pass on any controller yet: Slurm enables them with the first job.
    """
    first = {(tree.manager, tree.hierarchy.version, tree.path): tree for tree in node.survey.trees}
    return [tree for tree in first.values() if tree.hierarchy.version == 1 or _is_used(tree, node)]


def _is_used(tree: SchedulerTree, node: ExaminedNode) -> bool:
    below = f"{tree.path}/"
    return bool(_delegated_controllers(tree)) or any(
        job.hierarchy == tree.hierarchy and job.path.startswith(below) for job in node.survey.jobs
    )


def _missing_controller(
    tree: SchedulerTree, v1: str, v2: str | None, node: ExaminedNode
) -> str | None:
    if tree.hierarchy.version == 2:
        return None if v2 is None or v2 in _delegated_controllers(tree) else v2
    available = {
        controller
        for each in node.survey.trees_of(tree.manager)
        if each.path == tree.path
        for controller in each.hierarchy.controllers
    }
    return None if v1 in available else v1


def _delegated_controllers(tree: SchedulerTree) -> list[str]:
    return read_text(f"{tree.hierarchy.root}/{tree.path}/cgroup.subtree_control").split()


def _check_peak(node: ExaminedNode) -> Finding | None:
    """memory.peak came with Linux 5.19 (cgroup-v2.rst)."""
    tops = [
        f"{tree.hierarchy.root}/{tree.path}"
        for tree in _trees(node)
        if tree.hierarchy.version == 2 and os.path.exists(_tree_file(tree, "memory.current"))
    ]
    if not tops:
        return None
    if all(os.path.exists(f"{top}/memory.peak") for top in tops):
        return ok("the kernel records the peak memory of each job")
    return warning(
        "this kernel has no memory.peak, so the peak memory is unknown",
        "Linux 5.19 or later, or a vendor's kernel that has it",
    )


def _tree_file(tree: SchedulerTree, name: str) -> str:
    return f"{tree.hierarchy.root}/{tree.path}/{name}"


def _check_pressure(node: ExaminedNode) -> Finding | None:
    """Pressure stall information: Linux Documentation/accounting/psi.rst."""
    reason = _pressure_error(f"{node.host.procfs}/pressure/cpu")
    if reason is not None:
        return warning(
            f"the kernel records no pressure ({reason})",
            "boot with psi=1; it is disabled by default in Red Hat's kernels",
        )
    trees = [tree for tree in _trees(node) if tree.hierarchy.version == 2]
    if not trees and {each.version for each in node.survey.hierarchies} == {2}:
        return ok("of the node; jobs of a scheduler have it as well")
    if not trees:
        return warning(
            "the kernel records pressure of the node, but not of jobs on cgroup version 1",
            "use cgroup version 2",
        )
    off = [tree for tree in trees if _pressure_error(_tree_file(tree, "cpu.pressure")) is not None]
    if not off:
        return ok("time that jobs wait for CPU, memory and IO")
    return warning(
        f"pressure is disabled in {off[0].path}",
        f"echo 1 > {_tree_file(off[0], 'cgroup.pressure')}",
    )


def _pressure_error(path: str) -> str | None:
    try:
        with open(path, "rb") as file:
            file.read()
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, str(error))
    return None


_NUMBERS: tuple[tuple[str, str, str | None, Result, str], ...] = (
    ("CPU time", "cpuacct", None, "missing", "running processes only, without ended ones"),
    ("memory", "memory", "memory", "missing", ""),
    ("allocated CPUs", "cpuset", "cpuset", "warning", ""),
    ("block IO", "blkio", "io", "warning", "/proc/<pid>/io of its processes"),
    ("threads", "pids", "pids", "warning", "a count of its processes"),
)
NUMBER_CHECKS: Checks = {
    **{number[0]: partial(_check_number, *number) for number in _NUMBERS},
    "memory peak": _check_peak,
    "pressure": _check_pressure,
}
