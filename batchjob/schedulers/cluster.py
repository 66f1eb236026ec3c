"""The interface of a scheduler's module `cluster`, which queries the state of a cluster.

The types are common to all schedulers. None stands for values that the scheduler did not report.
Sizes are in bytes, times in epoch seconds, durations in seconds.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from batchjob.runtime.settings import option
from batchjob.runtime.subprocesses import CommandOptions, SchedulerError, call
from batchjob.runtime.values import duration, one_of, service_url
from batchjob.schedulers.registry import CLUSTERS
from batchjob.schedulers.states import JobState
from batchjob.secret_files import secret_file


class GpuModel(NamedTuple):
    """A node's GPUs of one model, by the scheduler's name."""

    model: str
    gpus: int
    allocated: int | None


class ClusterNode(NamedTuple):
    """A node; `state` is the base state, `flags` are set in addition, both in lower case."""

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
    failures: int | None = None  # counted by the collector, see collectors/cluster/changes.py
    gpu_models: tuple[GpuModel, ...] = ()  # if the scheduler distinguishes GPU models

    @property
    def is_usable(self) -> bool:
        return self.state not in _UNUSABLE_STATES and not self.flags & _UNUSABLE_FLAGS

    @property
    def is_powered(self) -> bool:
        """Whether the node exists, and its scheduler has not powered it down or begun to."""
        return self.state != "future" and not any(flag.startswith("power") for flag in self.flags)


_UNUSABLE_STATES = frozenset(("down", "error", "future", "unknown"))
_UNUSABLE_FLAGS = frozenset(("closed", "drain", "fail", "not_responding"))


class ClusterJob(NamedTuple):
    """A job that waits, runs or has just ended; the waiting tasks of an array are one record."""

    jobid: str
    partition: str
    state: JobState
    reason: str = ""
    tasks: int = 1
    cpus: int | None = None
    gpus: int | None = None
    eligible_time: int | None = None  # None while a job that has not started is held
    start_time: int | None = None
    account: str = ""
    user: str = ""
    phase: str = ""  # of a running job, if its nodes are being prepared or cleaned
    is_cut: bool = False  # `tasks` is the least number: the scheduler cut the list of tasks


class Rpc(NamedTuple):
    calls: int
    seconds: float | None


class Controller(NamedTuple):
    """Statistics of a controller: numbers by the names in the collector's tables."""

    numbers: dict[str, float]
    by_type: dict[str, Rpc]
    by_user: dict[str, Rpc]


class FairShare(NamedTuple):
    account: str
    shares: float | None
    usage: float | None
    level: float | None
    factor: float | None


class License(NamedTuple):
    name: str
    total: int | None
    used: int | None


NativeMetric = tuple[str, dict[str, float]]
"""HELP of a metric that the scheduler itself exposes, and its samples by their labels' text."""


class ClusterReaders(NamedTuple):
    """The queries of one scheduler, None where it has none. Each may raise SchedulerError."""

    nodes: Callable[[], Sequence[ClusterNode]] | None = None
    jobs: Callable[[], Sequence[ClusterJob]] | None = None
    controller: Callable[[], Controller] | None = None
    fairshare: Callable[[], Sequence[FairShare]] | None = None
    licenses: Callable[[], Sequence[License]] | None = None
    slurmctld: Callable[[], Mapping[str, NativeMetric]] | None = None


_REASON_LENGTH = 64
_VARYING = re.compile(r"\[[^\]]*@[^\]]*\]|\S*/\S*|\S*\d{3,}\S*|\S*\d:\d\S*")
_WORD = re.compile(r"[A-Za-z]\w{0,47}")


def shorten_reason(text: str) -> str:
    """Shorten a reason written by a person, for use as a label.

    Paths, numbers of three or more digits, times, and author and date are removed, since each
    would create a new time series.
    """
    return " ".join(_VARYING.sub("", text).split())[:_REASON_LENGTH].strip()


def reason_word(text: str) -> str:
    """The first word of the reason of a waiting job, without nodes or limits."""
    match = _WORD.match(text.replace(" ", "_"))
    return match[0] if match else ""


def parse_count(value: object) -> int | None:
    """Parse a whole number from a scheduler; None for anything else, such as a dash."""
    text = str(value)
    return int(text) if len(text) < 19 and text.isascii() and text.isdecimal() else None


def _url(value: Any) -> str:
    return "" if value == "" else service_url(value)


@dataclass(frozen=True)
class ClusterOptions(CommandOptions):
    timeout: float = option(20.0, "Maximum time to wait for an answer.", parse=duration)
    # fmt: off
    scheduler: str = option("auto",
        "Scheduler; auto: the one whose commands are installed.", parse=one_of("auto", *CLUSTERS))
    # fmt: on
    interval: float = option(30.0, "Interval between readings of a part.", parse=duration)
    # fmt: off
    without: tuple[str, ...] = option((),
        "Part to exclude because another exporter provides it: "
        f"{', '.join(ClusterReaders._fields)}; may be repeated.",
        parse=one_of(*ClusterReaders._fields), repeat=True)
    users: bool = option(False, "Also expose jobs and CPUs of each user, not only of accounts.")
    slurmrestd_url: str = option("",
        "URL of slurmrestd, to use instead of Slurm's commands: http://host:port, "
        "https://host:port or unix:/path.", parse=_url)
    slurmrestd_user: str = option("", "User that the token belongs to.")
    slurmrestd_token_file: str = option("",
        "File with the JSON Web Token (`scontrol token`); read for each request.",
        parse=secret_file)
    slurmrestd_ca_file: str = option("", "CA certificates (PEM) to trust, for https.")
    slurm_metrics_url: str = option("",
        "URL of slurmctld's own metrics (Slurm 25.11 and later), such as "
        "http://slurmctl:6817/metrics, to expose them too under Slurm's names. "
        "User, token and CA certificates are those of slurmrestd.", parse=_url)
    # fmt: on


class DetectedCluster(NamedTuple):
    """A scheduler by its usual name, its cluster's name, and its sources for the poller."""

    title: str
    cluster: str
    sources: Mapping[str, Mapping[str, Any]]


class ClusterModule(NamedTuple):
    """What a scheduler's module `cluster` defines, as `CLUSTER`."""

    readers: Callable[[ClusterOptions], ClusterReaders]
    """Creates the queries; runs none of them."""
    detect: Callable[[], DetectedCluster | None]
    """The cluster that this machine's commands query; None if they are missing or fail."""


_DETECTION_TIMEOUT = 10.0


def read_command_lines(argv: tuple[str, ...]) -> list[str]:
    """Run a command and return its lines; none if it fails: the scheduler is not in use then."""
    try:
        output = call(argv, timeout=_DETECTION_TIMEOUT)
    except SchedulerError:
        return []
    return output.decode("utf-8", "replace").splitlines()


def read_command_value(argv: tuple[str, ...], name: str) -> str:
    """Run a command and return the value of its line `name = value`, or ""."""
    for line in read_command_lines(argv):
        key, equals, value = line.partition("=")
        if equals and key.strip() == name:
            return value.strip()
    return ""
