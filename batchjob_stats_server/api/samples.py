"""A job's samples as a stream of lines, from the first one on, and as they arrive."""

import contextlib
import json
import zlib
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple
from urllib.parse import quote

import anyio
from anyio import to_thread
from fastapi import APIRouter, Query, Response
from fastapi.responses import StreamingResponse
from pydantic import Field

from batchjob.quantities.sample import SampleHeader
from batchjob_stats_db.measure.job_usage import JobToMeasure
from batchjob_stats_db.queries.spans import span_of
from batchjob_stats_db.samples.folder import files_of, folder_of
from batchjob_stats_db.samples.rates import document
from batchjob_stats_db.samples.replay import Replay, SamplePair
from batchjob_stats_server.api import PREFIX
from batchjob_stats_server.api import params as p
from batchjob_stats_server.api.jobs import JobId
from batchjob_stats_server.api.runs import run_of
from batchjob_stats_server.auth import audit
from batchjob_stats_server.auth.identity import Caller, Known
from batchjob_stats_server.auth.rights import Principal
from batchjob_stats_server.http.problems import Problem
from batchjob_stats_server.services import Given, Services
from batchjob_stats_server.streams import OpenStream

router = APIRouter(prefix=PREFIX)

_AT_ONCE = 500  # samples per step; other requests are served between two steps
_PAUSE_SECONDS = 1.0
_FIRST_SECONDS = 60.0  # how long to wait for a running job's first sample
LINES = "application/x-ndjson"

Subject = Literal["cpu", "memory", "io", "network", "processes", "gpu", "energy"]
_SUBJECTS: Mapping[Subject, tuple[str, ...]] = {
    "cpu": ("cpu", "executable"),
    "memory": ("memory", "page_faults", "oom"),
    "io": ("io", "process_io"),
    "network": ("network",),
    "processes": ("processes", "threads", "open_files"),
    "gpu": ("gpus",),
    "energy": ("energy", "emissions", "power"),
}
"""Prefixes of the keys of a sample, by subject."""


class ChosenSamples(p.Query):
    """Which samples, and how."""

    since: p.Time | None = None
    until: p.Time | None = None
    type: Subject | None = Field(None, description="Only numbers about this subject; default: all.")
    limit: int | None = Field(
        None, ge=0, le=1_000_000, description="Maximum number of samples; the latest are returned."
    )
    follow: bool = Field(False, description="If true, stream until the job has ended.")
    format: Literal["jsonl", "gzip"] = Field("jsonl", description="JSON lines, or a file of them.")


class SamplesQuery(ChosenSamples):
    """The same of a job, whose id may have been used several times."""

    cluster: p.Word | None = None
    run: int | None = Field(
        None, ge=1, le=2**53, description="`id` of the run; default: the latest."
    )


class SampleFilter(NamedTuple):
    """Whose samples of which time; `live`: more may come though there are none yet."""

    users: frozenset[str]
    since: float
    until: float
    live: bool

    @classmethod
    def of(cls, job: JobToMeasure, which: ChosenSamples) -> "SampleFilter":
        """Samples of the run itself: another user may have had its id before or since."""
        until = job.span.until if job.end is not None else float("inf")
        return cls(
            frozenset(user for user in (job.user, str(job.uid or "")) if user),
            max(job.start, which.since or 0),
            until if which.until is None else min(until, which.until),
            job.end is None,
        )

    def has(self, who: SampleHeader) -> bool:
        """Whether these are the user's."""
        return who.user in self.users

    def of_time(self, steps: Iterable[SamplePair]) -> Iterator[SamplePair]:
        """Samples of the requested time."""
        return (step for step in steps if self.since <= step.sample.at <= self.until)


