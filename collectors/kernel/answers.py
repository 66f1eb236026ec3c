"""The answers of the helper: numbers of cgroups, for requests that are checked and small.

A request is `{"devices": PATH, "numbers": [[MAJOR, MINOR], ...]}`, `{"jobs": {PATH: [ID, ...]}}`
with the cgroups' ids by the directory that contains them, or `{"check": true}`. A path is that of a
cgroup below the mount point of cgroupfs; no other file is opened for a caller. Numbers of jobs are
lists in the order in which the ids were asked for.
"""

import contextlib
import errno
import functools
import glob
import os
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from collectors.kernel import bpf
from collectors.kernel.capabilities import permitted, raised
from collectors.kernel.devices import allotted_devices
from collectors.kernel.network import MAX_PARENTS, Network
from collectors.kernel.parts import JobTree
from collectors.kernel.process_io import ProcessIo
from collectors.kernel.types import KernelTypes, read_kernel_types

_MAX_JOBS, _MAX_DEVICES, _MAX_TREES = 20_000, 1024, 4
_MAX_PATH_PARTS = 32
_FORGET_SECONDS = 3600.0  # of questions, after which counters that none was about are dropped
_RETRY_SECONDS = 60.0
_ROOT_INODE = 1  # of the root of a hierarchy
# What is counted, and the numbers of a job of which nothing has been.
_NOTHING: Mapping[str, Any] = {"process-io": (0,) * 4, "network": ((0,) * 4,) * 2}
NEEDED = {
    "process-io": ("CAP_BPF", "CAP_PERFMON"),
    "network": ("CAP_BPF", "CAP_NET_ADMIN", "CAP_PERFMON"),
    "devices": ("CAP_SYS_ADMIN",),
}
"""What the helper gives, and the capabilities for it."""

_Place = tuple[tuple[str, ...], JobTree]
"""The path of a directory of cgroups, and the tree whose jobs are in it."""
_JobKey = tuple[JobTree, int]
"""A job: the id of its cgroup is unique within its tree only."""


