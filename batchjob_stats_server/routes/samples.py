"""A job's samples as a stream of lines, from the first on, and as they come."""

import json
import zlib
from collections.abc import AsyncIterator, Iterator
from itertools import islice
from pathlib import Path
from typing import Annotated, Literal, NamedTuple
from urllib.parse import quote

import anyio
from anyio import to_thread
from fastapi import APIRouter, Query, Response
from fastapi.responses import StreamingResponse
from pydantic import Field
from starlette.types import Receive, Scope, Send

from batchjob_stats_db.queries.spans import span_of
from batchjob_stats_db.samples.derived import document
from batchjob_stats_db.samples.folder import files_of, folder_of
from batchjob_stats_db.samples.replay import Replay, Step
from batchjob_stats_db.samples.sample import Who
from batchjob_stats_db.usage import Measured
from batchjob_stats_server import audit
from batchjob_stats_server import parameters as p
from batchjob_stats_server.identity import Caller, Known
from batchjob_stats_server.problems import Problem
from batchjob_stats_server.routes import PREFIX
from batchjob_stats_server.routes.jobs import JobId
from batchjob_stats_server.runs import run_of
from batchjob_stats_server.services import Given, Services
from batchjob_stats_server.streams import Streams

router = APIRouter(prefix=PREFIX)

_AT_ONCE = 500  # samples, between two moments at which others have their turn
_PAUSE_SECONDS = 1.0
_LINES = "application/x-ndjson"


class SamplesQuery(p.Query):
    """Which samples, and how."""

    cluster: p.Word | None = None
    run: int | None = Field(None, ge=1, le=2**53, description="`id` of the run; else the latest.")
    since: p.Time | None = None
    until: p.Time | None = None
    follow: bool = Field(False, description="True: go on until the job has ended.")
    format: Literal["jsonl", "gzip"] = Field(
        "jsonl", description="Lines, or a file of them to keep."
    )


class Wanted(NamedTuple):
    """Whose samples of which time."""

    users: frozenset[str]
    since: float
    until: float

    @classmethod
    def of(cls, job: Measured, which: SamplesQuery) -> "Wanted":
        """Those of the run itself: somebody else may have had its id before or since."""
        until = job.span.until if job.end is not None else float("inf")
        return cls(
            frozenset(user for user in (job.user, str(job.uid or "")) if user),
            max(job.start, which.since or 0),
            until if which.until is None else min(until, which.until),
        )

    def has(self, who: Who) -> bool:
        """Whether these are the user's."""
        return who.user in self.users


class _Stream(StreamingResponse):
    """Gives back its place whatever becomes of it."""

    streams: Streams
    replay: Replay

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self.replay.close()
            self.streams.leave()


@router.get(
    "/jobs/{jobid}/samples",
    response_class=StreamingResponse,
    responses={200: {"content": {_LINES: {}, "application/gzip": {}}}},
)
def job_samples(
    services: Given, known: Known, access: Caller, jobid: JobId,
    which: Annotated[SamplesQuery, Query()],
) -> Response:  # fmt: skip
    """The samples of one run of a job: an object each, with rates; nothing where there are none."""
    directory = services.settings.samples.directory
    if not directory or services.streams is None:
        raise Problem(503, "no samples are kept here; jobs/{id}/metrics may have measurements")
    with services.reader.connect() as db:
        run = run_of(db, access, jobid, which.cluster, which.run)
        if run is None or run["start_time"] is None:
            return Response(b"", media_type=_LINES)
        policy, now = services.settings.tsdb.policy(), int(services.clock())
        job = span_of(db, access, run["id"], policy, now)
    if job is None:  # it was deleted meanwhile
        return Response(b"", media_type=_LINES)
    try:
        files_of(folder_of(Path(directory), job.jobid))
    except OSError as error:
        raise Problem(503, f"the samples cannot be read: {error.strerror}") from error
    audit.seen(known, f"samples of job {jobid}", [run])
    return _streamed(services, services.streams, Path(directory), job, which)


def _streamed(
    services: Services, streams: Streams, directory: Path, job: Measured, which: SamplesQuery
) -> Response:
    streams.enter()
    wanted = Wanted.of(job, which)
    replay = Replay(directory, job.jobid, wanted.has)
    lines = _lines(services, replay, wanted, which.follow and which.format == "jsonl")
    headers = {"Cache-Control": "no-store"}
    if which.format == "gzip":
        name = quote(f"{job.jobid}.jsonl.gz", safe="")
        headers["Content-Disposition"] = f"attachment; filename*=UTF-8''{name}"
        answer = _Stream(_packed(lines), headers=headers, media_type="application/gzip")
    else:
        answer = _Stream(lines, headers=headers, media_type=_LINES)
    answer.streams, answer.replay = streams, replay
    return answer


async def _lines(
    services: Services, replay: Replay, wanted: Wanted, follow: bool
) -> AsyncIterator[bytes]:
    steps = replay.read()
    while True:
        try:
            text, more = await to_thread.run_sync(_some, steps, wanted)
        except OSError:  # the headers are sent: what has come is all there is
            return
        if text:
            yield text
        if more:
            continue
        if not follow or replay.over(services.clock()) or services.clock() > wanted.until:
            return
        await anyio.sleep(_PAUSE_SECONDS)
        steps = replay.read()


def _some(steps: Iterator[Step], wanted: Wanted) -> tuple[bytes, bool]:
    """Some lines, and whether there are more now."""
    found = list(islice(steps, _AT_ONCE))
    text = "".join(
        json.dumps(document(step), separators=(",", ":")) + "\n"
        for step in found
        if wanted.since <= step.sample.at <= wanted.until
    )
    return text.encode(), len(found) == _AT_ONCE


async def _packed(lines: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    packer = zlib.compressobj(6, zlib.DEFLATED, 31)
    async for text in lines:
        if packed := packer.compress(text):
            yield packed
    yield packer.flush()
