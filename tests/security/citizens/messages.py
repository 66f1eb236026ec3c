"""Citizens who have what others are told sent elsewhere, or not sent."""

import uuid
from urllib.parse import urlencode

from batchjob_stats_db.database import subscriptions
from batchjob_stats_db.database.subscriptions import Offer
from tests.security.citizens.citizen import citizen
from tests.security.one_bad_citizen import CITIZEN, Site

MESSAGES = "messages"
HOOKS = "https://hooks.example.org/team"


def offer_messages(site: Site) -> None:
    offer = Offer(("mail", "webhook", "ntfy"), (), (HOOKS,))
    with site.services.writer.begin() as db:
        subscriptions.write_offer(db, "c1", offer, site.now)


def subscribe(site: Site, user: str = CITIZEN, **fields: str) -> int:
    offer_messages(site)
    form = {"event": "failure", **fields}
    answer = site.client.post("/api/v1/subscriptions", json=form, headers=site.bearer(user))
    return answer.status_code


@citizen(MESSAGES)
def link_that_ends_the_messages_of_another(site, dice):
    offer_messages(site)
    forged = dice.choice(["", "0" * 64, f"{dice.getrandbits(256):064x}", "ä"])
    link = f"/unsubscribe?{urlencode({'user': 'alice', 'signature': forged})}"
    assert site.client.post(link).status_code in (403, 422)


@citizen(MESSAGES)
def webhook_to_a_place_of_the_citizen(site, dice):
    target = dice.choice(
        ["https://evil.example/", f"{HOOKS}.evil.example/x", "https://hooks.example.org@evil.example",
         f"{HOOKS}/../other", "http://hooks.example.org/team", "http://169.254.169.254/latest", ""]
    )  # fmt: skip
    assert subscribe(site, channel="webhook", target=target) == 422


@citizen(MESSAGES)
def mail_to_another_address(site, dice):
    target = dice.choice(
        ["x@evil.example", "x@example.org.evil.example", "a@example.org,b@evil.example",
         "x@example.org\nBcc: y@evil.example", f"{uuid.uuid4()}@sub.evil.example"]
    )  # fmt: skip
    assert subscribe(site, channel="mail", target=target) == 422


@citizen(MESSAGES)
def digest_of_an_account_of_others(site, dice):
    account = dice.choice(["physics", "", "physics' OR 1=1"])
    if account:
        assert subscribe(site, event="digest", account=account) == 422
    assert subscribe(site, event="end", jobid="1") in (201, 422)
    rows = site.client.get("/api/v1/subscriptions", headers=site.bearer("alice")).json()
    assert rows == []
