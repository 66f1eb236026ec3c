"""Job states: one enum for all schedulers, and what each scheduler's own words mean in it.

Sources: sacct(1) "JOB STATE CODES" and squeue(1); PBS qstat(1B) and the accounting record types;
LSF bjobs(1) and the `jStatus` and `exitInfo` fields of lsb.acct(5).
"""

from enum import StrEnum


class JobState(StrEnum):
    """What became of a job, or where it stands."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    SUSPENDED = "SUSPENDED"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    TIMEOUT = "TIMEOUT"
    OUT_OF_MEMORY = "OUT_OF_MEMORY"
    NODE_FAIL = "NODE_FAIL"
    BOOT_FAIL = "BOOT_FAIL"
    PREEMPTED = "PREEMPTED"
    DEADLINE = "DEADLINE"
    REQUEUED = "REQUEUED"  # this run ended; the job runs again under a record of its own
    RESIZED = "RESIZED"  # this record ended when the job changed its size; another goes on
    MOVED = "MOVED"  # handed to another cluster, which accounts for it
    VANISHED = "VANISHED"  # unfinished for us, unknown to its scheduler: its end was never seen
    UNKNOWN = "UNKNOWN"  # a word no table has

    @property
    def live(self) -> bool:
        """Whether more is to come: the job waits, runs or is suspended."""
        return self in (JobState.PENDING, JobState.RUNNING, JobState.SUSPENDED)


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
    # Flags, printed in place of the base state while they are set.
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

PBS: dict[str, JobState] = {
    "B": S.RUNNING,  # an array of which at least one sub-job has started
    "E": S.RUNNING,  # exiting
    "F": S.COMPLETED,  # finished; Exit_status says how
    "C": S.COMPLETED,  # Torque's word for the same
    "H": S.PENDING,  # held
    "M": S.MOVED,
    "Q": S.PENDING,
    "R": S.RUNNING,
    "S": S.SUSPENDED,
    "T": S.PENDING,  # in transit
    "U": S.SUSPENDED,  # by keyboard activity
    "W": S.PENDING,  # waits for its time
    "X": S.COMPLETED,  # a sub-job that is finished
}

LSF: dict[str, JobState] = {
    "PEND": S.PENDING,
    "PSUSP": S.PENDING,
    "WAIT": S.PENDING,
    "RUN": S.RUNNING,
    "USUSP": S.SUSPENDED,
    "SSUSP": S.SUSPENDED,
    "UNKWN": S.RUNNING,  # its host does not answer; the job is not known to have ended
    "PROV": S.RUNNING,
    "ZOMBI": S.NODE_FAIL,
    "DONE": S.COMPLETED,
    "POST_DONE": S.COMPLETED,
    "POST_ERR": S.COMPLETED,  # the job was well, its post-execution command was not
    "EXIT": S.FAILED,
}

# lsb.acct exitInfo, the reason LSF gives for ending a job that did not end by itself.
LSF_EXIT_INFO: dict[int, tuple[str, JobState]] = {
    1: ("TERM_PREEMPT", S.PREEMPTED),
    2: ("TERM_WINDOW", S.CANCELLED),
    3: ("TERM_LOAD", S.CANCELLED),
    4: ("TERM_OTHER", S.FAILED),
    5: ("TERM_RUNLIMIT", S.TIMEOUT),
    6: ("TERM_DEADLINE", S.DEADLINE),
    7: ("TERM_PROCESSLIMIT", S.FAILED),
    8: ("TERM_FORCE_OWNER", S.CANCELLED),
    9: ("TERM_FORCE_ADMIN", S.CANCELLED),
    10: ("TERM_REQUEUE_OWNER", S.REQUEUED),
    11: ("TERM_REQUEUE_ADMIN", S.REQUEUED),
    12: ("TERM_CPULIMIT", S.TIMEOUT),
    13: ("TERM_CHKPNT", S.CANCELLED),
    14: ("TERM_OWNER", S.CANCELLED),
    15: ("TERM_ADMIN", S.CANCELLED),
    16: ("TERM_MEMLIMIT", S.OUT_OF_MEMORY),
    17: ("TERM_EXTERNAL_SIGNAL", S.FAILED),
    18: ("TERM_RMS", S.FAILED),
    19: ("TERM_ZOMBIE", S.NODE_FAIL),
    20: ("TERM_SWAP", S.OUT_OF_MEMORY),
    21: ("TERM_THREADLIMIT", S.FAILED),
    22: ("TERM_SLURM", S.FAILED),
    23: ("TERM_BUCKET_KILL", S.CANCELLED),
    25: ("TERM_CWD_NOTEXIST", S.FAILED),
    29: ("TERM_DATA", S.FAILED),
    30: ("TERM_MC_RECALL", S.REQUEUED),
    32: ("TERM_CSM_ALLOC", S.FAILED),
    33: ("TERM_KUBE", S.FAILED),
}

_PBS_LIMITS = {-24, -25, -28, -29}  # ncpus burst and sum, cput, walltime


def slurm_state(word: str) -> JobState:
    """The state of sacct's `CANCELLED by 1001`, `OUT_OF_ME+` or `COMPLETED`.

    A word cut by a narrow column ends in `+` and is known by its beginning.
    """
    base = word.split(" ", 1)[0]
    if base.endswith("+"):
        matches = {state for name, state in SLURM.items() if name.startswith(base[:-1])}
        return matches.pop() if len(matches) == 1 else S.UNKNOWN
    return SLURM.get(base, S.UNKNOWN)


def pbs_end_state(exit_status: int | None) -> JobState:
    """What PBS' Exit_status says of a finished job; None: it never ran.

    0 to 255 are the script's own, 256 + n says signal n ended it (qdel sends 15, then 9),
    and negative numbers are PBS' reasons.
    """
    if exit_status is None:
        return S.CANCELLED
    if exit_status == 0:
        return S.COMPLETED
    if exit_status < 0:
        return _PBS_REASONS.get(exit_status, S.FAILED)
    return S.CANCELLED if exit_status in (256 + 9, 256 + 15) else S.FAILED


_PBS_REASONS: dict[int, JobState] = {
    **dict.fromkeys(_PBS_LIMITS, S.TIMEOUT),
    -26: S.OUT_OF_MEMORY,  # vmem
    -27: S.OUT_OF_MEMORY,  # mem
    -20: S.NODE_FAIL,  # the job's first node was lost
    -11: S.REQUEUED,
    -12: S.REQUEUED,  # checkpointed
}


def lsf_end_state(status: int, exit_info: int) -> JobState:
    """What lsb.acct's jStatus bits and exitInfo say of a finished job."""
    if status & 0x40:
        return S.COMPLETED
    if not status & 0x20:
        return S.UNKNOWN
    return LSF_EXIT_INFO.get(exit_info, ("", S.FAILED))[1]
