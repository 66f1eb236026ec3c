"""Slurm's names of job states, and its reasons in words.

Facts: sacct(1) "JOB STATE CODES"; squeue(1) "JOB REASON CODES"; resource_limits.html.
"""

import re
from collections.abc import Sequence

from batchjob.schedulers.states import JobState

S = JobState

# Slurm prints one word, JSON lists them all: the first of these flags that is set, else the base
# state (src/common/slurm_protocol_defs.c, job_state_string()).
FLAGS: dict[str, JobState] = {
    "COMPLETING": S.RUNNING,  # whatever its base state, it still occupies its nodes
    "STAGE_OUT": S.RUNNING,
    "CONFIGURING": S.RUNNING,
    "EXPEDITING": S.PENDING,
    "RESIZING": S.RESIZED,
    "REQUEUED": S.REQUEUED,
    "REQUEUE_FED": S.PENDING,
    "REQUEUE_HOLD": S.PENDING,
    "SPECIAL_EXIT": S.PENDING,
    "STOPPED": S.SUSPENDED,
    "REVOKED": S.MOVED,
    "RESV_DEL_HOLD": S.PENDING,
    "SIGNALING": S.RUNNING,
}
_BASE: dict[str, JobState] = {
    "PENDING": S.PENDING,
    "RUNNING": S.RUNNING,
    "SUSPENDED": S.SUSPENDED,
    "COMPLETED": S.COMPLETED,
    "CANCELLED": S.CANCELLED,
    "FAILED": S.FAILED,
    "TIMEOUT": S.TIMEOUT,
    "NODE_FAIL": S.NODE_FAIL,
    "PREEMPTED": S.PREEMPTED,
    "BOOT_FAIL": S.BOOT_FAIL,
    "DEADLINE": S.DEADLINE,
    "OUT_OF_MEMORY": S.OUT_OF_MEMORY,
    # Flags that never replace the base state in the output of commands.
    "LAUNCH_FAILED": S.FAILED,
    "POWER_UP_NODE": S.RUNNING,
    "RECONFIG_FAIL": S.FAILED,
    "UPDATE_DB": S.RUNNING,
}
SLURM = FLAGS | _BASE


def shown_word(words: Sequence[str]) -> str:
    """The word that squeue and sacct print for a base state and its flags, "" for none.

    `["PENDING", "REQUEUED"]` is REQUEUED, `["CANCELLED", "COMPLETING"]` COMPLETING.
    """
    return next((flag for flag in FLAGS if flag in words), words[0] if words else "")


def running_phase(words: Sequence[str]) -> str:
    """`configuring` or `completing`, if that is what squeue prints of a job; else ""."""
    word = shown_word(words)
    return word.lower() if word in ("CONFIGURING", "COMPLETING") else ""


def slurm_state(word: str) -> JobState:
    """The state from sacct's `CANCELLED by 1001`, `OUT_OF_ME+` or `COMPLETED`.

    A word that ends in `+` was truncated by a narrow column, and is matched by its beginning.
    """
    if (known := SLURM.get(word)) is not None:
        return known
    base = word.split(" ", 1)[0]
    if base.endswith("+"):
        matches = {state for name, state in SLURM.items() if name.startswith(base[:-1])}
        return matches.pop() if len(matches) == 1 else S.UNKNOWN
    return SLURM.get(base, S.UNKNOWN)


def live_state(words: Sequence[str]) -> JobState:
    """The state of a job that slurmctld lists, from its base state and flags.

    `["PENDING", "REQUEUED"]` waits again, `["RUNNING", "RESIZING"]` runs. squeue prints one word: a
    flag alone stands for the base state that it usually has.
    """
    if "COMPLETING" in words or "STAGE_OUT" in words:
        return S.RUNNING
    base = next((slurm_state(word) for word in words if word not in FLAGS), None)
    flags = [word for word in words if word in FLAGS]
    if base is None:
        return _LISTED_WITH.get(flags[0], SLURM[flags[0]]) if flags else S.UNKNOWN
    if base is S.RUNNING and "STOPPED" in flags:
        return S.SUSPENDED
    if base.is_live or not flags or "REVOKED" in flags:
        return base
    return S.RUNNING  # slurmctld is still at work on it


_LISTED_WITH = {"RESIZING": S.RUNNING, "REQUEUED": S.PENDING, "REVOKED": S.PENDING}

