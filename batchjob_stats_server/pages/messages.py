"""The pages on which people choose what they are told, and make and revoke their API tokens.

With the link that ends all messages, which needs no log-in.
"""

from collections.abc import Mapping
from typing import Any, TypeVar

from fastapi import APIRouter, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import RedirectResponse
from pydantic import BaseModel, ValidationError

from batchjob.judgements import thresholds
from batchjob_stats_db.database import subscriptions as store
from batchjob_stats_db.database import tokens as token_table
from batchjob_stats_db.days import DAY
from batchjob_stats_server.api import subscriptions as api
from batchjob_stats_server.api import tokens as tokens_api
from batchjob_stats_server.api.answers import TurnRoute
from batchjob_stats_server.api.params import FromForm, OwnForm, RowId, Word, refuse_other_fields
from batchjob_stats_server.auth.rights import Principal
from batchjob_stats_server.http.problems import Problem
from batchjob_stats_server.pages.rendering.frame import PageRenderer, RequestPage, public_page
from batchjob_stats_server.services import CurrentServices

router = APIRouter(include_in_schema=False, route_class=TurnRoute)

links = APIRouter(include_in_schema=False)
"""What needs no log-in."""

_LIFETIMES = (1, 7, 30, 90, 365)  # days
Model = TypeVar("Model", bound=BaseModel)


def _validated(model: type[Model], fields: Mapping[str, Any]) -> Model:
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        raise RequestValidationError(error.errors()) from error


@router.get("/messages")
def messages(page: RequestPage) -> Response:
    """List the caller's subscriptions."""
    return _render_messages(page)


@router.post("/messages")
def subscribe(page: RequestPage, form: OwnForm) -> Response:
    """Subscribe. The key of a webhook is shown in this response."""
    refuse_other_fields(form, api.NewSubscription.model_fields)
    new = _validated(api.NewSubscription, form)
    return _render_messages(page, api.subscribe(page, new))


@router.post("/messages/{subscription_id}/remove")
def remove(page: RequestPage, _: FromForm, subscription_id: RowId) -> Response:
    """End a subscription."""
    api.unsubscribe(page, subscription_id)
    return RedirectResponse("/messages", 303)


def _render_messages(page: PageRenderer, made: api.MadeSubscription | None = None) -> Response:
    return page.render(
        "messages.html", offer=api.read_offer(page.services), made=made,
        subscriptions=api.subscriptions(page), near_limit=thresholds().near_limit,
        clusters=page.principal.clusters,
        accounts=sorted({each.account for each in page.access.accounts}),
    )  # fmt: skip


@links.get("/unsubscribe")
def ask(request: Request, services: CurrentServices, user: Word, signature: Word) -> Response:
    """Ask whether to end all messages: mail programs open links by themselves."""
    _check_signature(services, user, signature)
    return public_page(request, "unsubscribe.html", user=user, done=False)


@links.post("/unsubscribe")
def end(request: Request, services: CurrentServices, user: Word, signature: Word) -> Response:
    """End all messages to a user, as the link in a message allows without log-in (RFC 8058)."""
    _check_signature(services, user, signature)
    with services.writer.begin() as db:
        store.switch_off(db, user, int(services.clock()))
    return public_page(request, "unsubscribe.html", user=user, done=True)


def _check_signature(services: CurrentServices, user: str, signature: str) -> None:
    with services.reader.connect() as db:
        if not store.is_signed(store.read_site(db), "unsubscribe", user, signature):
            raise Problem(403, "this link is not, or no longer, valid")


@router.get("/tokens")
def tokens(page: RequestPage) -> Response:
    """List the tokens."""
    return _render_tokens(page)


@router.post("/tokens")
def make_token(page: RequestPage, form: OwnForm) -> Response:
    """Create a token. Its text is shown only in this response."""
    refuse_other_fields(form, _token_fields(page.principal))
    try:
        days = int(form.pop("days", ""))
    except ValueError as error:
        raise Problem(422, "days: expected a whole number") from error
    new = _validated(tokens_api.NewToken, {**form, "lifetime_seconds": days * DAY})
    return _render_tokens(page, tokens_api.make_token(page, new))


@router.post("/tokens/{token_id}/revoke")
def revoke(page: RequestPage, _: FromForm, token_id: RowId) -> Response:
    """Revoke a token, and the tokens that were created with it."""
    tokens_api.revoke_token(page, token_id)
    return RedirectResponse("/tokens", 303)


def _token_fields(principal: Principal) -> list[str]:
    """What the page asks for; other fields of a token are for programs."""
    fields = ["label", "days"]
    if len(tokens_api.grantable_roles(principal)) > 1:
        fields.append("role")
    if len(principal.clusters) > 1:
        fields.append("cluster")
    return fields


def _render_tokens(page: PageRenderer, made: tokens_api.MadeToken | None = None) -> Response:
    principal = page.principal
    with page.services.reader.connect() as db:
        listed_tokens = token_table.list_tokens(db, principal.user, principal.clusters)
    longest = int(page.services.settings.auth.longest_token)
    return page.render(
        "tokens.html", tokens=listed_tokens, created_token=made,
        roles=tokens_api.grantable_roles(principal), fields=_token_fields(principal),
        lifetimes=[days for days in _LIFETIMES if days * DAY <= longest] or [longest // DAY or 1],
    )  # fmt: skip
