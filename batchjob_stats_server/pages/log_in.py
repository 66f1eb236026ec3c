"""Log-in through the site's OpenID provider: redirect, callback, and log-out."""

from fastapi import APIRouter, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import RedirectResponse, Response

from batchjob.runtime.logins import is_login
from batchjob_stats_db.database import sessions
from batchjob_stats_server.api.params import read_form
from batchjob_stats_server.auth import browser_session, oidc
from batchjob_stats_server.auth.rights import audit_log
from batchjob_stats_server.http.problems import Problem
from batchjob_stats_server.pages.rendering.frame import public_page
from batchjob_stats_server.pages.rendering.links import local_path
from batchjob_stats_server.services import CurrentServices, Services

router = APIRouter(include_in_schema=False)


def _provider(services: Services) -> oidc.OidcProvider:
    if services.provider is None:
        raise Problem(404, "no provider is configured")
    return services.provider


def _count_failure(services: Services, error: oidc.OidcError) -> Problem:
    services.metrics.refused.labels("log-in").inc()
    audit_log.info("a log-in failed: %s", error)
    if isinstance(error, oidc.ProviderUnreachableError):
        return Problem(503, str(error))
    return Problem(403, str(error))


@router.get("/oidc/log-in")
def log_in(request: Request, services: CurrentServices, next: str = "/") -> Response:
    """Redirect the browser to the provider."""
    provider = _provider(services)
    try:
        address, pending_login = provider.begin(local_path(next))
    except oidc.OidcError as error:
        raise _count_failure(services, error) from error
    response = RedirectResponse(address, 303)
    browser_session.set_pending(request, response, pending_login.encode())
    return response


@router.get(oidc.CALLBACK_PATH)
def logged_in(request: Request, services: CurrentServices) -> Response:
    """Handle the provider's callback, and begin a session."""
    provider = _provider(services)
    pending_name = browser_session.pending_name(request)
    try:
        pending_login = oidc.parse_pending_login(request.cookies.get(pending_name, ""))
        user, groups, at_provider = provider.finish(pending_login, dict(request.query_params))
        if not is_login(user):
            raise oidc.OidcError(f"expected a login from the provider, got {user[:80]!r}")
    except oidc.OidcError as error:
        raise _count_failure(services, error) from error
    now = int(services.clock())
    end = now + int(services.settings.oidc.session)
    with services.writer.begin() as db:
        session_token = sessions.begin(db, user, groups, at_provider, now, end)
    audit_log.info("%s logged in", user)
    # After a redirect from another site, browsers do not send a SameSite=Strict cookie; after a
    # page of ours, they do.
    response = public_page(request, "logged_in.html", next=local_path(pending_login.next))
    browser_session.delete_cookie(response, pending_name)
    browser_session.set_session(request, response, session_token)
    return response


@router.post("/oidc/back-channel-log-out")
async def back_channel(request: Request, services: CurrentServices) -> Response:
    """End sessions that ended at the provider (OpenID Connect Back-Channel Logout 1.0)."""
    provider = _provider(services)
    form = await read_form(request)

    def end() -> int:
        ended = provider.verify_logout_token(form.get("logout_token", ""))
        with services.writer.begin() as db:
            return sessions.end_at_provider(db, ended)

    try:
        await run_in_threadpool(end)
    except oidc.ProviderUnreachableError as error:
        raise _count_failure(services, error) from error
    except oidc.OidcError as error:
        raise Problem(400, str(error)) from error
    return Response(status_code=200)
