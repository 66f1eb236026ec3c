"""Choosing what to be told in the browser, and the link that ends all messages."""

from urllib.parse import urlencode

import pytest
import sqlalchemy as sa

from batchjob_stats_db.database import schema, subscriptions
from batchjob_stats_db.database.subscriptions import Offer
from tests.batchjob_stats_server.conftest import NOW
from tests.batchjob_stats_server.pages.conftest import HTML

FORM = {"Origin": "http://testserver"}
HOOKS = "https://hooks.example.org/team"


@pytest.fixture
def offer(services):
    offer = Offer(("mail", "webhook", "ntfy"), ("failure",), (HOOKS,))
    with services.writer.begin() as db:
        subscriptions.write_offer(db, "c1", offer, NOW)
    return offer


@pytest.fixture
def alice(proxy_client, offer):
    return proxy_client("alice")


def rows(client):
    return client.get("/api/v1/subscriptions").json()


def test_subscribe_and_remove(alice):
    page = alice.get("/messages", headers=HTML)
    assert "you are told by mail of: failure" in page.text
    form = {"event": "idle=2h", "channel": "mail", "target": "", "quiet_hours": "22:00-07:00"}
    answer = alice.post("/messages", data=form, headers=HTML | FORM)
    assert answer.status_code == 200
    (row,) = rows(alice)
    assert (row["event"], row["channel"], row["quiet_hours"]) == (
        "idle=120m",
        "mail",
        "22:00-07:00",
    )
    alice.post(f"/messages/{row['id']}/remove", headers=HTML | FORM)
    assert rows(alice) == []


def test_offer_of_a_poller_of_another_version_is_no_offer(alice, services):
    with services.writer.begin() as db:
        db.execute(sa.update(schema.message_site).values(value='["mail"]'))
    assert "sends no messages" in alice.get("/messages", headers=HTML).text


def test_webhook_shows_its_key(alice):
    form = {"event": "end", "channel": "webhook", "target": f"{HOOKS}/me"}
    answer = alice.post("/messages", data=form, headers=HTML | FORM)
    assert "The key of your webhook" in answer.text


@pytest.mark.parametrize("path", ["/messages", "/messages/1/remove"])
def test_form_of_another_site_or_of_none_is_refused(alice, path):
    for headers in ({}, {"Origin": "https://evil.example.org"}):
        assert alice.post(path, data={"event": "end"}, headers=HTML | headers).status_code == 403
    assert rows(alice) == []


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"event": "lunch"}, "expected end, failure"),
        ({"event": "idle=1s"}, "expected end, failure"),
        ({"target": "alice@example.net"}, "the address that the site knows"),
        ({"quiet_hours": "at night"}, "expected hours such as"),
        ({"channel": "pigeon"}, "expected one of mail"),
        ({"channel": "ntfy", "target": "a/b"}, "expected a topic"),
        ({"account": "physics"}, "only a digest is about an account"),
        ({"event": "digest", "account": "chem"}, "of which accounting names you a coordinator"),
        *(
            ({"channel": "webhook", "target": target}, "expected a URL below")
            for target in (
                "", "http://169.254.169.254/", "https://hooks.example.org/other",
                "https://hooks.example.org/teams", "https://hooks.example.org/team/../other",
                "https://hooks.example.org@evil.org/team", "https://hooks.example.org:8443/team",
                "http://hooks.example.org/team", "https://hooks.example.org/team/%2e%2e/other",
                "https://hooks.example.org\\.evil.org/team", "https://hooks.example.org/team/a b",
            )
        ),
    ],
)  # fmt: skip
def test_what_the_site_does_not_offer_is_refused(alice, changed, expected):
    body = {"event": "end", "channel": "mail", **changed}
    answer = alice.post("/api/v1/subscriptions", json=body)
    assert answer.status_code == 422
    assert expected in answer.json()["detail"]
    assert rows(alice) == []


def test_users_see_and_remove_only_their_own(alice, proxy_client):
    bob = proxy_client("bob")
    bob.post("/api/v1/subscriptions", json={"event": "end"})
    (row,) = rows(bob)
    assert rows(alice) == []
    assert alice.delete(f"/api/v1/subscriptions/{row['id']}").status_code == 404


def test_subscriptions_are_limited(alice):
    for number in range(subscriptions.MAX_SUBSCRIPTIONS):
        body = {"event": "end", "jobid": str(number)}
        assert alice.post("/api/v1/subscriptions", json=body).status_code == 201
    answer = alice.post("/api/v1/subscriptions", json={"event": "failure"})
    assert "expected at most 100 subscriptions" in answer.json()["detail"]


def test_site_without_messages(proxy_client):
    client = proxy_client("alice")
    assert "This site sends no messages" in client.get("/messages", headers=HTML).text
    answer = client.post("/api/v1/subscriptions", json={"event": "end"})
    assert answer.json()["detail"] == "this site sends no messages"


def test_link_ends_all_messages_without_log_in(client, services, alice):
    alice.post("/api/v1/subscriptions", json={"event": "end"})
    with services.reader.connect() as db:
        signature = subscriptions.signature(subscriptions.read_site(db), "unsubscribe", "alice")
    link = f"/unsubscribe?{urlencode({'user': 'alice', 'signature': signature})}"
    shown = client.get(link, headers=HTML)
    assert "No more messages to alice" in shown.text
    assert [row["channel"] for row in rows(alice)] == ["mail"]  # opening it changes nothing
    assert client.post(link, data={"List-Unsubscribe": "One-Click"}).status_code == 200
    assert {row["channel"] for row in rows(alice)} == {"off"}
    assert len(rows(alice)) == len(subscriptions.MessageEvent)


@pytest.mark.parametrize("query", ["user=bob&signature={}", "user=alice&signature=0", "user=alice"])
def test_forged_links_end_nothing(client, services, alice, query):
    alice.post("/api/v1/subscriptions", json={"event": "end"})
    with services.reader.connect() as db:
        signature = subscriptions.signature(subscriptions.read_site(db), "unsubscribe", "alice")
    for method in ("GET", "POST"):
        answer = client.request(method, f"/unsubscribe?{query.format(signature)}")
        assert answer.status_code in (403, 422)
    assert len(rows(alice)) == 1
