"""Runs of this machine: starting, stopping, deleting them, and their output. Off by default.

A run has the rights of the user who started the server, so only admins start, stop and delete.
"""

import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path as FilePath
from typing import Annotated, Literal, Protocol

from fastapi import APIRouter, Depends, Path, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from batchjob.local_runs import history
from batchjob.local_runs.directory import LOGS
from batchjob.local_runs.output import STREAMS, OutputLine, Reader, merge_streams
from batchjob.local_runs.record import Run
from batchjob_stats_db.database.tokens import TokenRole
from batchjob_stats_server.api import params as p
from batchjob_stats_server.api.answers import FilesRoute, OpenStream, follow
from batchjob_stats_server.api.params import PREFIX, InQuery
from batchjob_stats_server.api.samples import LINES, ChosenSamples, SampleFilter, stream_samples
from batchjob_stats_server.auth.identity import Caller, CurrentCaller
from batchjob_stats_server.auth.rights import log_action, log_jobs_seen
from batchjob_stats_server.http.problems import Problem

router = APIRouter(prefix=PREFIX, route_class=FilesRoute)

_PAUSE_SECONDS = 0.3
_LINES_PER_CHUNK = 2000
_MAX_SECONDS_PER_CHUNK = 10.0  # of a thread; few lines of a long log may have been asked for
_GRACE_SECONDS, _MAX_GRACE_SECONDS = 10.0, 3600.0
_MAX_ARGUMENTS = 1000

RunId = Annotated[p.Word, Path(description="Id of a run, a prefix of it, or its name.")]
_Text = Annotated[str, Field(max_length=32_768, pattern=r"^[^\x00]*$")]


class NewRun(BaseModel):
    """A run to start, with the options of `batchjob run`."""

    model_config = ConfigDict(extra="forbid")

    command: Annotated[list[_Text], Field(min_length=1, max_length=_MAX_ARGUMENTS)]
    name: str = Field("", max_length=256, pattern=r"^[^\x00-\x1f]*$")
    directory: str = Field("", max_length=4096, description="Default: that of the server.")
    environment: dict[Annotated[str, Field(pattern=r"^[^\x00=]+$")], _Text] = Field(
        {}, max_length=_MAX_ARGUMENTS, description="Added to the environment of the server."
    )
    cpus: float | None = Field(None, gt=0, lt=1e6)
    cpu_list: str | None = Field(None, pattern=r"^[0-9,-]{1,1000}$")
    memory_bytes: int | None = Field(None, gt=0, lt=2**63)
    gpus: int | None = Field(None, gt=0, lt=1e6, description="Whole GPUs of the machine.")
    io_bytes_per_second: int | None = Field(None, gt=0, lt=2**63)
    time_limit_seconds: float | None = Field(None, gt=0, le=1e9)
    start_time: p.Time | None = None


class RunRefusedError(Exception):
    """A run cannot be started, ended or deleted; the text says why."""


class RunControl(Protocol):
    """Runs belong to the user who runs the server, with all rights of that user."""

    @property
    def data(self) -> FilePath:
        """The data directory."""

    @property
    def cluster(self) -> str:
        """The cluster that the runs belong to."""

    def start(self, new_run: NewRun, person: str, role: str) -> Run:
        """Start a run for a person, or let it wait for its time. Raises RunRefusedError."""

    def stop(self, run: Run, grace_seconds: float) -> Run:
        """End an active run; returns it as it is after 30 s at most. Raises RunRefusedError."""

    def cancel(self, run: Run) -> Run:
        """Cancel a run that has not started. Raises RunRefusedError."""

    def delete(self, run: Run) -> None:
        """Delete the record, samples and output of a run. Raises RunRefusedError."""


Milliseconds = Annotated[int, BeforeValidator(lambda seconds: round(seconds * 1000))]


class LocalRun(BaseModel):
    """The current record of a run; times in milliseconds since the epoch."""

    model_config = ConfigDict(from_attributes=True)

    id: str = Field(validation_alias="jobid")
    name: str
    user: str
    state: str
    status: str = Field(description="More specific than the state: stopped, success, failed ...")
    requested_by: str = Field(description="The person who asked for it over the API.")
    command: str = Field(validation_alias="submit_line")
    directory: str = Field(validation_alias="work_dir")
    submit_time: Milliseconds
    start_time: Milliseconds | None
    end_time: Milliseconds | None
    exit_code: int | None
    exit_signal: int | None
    cpus: float | None = Field(validation_alias="allocated_cpus", description="CPU limit in force.")
    memory_bytes: int | None = Field(validation_alias="allocated_memory_bytes")
    io_bytes_per_second: int | None = Field(validation_alias="io_limit_bytes_per_second")
    time_limit_seconds: float | None
    cpu_list: str = Field(description="CPUs to which the run is bound; empty: not bound.")
    gpus: int | None = Field(
        validation_alias="allocated_gpus", description="Number of GPUs that the run holds."
    )
    gpu_list: str = Field(description="Their indices, such as 0-1.")
    reason: str = Field(description="Reason why the run is waiting.")
    wall_seconds: float | None
    user_cpu_seconds: float | None
    system_cpu_seconds: float | None
    peak_memory_bytes: int | None
    read_bytes: int | None
    written_bytes: int | None


