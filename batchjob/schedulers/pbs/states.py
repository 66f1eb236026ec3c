"""PBS' letters for job states, and its exit statuses: qstat(1B) and the accounting log."""

from batchjob.schedulers.states import JobState

S = JobState


PBS: dict[str, JobState] = {
    "B": S.RUNNING,  # an array with at least one started subjob
    "E": S.RUNNING,  # exiting
    "F": S.COMPLETED,  # finished; Exit_status says how
    "C": S.COMPLETED,  # Torque's finished state
    "H": S.PENDING,  # held
    "M": S.MOVED,
    "Q": S.PENDING,
    "R": S.RUNNING,
    "S": S.SUSPENDED,
    "T": S.PENDING,  # in transit
    "U": S.SUSPENDED,  # because of keyboard activity
    "W": S.PENDING,  # waiting for its requested start time
    "X": S.COMPLETED,  # a finished subjob
}

# Substates (job.h): what qstat says beyond the letter.
STARTING, TERMINATED = "41", "91"  # sent to its node; ended by a request to delete it

KILLED = (256 + 9, 256 + 15)
"""Statuses of a job that PBS killed: at a request, or because a node or hook failed."""

_LIMITS = {-24, -25, -28, -29}  # ncpus burst and sum, cput, walltime


_ENDS: dict[int, JobState] = {
    **dict.fromkeys(_LIMITS, S.TIMEOUT),
    -26: S.OUT_OF_MEMORY,  # vmem
    -27: S.OUT_OF_MEMORY,  # mem
    -20: S.NODE_FAIL,  # the job's first node failed
    **dict.fromkeys((-11, -12, -14, -15, -16, -18), S.REQUEUED),
}


def pbs_end_state(
    exit_status: int | None, *, deleted: bool = False, past_limit: bool = False
) -> JobState:
    """The end state of a finished job, by PBS' Exit_status; None: it never ran.

    0 to 255 are the script's own, 256 + n means that signal n ended it, and negative numbers are
    PBS' reasons. A job that PBS killed was cancelled if somebody `deleted` it; Torque kills a job
    that has reached its time limit in the same way.
    """
    if exit_status is None:
        return S.CANCELLED
    if exit_status == 0:
        return S.COMPLETED
    if exit_status < 0:
        return _ENDS.get(exit_status, S.FAILED)
    if exit_status not in KILLED:
        return S.FAILED
    if deleted:
        return S.CANCELLED
    return S.TIMEOUT if past_limit else S.FAILED
