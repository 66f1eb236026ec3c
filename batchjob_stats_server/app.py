"""The application: routes, identity and limits put together."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio.to_thread
from fastapi import Depends, FastAPI

from batchjob import __version__
from batchjob_stats_server import openapi, problems
from batchjob_stats_server.limits import Bounded, Counted, Throttled, Timely
from batchjob_stats_server.once import once
from batchjob_stats_server.origins import OwnNames, allowed_hosts
from batchjob_stats_server.pages import (
    assets,
    clusters,
    compare,
    frame,
    job,
    nodes,
    search,
    session,
)
from batchjob_stats_server.pages import jobs as job_pages
from batchjob_stats_server.pages import usage as usage_page
from batchjob_stats_server.revalidation import Revalidated
from batchjob_stats_server.routes import (
    PREFIX,
    docs,
    factors,
    groups,
    health,
    jobs,
    me,
    metrics,
    people,
    prometheus,
    report,
    samples,
    stats,
    tokens,
    usage,
)
from batchjob_stats_server.services import Services

_QUEUE_SECONDS = 15.0  # a request may wait so long for a thread to answer it

ROUTERS = (
    jobs.lists,  # they are looked at in turn, and this one is asked for most
    me.router,
    metrics.router,  # before the parts of jobs, which would take its path
    report.router,
    samples.router,  # as well
    jobs.router,
    groups.router,
    stats.router,
    people.router,
    usage.router,
    tokens.router,
    factors.router,
    prometheus.router,
)

PAGES = (
    job_pages.router,
    job.router,
    compare.router,
    usage_page.router,
    clusters.router,
    nodes.router,
    search.router,
    session.router,
    assets.router,
)


def make(services: Services) -> FastAPI:
    """An application of its own; it starts and stops the services."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        light = anyio.to_thread.current_default_thread_limiter()
        light.total_tokens = services.threads.light
        services.metrics.watch_threads(light, services.threads.heavy)
        services.start()
        try:
            yield
        finally:
            app.state.pages.sparks.stop()
            services.stop()

    app = FastAPI(
        title="batchjob",
        version=__version__,
        lifespan=lifespan,
        openapi_url=f"{PREFIX}/openapi.json",
        docs_url=None,  # that page loads its scripts from elsewhere; routes/docs.py does not
        redoc_url=None,
        generate_unique_id_function=lambda route: route.name,
    )
    app.state.services = services
    openapi.install(app)
    problems.install(app)
    prometheus.install(app)
    frame.install(app)
    app.include_router(health.router)
    app.include_router(docs.router)
    for router in ROUTERS:
        app.include_router(router, responses=problems.RESPONSES, dependencies=[Depends(once)])
    for router in PAGES:
        app.include_router(router, dependencies=[Depends(once)])
    auth = services.settings.auth
    app.add_middleware(session.TokenInAddress)
    app.add_middleware(OwnNames, hosts=allowed_hosts(services.settings.web))
    app.add_middleware(Revalidated, vary=("Authorization", auth.user_header, "Cookie"))
    app.add_middleware(Bounded)
    app.add_middleware(Throttled, services=services)
    longest = max(services.settings.web.query_timeout, services.settings.gate.timeout)
    app.add_middleware(Timely, seconds=longest + _QUEUE_SECONDS)
    app.add_middleware(Counted, metrics=services.metrics)
    return app