class Helper:
    """Answers requests; holds the programs and their counters until it is closed."""

    def __init__(self, cgroupfs: str = "/sys/fs/cgroup", features: Iterable[str] = NEEDED) -> None:
        self._cgroupfs = cgroupfs
        self._features = frozenset(features)
        self._instance = uuid.uuid4().hex
        self._types: KernelTypes | None = None
        self._sources: dict[tuple[str, JobTree], ProcessIo | Network] = {}  # by feature and tree
        self._failures: dict[tuple[str, JobTree], tuple[float, str]] = {}  # until when, and why
        self._asked: dict[_JobKey, float] = {}  # when, in seconds with questions
        # An exporter that was away finds its jobs again one by one: its absence does not count.
        self._asked_seconds, self._asked_at = 0.0, 0.0  # so far, and the last time
        self._earlier: set[_JobKey] = set()  # were there before their network was counted
        self._opened = contextlib.ExitStack()

    def close(self) -> None:
        self._opened.close()

    def answer(self, request: Any) -> dict[str, Any]:
        """The answer to a request. Raises ValueError for a bad one, OSError."""
        match request:
            case {"devices": str(path), "numbers": list(numbers), **rest} if not rest:
                return {"devices": self._devices(path, numbers)}
            case {"jobs": dict(jobs), **rest} if not rest:
                return self._counters(jobs)
            case {"check": True, **rest} if not rest:
                return {"problems": self._problems()}
        raise ValueError("expected devices and numbers, jobs, or check")

    def _devices(self, path: str, numbers: list[Any]) -> list[Any] | None:
        if len(numbers) > _MAX_DEVICES or not all(map(_is_device, numbers)):
            raise ValueError(f"expected at most {_MAX_DEVICES} pairs of major and minor")
        if "devices" not in self._features:
            return None
        with self._open(_parts(path)) as cgroup, raised():
            return allotted_devices(cgroup, [(major, minor) for major, minor in numbers])

    def _counters(self, jobs: Mapping[str, Any]) -> dict[str, Any]:
        places = [self._place(_parts(path)) for path in jobs]
        by_place = zip(places, jobs.values(), strict=True)
        asked = [(tree, each) for (_, tree), ids in by_place for each in _checked_ids(ids)]
        if len(asked) > _MAX_JOBS:
            raise ValueError(f"expected at most {_MAX_JOBS} jobs")
        now = time.monotonic()
        self._asked_seconds += min(now - self._asked_at, _RETRY_SECONDS)
        self._asked_at = now
        self._asked |= dict.fromkeys(asked, self._asked_seconds)
        found: dict[str, dict[_JobKey, Any]] = {feature: {} for feature in _NOTHING}
        problems: dict[str, str] = {}
        for tree in dict.fromkeys(tree for _, tree in places):
            for feature, counted in found.items():
                problem = self._last_problem(feature, tree)
                try:
                    if not problem:
                        read = self._read(feature, tree, places)
                        counted |= {(tree, job): numbers for job, numbers in read.items()}
                except (OSError, ValueError) as error:
                    problem = describe(feature, error)
                    self._failures[feature, tree] = (now + _RETRY_SECONDS, problem)
                if problem:
                    problems[feature] = problem
        self._forget({job for counted in found.values() for job in counted})
        # On v1, sockets that are older than the programs are nobody's.
        found["network"] |= {job: None for job in self._earlier if job[0].controller}
        numbers = {
            feature: [counted.get(job, _NOTHING[feature]) for job in asked]
            for feature, counted in found.items()
        }
        return {
            "instance": self._instance,
            "problems": problems,
            "numbers": numbers | dict.fromkeys(problems),
            "earlier": [index for index, job in enumerate(asked) if job in self._earlier],
        }

    def _last_problem(self, feature: str, tree: JobTree) -> str:
        """Why there are no numbers; what has failed is tried again after a minute."""
        if feature not in self._features:
            return "switched off"
        until, problem = self._failures.get((feature, tree), (0.0, ""))
        return problem if time.monotonic() < until else ""

    def _forget(self, counted: Iterable[_JobKey]) -> None:
        self._asked = dict.fromkeys(counted, self._asked_seconds) | self._asked
        since = self._asked_seconds - _FORGET_SECONDS
        old = [each for each, at in self._asked.items() if at < since]
        for each in old:
            del self._asked[each]
        with raised():
            for (_, source_tree), source in self._sources.items():
                source.forget([job for tree, job in old if tree == source_tree])

    def _read(self, feature: str, tree: JobTree, places: Iterable[_Place]) -> Mapping[int, Any]:
        source = self._sources.get((feature, tree))
        if source is None:
            if sum(name == feature for name, _ in self._sources) >= _MAX_TREES:
                raise ValueError(f"jobs are in more than {_MAX_TREES} trees")
            load = ProcessIo if feature == "process-io" else Network
            with contextlib.ExitStack() as opened:
                # Once nobody uses a v1 hierarchy, the kernel forgets it, and jobs in the next one
                # of this controller would have the ids of earlier ones.
                opened.enter_context(self._open(_root(places, tree)))
                with raised():
                    source = opened.enter_context(
                        contextlib.closing(load(self._kernel_types(), tree))
                    )
                self._opened.enter_context(opened.pop_all())
            self._sources[feature, tree] = source
        if isinstance(source, Network):
            self._attach(source, tree, places)
        try:
            return source.read()
        except PermissionError:  # before Linux 5.19, any use of bpf(2) needs a capability
            with raised():
                return source.read()

    def _attach(self, network: Network, tree: JobTree, places: Iterable[_Place]) -> None:
        # The sockets of processes in v1 hierarchies are in the root of v2.
        v2_root = self._v2_root() if tree.controller else ()
        tops = {v2_root or parts for parts, place_tree in places if place_tree == tree}
        if len(tops) > MAX_PARENTS:
            raise ValueError(f"jobs are in more than {MAX_PARENTS} directories")
        for top in tops:
            of_jobs, depth = (_root(places, tree), tree.level) if tree.controller else (top, 1)
            note = functools.partial(self._note_earlier, tree, of_jobs, depth)
            # A parent may have been removed with its last job.
            with contextlib.suppress(FileNotFoundError), self._open(top) as cgroup, raised():
                network.attach(cgroup, note)

    def _note_earlier(self, tree: JobTree, top: tuple[str, ...], depth: int) -> None:
        """Note the jobs that are there now: what they sent before is not known."""
        with self._open(top) as directory:
            for name in glob.iglob("*/" * depth, dir_fd=directory, include_hidden=True):
                with contextlib.suppress(FileNotFoundError):
                    self._earlier.add((tree, os.stat(name, dir_fd=directory).st_ino))

    def _kernel_types(self) -> KernelTypes:
        if self._types is None:
            _check_roots(self._cgroupfs)
            self._types = read_kernel_types()
        return self._types

    def _problems(self) -> dict[str, str]:
        """Why each feature is missing, "" if it works: by trying each for a moment."""
        found = dict.fromkeys(NEEDED, "switched off")
        trials: dict[str, Callable[[], None]] = {
            "process-io": lambda: ProcessIo(self._kernel_types(), JobTree("", 1)).close(),
            "network": self._try_network,
            "devices": _try_devices,
        }
        for feature in self._features:
            try:
                with raised():
                    trials[feature]()
                found[feature] = ""
            except (OSError, ValueError) as error:
                found[feature] = describe(feature, error)
        return found

    def _try_network(self) -> None:
        network = Network(self._kernel_types(), JobTree("", 1))
        with contextlib.closing(network), self._open(self._v2_root()) as cgroup:
            network.attach(cgroup)  # loading needs fewer capabilities than this

    def _v2_root(self) -> tuple[str, ...]:
        for parts in ((), ("unified",)):
            if os.path.exists(os.path.join(self._cgroupfs, *parts, "cgroup.controllers")):
                return parts
        raise ValueError("cgroup v2 is not mounted below /sys/fs/cgroup")

    def _place(self, parts: tuple[str, ...]) -> _Place:
        for root in ((), parts[:1]):
            if os.path.exists(os.path.join(self._cgroupfs, *root, "cgroup.controllers")):
                return parts, JobTree("", len(parts) - len(root) + 1)
        if not parts:
            raise ValueError("expected the directory of a hierarchy")
        return parts, JobTree(parts[0].split(",")[0], len(parts))

    @contextlib.contextmanager
    def _open(self, parts: tuple[str, ...]) -> Iterator[int]:
        """A directory below the mount point, by way of no symbolic link. Raises OSError."""
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        descriptor = os.open(self._cgroupfs, flags)
        try:
            for part in parts:
                below = os.open(part, flags | os.O_NOFOLLOW, dir_fd=descriptor)
                os.close(descriptor)
                descriptor = below
            yield descriptor
        finally:
            os.close(descriptor)


