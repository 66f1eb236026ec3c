"""LSF's names of job states, and its reasons in words: why a job waits, and why LSF ended one.

Facts: bjobs(1), `jStatus` and `exitInfo` of lsb.acct(5). LSF gives the reason of a waiting job in
sentences (`pend_reason`); those that are not clear by themselves are reworded here.
"""

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

LSF_EXIT_INFO: dict[int, tuple[str, JobState, str]] = {
    1: ("TERM_PREEMPT", S.PREEMPTED, "a job with a higher priority preempted it"),
    2: ("TERM_WINDOW", S.CANCELLED, "the run window of its queue closed"),
    3: ("TERM_LOAD", S.CANCELLED, "the load of its host was beyond the limit"),
    4: ("TERM_OTHER", S.FAILED, ""),
    5: ("TERM_RUNLIMIT", S.TIMEOUT, "it reached its run limit"),
    6: ("TERM_DEADLINE", S.DEADLINE, "it could not end before its deadline"),
    7: ("TERM_PROCESSLIMIT", S.FAILED, "it had more processes than its process limit allows"),
    8: ("TERM_FORCE_OWNER", S.CANCELLED, "its owner killed it (bkill -r)"),
    9: ("TERM_FORCE_ADMIN", S.CANCELLED, "an administrator killed it (bkill -r)"),
    10: ("TERM_REQUEUE_OWNER", S.REQUEUED, "its owner requeued it"),
    11: ("TERM_REQUEUE_ADMIN", S.REQUEUED, "an administrator requeued it"),
    12: ("TERM_CPULIMIT", S.TIMEOUT, "it reached its CPU time limit"),
    13: ("TERM_CHKPNT", S.CANCELLED, "it was checkpointed and killed"),
    14: ("TERM_OWNER", S.CANCELLED, "its owner killed it"),
    15: ("TERM_ADMIN", S.CANCELLED, "an administrator killed it"),
    16: ("TERM_MEMLIMIT", S.OUT_OF_MEMORY, "it reached its memory limit"),
    17: ("TERM_EXTERNAL_SIGNAL", S.FAILED, "it was killed by a signal from outside LSF"),
    18: ("TERM_RMS", S.FAILED, ""),
    19: ("TERM_ZOMBIE", S.NODE_FAIL, "LSF lost contact with its host"),
    20: ("TERM_SWAP", S.OUT_OF_MEMORY, "it reached its swap limit"),
    21: ("TERM_THREADLIMIT", S.FAILED, "it had more threads than its thread limit allows"),
    22: ("TERM_SLURM", S.FAILED, ""),
    23: ("TERM_BUCKET_KILL", S.CANCELLED, "it was killed with others (bkill -b)"),
    25: ("TERM_CWD_NOTEXIST", S.FAILED, "its working directory does not exist or is inaccessible"),
    29: ("TERM_DATA", S.FAILED, "its data could not be staged"),
    30: ("TERM_MC_RECALL", S.REQUEUED, ""),
    32: ("TERM_CSM_ALLOC", S.FAILED, ""),
    33: ("TERM_KUBE", S.FAILED, ""),
}
"""Why LSF ended a job, by exitInfo in lsb.acct: its name, the state, and the reason in words."""
_ENDS = {name: words for name, _, words in LSF_EXIT_INFO.values() if words}


def lsf_end_state(status: int, exit_info: int) -> JobState:
    """The end state of a finished job, by jStatus bits and exitInfo of lsb.acct."""
    if status & 0x40:
        return S.COMPLETED
    if not status & 0x20:
        return S.UNKNOWN
    return LSF_EXIT_INFO.get(exit_info, ("", S.FAILED, ""))[1]


# fmt: off
PENDING: dict[str, str] = {
    "New job is waiting for scheduling":
        "it was submitted a moment ago and waits for the next scheduling cycle",
    "The job has not been scheduled": "it is waiting for the next scheduling cycle",
    "Job dependency condition not satisfied": "it waits for jobs that it depends on",
    "Dependency condition invalid or never satisfied": "a job that it depends on ended in a way "
        "that keeps it from ever starting; cancel it and submit it again",
    "Specified job start time is not reached": "its begin time has not been reached",
    "The specified start time has not been reached": "its begin time has not been reached",
    "Job slot limit reached": "all job slots that it may use are in use",
    "User has reached the per-user job slot limit of the queue":
        "its user has reached the queue's limit of job slots",
    "Not enough job slot(s)": "there are not enough free job slots",
    "Not enough slots or resources for whole duration of the job":
        "there are not enough free slots for all of its requested time",
    "Not enough hosts to meet the job's spanning requirement":
        "there are not enough free hosts for the requested distribution of its slots",
    "Not enough processors to meet the job's spanning requirement":
        "there are not enough free CPUs on the number of hosts it asks for",
    "Job requirements for reserving resource (mem) not satisfied":
        "there is not enough free memory on the hosts",
    "Job's requirements for resource reservation not satisfied":
        "the resources it asks to reserve, such as memory or GPUs, are in use",
    "Job's resource requirements not satisfied": "no host satisfies its resource requirements",
    "The queue has not enough job slots": "its queue has no free job slot",
    "The queue is inactivated by its time windows": "the time window of its queue is closed",
    "The queue is inactivated by the administrator": "an administrator has inactivated its queue",
    "The job was suspended by the user while pending":
        "it is held by its owner; release it with `bresume`",
    "The job was suspended by LSF admin or root while pending":
        "it is held by an administrator; ask them to release it",
    "The schedule of the job is postponed for a while": "LSF has put off scheduling it for a while",
}
# fmt: on


def explain(reason: str) -> str:
    """The reason in words, without a full stop; LSF's own words for a reason not listed here."""
    first = reason.split(";")[0].strip().rstrip(".")
    head = first.split(": ")[0]  # `Job slot limit reached: 4 hosts`
    word = first.split(" ")[0].rstrip(":")
    if word in _ENDS:
        return _ENDS[word]
    return PENDING.get(head, f"LSF says “{first}”" if first else "")


def explains_end(reason: str, *, has_started: bool) -> bool:
    """Whether the reason says why LSF ended a job, and not why it waited."""
    del has_started  # a reason of waiting is not kept
    return reason.partition(" ")[0].rstrip(":;") in _ENDS


HELD_STATES = frozenset(("PSUSP",))


def is_eligible(reason: str) -> bool:
    """Whether a waiting job with this reason could start if its cluster were empty."""
    lower = reason.lower()
    return not any(words in lower for words in ("dependency", "start time", "suspended by"))
