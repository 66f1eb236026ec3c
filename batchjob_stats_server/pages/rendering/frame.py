"""What all pages share: templates, headers, the signed-in user, and errors as pages."""

import functools
import json
from collections.abc import Awaitable, Callable, Sequence
from http import HTTPStatus
from typing import Annotated, Any, NamedTuple
from urllib.parse import urlencode

import jinja2
from fastapi import Depends, FastAPI, Request
from fastapi.responses import HTMLResponse
from starlette.responses import Response

from batchjob import __version__
from batchjob_stats_server.api import PREFIX
from batchjob_stats_server.api.answers import in_turn
from batchjob_stats_server.auth import cookie
from batchjob_stats_server.auth.identity import Known, cookie_name, known_if_any
from batchjob_stats_server.auth.rights import Principal
from batchjob_stats_server.options import GrafanaOptions
from batchjob_stats_server.pages.rendering import (
    charts,
    fragments,
    links,
    node_cells,
    plot_zones,
    template_filters,
    usage_bars,
)
from batchjob_stats_server.pages.rendering.assets import Assets
from batchjob_stats_server.pages.rendering.day_columns import day_columns
from batchjob_stats_server.pages.rendering.sparklines import Sparklines
from batchjob_stats_server.report.explain import elapsed, no_elapsed, waiting
from batchjob_stats_server.services import Given, Services

_STRICT = (
    "default-src 'none'; script-src 'self'; style-src 'self'; {styles}"
    "img-src 'self' data:{images}; connect-src 'self'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors "
)
POLICY = _STRICT.format(styles="", images="")
# Plotly writes `style` attributes. Its style rules are in our own style sheet (job.html), so that
# neither <style> elements nor inline scripts need to be allowed.
PLOT_POLICY = _STRICT.format(styles="style-src-attr 'unsafe-inline'; ", images=" blob:")

Handler = Callable[[Request, Any], Awaitable[Response]]


class Frame(NamedTuple):
    """Made once for an application."""

    templates: jinja2.Environment
    assets: Assets
    sparks: Sparklines
    ancestors: str  # sites that may embed our pages in a frame, for Content-Security-Policy

    def headers(self, policy: str) -> dict[str, str]:
        """Headers of every page."""
        return {
            "Content-Security-Policy": policy + self.ancestors,
            "Cache-Control": "private, no-store",
            # With `no-referrer`, forms on our own pages would send the origin `null`.
            "Referrer-Policy": "same-origin",
        }


