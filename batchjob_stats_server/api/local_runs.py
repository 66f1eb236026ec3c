"""Runs of this machine: starting, stopping, deleting them, and their output. Off by default.

A run has the rights of the user who started the server, so only admins start, stop and delete.
"""

from collections.abc import AsyncIterator, Iterator, Sequence
from itertools import islice
from typing import Annotated, Any, Literal

import anyio
from anyio import to_thread
from fastapi import APIRouter, Depends, Path, Query, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, ConfigDict, Field

from batchjob.local_runs import history
from batchjob.local_runs.directory import LOGS
from batchjob.local_runs.output import STREAMS, OutputLine, Reader, merged
from batchjob.local_runs.record import Run
from batchjob_stats_db.database.tokens import TokenRole
from batchjob_stats_server.api import PREFIX
from batchjob_stats_server.api import params as p
from batchjob_stats_server.api.samples import LINES, ChosenSamples, SampleFilter, streamed
from batchjob_stats_server.auth import audit
from batchjob_stats_server.auth.identity import Caller, Known
from batchjob_stats_server.auth.rights import Principal
from batchjob_stats_server.http.problems import Problem
from batchjob_stats_server.run_control import RunControl, RunRefusedError, RunRequest
from batchjob_stats_server.services import Given, Services
from batchjob_stats_server.streams import OpenStream

router = APIRouter(prefix=PREFIX)

_PAUSE_SECONDS = 0.3
_AT_ONCE = 2000  # lines
_GRACE_SECONDS, _LONGEST_GRACE = 10.0, 3600.0
_ARGUMENTS = 1000

RunId = Annotated[p.Word, Path(description="Id of a run, a prefix of it, or its name.")]
_Text = Annotated[str, Field(max_length=32_768, pattern=r"^[^\x00]*$")]


class NewRun(BaseModel):
    """A run to be started: the options of `batchjob run`."""

    model_config = ConfigDict(extra="forbid")

    command: Annotated[list[_Text], Field(min_length=1, max_length=_ARGUMENTS)]
    name: str = Field("", max_length=256, pattern=r"^[^\x00-\x1f]*$")
    directory: str = Field("", max_length=4096, description="Default: that of the server.")
    environment: dict[Annotated[str, Field(pattern=r"^[^\x00=]+$")], _Text] = Field(
        {}, max_length=_ARGUMENTS, description="Added to the environment of the server."
    )
    cpus: float | None = Field(None, gt=0, lt=1e6)
    cpu_list: str | None = Field(None, pattern=r"^[0-9,-]{1,1000}$")
    memory_bytes: int | None = Field(None, gt=0, lt=2**63)
    io_bytes_per_second: int | None = Field(None, gt=0, lt=2**63)
    time_limit_seconds: float | None = Field(None, gt=0, le=1e9)
    start_time: p.Time | None = None
    best_effort: bool = Field(False, description="Start the run even if a limit cannot be applied.")


class LocalRun(BaseModel):
    """A run as its record has it now; times in epoch milliseconds."""

    id: str
    name: str
    user: str
    state: str
    status: str = Field(description="More specific than the state: stopped, success, failed ...")
    command: str
    directory: str
    submit_time: int
    start_time: int | None
    end_time: int | None
    exit_code: int | None
    exit_signal: int | None
    cpus: float | None = Field(description="CPU limit in force.")
    memory_bytes: int | None
    io_bytes_per_second: int | None
    time_limit_seconds: float | None
    cpu_list: str = Field(description="CPUs to which the run is bound; empty: not bound.")
    reason: str = Field(description="Reason why the run is waiting.")


class DeletedRuns(BaseModel):
    """How many runs are gone, and how many stay as they have not ended or cannot be deleted."""

    deleted: int
    skipped: int


class Stop(BaseModel):
    """How a run is to end."""

    model_config = ConfigDict(extra="forbid")

    grace_seconds: float = Field(_GRACE_SECONDS, ge=0, le=_LONGEST_GRACE)


class LogsQuery(p.Query):
    """Which lines of the output."""

    stream: Literal["stdout", "stderr"] | None = None
    since: p.Time | None = None
    until: p.Time | None = None
    limit: int | None = Field(None, ge=0, le=1_000_000, description="Number of lines from the end.")
    follow: bool = Field(False, description="If true, stream until the run has ended.")


