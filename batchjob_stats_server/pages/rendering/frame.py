"""Rendering of all pages: templates, headers, the signed-in user, and error pages."""

from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Annotated, Any, Literal, NamedTuple
from urllib.parse import urlencode

import jinja2
from fastapi import Depends, FastAPI, Request
from fastapi.responses import HTMLResponse
from markupsafe import Markup
from starlette.responses import Response

from batchjob import __version__
from batchjob.runtime.formatting import format_exit_code
from batchjob.runtime.json_reader import parse_json
from batchjob.schedulers import registry
from batchjob_stats_server.api.params import PREFIX
from batchjob_stats_server.api.present import Change
from batchjob_stats_server.auth.browser_session import cookie_name, delete_cookie
from batchjob_stats_server.auth.identity import Caller, CurrentCaller, principal_or_none
from batchjob_stats_server.auth.rights import Principal
from batchjob_stats_server.pages.rendering import (
    charts,
    fragments,
    links,
    template_filters,
    usage_bars,
)
from batchjob_stats_server.pages.rendering.assets import Assets
from batchjob_stats_server.report.explain import elapsed_missing, elapsed_seconds
from batchjob_stats_server.services import Services

_POLICY_TEMPLATE = (
    "default-src 'none'; script-src 'self'; style-src 'self'; {styles}"
    "img-src 'self' data:{images}; connect-src 'self'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors "
)
POLICY = _POLICY_TEMPLATE.format(styles="", images="")
# Plotly writes `style` attributes. Its style rules are in our own style sheet (job.html), so that
# neither <style> elements nor inline scripts need to be allowed.
PLOT_POLICY = _POLICY_TEMPLATE.format(styles="style-src-attr 'unsafe-inline'; ", images=" blob:")

ExceptionHandler = Callable[[Request, Any], Awaitable[Response]]


Reckoned = tuple[float, list[Change], list[Markup]]
"""Of the start page: what to change, and the charts; and until when they are shown."""


class PageEnvironment(NamedTuple):
    """What is loaded once per application."""

    templates: jinja2.Environment
    assets: Assets
    reckoned: dict[Hashable, Reckoned]  # by person
    frame_ancestors: str  # sites that may embed our pages in a frame, for Content-Security-Policy

    def headers(self, policy: str) -> dict[str, str]:
        """Headers of every page."""
        return {
            "Content-Security-Policy": policy + self.frame_ancestors,
            # With `no-referrer`, forms on our own pages would send the origin `null`.
            "Referrer-Policy": "same-origin",
        }


def make_environment(ancestors: Sequence[str]) -> PageEnvironment:
    """Read the templates and assets; `ancestors` are origins whose pages may embed ours."""
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
        path=links.path, job_path=links.job_path, reference=links.reference,
        references=links.references, job_bars=usage_bars.job_bars, sums_bar=usage_bars.sums_bar,
        elapsed_seconds=elapsed_seconds, elapsed_missing=elapsed_missing,
        explains_end=registry.explains_end,
        gpu_cell_class=usage_bars.gpu_cell_class, charts=charts,
        fragments=fragments, zones_json=usage_bars.as_json,
        exit_code=format_exit_code,
    )  # fmt: skip
    allowed = ("'self'", *ancestors) if ancestors else ("'none'",)
    return PageEnvironment(templates, assets, {}, " ".join(allowed))


def render_template(template: jinja2.Template, **values: Any) -> str:
    """Render a template, and release its values afterwards.

    A context and the macros of its template refer to each other. With all rows of a page, they
    would stay until the garbage collector runs, which then delays one request in a hundred.
    """
    context = template.new_context(values)
    try:
        return template.environment.concat(template.root_render_func(context))
    finally:
        context.vars.clear()
        context.parent.clear()