class Stop(BaseModel):
    """How to stop a run."""

    model_config = ConfigDict(extra="forbid")

    grace_seconds: float = Field(_GRACE_SECONDS, ge=0, le=_MAX_GRACE_SECONDS)


class LogsQuery(p.QueryParams):
    """Selects lines of the output."""

    stream: Literal["stdout", "stderr"] | None = None
    since: p.Time | None = None
    until: p.Time | None = None
    limit: int | None = Field(None, ge=0, le=1_000_000, description="Number of lines from the end.")
    follow: bool = Field(False, description="If true, stream until the run has ended.")


def _run_control(caller: CurrentCaller) -> RunControl:
    control, principal = caller.services.run_control, caller.principal
    if control is None:
        raise Problem(404, "runs over the API are disabled; batchjob up --runs.remote enables them")
    if principal.clusters and control.cluster not in principal.clusters:
        raise Problem(403, f"only cluster {control.cluster} has runs")
    return control


def _run_control_of_admin(
    caller: CurrentCaller, control: Annotated[RunControl, Depends(_run_control)]
) -> RunControl:
    if caller.principal.role is not TokenRole.ADMIN:
        raise Problem(403, "only an admin may start, stop, cancel or delete runs")
    return control


Control = Annotated[RunControl, Depends(_run_control)]
AdminsControl = Annotated[RunControl, Depends(_run_control_of_admin)]


@contextmanager
def _refusals_as(status: int) -> Iterator[None]:
    try:
        yield
    except RunRefusedError as error:
        raise Problem(status, str(error)) from error


def _find_run(control: RunControl, text: str, user: str | None = None) -> Run:
    """The run, among those of `user` if one is given."""
    try:
        return history.job(text, str(control.data), user)
    except history.SeveralRuns as error:
        raise Problem(300, str(error)) from error
    except history.UnknownRun as error:
        raise Problem(404, f"run {text} does not exist, or is not yours to see") from error


def _show_run(control: RunControl, caller: Caller, text: str, what: str = "run") -> Run:
    """The run, if the caller may see it, which the audit log records."""
    user = None if caller.access.everything else caller.principal.user
    run = _find_run(control, text, user)
    log_jobs_seen(caller.principal, f"{what} {run.jobid}", [{"username": run.user}])
    return run


def to_answer(run: Run) -> LocalRun:
    found = LocalRun.model_validate(run)
    return found if run.start_time is None else found.model_copy(update={"reason": ""})


@router.post("/runs", status_code=201)
def start_run(control: AdminsControl, caller: CurrentCaller, new_run: NewRun) -> LocalRun:
    """Start a command as a run on this machine, or queue it."""
    command = shlex.join(new_run.command)
    person = caller.principal.token_creator or caller.principal.user
    log_action(caller.principal, f"asked to start a run: {command[:200]!r}")
    with _refusals_as(422):
        run = control.start(new_run, person, caller.principal.role)
    log_action(caller.principal, f"started run {run.jobid}: {run.submit_line[:200]!r}")
    return to_answer(run)


@router.get("/runs/{run}")
def local_run(control: Control, caller: CurrentCaller, run: RunId) -> LocalRun:
    """The current record of a run, which may be newer than the database."""
    record = _show_run(control, caller, run)
    return to_answer(record)


@router.post("/runs/{run}/stop")
def stop_run(
    control: AdminsControl, caller: CurrentCaller, run: RunId, how: Stop | None = None
) -> LocalRun:
    """Send SIGTERM to its processes, and SIGKILL after the grace period.

    The answer waits for its end, 30 s at most: a run with a longer grace period may still run then.
    """
    record = _find_run(control, run)
    grace = _GRACE_SECONDS if how is None else how.grace_seconds
    log_action(caller.principal, f"stopped run {record.jobid}")
    with _refusals_as(409):
        return to_answer(control.stop(record, grace))