def _control(services: Given, known: Known) -> RunControl:
    control = services.run_control
    if control is None:
        raise Problem(404, "runs over the API are disabled; batchjob up --runs.remote enables them")
    if known.clusters and control.cluster not in known.clusters:
        raise Problem(403, f"only cluster {control.cluster} has runs")
    return control


def _admins_control(known: Known, control: Annotated[RunControl, Depends(_control)]) -> RunControl:
    if known.role is not TokenRole.ADMIN:
        raise Problem(403, "only an admin may start, stop, cancel or delete runs")
    return control


Control = Annotated[RunControl, Depends(_control)]
AdminsControl = Annotated[RunControl, Depends(_admins_control)]


def _found(control: RunControl, text: str, user: str | None = None) -> Run:
    """The run, among those of `user` if one is given."""
    try:
        return history.job(text, str(control.data), user)
    except history.SeveralRuns as error:
        raise Problem(300, str(error)) from error
    except history.UnknownRun as error:
        said = str(error) if user is None else f"there is no run {text} that you may see"
        raise Problem(404, said) from error


def _seen(control: RunControl, known: Principal, access: Any, text: str) -> Run:
    return _found(control, text, None if access.everything else known.user)


def shown(run: Run) -> LocalRun:
    """A run as an answer."""
    return LocalRun(
        id=run.jobid, name=run.name, user=run.user, state=run.state, status=run.status,
        command=run.submit_line, directory=run.work_dir, submit_time=round(run.submit_time * 1000),
        start_time=None if run.start_time is None else round(run.start_time * 1000),
        end_time=None if run.end_time is None else round(run.end_time * 1000),
        exit_code=run.exit_code, exit_signal=run.exit_signal, cpus=run.allocated_cpus,
        memory_bytes=run.allocated_memory_bytes,
        io_bytes_per_second=run.io_limit_bytes_per_second,
        time_limit_seconds=run.time_limit_seconds, cpu_list=run.cpu_list,
        reason=run.reason if run.start_time is None else "",
    )  # fmt: skip


@router.post("/runs", status_code=201)
def start_run(control: AdminsControl, known: Known, wanted: NewRun) -> LocalRun:
    """Start a command as a run of this machine, now or later."""
    values = wanted.model_dump() | {"command": tuple(wanted.command)}
    try:
        run = control.start(RunRequest(**values))
    except RunRefusedError as error:
        audit.did(known, f"was refused a run: {error}")
        raise Problem(422, str(error)) from error
    audit.did(known, f"started run {run.jobid}: {run.submit_line[:200]!r}")
    return shown(run)


@router.get("/runs/{run}")
def local_run(control: Control, known: Known, access: Caller, run: RunId) -> LocalRun:
    """A run as its record has it now, which may be ahead of the database."""
    found = _seen(control, known, access, run)
    audit.saw(known, f"run {found.jobid}", frozenset({found.user}))
    return shown(found)


@router.post("/runs/{run}/stop")
def stop_run(control: AdminsControl, known: Known, run: RunId, how: Stop | None = None) -> LocalRun:
    """SIGTERM to its processes, SIGKILL after the grace; answers when it has ended."""
    found = _found(control, run)
    grace = _GRACE_SECONDS if how is None else how.grace_seconds
    audit.did(known, f"stopped run {found.jobid}")
    try:
        return shown(control.stop(found, grace))
    except RunRefusedError as error:
        raise Problem(409, str(error)) from error


@router.post("/runs/{run}/cancel")
def cancel_run(control: AdminsControl, known: Known, run: RunId) -> LocalRun:
    """End a run that has not started; one that has is a conflict."""
    found = _found(control, run)
    audit.did(known, f"cancelled run {found.jobid}")
    try:
        return shown(control.cancel(found))
    except RunRefusedError as error:
        raise Problem(409, str(error)) from error


@router.delete("/runs/{run}", status_code=204)
def delete_run(control: AdminsControl, known: Known, run: RunId) -> None:
    """Delete record, samples and output of a run that has ended."""
    found = _found(control, run)
    audit.did(known, f"deleted run {found.jobid}")
    try:
        control.delete(found)
    except RunRefusedError as error:
        raise Problem(409, str(error)) from error


