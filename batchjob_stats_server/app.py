"""The application: routes, identity and limits together."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import anyio.to_thread
from fastapi import APIRouter, Depends, FastAPI, params

from batchjob import __version__
from batchjob_stats_db.database.engine import ChangeCounter
from batchjob_stats_server.api import (
    digest,
    jobs,
    local_runs,
    me,
    metrics,
    node_health,
    now,
    prometheus,
    report,
    samples,
    stats,
    subscriptions,
    tokens,
)
from batchjob_stats_server.api.params import PREFIX, refuse_repeated_parameters
from batchjob_stats_server.auth.identity import audit_question
from batchjob_stats_server.http import problems
from batchjob_stats_server.http.middleware import RequestLayer
from batchjob_stats_server.pages import (
    admin,
    clusters,
    job,
    messages,
    nodes,
    search,
    sign_in,
    start,
)
from batchjob_stats_server.pages import help as help_pages
from batchjob_stats_server.pages import jobs as job_pages
from batchjob_stats_server.pages import usage as usage_page
from batchjob_stats_server.pages.rendering import assets, frame
from batchjob_stats_server.services import Services
from batchjob_stats_server.turns import SharedCheck

ROUTERS = (
    me.router,
    metrics.router,  # these three before `jobs/{id}/{part}`, which would match their paths
    report.router,
    samples.router,
    jobs.router,
    stats.router,
    node_health.router,
    digest.router,
    now.router,
    tokens.router,
    subscriptions.router,
    local_runs.router,
)

PAGES = (
    start.router,
    job_pages.router,
    job.router,
    usage_page.router,
    clusters.router,
    admin.router,
    nodes.router,
    search.router,
    help_pages.router,
    messages.router,
    messages.links,
    sign_in.router,
    assets.router,
)


_WITHOUT_JOBS = (
    me.router,
    tokens.router,
    subscriptions.router,
    local_runs.router,
    help_pages.router,
    messages.router,
    messages.links,
    sign_in.router,
    assets.router,
)
"""Nobody asks these about jobs of others; runs and tokens have audit lines of their own."""


def _dependencies(router: APIRouter) -> list[params.Depends]:
    """What comes before each route of a router."""
    before = [Depends(refuse_repeated_parameters)]
    return before if router in _WITHOUT_JOBS else [*before, Depends(audit_question)]


def make(services: Services) -> FastAPI:
    """A new application; it starts and stops the services."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        light = anyio.to_thread.current_default_thread_limiter()
        light.total_tokens = services.threads.light.capacity()
        services.threads.light.share_threads(light)  # they also identify callers
        services.metrics.watch_threads(light, services.threads.light, services.threads.heavy)
        services.factors.start()
        try:
            yield
        finally:
            app.state.changes.close()
            services.stop()

    app = FastAPI(
        title="batchjob",
        version=__version__,
        lifespan=lifespan,
        openapi_url=f"{PREFIX}/openapi.json",
        docs_url=None,  # that page loads scripts from another site; api/me.py does not
        redoc_url=None,
        generate_unique_id_function=lambda route: route.name,
        # FastAPI would report requests to whatever OpenTelemetry finds in the environment.
        telemetry={"tracing": False, "metrics": False, "logs": False, "auto_configure": False},
    )
    app.state.services = services
    app.state.known_callers = {}
    app.state.changes = ChangeCounter(services.reader.url)
    app.state.readiness = SharedCheck(partial(me.readiness_problem, services))
    app.state.samples = SharedCheck(services.samples_problem)
    me.install(app)
    problems.install(app)
    prometheus.install(app)
    frame.install(app)
    # Routes are tried in this order, and those for dashboard panels are requested most often.
    app.include_router(prometheus.router, responses=problems.RESPONSES)
    app.include_router(me.health)
    app.include_router(me.docs)
    for router in ROUTERS:
        app.include_router(router, responses=problems.RESPONSES, dependencies=_dependencies(router))
    if services.provider:
        # Imports OAuth and HTTP clients, which only this needs.
        from batchjob_stats_server.pages import log_in

        app.include_router(log_in.router, dependencies=[Depends(refuse_repeated_parameters)])
    for router in PAGES:
        app.include_router(router, dependencies=_dependencies(router))
    for router in (me.health, prometheus.router, me.docs, *ROUTERS, *PAGES):
        services.metrics.start_requests(router.routes)
    app.add_middleware(RequestLayer, services=services, redirect=sign_in.token_in_address)
    return app
