"""PBS' letters for job states, its exit statuses, and its comments in words.

Facts: qstat(1B), the accounting log; the reference guide, "Job comments", "Job exit status codes".
"""

import re

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


_COMMENTS: tuple[tuple[str, str], ...] = (
    ("Insufficient amount of resource", "not enough free {rest}"),
    ("Insufficient amount of server resource", "not enough free {rest}"),
    ("Insufficient amount of queue resource", "not enough free {rest} in its queue"),
    ("Not enough free nodes available", "there are not enough free nodes"),
    ("Not enough total nodes available", "the cluster has fewer nodes than it asks for"),
    ("Not enough of the right type of nodes", "all nodes of the type it asks for are in use"),
    ("Can Never Run", "no node can ever satisfy its request: {rest}"),
    ("Queue not started", "its queue is stopped"),
    ("Queue not an execution queue", "its queue only routes jobs"),
    ("Draining system to allow starving job to run", "nodes are being drained for "
     "a job that has waited for a long time"),
    ("Server job limit reached", "the server has reached its limit of running jobs"),
    ("Queue job limit has been reached", "its queue has reached its limit of running jobs"),
    ("User has reached server running job limit", "its user has reached the limit of running jobs"),
    ("User has reached queue running job limit", "its user has reached the queue's "
     "limit of running jobs"),
    ("Host set", "the set of nodes it asks for is not free"),
    ("Job would conflict with reservation or top job", "it would delay a reservation or a job "
     "ahead of it"),
    ("Job will run in its reservation", "its reservation has not started"),
    ("Job held", "it is held; release it with `qrls`"),
    ("Higher priority jobs", "jobs with a higher priority are ahead of it"),
)  # fmt: skip

EXIT_STATUSES: dict[int, str] = {
    -1: "its start failed before its files were copied to its node",
    -2: "its script did not start: its prologue or the setup on its node failed",
    -3: "its start failed and is tried again",
    -4: "its node's PBS daemon restarted while it ran",
    -5: "its node's PBS daemon restarted while it ran; it has a checkpoint on that node",
    -6: "its node's PBS daemon restarted while it ran; it has a checkpoint",
    -7: "its restart from a checkpoint failed",
    -10: "its user or group is not valid on its node", -11: "rerun", -12: "checkpointed",
    -13: "its user's password was refused", -14: "one of its other nodes was lost; it runs again",
    -15: "requeued, to restart from a checkpoint",
    -16: "a hook refused its start; it is tried again",
    -17: "a hook refused its start and deleted it",
    -18: "a hook requeued it", -19: "a hook deleted it",
    -20: "its first node was lost", -21: "its credentials could not be set up",
    -22: "a hook failed", -23: "its Kerberos ticket could not be used",
    -24: "ncpus exceeded (burst)", -25: "ncpus exceeded (average)",
    -26: "vmem exceeded", -27: "mem exceeded",
    -28: "cput exceeded", -29: "walltime exceeded", -30: "its nodes could not join the job",
}  # fmt: skip
"""What a negative Exit_status means, in a few words: JOB_EXEC_* of PBS' job.h."""

REFUSED_STARTS = frozenset((-1, -2, -3, -10, -13, -16, -18, -21, -22, -23))
"""The statuses of starts after which the job has not run, and waits again or is held."""

KILLED_BY_PBS = "killed by PBS; nobody deleted it"

_HEAD = re.compile(r"^(Not Running|Can Never Run)\s*:\s*", re.IGNORECASE)


def explain(reason: str) -> str:
    """A comment in words, without a full stop; PBS' own words for a comment not listed here."""
    text = reason.strip().rstrip(".")
    head = _HEAD.match(text)
    comment = text[head.end() :] if head else text
    if head and head.group(1).lower() == "can never run":
        return f"no node can ever satisfy its request: {comment}"
    for prefix, words in _COMMENTS:
        if comment.lower().startswith(prefix.lower()):
            rest = comment[len(prefix) :].strip(" :")
            return words.format(rest=rest or "resources")
    return f"PBS says “{text}”" if text else ""


def explains_end(reason: str, *, has_started: bool) -> bool:
    """Whether the comment says why a job ended, and neither why it waited nor where it ran."""
    del has_started  # a reason of waiting is not kept
    return not _HEAD.match(reason.strip()) and not reason.startswith("Job run at")


HELD_STATES = frozenset(("H",))


def is_eligible(reason: str) -> bool:
    """Whether a waiting job with this comment could start if its cluster were empty."""
    return "Job held" not in reason
