"""Explanations of PBS' comments on waiting jobs, and of negative exit statuses.

Comments: the PBS Professional reference guide, "Job comments"; statuses: "Job exit status codes".
"""

import re

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
    -1: "failed before its files were staged", -2: "failed after its files were staged",
    -3: "to be retried", -4: "its node restarted while it ran",
    -5: "its node restarted while it ran", -6: "its node restarted while it ran",
    -10: "bad uid or gid", -11: "rerun", -12: "checkpointed",
    -16: "a site hook rejected it", -17: "a site hook requeued it",
    -18: "a site hook rejected it", -19: "a site hook requeued it",
    -20: "its first node was lost", -21: "its credentials could not be set up",
    -22: "a site hook failed", -23: "its Kerberos ticket could not be used",
    -24: "ncpus exceeded", -25: "ncpus exceeded", -26: "vmem exceeded", -27: "mem exceeded",
    -28: "cput exceeded", -29: "walltime exceeded", -30: "its nodes could not join the job",
}  # fmt: skip
"""What a negative Exit_status means, in a few words."""

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


def explains_end(reason: str) -> bool:
    """Whether the comment says why a job ended, and neither why it waited nor where it ran."""
    return not _HEAD.match(reason.strip()) and not reason.startswith("Job run at")


def is_eligible(reason: str) -> bool:
    """Whether a waiting job with this comment could start if its cluster were empty."""
    return "Job held" not in reason