REASONS: dict[str, str] = {
    "Priority": "jobs with a higher priority are ahead of it",
    "Resources": "it is next in line and waits for resources",
    "Dependency": "it waits for jobs that it depends on",
    "DependencyNeverSatisfied": "a job that it depends on ended in a way that keeps it from ever "
    "starting; cancel it and submit it again",
    "BeginTime": "its begin time has not been reached",
    "JobHeldUser": "it is held by its owner; release it with `scontrol release`",
    "JobHeldAdmin": "it is held by an administrator; ask them to release it",
    "JobHoldMaxRequeue": "it was requeued too often; release it with `scontrol release`",
    "JobArrayTaskLimit": "its array has reached its limit of running tasks (`%` in --array)",
    "Licenses": "the licenses it asks for are in use",
    "Reservation": "its reservation has not started or is full",
    "ReservationDeleted": "its reservation was deleted; change or submit it again",
    "ReservationInvalid": "its reservation is not valid for it",
    "ReqNodeNotAvail": "nodes that it needs are not available: down, drained or reserved",
    "NodeDown": "a node that it needs is down",
    "FrontEndDown": "no front-end node is available to start it",
    "PartitionDown": "its partition is down",
    "PartitionInactive": "its partition is inactive and starts no jobs",
    "PartitionNodeLimit": "it asks for more or fewer nodes than its partition allows, or for nodes "
    "that are down",
    "PartitionTimeLimit": "its time limit is longer than its partition allows",
    "PartitionConfig": "it asks for resources that its partition does not have or allow",
    "BadConstraints": "no node can ever satisfy its request",
    "Constraints": "no node satisfies its constraints",
    "MaxMemPerLimit": "it asks for more memory than is allowed per node or CPU",
    "InvalidAccount": "its account is not valid",
    "InvalidQOS": "its QOS is not valid",
    "AccountNotAllowed": "its account may not use its partition",
    "QOSNotAllowed": "its account or partition may not use its QOS",
    "QOSUsageThreshold": "the usage of its QOS is beyond the allowed share",
    "QOSJobLimit": "its QOS has reached its limit of jobs",
    "QOSResourceLimit": "its QOS has reached its limit of resources",
    "QOSTimeLimit": "its QOS has used up its time",
    "AssociationJobLimit": "its account or user has reached its limit of jobs",
    "AssociationResourceLimit": "its account or user has reached its limit of resources",
    "AssociationTimeLimit": "its account or user has used up its time",
    "AccountingPolicy": "a limit of its account, user or QOS keeps it from starting",
    "BurstBufferResources": "the burst buffer does not have enough free space",
    "BurstBufferStageIn": "its data are being copied into the burst buffer",
    "BurstBufferOperation": "its burst buffer failed; ask the administrators",
    "PowerNotAvail": "not enough power is available for it now",
    "PowerReserved": "the power it needs is reserved",
    "Prolog": "the prolog is preparing its nodes",
    "Cleaning": "its earlier run is still being cleaned up",
    "SchedDefer": "it asked for an immediate start, which the scheduler defers",
    "FedJobLock": "the clusters of the federation decide which of them runs it",
    "SystemFailure": "the scheduler had an internal failure; ask the administrators",
    "JobLaunchFailure": "it could not be launched: a prolog, a node or its directory failed",
    "NonZeroExitCode": "it ended with a nonzero exit code",
    "RaisedSignal": "a signal ended it",
    "TimeLimit": "it reached its time limit",
    "InactiveLimit": "it was inactive for longer than allowed",
    "DeadLine": "it could not end before its deadline",
    "OutOfMemory": "it used more memory than was allocated",
    # Texts instead of names: slurmctld sets them for jobs that it requeues and holds.
    "launch failed requeued held": "it could not be launched and is held; check its nodes, then "
    "release it with `scontrol release`",
    "user env retrieval failed requeued held": "the environment of its user could not be read and "
    "it is held; release it with `scontrol release`",
    "job requeued in held state": "it was requeued and is held; release it with `scontrol release`",
}  # fmt: skip

_NO_REASON = ("", "None")
# slurmctld sets NodeDown for jobs whose node failed (slurm.h, FAIL_DOWN_NODE); those that wait for
# one have ReqNodeNotAvail. BurstBufferOperation is not among these, for it holds a job whose data
# cannot be staged in (burst_buffer.html), and accounting keeps it once the job has started.
_ENDS = (
    "DeadLine", "InactiveLimit", "JobLaunchFailure", "NodeDown", "NonZeroExitCode", "OutOfMemory",
    "RaisedSignal", "SystemFailure", "TimeLimit",
)  # fmt: skip
_ENDS_BEFORE_START = (
    *_ENDS, "BadConstraints", "BurstBufferOperation", "DependencyNeverSatisfied", "InvalidAccount",
    "InvalidQOS",
)  # fmt: skip

_LIMIT = re.compile(
    r"(?P<of>Assoc|QOS|)(?P<kind>Grp|Max|Min)"
    r"(?P<what>WallDuration|Wall|SubmitJobs?|Jobs?|CPU|Cpu|Mem(?:ory)?|Node|GRES|License|Energy"
    r"|Billing|BB|Unknown)"
    r"(?P<minutes>RunMinutes|Minutes|)(?:Per(?P<each>Job|User|Account|Node))?"
    r"(?:Limit|NotSatisfied)?"
)
_RESOURCES = {
    "CPU": "CPUs", "Cpu": "CPUs", "Mem": "memory", "Memory": "memory", "Node": "nodes",
    "GRES": "GPUs or other generic resources", "License": "licenses", "Energy": "energy",
    "Billing": "billing units", "BB": "burst buffer", "Unknown": "some resource",
    "Job": "jobs", "Jobs": "jobs",
}  # fmt: skip
_LIMIT_OWNERS = {"Assoc": "its account or user", "QOS": "its QOS", "": "its account in this QOS"}


