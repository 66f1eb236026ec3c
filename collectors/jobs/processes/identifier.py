"""Identifies jobs: owner, id, account. Runs in the scanner's thread."""

from collections.abc import Callable, Iterable, Mapping

from batchjob.schedulers import registry
from batchjob.schedulers.layout import LayoutMatch
from batchjob.schedulers.node import Environment
from collectors.jobs.cgroups.directory import ReadErrors
from collectors.jobs.processes import proc
from collectors.jobs.processes.proc import Process
from collectors.jobs.processes.snapshot import JobScanState, ProcessSnapshot, SnapshotReader
from collectors.jobs.processes.user_names import UserNames
from collectors.jobs.state import job_identity
from collectors.jobs.state.job import Job
from collectors.jobs.state.job_table import CONFLICT, UNTRUSTED
from collectors.jobs.view import GPU_VARIABLES

PATIENCE_SECONDS = 2.0  # maximum wait for an owner, before the job is exposed without one
ROOT_SECONDS = 60.0  # for this long, root's job may still turn out to be a user's
_ENVIRONMENTS = 16  # maximum environments read per job and scan
_GPU_SETTINGS = 64 << 10  # maximum characters of a job's distinct sets of GPU variables
_TIMES = 3  # attempts, because a process does not have its own environment right after fork()


class JobIdentifier:
    """Sets `Job.identity` and `Job.disbelieved` from scans of processes."""

    def __init__(
        self, reader: SnapshotReader, names: UserNames, errors: ReadErrors, job_name: bool
    ) -> None:
        self._reader = reader
        self._names = names
        self._errors = errors
        self._job_name = job_name

    def identify(self, job: Job, state: JobScanState, snapshot: ProcessSnapshot) -> None:
        """Name the job if its owner is known, or has been waited for long enough."""
        age = self._reader.host.monotonic() - state.first_at
        patience = age > PATIENCE_SECONDS
        owners = _owners(snapshot)
        doubtful = state.owner is None or (state.owner == 0 and age < ROOT_SECONDS)
        if doubtful and owners:
            state.owner = min(owners)
        elif state.owner is None and patience and snapshot.users():
            state.owner = min(process.uid for process in snapshot.users())
        job.disbelieved = _disbelief(snapshot, owners, state.owner)
        if state.owner is not None:
            self._read_environments(job, state, snapshot)
        if state.jobid is None:
            state.jobid = self._jobid(job, state, snapshot)
        if patience or (state.owner is not None and state.jobid is not None):
            self.name(job, state)

    def name(self, job: Job, state: JobScanState) -> None:
        """Name the job; later findings change only the info labels."""
        known = job.identity
        jobid = state.jobid or job.found.jobid
        if known is not None and known.uid == state.owner and known.name.jobid == jobid:
            user = known.name.user
        elif state.owner is None:
            user = ""
        else:
            user = self._names.user(state.owner) or str(state.owner)
        trees = job.trees()
        made = job_identity.make(
            job.found,
            jobid,
            state.owner,
            user,
            state.details,
            trees[0].path if trees else "",
            self._job_name,
        )
        if made != known:
            job.identity = made

    def denied(self, state: JobScanState) -> None:
        """Count, once per job, that its processes must not be read (no CAP_SYS_PTRACE)."""
        if not state.denied:
            state.denied = True
            self._errors.count("denied")

    def _jobid(self, job: Job, state: JobScanState, snapshot: ProcessSnapshot) -> str | None:
        """The accounting's id; None while it is unknown because the path does not contain it."""
        variable = job.found.jobid_variable
        if variable is None:
            return job.found.jobid
        jobid_of_title = registry.node_side(job.found.manager).jobid_of_title
        if jobid_of_title:
            for process in snapshot.all():
                if process.uid == 0 and (found := jobid_of_title(self._title(process.pid))):
                    return found
        return state.environ.get(variable)

    def _title(self, pid: int) -> bytes:
        try:
            return proc.read_command_line(self._reader.host.procfs, pid)
        except OSError:
            return b""

    def _read_environments(self, job: Job, state: JobScanState, snapshot: ProcessSnapshot) -> None:
        """Read environments of the owner's processes, earliest first: the batch script's is
        best.
        """
        side = registry.node_side(job.found.manager)
        names = side.asked_variables() | {job.found.jobid_variable or ""}
        living = {(process.pid, process.started) for process in snapshot.all()}
        state.asked = {key: times for key, times in state.asked.items() if key in living}
        for process in _unasked(state, snapshot):
            environ = self._environ(process.pid, state, names)
            found = side.details(job.found.jobid, environ)
            key = (process.pid, process.started)
            state.asked[key] = _TIMES if found else state.asked.get(key, 0) + 1
            state.details = found | state.details
            state.environ = {name: environ[name] for name in names & environ.keys()} | state.environ
            gpus = _gpu_variables(environ)
            if gpus and sum(map(_characters, (gpus, *state.gpus.values()))) <= _GPU_SETTINGS:
                state.gpus.setdefault(frozenset(gpus.items()), gpus)
            if side.cpus and state.cpus is None and environ.keys() & side.further_variables:
                state.cpus = self._cpus(side.cpus, process.pid, state)

    def _cpus(
        self, said: Callable[[Environment], int | None], pid: int, state: JobScanState
    ) -> int | None:
        # The file may be on any file system, so reading it may hang.
        self._reader.at = (pid, self._reader.host.monotonic())
        try:
            return said(state.environ)
        finally:
            self._reader.at = None

    def _environ(self, pid: int, state: JobScanState, names: frozenset[str]) -> Mapping[str, str]:
        def wanted(name: str) -> object:
            return name in names or GPU_VARIABLES.fullmatch(name)

        self._reader.at = (pid, self._reader.host.monotonic())
        try:
            return proc.read_environ(self._reader.host.procfs, pid, wanted)
        except PermissionError:
            self.denied(state)
            return {}
        except OSError:
            return {}  # the process has ended
        finally:
            self._reader.at = None


def owner(found: LayoutMatch, processes: Iterable[Process]) -> int | None:
    """The uid in the path, or that of the job's earliest process that is not root's.

    A new job has only processes of root; containers in it may have mapped uids later.
    """
    if found.uid is not None:
        return found.uid
    others = [process for process in processes if process.uid != 0]
    return min(others, key=lambda process: process.started).uid if others else None


def _owners(snapshot: ProcessSnapshot) -> set[int]:
    found = (
        owner(tree.found, [p for place in places.values() for p in place])
        for tree, places in snapshot.trees.items()
    )
    return {uid for uid in found if uid is not None}


def _disbelief(snapshot: ProcessSnapshot, owners: set[int], owner: int | None) -> str | None:
    """Why a job is not shown: users can create directories with any name in their own trees."""
    if len(owners) > 1:
        return CONFLICT
    for tree in snapshot.trees:
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


def _unasked(state: JobScanState, snapshot: ProcessSnapshot) -> list[Process]:
    found = [
        process
        for process in snapshot.owned(state.owner)
        if process.uid == state.owner
        and state.asked.get((process.pid, process.started), 0) < _TIMES
    ]
    return sorted(found, key=lambda process: process.started)[:_ENVIRONMENTS]
