"""Slurm's names of job states: sacct(1) "JOB STATE CODES" and squeue(1)."""

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
