"""What people want to be told, in the database: subscriptions, and what the site offers.

The poller, which alone is configured for messages, writes the offer; the server reads it. A
subscription for an event replaces the site's default for that person; its channel may be `off`.
"""

import hashlib
import hmac
import json
import re
import secrets
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from batchjob.judgements import thresholds
from batchjob.runtime import values
from batchjob.runtime.json_reader import parse_json
from batchjob.runtime.values import with_metavar
from batchjob_stats_db.database import schema
from batchjob_stats_db.database.upsert import chunks, write_rows

_table, _site = schema.subscription, schema.message_site.c
MAX_SUBSCRIPTIONS = 100
OFF, MAIL, WEBHOOK, NTFY = "off", "mail", "webhook", "ntfy"


class MessageEvent(StrEnum):
    """What a message is about."""

    END = "end"
    FAILURE = "failure"
    STARTED = "started"
    IDLE = "idle"
    MEMORY = "memory"
    DIGEST = "digest"


class Wish(NamedTuple):
    """An event, and from when it counts: seconds of idle GPUs, or per cent of the memory."""

    event: MessageEvent
    threshold: int = 0

    def __str__(self) -> str:
        if self.event is MessageEvent.IDLE:
            return f"{self.event}={self.threshold // 60}m"
        return (
            f"{self.event}={self.threshold}%" if self.event is MessageEvent.MEMORY else self.event
        )


_EXPECTED = "expected end, failure, started, idle=30m, memory=90% or digest"


@with_metavar("EVENT")
def parse_wish(value: Any) -> Wish:
    """`end`, `failure`, `started`, `digest`, `idle` or `idle=30m`, `memory` or `memory=90%`.

    Without a percentage, the message about memory is sent when it is near its limit.
    """
    name, _, threshold = str(value).strip().partition("=")
    try:
        event = MessageEvent(name)
        if (
            event is MessageEvent.IDLE
            and (seconds := int(values.duration(threshold or "30m"))) >= 60
        ):
            return Wish(event, seconds)
        if event is MessageEvent.MEMORY:
            share = values.ratio(threshold) if threshold else thresholds().near_limit
            if share > 0:
                return Wish(event, round(100 * share))
        if event not in (MessageEvent.IDLE, MessageEvent.MEMORY) and not threshold:
            return Wish(event)
    except ValueError:
        pass
    raise ValueError(f"{_EXPECTED}, got {value!r:.80}")


_QUIET = re.compile(r"([01]\d|2[0-3]):([0-5]\d)-([01]\d|2[0-3]):([0-5]\d)")


@with_metavar("HH:MM-HH:MM")
def quiet_hours(value: Any) -> str:
    """`22:00-07:00`, or nothing."""
    if value == "" or _QUIET.fullmatch(str(value)):
        return str(value)
    raise ValueError(f"expected hours such as 22:00-07:00, got {value!r:.40}")


def is_quiet(hours: str, minute: int) -> bool:
    """Whether a minute of the day is within the quiet hours."""
    if not (match := _QUIET.fullmatch(hours)):
        return False
    hour, past, until_hour, until_past = map(int, match.groups())
    begin, end = 60 * hour + past, 60 * until_hour + until_past
    return begin <= minute < end if begin <= end else minute >= begin or minute < end


@dataclass(frozen=True)
class Offer:
    """What the site sends, and where to; without channels, nothing."""

    channels: Sequence[str]
    defaults: Sequence[str] = ()  # events that people are told of by mail without asking for it
    webhooks: Sequence[str] = ()  # URLs with which those that people give must begin
    quiet_hours: str = ""

    def check_target(self, channel: str, target: str) -> None:
        """Raise ValueError if the site does not send there."""
        if channel == OFF and not target:
            return
        if channel not in self.channels:
            known = ", ".join((*self.channels, OFF))
            raise ValueError(f"channel: expected one of {known}, got {channel!r:.40}")
        if channel == MAIL and target:
            raise ValueError(
                "target: expected none, since mails go to the address that the site knows"
            )
        if channel == WEBHOOK and not any(map(partial(_is_below, target), self.webhooks)):
            raise ValueError(f"target: expected a URL below {' or '.join(self.webhooks)}")
        if channel == NTFY and not re.fullmatch(r"[-_A-Za-z0-9]{1,64}", target):
            raise ValueError("target: expected a topic of letters, digits, - and _")


_ADDRESS = re.compile(r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~.-]{1,64}@[A-Za-z0-9.-]{1,255}")


def is_address(address: str) -> bool:
    """Whether a text is one address of the common form."""
    return _ADDRESS.fullmatch(address) is not None


def _is_below(url: str, allowed: str) -> bool:
    """Whether a URL is that of an allowed place, without tricks that another parser may see."""
    if not re.fullmatch(r"[A-Za-z0-9:/._~?&=%+,-]+", url) or re.search(r"\.\.|%2e|%2f|%5c", url, 2):
        return False
    here, there = urlsplit(url), urlsplit(allowed)
    return here[:2] == there[:2] and f"{here.path}/".startswith(f"{there.path.rstrip('/')}/")


