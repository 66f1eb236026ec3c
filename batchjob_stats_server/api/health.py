"""Health and readiness, which are open to everybody, and the server's own metrics."""

import logging

from fastapi import APIRouter, Request
from fastapi.responses import PlainTextResponse, Response

from batchjob_stats_db.database.engine import DatabaseError
from batchjob_stats_db.database.revision import require_current
from batchjob_stats_db.poller.health import exposition
from batchjob_stats_server.api.params import PREFIX
from batchjob_stats_server.auth.identity import Scraper
from batchjob_stats_server.services import CurrentServices, Services

log = logging.getLogger(__name__)

router = APIRouter(include_in_schema=False)


@router.api_route("/-/healthy", methods=["GET", "HEAD"])
async def healthy() -> PlainTextResponse:
    """The event loop answers, also while all threads wait for the database."""
    return PlainTextResponse("ok\n")


@router.api_route("/-/ready", methods=["GET", "HEAD"])
@router.api_route(f"{PREFIX}/ready", methods=["GET", "HEAD"], name="ready_for_data_sources")
async def ready(request: Request) -> PlainTextResponse:
    """The database and the file system of samples answer, and have what this server needs.

    Grafana's data sources request nothing outside of the address that they are given.
    """
    problem = await request.app.state.readiness.problem()
    return PlainTextResponse(f"{problem or 'ok'}\n", 503 if problem else 200)


def readiness_problem(services: Services) -> str:
    try:
        require_current(services.reader)
    except DatabaseError as error:
        # Contains the database's address, which not every caller may see.
        log.warning("not ready: %s", error)
        return "the database is not ready"
    if not services.has_samples_directory():
        log.warning("not ready: samples.directory: %s", services.samples_problem())
        return "the directory of samples is absent"
    return ""


@router.get("/metrics")
def metrics(request: Request, services: CurrentServices, _: Scraper) -> Response:
    """Metrics of the server itself; they contain no personal data."""
    accept = request.headers.get("accept", "")
    content_type, body = exposition(services.metrics.registry, accept)
    return Response(body, headers={"Content-Type": content_type})
