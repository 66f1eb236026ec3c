"""What the figures of a site's accounting mean, and which jobs it shows, by its configuration.

Facts: slurm.conf(5), JobAcctGatherType and JobAcctGatherFrequency. jobacct_gather/linux samples
processes, the first time at the start of a step, and adds the CPU time of processes that have been
waited for: of a step that was killed, next to nothing (seen with 22.05: 0.007 of 54 s).
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from batchjob.runtime.subprocesses import CommandOptions, SchedulerError, run
from batchjob.schedulers.slurm.accounting.exit_codes import prints_exit_statuses
from batchjob.schedulers.states import JobState

_KILLED_STATES = frozenset(
    (JobState.CANCELLED, JobState.TIMEOUT, JobState.PREEMPTED, JobState.DEADLINE,
     JobState.NODE_FAIL, JobState.OUT_OF_MEMORY, JobState.REQUEUED)
)  # fmt: skip
_DEFAULT_SAMPLING_SECONDS = 30.0  # slurm.conf(5), JobAcctGatherFrequency


class SiteAccounting(NamedTuple):
    """Which figures can be used as they are; by default, all of them."""

    exact_exits: bool = True  # see exit_codes
    is_linux_gather: bool | None = False  # None: not known, because slurmctld does not answer
    sampling_seconds: float = 0.0  # shorter steps have the sample of their start alone
    is_gathered: bool = True  # False: CPU time is zero everywhere

    def cpu_at_least(self, states: Iterable[JobState]) -> int | None:
        """See JobRecord, by the states of a job and its steps."""
        if self.is_linux_gather is None:
            return None
        if not self.is_linux_gather:
            return 0
        return 1 if _KILLED_STATES.isdisjoint(states) else 2

    def sampled(self, elapsed_seconds: int | None) -> bool:
        """Whether a step of this length was sampled after its start."""
        return (
            self.is_linux_gather is False
            or elapsed_seconds is None
            or elapsed_seconds >= self.sampling_seconds
        )

    def without_configuration(self) -> "SiteAccounting":
        """While the configuration is not known: what it may rule out is left out."""
        return self._replace(is_linux_gather=None, sampling_seconds=_DEFAULT_SAMPLING_SECONDS)


AS_PRINTED = SiteAccounting()
_SETTING = re.compile(r"^[ \t]*(\w+)[ \t]*=[ \t]*(.*?)[ \t]*$", re.MULTILINE)
_TASK_SECONDS = re.compile(r"(?:^|,)(?:task=)?(\d+)(?:,|$)")


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


def task_sampling_seconds(frequency: str) -> int | None:
    """Seconds between two samples of tasks in `30` or `energy=5,task=30`; None if it has none."""
    found = _TASK_SECONDS.search(frequency)
    return int(found[1]) if found else None


def _site(settings: Mapping[str, str], exact_exits: bool) -> SiteAccounting:
    seconds = task_sampling_seconds(settings.get("JobAcctGatherFrequency", ""))
    plugin = settings.get("JobAcctGatherType")
    return SiteAccounting(
        exact_exits,
        plugin == "jobacct_gather/linux",
        # 0: at start and end alone.
        _DEFAULT_SAMPLING_SECONDS if seconds is None else float(seconds or "inf"),
        plugin not in ("jobacct_gather/none", "(null)"),
    )


def check_visibility(
    options: CommandOptions, sacctmgr: str, kinds: tuple[str, ...]
) -> tuple[str, ...]:
    """For `check()`: what to grant if PrivateData hides one of `kinds` ("jobs", "users" ...).

    Slurm does not refuse a query for rows that the caller must not see: it omits them
    (slurmdbd.conf(5), PrivateData; sacctmgr(1), AdminLevel).
    """
    try:
        output = run(options, [sacctmgr, "show", "configuration"]).decode("utf-8", "replace")
        settings = _SETTING.findall(output)
        private = {
            word.strip().lower()
            for name, value in settings
            if name == "PrivateData"
            for word in value.split(",")
        }
        hidden_kinds = sorted(private.intersection(kinds))
        if not hidden_kinds:
            return ()
        user = run(options, ["id", "-un"]).decode().strip()
        if user == "root" or any(
            name == "SlurmUserId" and value.startswith(f"{user}(") for name, value in settings
        ):
            return ()
        argv = [sacctmgr, "--noheader", "--parsable2", "show", "user", user, "format=Admin"]
        level = run(options, argv).decode("utf-8", "replace").strip()
    except SchedulerError as error:
        return (f"cannot determine whether all jobs are visible: {error}",)
    if level in ("Operator", "Administrator"):
        return ()
    return (
        f"PrivateData={','.join(hidden_kinds)} hides the jobs of other users from {user}: "
        f"grant access with `sacctmgr add user {user} account=root adminlevel=Operator` "
        f"(or `sacctmgr modify user {user} set adminlevel=Operator` if there is such a user)",
    )
