"""LSF's names of job states: bjobs(1), `jStatus` and `exitInfo` of lsb.acct(5)."""

from batchjob.schedulers.states import JobState

S = JobState


LSF: dict[str, JobState] = {
    "PEND": S.PENDING,
    "PSUSP": S.PENDING,
    "WAIT": S.PENDING,
    "RUN": S.RUNNING,
    "USUSP": S.SUSPENDED,
    "SSUSP": S.SUSPENDED,
    "UNKWN": S.RUNNING,  # its host does not answer; the job may still be running
    "PROV": S.RUNNING,
    "ZOMBI": S.NODE_FAIL,
    "DONE": S.COMPLETED,
    "POST_DONE": S.COMPLETED,
    "POST_ERR": S.COMPLETED,  # the job succeeded, its post-execution command failed
    "EXIT": S.FAILED,
}


# exitInfo in lsb.acct: why LSF ended a job.
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


def lsf_end_state(status: int, exit_info: int) -> JobState:
    """The end state of a finished job, by jStatus bits and exitInfo of lsb.acct."""
    if status & 0x40:
        return S.COMPLETED
    if not status & 0x20:
        return S.UNKNOWN
    return LSF_EXIT_INFO.get(exit_info, ("", S.FAILED))[1]
