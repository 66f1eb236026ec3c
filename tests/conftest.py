"""Fixtures of all tests, above all recorded machines.

`tree("slurm-22.05-v1-05-multistep-2nodes-gpu")` is a Host; fixtures/cgroupfs/README.md lists all.
"""

import json
import logging
import os
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from collectors.host import Host
from tests.helpers import leftovers
from tests.helpers.fast_lane import is_fast
from tests.helpers.machine_jobs import uses_cgroups_of_machine

# Property tests have no deadline, because the machine may be busy. Their examples are the same in
# every run, so that an unchanged test does not fail by chance; --long generates new ones.
SHARED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("repeatable", SHARED, derandomize=True)
settings.register_profile("new examples", SHARED)
settings.load_profile("repeatable")

TREES = Path(__file__).parent / "fixtures" / "cgroupfs"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--long",
        action="store_true",
        help="run attack and stress tests in their long form: minutes instead of seconds",
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--long"):
        settings.load_profile("new examples")
    os.environ[leftovers.SESSION_VARIABLE] = str(os.getpid())
    config.pluginmanager.register(CHILDREN)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if is_fast(item):
            item.add_marker("fast")
        if item.get_closest_marker("e2e") and uses_cgroups_of_machine(item.path.stem):
            item.add_marker("machine")


CHILDREN = leftovers.ChildrenOfTests()


@pytest.fixture(scope="module", autouse=True)
def leave_no_process():
    """Fail a module whose tests leave a process behind."""
    with CHILDREN.module():
        yield


@pytest.fixture(scope="session", autouse=True)
def leave_no_process_of_session():
    """Fail the last test if a process is left that has no parent any more."""
    yield
    left = leftovers.end_leftovers(leftovers.session_processes(str(os.getpid())))
    assert not left, f"tests left processes behind: {left}"


@pytest.fixture(scope="session")
def long_form(request) -> bool:
    """Whether the tests run with --long, that is with more clients, rounds or cases."""
    return bool(request.config.getoption("--long"))


@pytest.fixture(autouse=True)
def restore_log_handlers():
    """Restore the log handlers: those of a program write to the captured stderr of its test."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture(scope="session")
def unpacked(tmp_path_factory) -> Callable[[str], Host]:
    """Unpack a recorded machine once in a session; a test that changes files uses `tree`."""
    hosts: dict[str, Host] = {}

    def unpack_once(name: str) -> Host:
        if name not in hosts:
            hosts[name] = unpack(name, tmp_path_factory.mktemp(name))
        return hosts[name]

    return unpack_once


@pytest.fixture
def tree(unpacked, tmp_path) -> Iterator[Callable[..., Host]]:
    """A recorded machine by name, with its clock at the end of the recording.

    `tree(name, copy=True)` is a copy in which a test may change files; a test that adds or removes
    files in the shared tree fails. Owners of files and directories are as recorded only when the
    tests run as root; see `as_recorded`.
    """
    shared: dict[Path, list[Path]] = {}

    def get_tree(name: str, copy: bool = False) -> Host:
        if copy:
            return unpack(name, tmp_path / name)
        host = unpacked(name)
        root = Path(host.cgroupfs).parents[2]
        shared.setdefault(root, sorted(root.rglob("*")))
        return host

    yield get_tree
    for root, paths_before in shared.items():
        message = f"{root} is shared: use tree(..., copy=True)"
        assert sorted(root.rglob("*")) == paths_before, message


@pytest.fixture
def as_recorded() -> None:
    """Skip a test of the owners of processes or directories, which only root can restore."""
    if os.geteuid() != 0:
        pytest.skip("owners of recorded files can be restored by root only")


def unpack(name: str, into: Path) -> Host:
    """Unpack `fixtures/cgroupfs/<name>.tar.xz`, with owners and modes as far as permitted."""
    archive = TREES / f"{name}.tar.xz"
    if not archive.exists():
        known = ", ".join(sorted(each.name.removesuffix(".tar.xz") for each in TREES.glob("*.xz")))
        raise LookupError(f"no tree {name}; there are {known}")
    with tarfile.open(archive) as tar:  # our own archives, so nothing is filtered
        tar.extractall(into, numeric_owner=True, filter=tarfile.fully_trusted_filter)
    (into / "dev").mkdir()
    end_time = json.loads((into / "capture.json").read_text())["ended_at"]
    return Host(
        procfs=str(into / "proc"),
        sysfs=str(into / "sys"),
        cgroupfs=str(into / "sys/fs/cgroup"),
        dev=str(into / "dev"),
        clock=lambda: end_time,
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """Escape what hostile text put into captured logs: pytest-xdist sends reports as UTF-8."""
    report = yield
    report.sections = [
        (name, text.encode(errors="backslashreplace").decode()) for name, text in report.sections
    ]
    return report