def explain(reason: str) -> str:
    """The reason in words, without a full stop; "" for no reason or an unknown one.

    `ReqNodeNotAvail, UnavailableNodes:n[1-4]` keeps its nodes. Case and underscores do not matter,
    for sacct, squeue and the REST interface differ in them.
    """
    if reason in _NO_REASON:
        return ""
    name, _, rest = reason.partition(",") if "," in reason else reason.partition("(")
    words = _BY_KEY.get(_normalize(name)) or _explain_limit(name.strip())
    detail = rest.strip(" ()")
    return f"{words} ({detail})" if words and detail and "Nodes:" in detail else words


def explains_end(reason: str, *, has_started: bool) -> bool:
    """Whether the reason says why a job ended, and not why it waited.

    Slurm keeps the reason for which a job waited after it has started, in its accounting for ever:
    only those explain the end of a started job that slurmctld sets when a job ends.
    """
    return _normalize(reason) in (_END_KEYS if has_started else _UNSTARTED_END_KEYS)


# With BadConstraints, slurmctld holds a job: its priority is 0. Those that it does not consider at
# all are in its job_independent() (job_mgr.c).
_INELIGIBLE = (
    "BadConstraints", "BeginTime", "BurstBufferOperation", "Dependency", "DependencyNeverSatisfied",
    "InvalidAccount", "InvalidQOS", "JobArrayTaskLimit", "JobHeldAdmin", "JobHeldUser",
    "JobHoldMaxRequeue", "ReservationDeleted", "ReservationInvalid", "job requeued in held state",
    "launch failed requeued held", "user env retrieval failed requeued held",
)  # fmt: skip
HELD_STATES = frozenset(("REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT"))
"""Words of states in which a waiting job is held, whatever its reason."""


def is_eligible(reason: str) -> bool:
    """Whether a job with this reason could start if its cluster were empty.

    Held jobs, jobs that depend on others or have a begin time, and the tasks beyond an array's own
    limit do not wait for the cluster. Slurm moves the eligible time of most of them. squeue shows
    the tasks of an array in one row, with the reasons of all: `JobArrayTaskLimit,Priority`.
    """
    return not _INELIGIBLE_KEYS.issuperset(map(_normalize, reason.split(",")))


def of_started_job(reason: str) -> str:
    """The reason of a job that has started, "" for one for which it waited."""
    return reason if explains_end(reason, has_started=True) else ""


def of_unstarted_job(reason: str, state: JobState, cancelled_by: str) -> str:
    """The reason of a job that waits, or that ended before it started.

    Accounting keeps `Dependency` of a job that Slurm itself cancels as its dependency can never be
    satisfied (`--kill-on-invalid-dep`; seen with 22.05).
    """
    is_invalid = state is JobState.CANCELLED and not cancelled_by and reason == "Dependency"
    return "DependencyNeverSatisfied" if is_invalid else reason


def _normalize(name: str) -> str:
    return name.strip().replace("_", "").replace(" ", "").lower()


_INELIGIBLE_KEYS = frozenset(map(_normalize, _INELIGIBLE))
_END_KEYS = frozenset(map(_normalize, _ENDS))
_UNSTARTED_END_KEYS = frozenset(map(_normalize, _ENDS_BEFORE_START))
_BY_KEY = {_normalize(name): words for name, words in REASONS.items()}


def _explain_limit(name: str) -> str:
    found = _LIMIT.fullmatch(name)
    if not found:
        return ""
    of, kind, what, minutes, each = (part or "" for part in found.groups())
    owner = _LIMIT_OWNERS[of]
    if kind == "Min":
        return f"it asks for less than the minimum of {_RESOURCES[what]} that {owner} requires"
    if what in ("Wall", "WallDuration"):
        if each:
            return f"its time limit is longer than {owner} allows"
        return f"{owner} has used up its run time"
    if what.startswith("SubmitJob"):
        return f"{owner} has reached its limit of submitted jobs"
    return _explain_amount(_RESOURCES[what], minutes, each, owner)


def _explain_amount(what: str, minutes: str, each: str, owner: str) -> str:
    if minutes:
        what = f"{what} times run time"
    if each in ("Job", "Node"):
        per_node = "per node " if each == "Node" else ""
        return f"it asks for more {what} {per_node}than {owner} allows"
    if minutes == "RunMinutes":
        return f"the running jobs of {owner} have reached the limit of {what}"
    if minutes:
        return f"{owner} has used up its limit of {what}"
    if each == "User":
        return f"its user has reached the limit of {what} in {owner}"
    return f"{owner} has reached its limit of {what}"
