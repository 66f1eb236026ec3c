"""Tokens made, seen and revoked in the browser by whoever they belong to."""

import pytest

from batchjob_stats_db.database.tokens import TokenRole
from tests.batchjob_stats_server.pages.conftest import HTML, parsed, words

FORM = {"Origin": "http://testserver"}  # as browsers send it with a form of our own page
WANTED = {"label": "nightly report", "days": "30"}


@pytest.fixture
def alice(proxied):
    return proxied("alice")


def made(answer):
    """The text of the token that the page shows."""
    assert answer.status_code == 200, answer.text
    return parsed(answer).find(".//code[@class='secret']").text


def test_a_token_is_shown_once_and_asks_in_ones_name(alice, client):
    answer = alice.post("/tokens", data=WANTED, headers=HTML | FORM)
    assert "no-store" in answer.headers["cache-control"]
    text = made(answer)
    headers = {"Authorization": f"Bearer {text}"}
    assert client.get("/api/v1/me", headers=headers).json()["user"] == "alice"
    later = alice.get("/tokens", headers=HTML)
    assert text not in later.text
    assert "nightly report" in words(parsed(later).find(".//main"))


def test_a_revoked_token_is_good_no_more(alice, client):
    text = made(alice.post("/tokens", data=WANTED, headers=HTML | FORM))
    action = parsed(alice.get("/tokens", headers=HTML)).find(".//table//form").get("action")
    answer = alice.post(action, headers=FORM, follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, "/tokens")
    assert client.get("/api/v1/me", headers={"Authorization": f"Bearer {text}"}).status_code == 401
    assert "You have no tokens." in words(
        parsed(alice.get("/tokens", headers=HTML)).find(".//main")
    )


def test_who_signed_in_with_a_token_makes_one_that_ends_with_it(client, token):
    (bearer,) = token("alice").values()
    client.cookies.set("batchjob-80", bearer.removeprefix("Bearer "))
    text = made(client.post("/tokens", data=WANTED, headers=HTML | FORM))
    client.cookies.clear()
    headers = {"Authorization": f"Bearer {text}"}
    assert client.get("/api/v1/me", headers=headers).status_code == 200
    number = client.get("/api/v1/tokens", headers={"Authorization": bearer}).json()[0]["id"]
    revoked = client.delete(f"/api/v1/tokens/{number}", headers={"Authorization": bearer})
    assert revoked.status_code == 204
    assert client.get("/api/v1/me", headers=headers).status_code == 401


@pytest.mark.parametrize("origin", [{}, {"Origin": "https://evil.example"}, {"Origin": "null"},
                                    {"Origin": "http://testserver:8080"}])  # fmt: skip
@pytest.mark.parametrize("address", ["/tokens", "/tokens/1/revoke"])
def test_no_other_page_makes_or_revokes_any(alice, client, token, origin, address):
    """Whether a proxy names the user or a cookie does, which browsers bring along by themselves."""
    (bearer,) = token("alice").values()
    assert alice.post(address, data=WANTED, headers=HTML | origin).status_code == 403
    client.cookies.set("batchjob-80", bearer.removeprefix("Bearer "))
    assert client.post(address, data=WANTED, headers=HTML | origin).status_code in (401, 403)
    assert len(alice.get("/api/v1/tokens").json()) == 1


def test_the_cookie_changes_nothing_but_on_this_page(client, token):
    client.cookies.set("batchjob-80", token("alice")["Authorization"].removeprefix("Bearer "))
    assert client.post("/api/v1/tokens", json={"label": "x"}, headers=FORM).status_code == 401
    assert client.delete("/api/v1/tokens/1", headers=FORM).status_code == 401


def test_nobody_sees_or_revokes_those_of_others(alice, proxied, token):
    token("bob")
    assert "You have no tokens." in words(
        parsed(alice.get("/tokens", headers=HTML)).find(".//main")
    )
    assert alice.post("/tokens/1/revoke", headers=HTML | FORM).status_code == 404
    page = parsed(proxied("root").get("/tokens", headers=HTML))  # other people's are the API's
    assert "You have no tokens." in words(page.find(".//main"))


@pytest.mark.parametrize(
    ("form", "status", "told"),
    [
        ({"days": "30"}, 422, "label: is required"),
        ({"label": "x", "days": "soon"}, 422, "days: expected a whole number"),
        (
            {"label": "x", "days": "30", "role": "admin"},
            403,
            "may not create a token with the role",
        ),
        ({"label": "x", "days": "30", "user": "bob"}, 403, "only an admin"),
    ],
)
def test_what_cannot_be_made(alice, form, status, told):
    answer = alice.post("/tokens", data=form, headers=HTML | FORM)
    assert answer.status_code == status
    assert told in words(parsed(answer).find(".//main"))


def test_roles_are_offered_up_to_ones_own(proxied):
    page = parsed(proxied("vera").get("/tokens", headers=HTML))
    assert [each.text for each in page.findall(".//select[@name='role']/option")] == (
        ["user", "viewer"]
    )
    text = made(proxied("vera").post("/tokens", data=WANTED | {"role": "viewer"},
                                     headers=HTML | FORM))  # fmt: skip
    answer = proxied("vera").get("/api/v1/tokens")
    assert text.startswith("bj_")
    assert [row["role"] for row in answer.json()] == [TokenRole.VIEWER]
