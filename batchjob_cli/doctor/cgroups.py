"""The cgroup hierarchies themselves."""

import os

from batchjob_cli.doctor.finding import Check, ExaminedNode, Finding


def _check_hierarchies(node: ExaminedNode) -> Finding:
    found = node.survey.hierarchies
    if not found:
        return Finding(
            "missing",
            f"no cgroup hierarchy at {node.host.cgroupfs}",
            "mount it (mount -t cgroup2 cgroup2 /sys/fs/cgroup), or set --path.cgroupfs; in "
            "a container, mount the host's /sys/fs/cgroup read-only",
        )
    parts = [f"v2 at {each.root}" for each in found if each.version == 2]
    first = [",".join(sorted(each.controllers)) for each in found if each.version == 1]
    if first:
        parts.append(f"v1 at {node.host.cgroupfs} with {' '.join(each for each in first if each)}")
    return Finding("ok", "; ".join(parts))


def _check_version(node: ExaminedNode) -> Finding | None:
    versions = {each.version for each in node.survey.hierarchies}
    if 2 in versions:
        if versions == {2}:
            return Finding("ok", "version 2 only")
        return Finding(
            "warning",
            "versions 1 and 2 (hybrid): version 2 has no controllers, and Slurm's cgroup/v2 "
            "plugin does not start",
            "boot with systemd.unified_cgroup_hierarchy=1 (cgroup_no_v1=all without systemd)",
        )
    if not versions:
        return None
    return Finding(
        "warning",
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
        return Finding("ok", "the root of the whole tree")
    return Finding(
        "missing",
        f"{parts[0]} is one cgroup of a larger tree: a container sees only its own processes",
        "run the container with the host's cgroup and pid namespaces (--cgroupns=host --pid=host)",
    )


CHECKS = (
    Check("hierarchies", _check_hierarchies),
    Check("version", _check_version),
    Check("whole tree", _check_whole_tree),
)
