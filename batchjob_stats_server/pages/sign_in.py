"""Sign-in with a token, from the address of a link or from a form; it begins a session."""

import re
from urllib.parse import parse_qsl, urlencode

from fastapi import APIRouter, Request
from fastapi.responses import RedirectResponse, Response
from starlette.requests import HTTPConnection
from starlette.types import Scope

from batchjob_stats_db.database import sessions
from batchjob_stats_server.api.params import PREFIX, read_form, refuse_other_fields
from batchjob_stats_server.auth.browser_session import (
    cookie_name,
    delete_cookie,
    seal,
    session_cookie,
    set_session,
)
from batchjob_stats_server.http.problems import Problem
from batchjob_stats_server.pages.rendering.frame import public_page
from batchjob_stats_server.pages.rendering.links import local_path
from batchjob_stats_server.services import CurrentServices

TOKEN = re.compile(r"bj_[A-Za-z0-9_-]{20,100}")
_PARAMETER = "token"

router = APIRouter(include_in_schema=False)


def token_in_address(scope: Scope) -> Response | None:
    """Exchange `?token=` in a page's address for a session, and redirect to the address without it.

    The token then appears in no history, bookmark or log. Only addresses that were typed, pasted or
    opened from outside a browser are accepted: a link on another site could sign people in as
    another user. Browsers report it over TLS and on loopback (Sec-Fetch-Site). Over plain HTTP
    elsewhere it is unknown, so users enter the token into the form.
    """
    is_page = scope["method"] == "GET" and not scope["path"].startswith(PREFIX)
    if not is_page or _PARAMETER.encode() not in scope["query_string"]:
        return None
    connection = HTTPConnection(scope)
    parameters = parse_qsl(connection.url.query, keep_blank_values=True)
    tokens = [value for name, value in parameters if name == _PARAMETER]
    if not tokens:
        return None
    query = urlencode([pair for pair in parameters if pair[0] != _PARAMETER])
    path = connection.url.path.lstrip("/")  # a leading `//` would mean another host
    response = RedirectResponse(f"/{path}?{query}" if query else f"/{path}", 303)
    is_typed = connection.headers.get("sec-fetch-site") in ("none", "same-origin")
    if is_typed and len(tokens) == 1 and TOKEN.fullmatch(tokens[0]):
        set_session(connection, response, seal(tokens[0], connection))
    return response


@router.post("/sign-in")
async def sign_in(request: Request) -> Response:
    """Begin a session with the token of the form; the next page shows whether it is valid."""
    form = await read_form(request)
    refuse_other_fields(form, (_PARAMETER, "next"))
    token = form.get(_PARAMETER, "").strip()
    if not TOKEN.fullmatch(token):
        raise Problem(422, "token: expected a token that begins with bj_")
    response = RedirectResponse(local_path(form.get("next", "/")), 303)
    set_session(request, response, seal(token, request))
    return response


@router.post("/sign-out")
def sign_out(request: Request, services: CurrentServices) -> Response:
    """End the session of this browser; the token stays valid until it is revoked.

    Users who logged in are logged out everywhere: in all browsers, and at the provider.
    """
    cookie_value, has_ended_sessions = session_cookie(request), False
    if cookie_value.startswith(sessions.PREFIX):
        with services.writer.begin() as db:
            user = sessions.user_of(db, cookie_value, int(services.clock()))
            has_ended_sessions = user is not None and sessions.end_all(db, user) > 0
    # Browsers do not let a form redirect to another site (form-action), so a page of ours does it.
    response = RedirectResponse(
        "/signed-out?provider=too" if has_ended_sessions else "/signed-out", 303
    )
    delete_cookie(response, cookie_name(request))
    return response


@router.get("/signed-out")
def signed_out(request: Request, services: CurrentServices, provider: str = "") -> Response:
    """Confirm the sign-out, and end the session at the provider; needs no sign-in."""
    address = services.provider.logout_url() if services.provider and provider else ""
    return public_page(
        request, "signed_out.html", provider=services.provider, provider_address=address
    )
