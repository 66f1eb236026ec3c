"""Identifies jobs: owner, id, account. Runs in the scanner's thread."""

import pwd
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from batchjob.runtime.formatting import replace_non_utf8
from batchjob.runtime.user_files import ForeignFileError
from batchjob.schedulers import registry
from batchjob.schedulers.layout import LayoutMatch
from batchjob.schedulers.node import Environment
from collectors.jobs.cgroups.reader import ReadErrors
from collectors.jobs.processes import proc
from collectors.jobs.processes.proc import Process
from collectors.jobs.processes.snapshot import (
    LAUNCHERS,
    JobScanState,
    ProcessSnapshot,
    SnapshotReader,
)
from collectors.jobs.state.job import Job
from collectors.jobs.state.job_table import CONFLICT, UNTRUSTED
from collectors.jobs.view import GPU_VARIABLES, make_identity, make_name

OWNER_WAIT_SECONDS = 2.0  # maximum wait for an owner, before the job is exposed without one
ROOT_OWNER_SECONDS = 60.0  # for this long, root's job may still turn out to be a user's
_MAX_ENVIRONMENTS = 16  # maximum environments read per job and scan
_MAX_FILE_READS = 4  # the engine may write its files after it has started the container
_MAX_GPU_CHARACTERS = 64 << 10  # maximum characters of a job's distinct sets of GPU variables
# Reads per process: right after fork() it does not have its own environment yet.
_ENVIRON_ATTEMPTS = 3
DEADLINE_SECONDS = 1.0  # to wait for a login name
KNOWN_SECONDS = 3600.0  # for which a name is kept
UNKNOWN_SECONDS = 60.0  # for which a uid without a name is


def _look_up(uid: int) -> str | None:
    try:
        return replace_non_utf8(pwd.getpwuid(uid).pw_name)
    except KeyError:
        return None