def _check_roots(cgroupfs: str) -> None:
    """Raise ValueError in a cgroup namespace: programs count levels from the root of the node."""
    found = glob.glob(f"{cgroupfs}/cgroup.procs") or glob.glob(f"{cgroupfs}/*/cgroup.procs")
    if any(os.stat(os.path.dirname(each)).st_ino != _ROOT_INODE for each in found):
        raise ValueError(f"{cgroupfs} has the cgroups of a container only (a cgroup namespace)")


def _root(places: Iterable[_Place], tree: JobTree) -> tuple[str, ...]:
    """The path of the root of a tree's hierarchy."""
    parts = next(parts for parts, of_place in places if of_place == tree)
    return parts[: len(parts) + 1 - tree.level]


def _try_devices() -> None:
    with contextlib.suppress(FileNotFoundError):  # no program has this id
        bpf.instructions(0)


def _parts(path: str) -> tuple[str, ...]:
    parts = tuple(path.split("/")) if path else ()
    is_odd = any(part in ("", ".", "..") or "\0" in part for part in parts)
    if is_odd or len(parts) > _MAX_PATH_PARTS:
        raise ValueError(f"expected a path below the mount point of cgroupfs, got {path!r:.99}")
    return parts


def _is_device(pair: Any) -> bool:
    return isinstance(pair, list) and len(pair) == 2 and all(_is_number(x, 32) for x in pair)


def _checked_ids(ids: Any) -> list[int]:
    if not isinstance(ids, list) or not all(_is_number(each, 64) for each in ids):
        raise ValueError("expected the ids of cgroups")
    return ids


def _is_number(value: Any, bits: int) -> bool:
    return type(value) is int and 0 <= value < 1 << bits


def describe(feature: str, error: OSError | ValueError) -> str:
    """Why a feature cannot be had, and what would help, as far as the kernel tells."""
    if not isinstance(error, OSError):
        return str(error)
    if isinstance(error, FileNotFoundError):
        return "the kernel does not describe its types (CONFIG_DEBUG_INFO_BTF)"
    if error.errno == errno.ENOSYS:
        return "the kernel has no bpf(2) (CONFIG_BPF_SYSCALL)"
    missing = [name for name in NEEDED[feature] if name not in permitted()]
    if error.errno in (errno.EPERM, errno.EACCES) and missing:
        return f"the helper needs {' and '.join(missing)}"
    if error.errno == errno.EPERM and feature == "network":
        return "refused: a parent cgroup may have an exclusive program, or the kernel is locked"
    return f"the kernel refuses the programs: {error.strerror}"
