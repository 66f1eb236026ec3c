"""A job's samples as a stream of lines, from the first one on, and as they arrive."""

import contextlib
import json
from collections.abc import AsyncIterator, Callable, Hashable, Iterable, Iterator, Mapping
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import anyio
from fastapi import APIRouter, Query, Response
from fastapi.responses import StreamingResponse
from pydantic import Field
from sqlalchemy.engine import Connection, RowMapping
from starlette.types import Receive, Scope, Send

from batchjob.quantities.sample import SampleHeader
from batchjob_stats_db.measure.job_usage import JobToMeasure
from batchjob_stats_db.measure.pending import visible_jobs
from batchjob_stats_db.samples.folder import files_of, folder_of
from batchjob_stats_db.samples.replay import Replay, SamplePair, sample_document
from batchjob_stats_server.api import params as p
from batchjob_stats_server.api.answers import query_database, run_in_turn
from batchjob_stats_server.api.params import PREFIX
from batchjob_stats_server.api.runs import JobId, run_of
from batchjob_stats_server.auth import audit
from batchjob_stats_server.auth.identity import Caller, CurrentCaller
from batchjob_stats_server.http.problems import Problem
from batchjob_stats_server.promql.query_limits import TooMany, Unavailable
from batchjob_stats_server.services import Services
from batchjob_stats_server.turns import Turns

router = APIRouter(prefix=PREFIX)

_SAMPLES_PER_CHUNK = 500  # samples per step; other requests are served between two steps
_PAUSE_SECONDS = 1.0
_FIRST_SAMPLE_SECONDS = 60.0  # how long to wait for a running job's first sample
LINES = "application/x-ndjson"
_RETRY_HEADERS = {"Retry-After": "30"}

Subject = Literal["cpu", "memory", "io", "network", "processes", "gpu", "energy"]
_SUBJECTS: Mapping[Subject, tuple[str, ...]] = {
    "cpu": ("cpu",),
    "memory": ("memory", "page_faults", "oom"),
    "io": ("io", "process_io"),
    "network": ("network",),
    "processes": ("processes", "threads", "open_files"),
    "gpu": ("gpus",),
    "energy": ("energy", "emissions", "power"),
}
"""Prefixes of the keys of a sample, by subject."""


class ChosenSamples(p.QueryParams):
    """Selects samples by time and subject."""

    since: p.Time | None = None
    until: p.Time | None = None
    type: Subject | None = Field(None, description="Only numbers about this subject; default: all.")
    limit: int | None = Field(
        None, ge=0, le=1_000_000, description="Maximum number of samples; the latest are returned."
    )
    follow: bool = Field(False, description="If true, stream until the job has ended.")


class SamplesQuery(ChosenSamples, p.RunParams):
    """Selects samples of one run of a job."""


class SampleFilter(NamedTuple):
    """Selects samples by user and time.

    With `live`, an empty result is not an error: more may follow.
    """

    users: frozenset[str]
    since: float
    until: float
    live: bool

    @classmethod
    def of(cls, job: JobToMeasure, params: ChosenSamples) -> "SampleFilter":
        """Samples of the run itself: another user may have had its id before or since."""
        until = job.window.until if job.end is not None else float("inf")
        return cls(
            frozenset(user for user in (job.user, str(job.uid or "")) if user),
            max(job.start, params.since or 0),
            until if params.until is None else min(until, params.until),
            job.end is None,
        )

    def accepts(self, who: SampleHeader) -> bool:
        return who.user in self.users

    def of_time(self, steps: Iterable[SamplePair]) -> Iterator[SamplePair]:
        return (step for step in steps if self.since <= step.sample.at <= self.until)


@router.get(
    "/jobs/{jobid}/samples",
    response_class=StreamingResponse,
    responses={200: {"content": {LINES: {}}}},
)
async def job_samples(
    caller: CurrentCaller, jobid: JobId, params: Annotated[SamplesQuery, Query()],
) -> Response:  # fmt: skip
    """The samples of one run of a job, an object each, with rates; empty if there are none."""
    directory = _require_samples(caller.services)
    services = caller.services
    policy, now = services.settings.tsdb.policy(), int(services.clock())

    def find(db: Connection) -> tuple[JobToMeasure, RowMapping] | None:
        run = run_of(db, caller.access, jobid, params.cluster, params.run)
        if run is None or run["start_time"] is None:
            return None
        job = visible_jobs(db, caller.access, [run["id"]], policy, now).get(run["id"])
        return (job, run) if job else None  # None: deleted in the meantime

    found = await query_database(caller, find, costly=False)
    if found is None:
        return Response(b"", media_type=LINES)
    job, run = found
    folder = folder_of(directory, job.jobid)
    try:
        await run_in_turn(services.threads.files, caller, partial(files_of, folder))
    except OSError as error:
        raise Problem(503, f"the samples cannot be read: {error.strerror}") from error
    audit.log_jobs_seen(caller.principal, f"samples of job {jobid}", [run])
    return stream_samples(caller, job.jobid, SampleFilter.of(job, params), params)


