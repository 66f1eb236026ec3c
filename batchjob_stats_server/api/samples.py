"""A job's samples as a stream of lines, from the first one on, and as they arrive."""

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Literal, NamedTuple

from fastapi import APIRouter, Response
from fastapi.responses import StreamingResponse
from pydantic import Field
from sqlalchemy.engine import RowMapping

from batchjob.quantities.sample import SampleHeader
from batchjob_stats_db.measure.job_usage import JobToMeasure
from batchjob_stats_db.measure.pending import visible_jobs
from batchjob_stats_db.samples.folder import files_of, folder_of
from batchjob_stats_db.samples.replay import Replay, SamplePair, sample_document
from batchjob_stats_server.api import params as p
from batchjob_stats_server.api.answers import OpenStream, follow, run_in_thread
from batchjob_stats_server.api.jobs import JobId, run_of
from batchjob_stats_server.api.params import PREFIX, InQuery
from batchjob_stats_server.auth.identity import Caller, CurrentCaller
from batchjob_stats_server.auth.rights import log_jobs_seen
from batchjob_stats_server.http.problems import Problem
from batchjob_stats_server.services import Services

router = APIRouter(prefix=PREFIX)

_SAMPLES_PER_CHUNK = 500  # samples per step; other requests are served between two steps
_PAUSE_SECONDS = 1.0
_FIRST_SAMPLE_SECONDS = 60.0  # how long to wait for a running job's first sample
LINES = "application/x-ndjson"

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
    caller: CurrentCaller, jobid: JobId, params: InQuery[SamplesQuery]
) -> Response:
    """The samples of one run of a job, an object each, with rates; empty if there are none."""
    directory = _require_samples(caller.services)
    services = caller.services
    policy, now = services.settings.tsdb.policy(), int(services.clock())

    def find() -> tuple[JobToMeasure, RowMapping] | None:
        with services.reader.connect() as db:
            run = run_of(db, caller.access, jobid, params.cluster, params.run)
            if run is None or run["start_time"] is None:
                return None
            job = visible_jobs(db, caller.access, [run["id"]], policy, now).get(run["id"])
        return (job, run) if job else None  # None: deleted in the meantime

    found = await run_in_thread(caller, find, costly=False)
    if found is None:
        return Response(b"", media_type=LINES)
    job, run = found
    folder = folder_of(directory, job.jobid)
    try:
        await services.threads.files.run(caller.principal.person_key(), partial(files_of, folder))
    except OSError as error:
        raise Problem(503, f"the samples cannot be read: {error.strerror}") from error
    log_jobs_seen(caller.principal, f"samples of job {jobid}", [run])
    return stream_samples(caller, job.jobid, SampleFilter.of(job, params), params)


def _require_samples(services: Services) -> Path:
    """The directory of samples; Problem 503 without one."""
    if not services.settings.samples.directory:
        raise Problem(503, "this server keeps no samples; see jobs/{id}/metrics for measurements")
    return Path(services.settings.samples.directory)


def stream_samples(
    caller: Caller, jobid: str, sample_filter: SampleFilter, params: ChosenSamples
) -> Response:
    """An answer with samples of a job; Problem 503 if this server has no samples at all."""
    directory, user = _require_samples(caller.services), caller.principal.person_key()
    replay = Replay(directory, jobid, sample_filter.accepts)
    counting_replay = Replay(directory, jobid, sample_filter.accepts)
    chunks = _chunks(replay, counting_replay, sample_filter, params, caller.services.clock)
    lines = follow(caller, chunks, _PAUSE_SECONDS)
    return OpenStream(lines, caller.services.streams, user, replay.close, media_type=LINES)


def _chunks(
    replay: Replay, counting_replay: Replay, sample_filter: SampleFilter, params: ChosenSamples,
    clock: Callable[[], float],
) -> Iterator[bytes | None]:  # fmt: skip
    """`counting_replay`: the same samples again, if only the last ones are requested."""
    steps, last_start = replay.read(), clock() + _FIRST_SAMPLE_SECONDS
    if params.limit is not None:
        steps = _keep_last(steps, counting_replay, sample_filter, params.limit)
    beginnings = ("time", "jobid", "node", *_SUBJECTS[params.type]) if params.type else ("",)
    while True:
        while some := list(islice(steps, _SAMPLES_PER_CHUNK)):
            text = ""
            for step in sample_filter.of_time(some):
                document = sample_document(step).items()
                sample = {key: value for key, value in document if key.startswith(beginnings)}
                text += json.dumps(sample, separators=(",", ":")) + "\n"
            yield text.encode()
        now = clock()
        waits = sample_filter.live and not replay.has_samples and now < last_start
        is_over = now > sample_filter.until or (replay.is_over(now) and not waits)
        if is_over or not params.follow:
            return
        yield None
        steps = replay.read()


def _keep_last(
    steps: Iterator[SamplePair], counting_replay: Replay, sample_filter: SampleFilter, limit: int
) -> Iterator[SamplePair]:
    """The latest samples, found by reading twice: a million would not fit into memory."""
    with contextlib.closing(counting_replay):
        number = sum(1 for _ in sample_filter.of_time(counting_replay.read()))
    return islice(sample_filter.of_time(steps), max(0, number - limit), None if limit else 0)