def make(ancestors: Sequence[str]) -> Frame:
    """Read the templates and the assets. `ancestors`: origins whose pages may frame ours."""
    templates = jinja2.Environment(
        loader=jinja2.PackageLoader("batchjob_stats_server.pages"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    assets = Assets()
    templates.filters.update(template_filters.FILTERS)
    templates.globals.update(
        absent=template_filters.absent, static=assets.address, version=__version__, api=PREFIX,
        path=links.path, job_path=links.job, reference=links.reference,
        references=links.references, shares_of=usage_bars.of, used_of=usage_bars.used,
        elapsed_of=elapsed, no_elapsed=no_elapsed, waiting_of=waiting, drawing=charts,
        cell_of=usage_bars.cell, fragments=fragments, zones_json=plot_zones.as_json,
        day_columns=day_columns, node_cells=node_cells,
    )  # fmt: skip
    return Frame(
        templates,
        assets,
        Sparklines(),
        " ".join(("'self'", *ancestors) if ancestors else ("'none'",)),
    )


def rendered(template: jinja2.Template, **values: Any) -> str:
    """The template with these values, which are released afterwards.

    A context and the macros of its template refer to each other: with all rows of a page they would
    stay until the garbage collector runs, which then delays one request in a hundred.
    """
    context = template.new_context(values)
    try:
        return template.environment.concat(template.root_render_func(context))
    finally:
        context.vars.clear()
        context.parent.clear()


class PageRenderer(NamedTuple):
    """Renders the answer to one request."""

    frame: Frame
    request: Request
    known: Principal
    now: int
    grafana: GrafanaOptions
    made_up: str = ""  # name of a demo's cluster

    def show(self, template: str, *, plots: bool = False, **values: Any) -> HTMLResponse:
        """Render the page, which no cache but the browser's may keep."""
        text = rendered(
            self.frame.templates.get_template(template),
            request=self.request,
            known=self.known,
            now=self.now,
            page=self,
            plotly_marks=self.frame.assets.plotly_marks if plots else (),
            **values,
        )
        return HTMLResponse(text, headers=self.frame.headers(PLOT_POLICY if plots else POLICY))

    def in_grafana(self, dashboard: str, since: object, until: object, **variables: str) -> str:
        """The address of a dashboard at a time (epoch milliseconds, or `now`), or ""."""
        if not (self.grafana.url and dashboard):
            return ""
        given = {f"var-{name}": value for name, value in variables.items()}
        where = links.path("d", dashboard, **given, **{"from": since, "to": until})
        return self.grafana.url + where

    def address(self, **changes: str | None) -> str:
        """The address of this page with other parameters; None removes one."""
        given = self.request.query_params.multi_items()
        asked = [(name, value) for name, value in given if name not in changes]
        asked += [(name, value) for name, value in changes.items() if value is not None]
        path = self.request.url.path
        return f"{path}?{urlencode(asked)}" if asked else path


async def _page(request: Request, services: Given, known: Known) -> PageRenderer:
    return PageRenderer(
        request.app.state.pages, request, known, int(services.clock()), services.settings.grafana,
        services.made_up_cluster,
    )  # fmt: skip


Shown = Annotated[PageRenderer, Depends(_page)]


def costly(page: Callable[..., Response]) -> Callable[..., Awaitable[Response]]:
    """A route with expensive queries, which waits in the queue that is fair to users."""

    @functools.wraps(page)
    async def queued(**given: Any) -> Response:
        known: Principal = given["page"].known
        return await in_turn(given["services"], known, lambda: page(**given))

    return queued


def plain(
    request: Request, template: str, status: int = 200, known: Principal | None = None,
    **values: Any,
) -> HTMLResponse:  # fmt: skip
    """A page that needs no sign-in; with the navigation for those who are signed in."""
    frame: Frame = request.app.state.pages
    text = rendered(
        frame.templates.get_template(template), request=request, known=known, status=status,
        **values,
    )  # fmt: skip
    return HTMLResponse(text, status, frame.headers(POLICY))


def install(app: FastAPI) -> None:
    """Show errors as pages to browsers; requests of the API get documents."""
    services: Services = app.state.services
    app.state.pages = make(services.settings.web.frame_ancestors)
    for error, handler in list(app.exception_handlers.items()):
        app.add_exception_handler(error, _shown(handler))


def _shown(handler: Any) -> Handler:
    async def handle(request: Request, error: Any) -> Response:
        answer: Response = await handler(request, error)
        wanted = "text/html" in request.headers.get("accept", "")
        if not wanted or request.url.path.startswith(f"{PREFIX}/"):
            return answer
        known = None if answer.status_code == 401 else await known_if_any(request)
        return _problem(request, answer, known)

    return handle


def _problem(request: Request, answer: Response, known: Principal | None) -> Response:
    status = answer.status_code
    detail = json.loads(bytes(answer.body)).get("detail", "")
    # Browsers do not send a SameSite=Strict cookie when they follow a link on another site; when
    # this page reloads itself, they do.
    again = status == 401 and request.headers.get("sec-fetch-site") == "cross-site"
    had_token = cookie_name(request) in request.cookies
    services: Services = request.app.state.services
    page = plain(
        request, "problem.html", status, known, title=HTTPStatus(status).phrase, detail=detail,
        again=again, had_token=had_token, provider=services.provider,
    )  # fmt: skip
    for name in ("retry-after", "www-authenticate"):
        if name in answer.headers:
            page.headers[name] = answer.headers[name]
    if status == 401 and had_token:
        cookie.forget(request, page)
    return page