def _require_samples(services: Services) -> Path:
    """The directory of samples; Problem 503 without one."""
    if not services.settings.samples.directory:
        raise Problem(503, "this server keeps no samples; see jobs/{id}/metrics for measurements")
    return Path(services.settings.samples.directory)


def stream_samples(
    caller: Caller,
    jobid: str,
    sample_filter: SampleFilter,
    params: ChosenSamples,
) -> Response:
    """An answer with samples of a job; Problem 503 if this server has no samples at all."""
    directory, user = _require_samples(caller.services), caller.principal.person_key()
    replay = Replay(directory, jobid, sample_filter.accepts)
    counting_replay = (
        None if params.limit is None else Replay(directory, jobid, sample_filter.accepts)
    )

    lines = _lines(caller, replay, counting_replay, sample_filter, params)
    return OpenStream(
        lines, caller.services.streams, user, replay.close,
        headers={"Cache-Control": "no-store"}, media_type=LINES,
    )  # fmt: skip


class OpenStream(StreamingResponse):
    """A streamed answer, of which there is a limited number: each holds a connection.

    `end` is called however it ends.
    """

    def __init__(
        self,
        lines: AsyncIterator[bytes],
        turns: Turns,
        user: Hashable,
        end: Callable[[], None] = lambda: None,
        **options: Any,
    ) -> None:
        super().__init__(lines, **options)
        self._turns, self._user, self._end = turns, user, end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the lines as they arrive; raises Problem 429 or 503 if too many streams are open."""
        with contextlib.ExitStack() as stack:
            stack.callback(self._end)
            try:
                self._turns.take_now(self._user)
            except TooMany as error:
                raise Problem(429, str(error), _RETRY_HEADERS) from error
            except Unavailable as error:
                raise Problem(503, str(error), _RETRY_HEADERS) from error
            stack.callback(self._turns.release, self._user)
            await super().__call__(scope, receive, send)


async def _lines(
    caller: Caller, replay: Replay, counting_replay: Replay | None,
    sample_filter: SampleFilter, params: ChosenSamples,
) -> AsyncIterator[bytes]:  # fmt: skip
    """`counting_replay`: the same samples again, if only the last ones are requested."""
    services = caller.services
    files, start = services.threads.files, services.clock()
    steps = replay.read()
    while True:
        try:
            if counting_replay is not None:
                steps = await run_in_turn(files, caller, partial(
                    _keep_last, steps, counting_replay, sample_filter, params.limit or 0
                ))  # fmt: skip
                counting_replay = None
            text, more = await run_in_turn(
                files, caller, partial(_read_chunk, steps, sample_filter, params.type)
            )
        except OSError:  # the headers have been sent, so the answer ends here
            return
        if text:
            yield text
        if more:
            continue
        now = services.clock()
        waits = (
            sample_filter.live and not replay.has_samples and now - start < _FIRST_SAMPLE_SECONDS
        )
        if not params.follow or now > sample_filter.until or (replay.is_over(now) and not waits):
            return
        await anyio.sleep(_PAUSE_SECONDS)
        steps = replay.read()


def _keep_last(
    steps: Iterator[SamplePair], counting_replay: Replay, sample_filter: SampleFilter, limit: int
) -> Iterator[SamplePair]:
    """The latest samples, found by reading twice: a million would not fit into memory."""
    with contextlib.closing(counting_replay):
        number = sum(1 for _ in sample_filter.of_time(counting_replay.read()))
    return islice(sample_filter.of_time(steps), max(0, number - limit), None if limit else 0)


def _read_chunk(
    steps: Iterator[SamplePair], sample_filter: SampleFilter, subject: Subject | None
) -> tuple[bytes, bool]:
    """The next lines, and whether there are more now."""
    chunk = list(islice(steps, _SAMPLES_PER_CHUNK))
    text = "".join(
        json.dumps(_filter_keys(sample_document(step), subject), separators=(",", ":")) + "\n"
        for step in sample_filter.of_time(chunk)
    )
    return text.encode(), len(chunk) == _SAMPLES_PER_CHUNK


def _filter_keys(sample: dict[str, Any], subject: Subject | None) -> dict[str, Any]:
    if subject is None:
        return sample
    beginnings = ("time", "jobid", "node", *_SUBJECTS[subject])
    return {key: value for key, value in sample.items() if key.startswith(beginnings)}
