"""Slurm's names of job states: sacct(1) "JOB STATE CODES" and squeue(1)."""

from batchjob.schedulers.states import JobState

S = JobState


SLURM: dict[str, JobState] = {
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
    # Flags, which replace the base state in the output while they are set.
    "COMPLETING": S.RUNNING,
    "CONFIGURING": S.RUNNING,
    "EXPEDITING": S.PENDING,
    "LAUNCH_FAILED": S.FAILED,
    "POWER_UP_NODE": S.RUNNING,
    "RECONFIG_FAIL": S.FAILED,
    "REQUEUED": S.REQUEUED,
    "REQUEUE_FED": S.PENDING,
    "REQUEUE_HOLD": S.PENDING,
    "RESIZING": S.RESIZED,
    "RESV_DEL_HOLD": S.PENDING,
    "REVOKED": S.MOVED,
    "SIGNALING": S.RUNNING,
    "SPECIAL_EXIT": S.PENDING,
    "STAGE_OUT": S.RUNNING,
    "STOPPED": S.SUSPENDED,
    "UPDATE_DB": S.RUNNING,
}


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
