"""The caller's API tokens: create one, which is shown once, list and revoke them."""

from typing import Annotated
from urllib.parse import parse_qsl

from fastapi import APIRouter, Path, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import RedirectResponse
from pydantic import ValidationError

from batchjob_stats_db.database import tokens as kept
from batchjob_stats_db.database.tokens import TokenRole
from batchjob_stats_db.days import DAY
from batchjob_stats_server.api import tokens as api
from batchjob_stats_server.http.invalid import sentence
from batchjob_stats_server.http.problems import Problem
from batchjob_stats_server.pages.rendering.frame import PageRenderer, Shown
from batchjob_stats_server.services import Given, Services

router = APIRouter(include_in_schema=False)

_LIFETIMES = (1, 7, 30, 90, 365)  # days


@router.get("/tokens")
def tokens(services: Given, page: Shown) -> Response:
    """List the tokens."""
    return _shown(services, page)


@router.post("/tokens")
async def make(services: Given, page: Shown, request: Request) -> Response:
    """Create one, and show its text this once."""
    _only_from_our_pages(request)
    form = dict(parse_qsl((await request.body()).decode("utf-8", "replace")))
    return await run_in_threadpool(_made, services, page, form)


@router.post("/tokens/{token_id}/revoke")
def revoke(
    services: Given, page: Shown, request: Request, token_id: Annotated[int, Path(ge=1, lt=2**63)]
) -> Response:
    """Revoke one, and those made with it."""
    _only_from_our_pages(request)
    api.revoke_token(services, page.known, token_id)
    return RedirectResponse("/tokens", 303)


def _only_from_our_pages(request: Request) -> None:
    """A browser sends the origin of a form, which was compared with ours before (TrustedHosts).

    So a proxy's or provider's log-in, which a browser sends by itself, is not enough.
    """
    if "origin" not in request.headers:
        raise Problem(403, "expected a form of this server; programs use the API")


def _made(services: Services, page: PageRenderer, form: dict[str, str]) -> Response:
    try:
        days = int(form.pop("days", ""))
        wanted = api.NewToken.model_validate({**form, "lifetime_seconds": days * DAY})
    except ValidationError as error:
        raise Problem(422, "; ".join(map(sentence, error.errors()))) from error
    except ValueError as error:
        raise Problem(422, "days: expected a whole number") from error
    made = api.make_token(services, page.known, Response(), wanted)
    return _shown(services, page, made)


def _shown(services: Services, page: PageRenderer, made: api.MadeToken | None = None) -> Response:
    known = page.known
    with services.reader.connect() as db:
        found = kept.listed(db, known.user, known.clusters)
    longest = int(services.settings.auth.longest_token)
    return page.show(
        "tokens.html", tokens=found, made=made, roles=_roles(known.role),
        lifetimes=[days for days in _LIFETIMES if days * DAY <= longest] or [longest // DAY or 1],
    )  # fmt: skip


def _roles(role: TokenRole) -> list[TokenRole]:
    """The roles that one of this role may give to a token."""
    return [each for each in TokenRole if role is TokenRole.ADMIN or each in (TokenRole.USER, role)]