class UserNames:
    """Login names of uids, from a name service that may hang (getpwuid(3) over LDAP, SSSD, NIS).

    A thread of its own makes each query, so that every wait is bounded. While one query hangs, all
    others are answered "unknown" at once.
    """

    def __init__(
        self,
        look_up: Callable[[int], str | None] = _look_up,
        deadline: float = DEADLINE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._look_up = look_up
        self._deadline = deadline
        self._clock = clock
        self._cache: dict[int, tuple[str | None, float]] = {}
        self._query: threading.Thread | None = None

    def user(self, uid: int) -> str | None:
        """The login name; None if there is none or the service does not answer in time."""
        name, valid_until = self._cache.get(uid, (None, float("-inf")))
        if self._clock() < valid_until:
            return name
        if self._query is not None and self._query.is_alive():
            return None
        query = self._query = threading.Thread(
            target=self._ask, args=(uid,), name="names", daemon=True
        )
        query.start()
        query.join(self._deadline)
        return None if query.is_alive() else self._cache[uid][0]

    def _ask(self, uid: int) -> None:
        try:
            name = self._look_up(uid)
        except OSError:
            name = None
        valid_seconds = KNOWN_SECONDS if name is not None else UNKNOWN_SECONDS
        self._cache[uid] = (name, self._clock() + valid_seconds)


@dataclass(eq=False)
class JobIdentifier:
    """Sets `Job.identity` and `Job.ignored_reason` from scans of processes."""

    reader: SnapshotReader
    names: UserNames
    errors: ReadErrors
    job_name: bool
    container_directories: Sequence[str] = ()

    def identify(self, job: Job, state: JobScanState, snapshot: ProcessSnapshot) -> None:
        """Set the job's identity if its owner is known or the wait for the owner is over."""
        age = self.reader.host.monotonic() - state.first_seen_at
        waited = age > OWNER_WAIT_SECONDS
        owners = {
            uid
            for root, members in snapshot.by_root.items()
            if (uid := _find_owner(root.layout_match, members)) is not None
        }
        is_uncertain = state.owner is None or (state.owner == 0 and age < ROOT_OWNER_SECONDS)
        if is_uncertain and owners:
            state.owner = min(owners)
        elif state.owner is None and waited and snapshot.without_schedulers:
            state.owner = min(process.uid for process in snapshot.without_schedulers)
        job.ignored_reason = _ignored_reason(snapshot, owners, state.owner)
        if state.jobid is None:
            state.jobid = self._read_jobid(job, snapshot)
        if state.owner is not None:
            self._read_environments(job, state, snapshot)
        self._read_container_files(job, state)
        if waited or (state.owner is not None and state.jobid is not None):
            self.update_identity(job, state)

    def update_identity(self, job: Job, state: JobScanState) -> None:
        """Set the job's identity from what is known; later findings change only info labels."""
        previous = job.identity
        jobid = state.jobid or job.layout_match.jobid
        if previous is not None and previous.uid == state.owner and previous.name.jobid == jobid:
            user = previous.name.user
        elif state.owner is None:
            user = ""
        else:
            user = self.names.user(state.owner) or str(state.owner)
        values = {
            "uid": "" if state.owner is None else str(state.owner),
            "cgroup": next((root.path for root in job.process_roots()), ""),
            **state.details,
        }
        for key, value in job.layout_match.info:
            values[key.replace("cluster", "cluster_name")] = value
        if not self.job_name:
            values.pop("name", None)
        name = make_name(job.layout_match.manager, jobid, user)
        identity = make_identity(name, state.owner, values)
        if identity != previous:
            job.identity = identity

    def count_denied(self, state: JobScanState) -> None:
        """Count, once per job, that permission to read its processes is denied (CAP_SYS_PTRACE)."""
        if not state.denied:
            state.denied = True
            self.errors.count("denied")

    def _read_jobid(self, job: Job, snapshot: ProcessSnapshot) -> str | None:
        """The job id of accounting, from the path or the title of the scheduler's own process."""
        if job.layout_match.jobid_variable is None:
            return job.layout_match.jobid
        jobid_from_title = registry.job_manager(job.layout_match.manager).jobid_from_title
        if jobid_from_title is None:
            return None
        titles = (self._read_title(each.pid) for each in snapshot.all() if each.uid == 0)
        return next(filter(None, map(jobid_from_title, titles)), None)

    def _read_title(self, pid: int) -> bytes:
        try:
            return proc.read_command_line(self.reader.host.procfs, pid)
        except OSError:
            return b""

    def _read_environments(self, job: Job, state: JobScanState, snapshot: ProcessSnapshot) -> None:
        """Read environments of the owner's processes, earliest first.

        The batch script is usually the earliest, and has the most reliable environment.
        """
        manager = registry.job_manager(job.layout_match.manager)
        jobid_variable = job.layout_match.jobid_variable
        names = _variables(job.layout_match.manager, jobid_variable)
        existing = {(process.pid, process.started) for process in snapshot.all()}
        state.environ_reads = {
            key: reads for key, reads in state.environ_reads.items() if key in existing
        }
        for process in _processes_to_read(state, snapshot):
            environ = self._read_environ(process.pid, state, names)
            if state.jobid is None and jobid_variable:
                state.jobid = environ.get(jobid_variable)
            details = manager.info_labels(state.jobid or "", environ)
            key = (process.pid, process.started)
            state.environ_reads[key] = (
                _ENVIRON_ATTEMPTS if details else state.environ_reads.get(key, 0) + 1
            )
            state.details = details | state.details
            if manager.cpus:
                found = {name: environ[name] for name in names & environ.keys()}
                state.environ = {**found, **state.environ}
            gpus = _gpu_variables(environ)
            characters = sum(map(_count_characters, (gpus, *state.gpu_environs.values())))
            if gpus and characters <= _MAX_GPU_CHARACTERS:
                state.gpu_environs = {**state.gpu_environs, frozenset(gpus.items()): gpus}
            if (
                manager.cpus
                and state.cpus is None
                and environ.keys() & manager.additional_variables
            ):
                state.cpus = self._read_cpus(manager.cpus, process.pid, state)

    def _read_container_files(self, job: Job, state: JobScanState) -> None:
        """Labels from the files of the engine of a container: root's, or its user's own."""
        found = job.layout_match
        read = registry.job_manager(found.manager).labels_from_files
        if read is None or state.details or state.file_reads >= _MAX_FILE_READS:
            return
        reads, state.file_reads = state.file_reads + 1, _MAX_FILE_READS  # not again if it hangs
        owner = 0 if found.uid is None else found.uid
        # A home directory may hang; no process has the number 0.
        self.reader.current_read = (0, self.reader.host.monotonic())
        details: Mapping[str, str] = {}
        reason = "container_state"
        try:
            for directory in self._state_directories(found.uid):
                try:
                    details = details or read(directory, found.jobid, (owner,))
                except PermissionError as error:  # root's directory, for the container of a user
                    reason = "container_state" if isinstance(error, ForeignFileError) else "denied"
            state.details = {key: value for key, value in details.items() if value}
            state.file_reads = reads
            if not details and reads == _MAX_FILE_READS:
                self.errors.count(reason)
        except (OSError, ValueError, KeyError):
            self.errors.count("container_state")
        finally:
            self.reader.current_read = None

    def _state_directories(self, uid: int | None) -> Iterator[Path]:
        """Root's containers have nothing in a home directory."""
        is_known = uid is not None and self.names.user(uid) is not None  # in bounded time
        for directory in self.container_directories:
            if not directory.startswith("~/"):
                yield Path(directory)
            elif uid is not None and is_known:
                yield Path(pwd.getpwuid(uid).pw_dir, directory[2:])

    def _read_cpus(
        self, cpus_of: Callable[[Environment], int | None], pid: int, state: JobScanState
    ) -> int | None:
        # The file may be on any file system, so reading it may hang.
        self.reader.current_read = (pid, self.reader.host.monotonic())
        try:
            return cpus_of(state.environ)
        finally:
            self.reader.current_read = None

    def _read_environ(
        self, pid: int, state: JobScanState, names: frozenset[str]
    ) -> Mapping[str, str]:
        def wanted(name: str) -> object:
            return name in names or GPU_VARIABLES.fullmatch(name)

        self.reader.current_read = (pid, self.reader.host.monotonic())
        try:
            return proc.read_environ(self.reader.host.procfs, pid, wanted)
        except PermissionError:
            self.count_denied(state)
            return {}
        except OSError:
            return {}  # the process has ended
        finally:
            self.reader.current_read = None


@cache
def _variables(manager: str, jobid_variable: str | None) -> frozenset[str]:
    return registry.job_manager(manager).required_variables() | {jobid_variable or ""}


def _find_owner(layout_match: LayoutMatch, processes: Iterable[Process]) -> int | None:
    """The uid in the path, or that of the job's earliest process that is not root's.

    A new job has only processes of root; containers in it may have mapped uids later.
    """
    if layout_match.uid is not None:
        return layout_match.uid
    others = [process for process in processes if process.uid != 0]
    return min(others, key=lambda process: process.started).uid if others else None


def _ignored_reason(snapshot: ProcessSnapshot, owners: set[int], owner: int | None) -> str | None:
    """Why the job must be ignored, if it must: users can imitate jobs in their own cgroups."""
    if len(owners) > 1:
        return CONFLICT
    for root in snapshot.by_root:
        is_delegated = root.delegate is not None and root.layout_match.uid != root.delegate
        if is_delegated and root.delegate == owner:
            return UNTRUSTED
    return None


def _gpu_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """The GPU variables, without a list that was truncated."""
    return {
        name: value
        for name, value in environ.items()
        if GPU_VARIABLES.fullmatch(name) and len(value) < proc.MAX_VALUE_CHARACTERS
    }


def _count_characters(variables: Mapping[str, str]) -> int:
    return sum(len(name) + len(value) for name, value in variables.items())


def _processes_to_read(state: JobScanState, snapshot: ProcessSnapshot) -> list[Process]:
    """Those whose environment is the job's: before exec() it is still that of the daemon."""
    processes = [
        process
        for process in snapshot.owned(state.owner)
        if process.uid == state.owner
        and process.program not in LAUNCHERS
        and state.environ_reads.get((process.pid, process.started), 0) < _ENVIRON_ATTEMPTS
    ]
    return sorted(processes, key=lambda process: process.started)[:_MAX_ENVIRONMENTS]
