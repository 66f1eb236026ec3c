"""What people want to be told of their jobs, and what the site offers; each only their own."""

from typing import Annotated

from fastapi import APIRouter
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints

from batchjob_stats_db.database import subscriptions as store
from batchjob_stats_db.database.access import coordinates
from batchjob_stats_db.database.subscriptions import Offer, Subscription
from batchjob_stats_server.api.answers import TurnRoute
from batchjob_stats_server.api.params import PREFIX, RowId, Word
from batchjob_stats_server.auth.identity import CurrentCaller
from batchjob_stats_server.auth.rights import Principal
from batchjob_stats_server.http.problems import Problem
from batchjob_stats_server.services import Services

router = APIRouter(prefix=PREFIX, route_class=TurnRoute)

_PRINTABLE = r"^[^\x00-\x1f]*$"
_Line = Annotated[str, StringConstraints(max_length=256, pattern=_PRINTABLE)]
_EVENT = "end, failure, started, idle=30m, memory=90% or digest"


class SubscriptionRow(BaseModel):
    """A subscription of the caller; empty texts mean all clusters and jobs, and own jobs."""

    id: int
    event: str
    channel: str
    target: str
    cluster: str
    jobid: str
    account: str
    quiet_hours: str
    created_time: int


class NewSubscription(BaseModel):
    """What to be told of, and how; the channel `off` turns the site's default off."""

    model_config = ConfigDict(extra="forbid")

    event: Annotated[Word, AfterValidator(lambda text: str(store.parse_wish(text)))] = Field(
        description=_EVENT
    )
    channel: Word = Field(store.MAIL, description="mail, webhook, ntfy or off.")
    target: Annotated[str, StringConstraints(max_length=2048, pattern=_PRINTABLE)] = Field(
        "", description="URL or topic; empty for mail, which goes to the address on record."
    )
    cluster: _Line = Field("", description="Default: all clusters of the caller.")
    jobid: _Line = Field("", description="Only this job.")
    account: _Line = Field("", description="Account of a digest; its coordinators may have one.")
    quiet_hours: Annotated[str, AfterValidator(store.quiet_hours)] = Field(
        "", description="Hours without messages, such as 22:00-07:00."
    )


class MadeSubscription(BaseModel):
    """Whether it was made; `webhook_key` is the key of the signatures (HMAC-SHA256)."""

    webhook_key: str


@router.get("/messages")
def messages(caller: CurrentCaller) -> Offer:
    """What the site offers to tell people."""
    return read_offer(caller.services) or Offer(())


def read_offer(services: Services) -> Offer | None:
    """What the poller has told; None: the site sends no messages."""
    with services.reader.connect() as db:
        return store.read_offer(store.read_site(db))


@router.get("/subscriptions")
def subscriptions(caller: CurrentCaller) -> list[SubscriptionRow]:
    """The caller's own subscriptions, oldest first."""
    principal = caller.principal
    with caller.services.reader.connect() as db:
        found = store.of_users(db, {principal.user})
    return [
        SubscriptionRow(**{**each._asdict(), "event": str(each.wish)})
        for each in found
        if not principal.clusters or each.cluster in principal.clusters
    ]


@router.post("/subscriptions", status_code=201)
def subscribe(caller: CurrentCaller, new: NewSubscription) -> MadeSubscription:
    """Subscribe; the same again changes threshold and quiet hours."""
    services, principal = caller.services, caller.principal
    offer = read_offer(services)
    if offer is None:
        raise Problem(409, "this site sends no messages")
    event, threshold = store.parse_wish(new.event)
    cluster = _cluster_for(principal, new.cluster)
    with services.writer.begin() as db:
        try:
            offer.check_target(new.channel, new.target)
            if new.account and event is not store.MessageEvent.DIGEST:
                raise ValueError("account: expected none, since only a digest is about an account")
            if new.account and not coordinates(db, principal.user, cluster, new.account):
                raise ValueError(
                    f"account: expected one of which accounting names you a coordinator, "
                    f"got {new.account!r:.80}"
                )
            subscription = Subscription(
                0, principal.user, event, new.channel, new.target, cluster, new.jobid, new.account,
                new.quiet_hours, threshold, int(services.clock()),
            )  # fmt: skip
            store.add(db, subscription)
        except ValueError as error:
            raise Problem(422, str(error)) from error
        key = store.signature(store.read_site(db), "webhook", f"{principal.user} {new.target}")
    return MadeSubscription(webhook_key=key if new.channel == store.WEBHOOK else "")


def _cluster_for(principal: Principal, wanted: str) -> str:
    """The cluster of a subscription of somebody whose login is theirs on some clusters only."""
    if not principal.clusters or wanted in principal.clusters:
        return wanted
    if wanted or len(principal.clusters) > 1:
        raise Problem(403, f"cluster: expected one of {', '.join(principal.clusters)}")
    return principal.clusters[0]


@router.delete("/subscriptions/{subscription_id}", status_code=204)
def unsubscribe(caller: CurrentCaller, subscription_id: RowId) -> None:
    """Remove a subscription of the caller."""
    if subscription_id not in {each.id for each in subscriptions(caller)}:
        raise Problem(404, "there is no such subscription")
    with caller.services.writer.begin() as db:
        store.remove(db, caller.principal.user, subscription_id)
