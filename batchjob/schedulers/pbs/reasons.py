"""Explanations of PBS' comments on waiting jobs, and of negative exit statuses.

Comments: the PBS Professional reference guide, "Job comments"; statuses: "Job exit status codes".
"""

import re

_COMMENTS: tuple[tuple[str, str], ...] = (
    ("Insufficient amount of resource", "not enough is free of {rest}"),
    ("Insufficient amount of server resource", "not enough is free of {rest}"),
    ("Insufficient amount of queue resource", "its queue has not enough free of {rest}"),
    ("Not enough free nodes available", "there are not enough free nodes"),
    ("Not enough total nodes available", "the cluster has fewer nodes than it asks for"),
    ("Not enough of the right type of nodes", "the nodes of the kind it asks for are in use"),
    ("Can Never Run", "no node can ever satisfy what it asks for: {rest}"),
    ("Queue not started", "its queue is stopped"),
    ("Queue not an execution queue", "its queue only routes jobs"),
    ("Draining system to allow starving job to run", "room is being made for a job that has "
     "waited for long"),
    ("Server job limit reached", "as many jobs run as the server allows"),
    ("Queue job limit has been reached", "as many jobs run in its queue as allowed"),
    ("User has reached server running job limit", "its user has as many running jobs as allowed"),
    ("User has reached queue running job limit", "its user has as many running jobs in the queue "
     "as allowed"),
    ("Host set", "the nodes it asks for together are not free"),
    ("Job would conflict with reservation or top job", "it would delay a reservation or a job "
     "ahead of it"),
    ("Job will run in its reservation", "its reservation has not begun"),
    ("Job held", "it is held; `qrls` lets it go"),
    ("Higher priority jobs", "jobs with a higher priority are ahead of it"),
)  # fmt: skip

ENDS: dict[int, str] = {
    -1: "failed before its files were staged", -2: "failed after its files were staged",
    -3: "to be tried again", -4: "its node restarted while it ran",
    -5: "its node restarted while it ran", -6: "its node restarted while it ran",
    -10: "bad uid or gid", -11: "rerun", -12: "checkpointed",
    -16: "a hook of the site refused it", -17: "a hook of the site reran it",
    -18: "a hook of the site refused it", -19: "a hook of the site reran it",
    -20: "its first node was lost", -21: "its credentials could not be set up",
    -22: "a hook of the site failed", -23: "its Kerberos ticket could not be used",
    -24: "ncpus exceeded", -25: "ncpus exceeded", -26: "vmem exceeded", -27: "mem exceeded",
    -28: "cput exceeded", -29: "walltime exceeded", -30: "its nodes could not join it",
}  # fmt: skip
"""What a negative Exit_status means, in a few words."""

_HEAD = re.compile(r"^(Not Running|Can Never Run)\s*:\s*", re.IGNORECASE)


def explained(reason: str) -> str:
    """A comment in words, without a full stop; PBS' own words for a comment not listed here."""
    text = reason.strip().rstrip(".")
    head = _HEAD.match(text)
    said = text[head.end() :] if head else text
    if head and head.group(1).lower() == "can never run":
        return f"no node can ever satisfy what it asks for: {said}"
    for beginning, words in _COMMENTS:
        if said.lower().startswith(beginning.lower()):
            rest = said[len(beginning) :].strip(" :")
            return words.format(rest=rest or "what it asks for")
    return f"PBS says “{text}”" if text else ""
