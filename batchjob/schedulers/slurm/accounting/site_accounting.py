"""What the figures of a site's accounting mean, by its release and configuration.

Facts: slurm.conf(5), JobAcctGatherType and JobAcctGatherFrequency. jobacct_gather/linux samples
processes, the first time at the start of a step, and adds the CPU time of processes that have been
waited for: of a step that was killed, next to nothing (seen with 22.05: 0.007 of 54 s).
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from batchjob.schedulers.slurm.accounting.exit_codes import prints_exit_statuses
from batchjob.schedulers.states import JobState

_KILLED_STATES = frozenset(
    (JobState.CANCELLED, JobState.TIMEOUT, JobState.PREEMPTED, JobState.DEADLINE,
     JobState.NODE_FAIL, JobState.OUT_OF_MEMORY, JobState.REQUEUED)
)  # fmt: skip


class SiteAccounting(NamedTuple):
    """Which figures can be used as they are; by default, all of them."""

    exact_exits: bool = True  # see exit_codes
    is_linux_gather: bool = False
    sampling_seconds: float = 0.0  # shorter steps have the sample of their start alone

    def cpu_at_least(self, states: Iterable[JobState]) -> int:
        """See JobRecord, by the states of a job and its steps."""
        if not self.is_linux_gather:
            return 0
        return 1 if _KILLED_STATES.isdisjoint(states) else 2

    def sampled(self, elapsed_seconds: int | None) -> bool:
        """Whether a step of this length was sampled after its start."""
        return (
            not self.is_linux_gather
            or elapsed_seconds is None
            or elapsed_seconds >= self.sampling_seconds
        )


AS_PRINTED = SiteAccounting()
_SETTING = re.compile(r"^(\w+)\s*= (.*)$", re.MULTILINE)
_TASK_SECONDS = re.compile(r"(?:task=)?(\d+)(?:,|$)")


def site_accounting(version: str, configuration: str) -> SiteAccounting:
    """From `sacct --version` and `scontrol show config`, of which anything may be missing."""
    return _site(dict(_SETTING.findall(configuration)), prints_exit_statuses(version))


def parse_json_configuration(document: Any) -> SiteAccounting:
    """From the answer of /slurm/.../conf (26.05), in which lists may be empty."""
    found = document.get("slurm_conf") if isinstance(document, dict) else None
    settings = found if isinstance(found, dict) else {}
    texts = {
        name: ",".join(map(str, value)) if isinstance(value, list) else str(value)
        for name, value in settings.items()
    }
    return _site(texts, exact_exits=True)


def _site(settings: Mapping[str, str], exact_exits: bool) -> SiteAccounting:
    seconds = _TASK_SECONDS.match(settings.get("JobAcctGatherFrequency", ""))
    return SiteAccounting(
        exact_exits,
        settings.get("JobAcctGatherType") == "jobacct_gather/linux",
        (float(seconds[1]) or float("inf")) if seconds else 0.0,  # 0: at start and end alone
    )
