"""The caller's API tokens: create one, which is shown once, list and revoke them."""

from typing import Annotated

from fastapi import APIRouter, Path, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import RedirectResponse
from pydantic import ValidationError

from batchjob_stats_db.database import tokens as token_table
from batchjob_stats_db.days import DAY
from batchjob_stats_server.api import tokens as api
from batchjob_stats_server.api.answers import TurnRoute
from batchjob_stats_server.api.params import read_form, require_origin
from batchjob_stats_server.auth.rights import Principal
from batchjob_stats_server.http.invalid import describe_error
from batchjob_stats_server.http.problems import Problem
from batchjob_stats_server.pages.rendering.frame import PageRenderer, RequestPage

router = APIRouter(include_in_schema=False, route_class=TurnRoute)

_LIFETIMES = (1, 7, 30, 90, 365)  # days


@router.get("/tokens")
def tokens(page: RequestPage) -> Response:
    """List the tokens."""
    return _render_tokens(page)


@router.post("/tokens")
async def make(page: RequestPage, request: Request) -> Response:
    """Create a token. Its text is shown only in this response."""
    require_origin(request)
    form = await read_form(request, _form_fields(page.principal))
    return await run_in_threadpool(_create_token, page, form)


@router.post("/tokens/{token_id}/revoke")
def revoke(
    page: RequestPage,
    request: Request,
    token_id: Annotated[int, Path(ge=1, lt=2**63)],
) -> Response:
    """Revoke a token, and the tokens that were created with it."""
    require_origin(request)
    api.revoke_token(page, token_id)
    return RedirectResponse("/tokens", 303)


def _form_fields(principal: Principal) -> list[str]:
    """What the page asks for; other fields of a token are for programs."""
    fields = ["label", "days"]
    if len(api.grantable_roles(principal)) > 1:
        fields.append("role")
    if len(principal.clusters) > 1:
        fields.append("cluster")
    return fields


def _create_token(page: PageRenderer, form: dict[str, str]) -> Response:
    try:
        days = int(form.pop("days", ""))
        new_token = api.NewToken.model_validate({**form, "lifetime_seconds": days * DAY})
    except ValidationError as error:
        raise Problem(422, "; ".join(map(describe_error, error.errors()))) from error
    except ValueError as error:
        raise Problem(422, "days: expected a whole number") from error
    return _render_tokens(page, api.make_token(page, Response(), new_token))


def _render_tokens(page: PageRenderer, created_token: api.MadeToken | None = None) -> Response:
    principal = page.principal
    with page.services.reader.connect() as db:
        listed_tokens = token_table.list_tokens(db, principal.user, principal.clusters)
    longest = int(page.services.settings.auth.longest_token)
    return page.render(
        "tokens.html", tokens=listed_tokens, created_token=created_token,
        roles=api.grantable_roles(principal), fields=_form_fields(principal),
        lifetimes=[days for days in _LIFETIMES if days * DAY <= longest] or [longest // DAY or 1],
    )  # fmt: skip
