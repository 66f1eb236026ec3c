"""The page on which people choose what they are told, and the link that ends all messages."""

from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import RedirectResponse
from pydantic import ValidationError

from batchjob.judgements import thresholds
from batchjob_stats_db.database import subscriptions as store
from batchjob_stats_server.api import subscriptions as api
from batchjob_stats_server.api.answers import TurnRoute
from batchjob_stats_server.api.params import Word, read_form, require_origin
from batchjob_stats_server.http.invalid import describe_error
from batchjob_stats_server.http.problems import Problem
from batchjob_stats_server.pages.rendering.frame import PageRenderer, RequestPage, public_page
from batchjob_stats_server.services import CurrentServices

router = APIRouter(include_in_schema=False, route_class=TurnRoute)

links = APIRouter(include_in_schema=False)
"""What needs no log-in."""

_FIELDS = tuple(api.NewSubscription.model_fields)


@router.get("/messages")
def messages(page: RequestPage) -> Response:
    """List the caller's subscriptions."""
    return _render(page)


@router.post("/messages")
async def make(page: RequestPage, request: Request) -> Response:
    """Subscribe. The key of a webhook is shown in this response."""
    require_origin(request)
    form = await read_form(request, _FIELDS)
    return await run_in_threadpool(_subscribe, page, form)


@router.post("/messages/{subscription_id}/remove")
def remove(
    page: RequestPage,
    request: Request,
    subscription_id: Annotated[int, Path(ge=1, lt=2**63)],
) -> Response:
    """End a subscription."""
    require_origin(request)
    api.unsubscribe(page, subscription_id)
    return RedirectResponse("/messages", 303)


def _subscribe(page: PageRenderer, form: dict[str, str]) -> Response:
    try:
        new = api.NewSubscription.model_validate(form)
    except ValidationError as error:
        raise Problem(422, "; ".join(map(describe_error, error.errors()))) from error
    return _render(page, api.subscribe(page, new))


def _render(page: PageRenderer, made: api.MadeSubscription | None = None) -> Response:
    return page.render(
        "messages.html", offer=api.read_offer(page.services), made=made,
        subscriptions=api.subscriptions(page), near_limit=thresholds().near_limit,
        clusters=page.principal.clusters,
        accounts=sorted({each.account for each in page.access.accounts}),
    )  # fmt: skip


@links.get("/unsubscribe")
def ask(
    request: Request, services: CurrentServices, user: Annotated[Word, Query()],
    signature: Annotated[Word, Query()],
) -> Response:  # fmt: skip
    """Ask whether to end all messages: mail programs open links by themselves."""
    _check_signature(services, user, signature)
    return public_page(request, "unsubscribe.html", user=user, done=False)


@links.post("/unsubscribe")
def end(
    request: Request, services: CurrentServices, user: Annotated[Word, Query()],
    signature: Annotated[Word, Query()],
) -> Response:  # fmt: skip
    """End all messages to a user, as the link in a message allows without log-in (RFC 8058)."""
    _check_signature(services, user, signature)
    with services.writer.begin() as db:
        store.switch_off(db, user, int(services.clock()))
    return public_page(request, "unsubscribe.html", user=user, done=True)


def _check_signature(services: CurrentServices, user: str, signature: str) -> None:
    with services.reader.connect() as db:
        if not store.is_signed(store.read_site(db), "unsubscribe", user, signature):
            raise Problem(403, "this link is not, or no longer, valid")
