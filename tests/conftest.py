"""What all tests share; above all recorded machines.

`tree("slurm-22.05-v1-05-multistep-2nodes-gpu")` is a Host; fixtures/cgroupfs/README.md names all.
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

# Machines that run the tests may be busy: time is no property under test here. The examples of a
# property are the same in every run, so that a change which passed once passes again; --long draws
# new ones.
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


@pytest.fixture(scope="session")
def long_form(request) -> bool:
    """Whether the tests run with --long; a test takes more clients, rounds or cases then."""
    return bool(request.config.getoption("--long"))


@pytest.fixture(autouse=True)
def keep_log_handlers():
    """A program's own log lines go to a standard error that is gone after its test."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture(scope="session")
def unpacked(tmp_path_factory) -> Callable[[str], Host]:
    """A recorded machine, unpacked once in a session; whoever changes files takes `tree`'s copy."""
    hosts: dict[str, Host] = {}

    def unpack_once(name: str) -> Host:
        if name not in hosts:
            hosts[name] = unpack(name, tmp_path_factory.mktemp(name))
        return hosts[name]

    return unpack_once


@pytest.fixture
def tree(unpacked, tmp_path) -> Iterator[Callable[..., Host]]:
    """A recorded machine by name, its clock standing at the end of the recording.

    `tree(name, copy=True)` is the test's own, to change files in; a test that adds or removes some
    in the shared one fails. Owners of files and directories are as recorded when the tests run as
    root; see `as_recorded`.
    """
    shared: dict[Path, list[Path]] = {}

    def take(name: str, copy: bool = False) -> Host:
        if copy:
            return unpack(name, tmp_path / name)
        host = unpacked(name)
        root = Path(host.cgroupfs).parents[2]
        shared.setdefault(root, sorted(root.rglob("*")))
        return host

    yield take
    for root, before in shared.items():
        assert sorted(root.rglob("*")) == before, f"{root} is shared: take tree(..., copy=True)"


@pytest.fixture
def as_recorded() -> None:
    """For tests that judge who owns a process or a directory: only root can restore that."""
    if os.geteuid() != 0:
        pytest.skip("owners of recorded files can be restored by root only")


def unpack(name: str, into: Path) -> Host:
    """Unpack `fixtures/cgroupfs/<name>.tar.xz`, owners and modes included as far as one may."""
    archive = TREES / f"{name}.tar.xz"
    if not archive.exists():
        known = ", ".join(sorted(each.name.removesuffix(".tar.xz") for each in TREES.glob("*.xz")))
        raise LookupError(f"no tree {name}; there are {known}")
    with tarfile.open(archive) as tar:  # our own archives, so nothing is filtered
        tar.extractall(into, numeric_owner=True, filter=tarfile.fully_trusted_filter)
    (into / "dev").mkdir()
    at = json.loads((into / "capture.json").read_text())["ended_at"]
    return Host(
        procfs=str(into / "proc"),
        sysfs=str(into / "sys"),
        cgroupfs=str(into / "sys/fs/cgroup"),
        dev=str(into / "dev"),
        clock=lambda: at,
    )