class Subscription(NamedTuple):
    """A row; `cluster`, `jobid` and `account` are empty for all clusters and jobs, and own jobs."""

    id: int
    username: str
    event: str
    channel: str
    target: str
    cluster: str
    jobid: str
    account: str
    quiet_hours: str
    threshold: int
    created_time: int

    @property
    def wish(self) -> Wish:
        """The event with its threshold."""
        return Wish(MessageEvent(self.event), self.threshold)


_COLUMNS = [_table.c[name] for name in Subscription._fields]


def of_users(db: Connection, users: Collection[str]) -> list[Subscription]:
    """The subscriptions of these users, oldest first."""
    return [
        Subscription(*row)
        for part in chunks(sorted(users))
        for row in db.execute(
            sa.select(*_COLUMNS).where(_table.c.username.in_(part)).order_by(_table.c.id)
        )
    ]


def add(db: Connection, subscription: Subscription) -> None:
    """Subscribe; the same again changes threshold and quiet hours. Raises ValueError."""
    count = sa.select(sa.func.count()).where(_table.c.username == subscription.username)
    if db.execute(count).scalar_one() >= MAX_SUBSCRIPTIONS:
        raise ValueError(f"expected at most {MAX_SUBSCRIPTIONS} subscriptions; remove some first")
    write_rows(db, _table, [subscription[1:]], Subscription._fields[1:])


def remove(db: Connection, username: str, subscription_id: int) -> bool:
    """Whether there was such a subscription of this user, which is deleted."""
    which = (_table.c.id == subscription_id) & (_table.c.username == username)
    return db.execute(sa.delete(_table).where(which)).rowcount > 0


def switch_off(db: Connection, username: str, now: int) -> None:
    """Unsubscribe from everything, the site's defaults included."""
    db.execute(sa.delete(_table).where(_table.c.username == username))
    for event in MessageEvent:
        add(db, Subscription(0, username, event, OFF, "", "", "", "", "", 0, now))


def wanted_events(db: Connection, offer: Offer) -> set[str]:
    """The events that anybody wants to be told of."""
    events = sa.select(_table.c.event).where(_table.c.channel != OFF).distinct()
    return {parse_wish(wish).event for wish in offer.defaults} | set(db.scalars(events))


def account_digests(db: Connection, cluster: str) -> list[tuple[str, str]]:
    """Users, and the accounts of which they want digests; whether they may is another question."""
    c = _table.c
    wanted = (c.event == MessageEvent.DIGEST) & (c.account != "") & c.cluster.in_(("", cluster))
    rows = db.execute(sa.select(c.username, c.account).where(wanted).distinct())
    return [(row.username, row.account) for row in rows]


Recipient = tuple[str, str, str]
"""Where a message goes: the channel, the target, and the quiet hours there."""


def recipients(
    offer: Offer,
    subscribed: Iterable[Subscription],
    cluster: str,
    jobid: str,
    wanted: Wish,
    account: str = "",
) -> set[Recipient]:
    """Where a message to one user goes, about their job or about an account."""
    own = [
        each
        for each in subscribed
        if each.event == wanted.event and each.cluster in ("", cluster) and each.account == account
    ]
    found = {
        (each.channel, each.target): (each.channel, each.target, each.quiet_hours)
        for each in own
        if each.jobid in ("", jobid)
        and each.channel in offer.channels
        and each.threshold <= wanted.threshold
    }
    default = not account and any(
        wish.event is wanted.event and wish.threshold <= wanted.threshold
        for wish in map(parse_wish, offer.defaults)
    )
    if default and not any(not each.jobid for each in own):
        channel = offer.channels[0]
        found.setdefault((channel, ""), (channel, "", offer.quiet_hours))
    return set(found.values())


def read_site(db: Connection) -> dict[str, str]:
    """What the poller has written about messages, by name."""
    return {row.name: row.value for row in db.execute(sa.select(_site.name, _site.value))}


def read_offer(site: Mapping[str, str]) -> Offer | None:
    """The offer of the first cluster that has one; None: the site sends no messages.

    An offer in the form of another version counts as none: the poller replaces it when it starts.
    """
    given = next((site[name] for name in sorted(site) if name.startswith("offer:")), "")
    try:
        return Offer(**parse_json(given)) if given else None
    except TypeError:
        return None


def write_offer(db: Connection, cluster: str, offer: Offer | None, now: int) -> None:
    """Replace the offer on a cluster; None: nothing is sent there.

    The first offer also makes the secret of links, and says since when jobs are told of.
    """
    name, site = f"offer:{cluster}", read_site(db)
    if offer is None:
        db.execute(sa.delete(schema.message_site).where(_site.name == name))
        return
    first = {"secret": secrets.token_urlsafe(32), "since": str(now)}
    rows = {**first, **site, name: json.dumps(asdict(offer))}
    if rows != site:
        write_rows(db, schema.message_site, list(rows.items()))


def signature(site: Mapping[str, str], purpose: str, text: str) -> str:
    """The HMAC of a text for one purpose, with the site's secret."""
    key = site.get("secret", "")
    return hmac.new(key.encode(), f"{purpose}:{text}".encode(), hashlib.sha256).hexdigest()


def is_signed(site: Mapping[str, str], purpose: str, text: str, given: str) -> bool:
    """Whether this is the signature of the text, of a site that has a secret."""
    expected = signature(site, purpose, text)
    return bool(site.get("secret")) and hmac.compare_digest(expected.encode(), given.encode())
