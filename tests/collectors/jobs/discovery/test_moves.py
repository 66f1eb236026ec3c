"""Directories that are created, renamed and removed in any order, in the trees of every layout."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from batchjob.schedulers import registry
from collectors.jobs.discovery.walk import match
from tests.collectors.jobs.nodes import Node
from tests.collectors.jobs.test_layouts import JOBS
from tests.helpers.waiting import until

CONTROLLERS = ("memory", "cpuacct")
PATHS = {
    found.layout.name: (version, path)
    for version, path, *_ in JOBS
    if (found := match(path, registry.layouts(), version))
}
ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["create", "rename", "rename the parent", "remove"]),
        st.sampled_from(CONTROLLERS),
    ),
    max_size=8,
)


def trees(node: Node, version: int) -> dict[str, Path]:
    """Where a hierarchy of each controller begins; of v2 there is one for all."""
    if version == 2:
        return dict.fromkeys(CONTROLLERS, node.cgroup)
    (node.cgroup / "cgroup.controllers").unlink()
    return {name: node.cgroup / name for name in CONTROLLERS}


def act(action: str, directory: Path, elsewhere: Path) -> None:
    """What the kernel does to a cgroup: its files come and go with it, at once.

    What is removed stays `elsewhere`, since cgroupfs does not use an inode's number again soon.
    """
    if action == "create":
        if not directory.exists():
            made = Path(tempfile.mkdtemp(dir=elsewhere))
            (made / "cgroup.procs").touch()
            (made / "cgroup.events").write_text("populated 1\n")
            directory.parent.mkdir(parents=True, exist_ok=True)
            made.rename(directory)
        return
    target = directory.parent if action == "rename the parent" else directory
    if not target.exists():
        return
    if action != "remove":
        target = target.rename(target.with_name(f"{target.name}.orphan"))
    target.rename(Path(tempfile.mkdtemp(dir=elsewhere)) / "removed")


def running(jobs, layout: str) -> int:
    """Running jobs of one layout; Slurm's node may be a pod, which is a job as well."""
    return sum(each.layout_match.layout.name == layout for each in jobs.table.running())


@pytest.mark.parametrize("layout", sorted(PATHS))
@settings(max_examples=5, phases=[Phase.generate])  # shrinking would wait for each time limit
@given(actions=ACTIONS)
def test_jobs_are_those_whose_directories_exist(tmp_path_factory, layout, actions):
    version, path = PATHS[layout]
    node, elsewhere = Node(tmp_path_factory.mktemp("node")), tmp_path_factory.mktemp("elsewhere")
    roots = trees(node, version)
    for root in roots.values():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
    jobs = node.watching_collector()
    try:
        for action, controller in actions:
            act(action, roots[controller] / path, elsewhere)
        expected = int(any((root / path).exists() for root in roots.values()))
        until(lambda: running(jobs, layout) == expected)
    finally:
        jobs.stop()
