"""What a scheduler says about its cluster, in words that all schedulers share.

None stands for what was not said. Sizes are in bytes, times in epoch seconds, spans in seconds.
"""

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from batchjob.schedulers.states import JobState


class ClusterNode(NamedTuple):
    """A node; `state` is the base state, `flags` are what is set beside it, both lower case."""

    name: str
    state: str
    flags: frozenset[str]
    partitions: tuple[str, ...]
    cpus: int | None = None
    cpus_allocated: int | None = None
    memory_bytes: int | None = None
    memory_allocated_bytes: int | None = None
    gpus: int | None = None
    gpus_allocated: int | None = None
    reason: str = ""
    reason_since: int | None = None
    failures: int | None = None  # seen by us, see failures.py

    @property
    def usable(self) -> bool:
        """Whether a job may be started there."""
        return self.state not in _UNUSABLE_STATES and not self.flags & _UNUSABLE_FLAGS


_UNUSABLE_STATES = frozenset(("down", "error", "future", "unknown"))
_UNUSABLE_FLAGS = frozenset(("closed", "drain", "fail", "not_responding"))


class ClusterJob(NamedTuple):
    """A job that waits, runs, or ended a moment ago; an array's waiting tasks are one record."""

    jobid: str
    partition: str
    state: JobState
    reason: str = ""
    tasks: int = 1
    cpus: int | None = None
    gpus: int | None = None
    eligible: int | None = None
    started: int | None = None
    account: str = ""
    user: str = ""


class Rpc(NamedTuple):
    """Calls that a controller has answered."""

    calls: int
    seconds: float | None


class Controller(NamedTuple):
    """What a controller says about itself: numbers by the names in `metrics.CONTROLLER`."""

    numbers: dict[str, float]
    by_type: dict[str, Rpc]
    by_user: dict[str, Rpc]


class Partition(NamedTuple):
    """A partition or queue."""

    name: str
    accepts_jobs: bool | None
    starts_jobs: bool | None
    cpus_limit: int | None = None  # that its jobs may hold at once


class FairShare(NamedTuple):
    """An account's fair share."""

    account: str
    shares: float | None
    usage: float | None
    level: float | None
    factor: float | None


class License(NamedTuple):
    """A licence that jobs may ask for."""

    name: str
    total: int | None
    used: int | None
    free: int | None
    reserved: int | None


class Reservation(NamedTuple):
    """Nodes set aside from one time to another."""

    name: str
    nodes: int | None
    cores: int | None
    start: int | None
    end: int | None


class ClusterReaders(NamedTuple):
    """The ways to ask one scheduler; None for what it has not. Each may raise SchedulerError."""

    nodes: Callable[[], Sequence[ClusterNode]] | None = None
    jobs: Callable[[], Sequence[ClusterJob]] | None = None
    controller: Callable[[], Controller] | None = None
    partitions: Callable[[], Sequence[Partition]] | None = None
    fairshare: Callable[[], Sequence[FairShare]] | None = None
    licenses: Callable[[], Sequence[License]] | None = None
    reservations: Callable[[], Sequence[Reservation]] | None = None


_REASON_SHOWN = 64
_VARYING = re.compile(r"\[[^\]]*@[^\]]*\]|\S*/\S*|\S*\d{3,}\S*|\S*\d:\d\S*")
_WORD = re.compile(r"[A-Za-z]\w{0,47}")


def bounded(text: str) -> str:
    """A reason that a person wrote, without what makes a new series each time, and not long.

    Dropped are paths, numbers of three digits and more, times, and who wrote it when.
    """
    return " ".join(_VARYING.sub("", text).split())[:_REASON_SHOWN].strip()


def reason_word(text: str) -> str:
    """The scheduler's word for why a job waits, without the nodes or limits named after it."""
    match = _WORD.match(text.replace(" ", "_"))
    return match[0] if match else ""


def count(value: object) -> int | None:
    """The whole number that a scheduler wrote; None for everything else, such as a dash."""
    text = str(value)
    return int(text) if len(text) < 19 and text.isascii() and text.isdecimal() else None