@router.delete("/runs")
def delete_runs(control: AdminsControl, known: Known, ended: bool) -> DeletedRuns:
    """Delete all runs that have ended, with `ended=true`."""
    if not ended:
        raise Problem(422, "ended: expected true; active runs cannot be deleted")
    deleted = skipped = 0
    for run in list(history.all_runs(control.data)):
        try:
            control.delete(run)
            deleted += 1
        except RunRefusedError:
            skipped += 1
    audit.did(known, f"deleted {deleted} ended runs")
    return DeletedRuns(deleted=deleted, skipped=skipped)


@router.get("/runs/{run}/logs", response_class=StreamingResponse)
def run_logs(
    services: Given, control: Control, known: Known, access: Caller, run: RunId,
    which: Annotated[LogsQuery, Query()],
) -> Response:  # fmt: skip
    """What a run wrote, as it was written, both streams by time."""
    found = _seen(control, known, access, run)
    directory = control.data / LOGS / found.jobid
    if not directory.is_dir():
        raise Problem(404, f"run {found.jobid}: no output was kept, or it has been deleted")
    audit.saw(known, f"output of run {found.jobid}", frozenset({found.user}))
    wanted = [each for each in STREAMS if which.stream in (None, each)]
    readers, counted = ([Reader(directory, each, found.uid) for each in wanted] for _ in range(2))
    lines = _output(services, control, found, readers, counted, which)
    kind, headers = "application/octet-stream", {"Cache-Control": "no-store"}
    streams, user = services.streams, known.who()
    if streams is None or not which.follow:
        return StreamingResponse(lines, media_type=kind, headers=headers)
    streams.enter(user)
    return OpenStream(lines, lambda: streams.leave(user), media_type=kind, headers=headers)


@router.get(
    "/runs/{run}/samples",
    response_class=StreamingResponse,
    responses={200: {"content": {LINES: {}, "application/gzip": {}}}},
)
def run_samples(
    services: Given, control: Control, known: Known, access: Caller, run: RunId,
    which: Annotated[ChosenSamples, Query()],
) -> Response:  # fmt: skip
    """The samples of a run: an object each, with rates; followed from before the first one on."""
    found = _seen(control, known, access, run)
    audit.saw(known, f"samples of run {found.jobid}", frozenset({found.user}))
    wanted = SampleFilter(
        frozenset({found.user, str(found.uid)}),
        max(found.submit_time - 1, which.since or 0),
        float("inf") if which.until is None else which.until,
        found.state.live,
    )
    return streamed(services, known, found.jobid, wanted, which)


async def _output(
    services: Services, control: RunControl, run: Run, readers: Sequence[Reader],
    counted: Sequence[Reader], which: LogsQuery,
) -> AsyncIterator[bytes]:  # fmt: skip
    try:
        lines = await to_thread.run_sync(_first, readers, counted, which)
        while True:
            live = which.follow and await to_thread.run_sync(_live, control, run)
            more = True
            while more:
                text, more = await to_thread.run_sync(_some, lines)
                if text:
                    yield text
            if not live or (which.until is not None and services.clock() > which.until):
                return
            await anyio.sleep(_PAUSE_SECONDS)
            lines = merged(readers, which.since, which.until)
    except OSError:  # the headers have been sent, so the answer ends here
        return


def _live(control: RunControl, run: Run) -> bool:
    """Checked before the output is read, so that the end is read too."""
    try:
        return history.job(run.jobid, str(control.data)).state.live
    except history.UnknownRun:  # deleted
        return False


def _first(
    readers: Sequence[Reader], counted: Sequence[Reader], which: LogsQuery
) -> Iterator[OutputLine]:
    """The first of the last lines, found by reading twice: memory would not hold a million."""
    lines = merged(readers, which.since, which.until)
    if which.limit is None:
        return lines
    number = sum(1 for _ in merged(counted, which.since, which.until))
    return islice(lines, max(0, number - which.limit), None if which.limit else 0)


def _some(lines: Iterator[OutputLine]) -> tuple[bytes, bool]:
    """Some of the output, and whether there is more now."""
    found = list(islice(lines, _AT_ONCE))
    text = b"".join(line.text + b"\n" * line.whole for line in found)
    return text, len(found) == _AT_ONCE