@dataclass(frozen=True)
class PageRenderer(Caller):
    """Renders the page for one request of a caller."""

    environment: PageEnvironment
    request: Request
    now: int

    def render(self, template: str, *, uses_plotly: bool = False, **values: Any) -> HTMLResponse:
        """Render the page, which no cache but the browser's may keep."""
        text = render_template(
            self.environment.templates.get_template(template),
            request=self.request,
            principal=self.principal,
            now=self.now,
            page=self,
            plotly_style_ids=self.environment.assets.plotly_style_ids if uses_plotly else (),
            **values,
        )
        return HTMLResponse(
            text, headers=self.environment.headers(PLOT_POLICY if uses_plotly else POLICY)
        )

    def grafana_url(
        self, dashboard: Literal["job", "node"], since: object, until: object, **variables: str
    ) -> str:
        """The address of a dashboard at a time (epoch milliseconds, or `now`), or ""."""
        grafana = self.services.settings.grafana
        uid = grafana.job if dashboard == "job" else grafana.node
        if not (grafana.url and uid):
            return ""
        variables_by_name = {f"var-{name}": value for name, value in variables.items()}
        return grafana.url + links.path(
            "d", uid, **variables_by_name, **{"from": since, "to": until}
        )

    def address(self, **changes: str | None) -> str:
        """The address of this page with changed parameters; None removes one."""
        parameters = self.request.query_params.multi_items()
        kept = [(name, value) for name, value in parameters if name not in changes]
        kept += [(name, value) for name, value in changes.items() if value is not None]
        path = self.request.url.path
        return f"{path}?{urlencode(kept)}" if kept else path


async def _page_renderer(request: Request, caller: CurrentCaller) -> PageRenderer:
    return PageRenderer(
        caller.services, caller.principal, caller.access,
        request.app.state.pages, request, now=int(caller.services.clock()),
    )  # fmt: skip


RequestPage = Annotated[PageRenderer, Depends(_page_renderer)]


def public_page(
    request: Request, template: str, status: int = 200, principal: Principal | None = None,
    **values: Any,
) -> HTMLResponse:  # fmt: skip
    """Render a page that needs no sign-in; signed-in users get the navigation as well."""
    environment: PageEnvironment = request.app.state.pages
    text = render_template(
        environment.templates.get_template(template), request=request, principal=principal,
        status=status, **values,
    )  # fmt: skip
    return HTMLResponse(text, status, environment.headers(POLICY))


def install(app: FastAPI) -> None:
    """Load the templates, and show errors as pages to browsers; API clients get JSON."""
    services: Services = app.state.services
    app.state.pages = make_environment(services.settings.web.frame_ancestors)
    for error, handler in list(app.exception_handlers.items()):
        app.add_exception_handler(error, _with_error_page(handler))


def _with_error_page(handler: Any) -> ExceptionHandler:
    async def handle(request: Request, error: Any) -> Response:
        response: Response = await handler(request, error)
        accepts_html = "text/html" in request.headers.get("accept", "")
        if not accepts_html or request.url.path.startswith(f"{PREFIX}/"):
            return response
        principal = None if response.status_code == 401 else await principal_or_none(request)
        return _error_page(request, response, principal)

    return handle


def _error_page(request: Request, response: Response, principal: Principal | None) -> Response:
    status = response.status_code
    detail = parse_json(bytes(response.body)).get("detail", "")
    # Browsers do not send a SameSite=Strict cookie when they follow a link on another site; when
    # this page reloads itself, they do.
    reloads = status == 401 and request.headers.get("sec-fetch-site") == "cross-site"
    had_token = cookie_name(request) in request.cookies
    services: Services = request.app.state.services
    page = public_page(
        request, "problem.html", status, principal, title=HTTPStatus(status).phrase, detail=detail,
        reloads=reloads, had_token=had_token, provider=services.provider,
    )  # fmt: skip
    for name in ("retry-after", "www-authenticate"):
        if name in response.headers:
            page.headers[name] = response.headers[name]
    if status == 401 and had_token:
        delete_cookie(page, cookie_name(request))
    return page
