"""What a citizen is, and what several of them do."""

import json
import os
import pwd
import random
from collections.abc import Callable
from typing import NamedTuple

from batchjob.local_runs.record import VERSION, Run, SupervisorProcess
from batchjob.schedulers.states import JobState
from tests.security.one_bad_citizen import CITIZEN, NODES, Job, Site

VICTIM_UID, CITIZEN_UID = pwd.getpwnam("daemon").pw_uid, pwd.getpwnam("games").pw_uid
DEEP = "[" * 200_000

Act = Callable[[Site, random.Random], None]


class Citizen(NamedTuple):
    """One that turns hostile: what it is, and the kind of fault that it looks for."""

    kind: str
    act: Act

    @property
    def name(self) -> str:
        return self.act.__name__


CITIZENS: list[Citizen] = []


def citizen(kind: str) -> Callable[[Act], Act]:
    def register(act: Act) -> Act:
        CITIZENS.append(Citizen(kind, act))
        return act

    return register


def own_job(site: Site, **changes: object) -> Job:
    """A job of the citizen, on the last nodes."""
    number = len(site.jobs)
    job = Job(str(number), CITIZEN, site.now + 10, tuple(NODES[-4:]))._replace(**changes)
    site.jobs[job.jobid] = job
    return job


def own_pbs_job(site: Site) -> Job:
    return own_job(site, jobid=f"{len(site.jobs)}.srv")


def write_run(site: Site, jobid: str, uid: int, owner: int, **changes: object) -> None:
    """The record of a run that has ended, in a file of `owner`; `changes`: values of its JSON."""
    path = site.data / "runs" / f"{jobid}.json"
    supervisor = SupervisorProcess(1, 1, "another boot")
    run = Run(
        jobid=jobid,
        node=os.uname().nodename,
        user="x",
        uid=uid,
        submit_time=site.now - 60,
        start_time=site.now - 60,
        end_time=site.now - 50,
        state=JobState.FAILED,
        supervisor=supervisor,
        name="train",
    )
    document = {"version": VERSION, **run._asdict(), "supervisor": supervisor._asdict()}
    document |= changes
    path.unlink(missing_ok=True)  # root may not open others' files here (fs.protected_regular)
    path.write_text(json.dumps(document))
    path.chmod(0o644)
    os.chown(path, owner, -1)