@router.get(
    "/jobs/{jobid}/samples",
    response_class=StreamingResponse,
    responses={200: {"content": {LINES: {}, "application/gzip": {}}}},
)
def job_samples(
    services: Given, known: Known, access: Caller, jobid: JobId,
    which: Annotated[SamplesQuery, Query()],
) -> Response:  # fmt: skip
    """The samples of one run of a job: an object each, with rates; nothing where there are none."""
    directory = services.settings.samples.directory
    if not directory or services.streams is None:
        raise Problem(503, "this server keeps no samples; see jobs/{id}/metrics for measurements")
    with services.reader.connect() as db:
        run = run_of(db, access, jobid, which.cluster, which.run)
        if run is None or run["start_time"] is None:
            return Response(b"", media_type=LINES)
        policy, now = services.settings.tsdb.policy(), int(services.clock())
        job = span_of(db, access, run["id"], policy, now)
    if job is None:  # deleted in the meantime
        return Response(b"", media_type=LINES)
    try:
        files_of(folder_of(Path(directory), job.jobid))
    except OSError as error:
        raise Problem(503, f"the samples cannot be read: {error.strerror}") from error
    audit.seen(known, f"samples of job {jobid}", [run])
    return streamed(services, known, job.jobid, SampleFilter.of(job, which), which)


def streamed(
    services: Services, known: Principal, jobid: str, wanted: SampleFilter, which: ChosenSamples
) -> Response:
    """An answer with samples of a job; Problem 503 if this server has no samples at all."""
    streams, directory = services.streams, services.settings.samples.directory
    if not directory or streams is None:
        raise Problem(503, "this server keeps no samples; see jobs/{id}/metrics for measurements")
    user = known.who()
    streams.enter(user)
    replay = Replay(Path(directory), jobid, wanted.has)
    counted = Replay(Path(directory), jobid, wanted.has) if which.limit is not None else None

    def end() -> None:
        replay.close()
        streams.leave(user)

    lines = _lines(services, replay, counted, wanted, which)
    headers = {"Cache-Control": "no-store"}
    if which.format == "gzip":
        name = quote(f"{jobid}.jsonl.gz", safe="")
        headers["Content-Disposition"] = f"attachment; filename*=UTF-8''{name}"
        return OpenStream(_packed(lines), end, headers=headers, media_type="application/gzip")
    return OpenStream(lines, end, headers=headers, media_type=LINES)


async def _lines(
    services: Services, replay: Replay, counted: Replay | None, wanted: SampleFilter,
    which: ChosenSamples,
) -> AsyncIterator[bytes]:  # fmt: skip
    """`counted`: the same samples again, if only the last ones are requested."""
    follow = which.follow and which.format == "jsonl"
    begun = services.clock()
    steps = replay.read()
    while True:
        try:
            if counted is not None:
                steps = await to_thread.run_sync(_last, steps, counted, wanted, which.limit or 0)
                counted = None
            text, more = await to_thread.run_sync(_some, steps, wanted, which.type)
        except OSError:  # the headers have been sent, so the answer ends here
            return
        if text:
            yield text
        if more:
            continue
        now = services.clock()
        waits = wanted.live and not replay.begun and now - begun < _FIRST_SECONDS
        if not follow or now > wanted.until or (replay.over(now) and not waits):
            return
        await anyio.sleep(_PAUSE_SECONDS)
        steps = replay.read()


def _last(
    steps: Iterator[SamplePair], counted: Replay, wanted: SampleFilter, limit: int
) -> Iterator[SamplePair]:
    """The latest, found by reading twice: memory would not hold a million."""
    with contextlib.closing(counted):
        number = sum(1 for _ in wanted.of_time(counted.read()))
    return islice(wanted.of_time(steps), max(0, number - limit), None if limit else 0)


def _some(
    steps: Iterator[SamplePair], wanted: SampleFilter, about: Subject | None
) -> tuple[bytes, bool]:
    """Some lines, and whether there are more now."""
    found = list(islice(steps, _AT_ONCE))
    text = "".join(
        json.dumps(_about(document(step), about), separators=(",", ":")) + "\n"
        for step in wanted.of_time(found)
    )
    return text.encode(), len(found) == _AT_ONCE


def _about(made: dict[str, Any], about: Subject | None) -> dict[str, Any]:
    if about is None:
        return made
    beginnings = ("time", "jobid", "node", *_SUBJECTS[about])
    return {key: value for key, value in made.items() if key.startswith(beginnings)}


async def _packed(lines: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    packer = zlib.compressobj(6, zlib.DEFLATED, 31)
    async for text in lines:
        if packed := packer.compress(text):
            yield packed
    yield packer.flush()