@router.post("/runs/{run}/cancel")
def cancel_run(control: AdminsControl, caller: CurrentCaller, run: RunId) -> LocalRun:
    """Cancel a run that has not started; if it has started, the status is 409."""
    record = _find_run(control, run)
    log_action(caller.principal, f"cancelled run {record.jobid}")
    with _refusals_as(409):
        return to_answer(control.cancel(record))


@router.delete("/runs/{run}", status_code=204)
def delete_run(control: AdminsControl, caller: CurrentCaller, run: RunId) -> None:
    """Delete the record, samples and output of a run that has ended."""
    record = _find_run(control, run)
    log_action(caller.principal, f"deleted run {record.jobid}")
    with _refusals_as(409):
        control.delete(record)


@router.delete("/runs")
def delete_runs(control: AdminsControl, caller: CurrentCaller, ended: bool) -> dict[str, int]:
    """Delete all runs that have ended, with `ended=true`.

    The answer counts the runs `deleted`, and those `skipped` because they have not ended, or on an
    error.
    """
    if not ended:
        raise Problem(422, "ended: expected true; active runs cannot be deleted")
    log_action(caller.principal, "asked to delete all ended runs")
    deleted = skipped = 0
    for run in list(history.all_runs(control.data)):
        try:
            control.delete(run)
            deleted += 1
        except RunRefusedError:
            skipped += 1
    log_action(caller.principal, f"deleted {deleted} ended runs")
    return {"deleted": deleted, "skipped": skipped}


@router.get("/runs/{run}/logs", response_class=StreamingResponse)
def run_logs(
    control: Control, caller: CurrentCaller, run: RunId, params: InQuery[LogsQuery]
) -> Response:
    """The unmodified output of a run, both streams merged by time."""
    record = _show_run(control, caller, run, "output of run")
    directory = control.data / LOGS / record.jobid
    if not directory.is_dir():
        raise Problem(404, f"run {record.jobid}: no output was kept, or it has been deleted")
    chunks = _chunks(control, record, directory, params, caller.services.clock)
    lines = follow(caller, chunks, _PAUSE_SECONDS)
    kind, user = "application/octet-stream", caller.principal.person_key()
    return OpenStream(lines, caller.services.streams, user, media_type=kind)


@router.get(
    "/runs/{run}/samples",
    response_class=StreamingResponse,
    responses={200: {"content": {LINES: {}, "application/gzip": {}}}},
)
def run_samples(
    control: Control, caller: CurrentCaller, run: RunId, params: InQuery[ChosenSamples]
) -> Response:
    """The samples of a run, an object each, with rates; may be followed before the first."""
    record = _show_run(control, caller, run, "samples of run")
    sample_filter = SampleFilter(
        frozenset({record.user, str(record.uid)}),
        max(record.submit_time - 1, params.since or 0),
        float("inf") if params.until is None else params.until,
        record.state.is_live,
    )
    return stream_samples(caller, record.jobid, sample_filter, params)


def _chunks(
    control: RunControl, run: Run, directory: FilePath, params: LogsQuery,
    clock: Callable[[], float],
) -> Iterator[bytes | None]:  # fmt: skip
    readers, counting_readers = (
        [Reader(directory, each, run.uid) for each in STREAMS if params.stream in (None, each)]
        for _ in range(2)
    )
    lines = _skip_to_last_lines(readers, counting_readers, params)
    while True:
        live, is_full = params.follow and _is_live(control, run), True
        while is_full:
            for reader in readers:
                reader.limit_time(_MAX_SECONDS_PER_CHUNK)
            some = list(islice(lines, _LINES_PER_CHUNK))
            is_full = len(some) == _LINES_PER_CHUNK
            yield b"".join(line.text + b"\n" * line.is_complete for line in some)
        if not live or (params.until is not None and clock() > params.until):
            return
        yield None
        lines = merge_streams(readers, params.since, params.until)


def _is_live(control: RunControl, run: Run) -> bool:
    """Whether the run is active; checked before the output is read, so that its end is read too."""
    try:
        return history.job(run.jobid, str(control.data)).state.is_live
    except history.UnknownRun:  # deleted
        return False


def _skip_to_last_lines(
    readers: Sequence[Reader], counting_readers: Sequence[Reader], params: LogsQuery
) -> Iterator[OutputLine]:
    """The requested last lines, found by reading twice: a million would not fit into memory."""
    if params.limit is not None:
        for reader in (*readers, *counting_readers):
            reader.limit_time(_MAX_SECONDS_PER_CHUNK)
            reader.seek_to_last(params.limit, params.until)
    lines = merge_streams(readers, params.since, params.until)
    if params.limit is None:
        return lines
    number = sum(1 for _ in merge_streams(counting_readers, params.since, params.until))
    return islice(lines, max(0, number - params.limit), None if params.limit else 0)
