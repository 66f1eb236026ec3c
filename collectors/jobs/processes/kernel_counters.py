"""What the helper has counted for jobs, continued over its restarts and the exporter's."""

import contextlib
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from batchjob.quantities.reading import Interface
from collectors.host import Host
from collectors.jobs.state.job import Job
from collectors.kernel.client import HelperClient, JobCounters

_PAUSE_SECONDS = 1.0  # between questions: an answer takes a pass over all tasks of the node
_KEPT_SECONDS = 60.0  # for which the last counters are shown if the helper does not answer

SOCKETS = "sockets"
"""The "interface" of the traffic that was counted at the job's sockets, without loopback."""


@dataclass(slots=True)
class ContinuedCounters:
    """Counters that do not fall when those of the helper begin at zero again.

    What was counted between the last reading and the helper's end is unknown, and missing.
    """

    instance: str = ""  # the helper whose counters the offsets belong to; "": none so far
    offsets: Sequence[float] = ()
    shown: Sequence[float] = ()
    updated_at: float = float("-inf")  # monotonic seconds

    def update(self, instance: str, values: Sequence[float]) -> bool:
        """Show new values; False if the helper is another one than before."""
        before = self.shown or [0.0] * len(values)
        is_known = instance == self.instance
        if not is_known:
            # A reading is at most what was used, and so is what was shown: the larger one holds.
            gains = zip(before, values, strict=True)
            self.offsets = [max(0.0, shown - value) for shown, value in gains]
        was_counted, self.instance = bool(self.instance), instance
        sums = [value + offset for value, offset in zip(values, self.offsets, strict=True)]
        self.shown = [max(pair) for pair in zip(before, sums, strict=True)]
        return is_known or not was_counted

    def saved(self) -> list[Any]:
        """What `from_saved` takes."""
        return [self.instance, self.offsets, self.shown]

    @classmethod
    def from_saved(cls, saved: Any) -> "ContinuedCounters":
        """Raises ValueError or TypeError."""
        instance, *lists = saved
        offsets, shown = ([float(each) for each in numbers] for numbers in lists)
        return cls(str(instance), offsets, shown)


@dataclass(slots=True)
class KernelState:
    cgroups: dict[str, int] = field(default_factory=dict)  # directory → id, also of removed ones
    io: ContinuedCounters = field(default_factory=ContinuedCounters)
    sockets: ContinuedCounters = field(default_factory=ContinuedCounters)
    updated_at: float = float("-inf")  # monotonic seconds, of the last answer
    begun_by: str = ""  # the helper whose beginning is known to be before or after the job's


class KernelCounters:
    """Asks the helper for all jobs at once; used by the scanner's thread only."""

    def __init__(self, host: Host, io: bool, network: bool) -> None:
        self._host = host
        self._client = HelperClient(host) if io or network else None
        self._wanted = io, network
        self._answer: JobCounters | None = None
        self._read_at = float("-inf")
        self.answered = False  # at any time
        self.counts_io = False  # now

    def find_cgroups(self, job: Job, state: KernelState) -> None:
        """Note the ids of the job's directories, as long as they exist."""
        for root in job.process_roots():
            if root.directory not in state.cgroups:
                with contextlib.suppress(OSError):
                    state.cgroups[root.directory] = os.stat(root.directory).st_ino

    def refresh(self, states: Iterable[KernelState], *, has_ended: bool) -> None:
        """Read the counters of all jobs, at most once a second unless one `has_ended`."""
        now = self._host.monotonic()
        if self._client is None or (now < self._read_at + _PAUSE_SECONDS and not has_ended):
            return
        cgroups = {place for state in states for place in state.cgroups.items()}
        self._answer = self._client.job_counters(cgroups) if cgroups else None
        self._read_at = self._host.monotonic()
        self.answered |= self._answer is not None
        has_io = self._answer is not None and self._answer.process_io is not None
        self.counts_io = self._wanted[0] and has_io

    def update(self, state: KernelState) -> str:
        """Take a job's counters from the last answer; why something is missing in them, or ""."""
        answer = self._answer
        if answer is None or state.updated_at == self._read_at or not state.cgroups:
            return ""
        state.updated_at = self._read_at
        gap = ""
        cgroups = state.cgroups.items()
        if state.begun_by != answer.instance and self._wanted[1]:
            state.begun_by = answer.instance
            gap = "" if answer.earlier.isdisjoint(cgroups) else "helper_late"
        io, network = answer.process_io or {}, answer.network or {}
        known = [io[each] for each in cgroups if each in io]
        traffic = [network[each] for each in cgroups if each in network]
        # Without loopback, as in a network namespace.
        wires = [] if None in traffic else [each[0] for each in traffic if each is not None]
        for wanted, values, counters in zip(
            self._wanted, (known, wires), (state.io, state.sockets), strict=True
        ):
            if wanted and values:
                sums = [float(sum(column)) for column in zip(*values, strict=True)]
                counters.updated_at = self._read_at
                if not counters.update(answer.instance, sums):
                    gap = "helper_restarted"
        return gap

    def is_final(self, job: Job, state: KernelState) -> bool:
        """Whether the counters of an ended job were read after its end, or cannot be."""
        ended = job.ended.monotonic if job.ended else float("inf")
        return not state.cgroups or self._client is None or state.updated_at >= ended

    def interfaces(self, state: KernelState) -> Mapping[str, Interface] | None:
        """The traffic of the job's sockets; a socket has no errors and drops of its own."""
        shown = self.shown(state.sockets)
        if shown is None:
            return None
        return {SOCKETS: Interface(shown[0], shown[1], None, None, shown[2], shown[3], None, None)}

    def shown(self, counters: ContinuedCounters) -> Sequence[float] | None:
        """The numbers of a job's counters; None if they are not counted."""
        is_fresh = self._host.monotonic() - counters.updated_at < _KEPT_SECONDS
        return counters.shown if is_fresh and counters.instance and counters.shown else None
