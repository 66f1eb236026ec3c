"""The present: what running jobs use now, and a person's jobs as text for a terminal."""

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial

from fastapi import APIRouter, Response
from fastapi.responses import PlainTextResponse
from pydantic import BaseModel, Field

from batchjob_stats_db.measure.current_use import CurrentUse, current_use
from batchjob_stats_db.measure.job_usage import JobToMeasure
from batchjob_stats_db.timeseries.base import TimeSeriesError, TimeSeriesStore
from batchjob_stats_server.api import present
from batchjob_stats_server.api.answers import run_in_thread
from batchjob_stats_server.api.params import PREFIX, InQuery, QueryParams, Word
from batchjob_stats_server.auth.identity import Caller, CurrentCaller
from batchjob_stats_server.auth.rights import log_jobs_seen
from batchjob_stats_server.report.forms import document_as_text

router = APIRouter(prefix=PREFIX)

_STORE_SECONDS = 1.0  # how long an answer waits for measurements


class CurrentUseQuery(QueryParams):
    """Selects running jobs."""

    user: Word | None = None


class CurrentUseRow(BaseModel):
    """What a running job uses, as a mean of the last three minutes, on all its nodes."""

    id: int
    cluster: str
    jobid: str
    cpus: float | None = Field(description="CPUs in use.")
    memory_bytes: float | None
    gpu_utilization_ratio: float | None
    sample_time: int = Field(description="Of the last sample, in epoch milliseconds.")


@router.get("/current-use")
async def current_uses(
    caller: CurrentCaller, params: InQuery[CurrentUseQuery]
) -> list[CurrentUseRow]:
    """The newest running jobs, at most 200; without those that have no sample in this time."""
    found = await gather(caller, params.user)
    log_jobs_seen(caller.principal, "current use", found.running)
    return [
        CurrentUseRow(**present.use_row(row, use))
        for row in found.running
        if (use := found.use.get(row["id"]))
    ]


@router.get("/now", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
async def now(caller: CurrentCaller, _query: InQuery[QueryParams]) -> Response:
    """The caller's jobs as text: what runs, waits and failed, and what to change."""
    found = await gather(caller, caller.principal.user)
    log_jobs_seen(caller.principal, "jobs", [*found.running, *found.ended])
    find = partial(present.find_changes, caller.services, caller.access, found.ended)
    found = found._replace(changes=await run_in_thread(caller, find, costly=True))
    return PlainTextResponse(document_as_text(present.document(found)))


async def gather(caller: Caller, user: str | None) -> present.Present:
    """See `present.gather`; with what the running jobs use now."""
    work = partial(present.gather, caller.services, caller.access, user)
    found = await run_in_thread(caller, work, costly=False)
    return found._replace(use=await _measure(caller, found.to_measure, found.now))


async def _measure(
    caller: Caller, jobs: Sequence[JobToMeasure], now: int
) -> Mapping[int, CurrentUse]:
    """What jobs use now; nothing if the store of measurements is slow or fails."""
    services = caller.services
    if not jobs or not services.stores.has_store:
        return {}
    interval = services.settings.tsdb.scrape_interval

    def work(store: TimeSeriesStore) -> Mapping[int, CurrentUse]:
        return current_use(store, jobs, interval, now)

    measuring = asyncio.ensure_future(services.stores.run(caller.principal.person_key(), work))
    try:
        return await asyncio.wait_for(asyncio.shield(measuring), _STORE_SECONDS)
    except (TimeoutError, TimeSeriesError):
        return {}
