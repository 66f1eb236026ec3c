"""Identifies jobs: owner, id, account. Runs in the scanner's thread."""

from collections.abc import Callable, Iterable, Mapping

from batchjob.schedulers import registry
from batchjob.schedulers.layout import LayoutMatch
from batchjob.schedulers.node import Environment
from collectors.jobs.cgroups.directory import Trouble
from collectors.jobs.processes import proc
from collectors.jobs.processes.proc import Process
from collectors.jobs.processes.snapshot import Eyes, Notes, ProcessSnapshot
from collectors.jobs.processes.user_names import UserNames
from collectors.jobs.state import job_identity
from collectors.jobs.state.job import Job
from collectors.jobs.state.job_table import CONFLICT, UNTRUSTED
from collectors.jobs.view import GPU_VARIABLES

PATIENCE_SECONDS = 2.0  # so long an owner is waited for before a job is shown without one
ROOT_SECONDS = 60.0  # so long root's job may turn out to be a user's that was slow to start
_ENVIRONMENTS = 16  # processes whose environment is read per job and look
_GPU_SETTINGS = 64 << 10  # characters of distinct sets of GPU variables kept per job
_TIMES = 3  # a process just forked has not its own environment yet, so it is asked again


class JobIdentifier:
    """Sets `Job.identity` and `Job.disbelieved` from scans of processes."""

    def __init__(self, eyes: Eyes, names: UserNames, trouble: Trouble, job_name: bool) -> None:
        self._eyes = eyes
        self._names = names
        self._trouble = trouble
        self._job_name = job_name

    def identify(self, job: Job, notes: Notes, look: ProcessSnapshot) -> None:
        """Name the job if its owner is known, or has been waited for long enough."""
        age = self._eyes.host.monotonic() - notes.first_at
        patience = age > PATIENCE_SECONDS
        owners = _owners(look)
        doubtful = notes.owner is None or (notes.owner == 0 and age < ROOT_SECONDS)
        if doubtful and owners:
            notes.owner = min(owners)
        elif notes.owner is None and patience and look.users():
            notes.owner = min(process.uid for process in look.users())
        job.disbelieved = _disbelief(look, owners, notes.owner)
        if notes.owner is not None:
            self._read_environments(job, notes, look)
        if notes.jobid is None:
            notes.jobid = self._jobid(job, notes, look)
        if patience or (notes.owner is not None and notes.jobid is not None):
            self.name(job, notes)

    def name(self, job: Job, notes: Notes) -> None:
        """Name the job; later findings change only the info labels."""
        known = job.identity
        jobid = notes.jobid or job.found.jobid
        if known is not None and known.uid == notes.owner and known.name.jobid == jobid:
            user = known.name.user
        elif notes.owner is None:
            user = ""
        else:
            user = self._names.user(notes.owner) or str(notes.owner)
        trees = job.trees()
        made = job_identity.make(
            job.found,
            jobid,
            notes.owner,
            user,
            notes.details,
            trees[0].path if trees else "",
            self._job_name,
        )
        if made != known:
            job.identity = made

    def denied(self, notes: Notes) -> None:
        """Count, once per job, that its processes must not be read (no CAP_SYS_PTRACE)."""
        if not notes.denied:
            notes.denied = True
            self._trouble.count("denied")

    def _jobid(self, job: Job, notes: Notes, look: ProcessSnapshot) -> str | None:
        """The accounting's id; None while it is unknown because the path does not contain it."""
        variable = job.found.jobid_variable
        if variable is None:
            return job.found.jobid
        jobid_of_title = registry.node_side(job.found.manager).jobid_of_title
        if jobid_of_title:
            for process in look.all():
                if process.uid == 0 and (found := jobid_of_title(self._title(process.pid))):
                    return found
        return notes.environ.get(variable)

    def _title(self, pid: int) -> bytes:
        try:
            return proc.read_command_line(self._eyes.host.procfs, pid)
        except OSError:
            return b""

    def _read_environments(self, job: Job, notes: Notes, look: ProcessSnapshot) -> None:
        """Read environments of the owner's processes, earliest first: the batch script's is
        best.
        """
        side = registry.node_side(job.found.manager)
        names = side.asked_variables() | {job.found.jobid_variable or ""}
        living = {(process.pid, process.started) for process in look.all()}
        notes.asked = {key: times for key, times in notes.asked.items() if key in living}
        for process in _unasked(notes, look):
            environ = self._environ(process.pid, notes, names)
            found = side.details(job.found.jobid, environ)
            key = (process.pid, process.started)
            notes.asked[key] = _TIMES if found else notes.asked.get(key, 0) + 1
            notes.details = found | notes.details
            notes.environ = {name: environ[name] for name in names & environ.keys()} | notes.environ
            gpus = _gpu_variables(environ)
            if gpus and sum(map(_characters, (gpus, *notes.gpus.values()))) <= _GPU_SETTINGS:
                notes.gpus.setdefault(frozenset(gpus.items()), gpus)
            if side.cpus and notes.cpus is None and environ.keys() & side.further_variables:
                notes.cpus = self._cpus(side.cpus, process.pid, notes)

    def _cpus(
        self, said: Callable[[Environment], int | None], pid: int, notes: Notes
    ) -> int | None:
        self._eyes.at = (pid, self._eyes.host.monotonic())  # the file may be on any file system
        try:
            return said(notes.environ)
        finally:
            self._eyes.at = None

    def _environ(self, pid: int, notes: Notes, names: frozenset[str]) -> Mapping[str, str]:
        def wanted(name: str) -> object:
            return name in names or GPU_VARIABLES.fullmatch(name)

        self._eyes.at = (pid, self._eyes.host.monotonic())
        try:
            return proc.read_environ(self._eyes.host.procfs, pid, wanted)
        except PermissionError:
            self.denied(notes)
            return {}
        except OSError:
            return {}  # it has ended
        finally:
            self._eyes.at = None


def owner(found: LayoutMatch, processes: Iterable[Process]) -> int | None:
    """The uid in the path, or that of the job's earliest process that is not root's.

    A new job has only processes of root; containers in it may have mapped uids later.
    """
    if found.uid is not None:
        return found.uid
    others = [process for process in processes if process.uid != 0]
    return min(others, key=lambda process: process.started).uid if others else None


def _owners(look: ProcessSnapshot) -> set[int]:
    found = (
        owner(tree.found, [p for place in places.values() for p in place])
        for tree, places in look.trees.items()
    )
    return {uid for uid in found if uid is not None}


def _disbelief(look: ProcessSnapshot, owners: set[int], owner: int | None) -> str | None:
    """Why a job is not shown: users can create directories with any name in their own trees."""
    if len(owners) > 1:
        return CONFLICT
    for tree in look.trees:
        own = tree.delegate is not None and tree.found.uid != tree.delegate
        if own and tree.delegate == owner:
            return UNTRUSTED
    return None


def _gpu_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """The GPU variables, without a list that was truncated."""
    return {
        name: value
        for name, value in environ.items()
        if GPU_VARIABLES.fullmatch(name) and len(value) < proc.LONGEST_VALUE
    }


def _characters(variables: Mapping[str, str]) -> int:
    return sum(len(name) + len(value) for name, value in variables.items())


def _unasked(notes: Notes, look: ProcessSnapshot) -> list[Process]:
    found = [
        process
        for process in look.owned(notes.owner)
        if process.uid == notes.owner
        and notes.asked.get((process.pid, process.started), 0) < _TIMES
    ]
    return sorted(found, key=lambda process: process.started)[:_ENVIRONMENTS]
