"""Creating, listing and revoking own tokens in the browser."""

import pytest

from batchjob_stats_db.database.tokens import TokenRole
from tests.batchjob_stats_server.pages.conftest import HTML, element_text, parse_page

FORM = {"Origin": "http://testserver"}  # as browsers send it with a form of our own page
WANTED = {"label": "nightly report", "days": "30"}


@pytest.fixture
def alice(proxy_client):
    return proxy_client("alice")


def sign_in(client, bearer):
    form = {"token": bearer.removeprefix("Bearer ")}
    client.post("/sign-in", data=form, follow_redirects=False)


@pytest.mark.parametrize(
    ("own", "granted"),
    [("user", {"user"}), ("viewer", {"user"}), ("admin", {"user", "viewer"})],
)
def test_browser_creates_tokens_below_its_own_role(client, token_headers, own, granted):
    sign_in(client, token_headers("root", TokenRole(own))["Authorization"])
    shown = parse_page(client.get("/tokens", headers=HTML)).findall(
        ".//select[@name='role']/option"
    )
    # With one role to grant, the page has no field for it, and the form takes none.
    choice = granted if len(granted) > 1 else set()
    assert {each.get("value", each.text) for each in shown} == choice
    answers = {
        role: client.post("/tokens", data=WANTED | {"role": role}, headers=HTML | FORM).status_code
        for role in TokenRole
    }
    assert {role for role, status in answers.items() if status == 200} == choice
    assert client.post("/tokens", data=WANTED, headers=HTML | FORM).status_code == 200


@pytest.mark.parametrize("field", ["user", "cluster", "lifetime_seconds"])
def test_form_takes_no_field_that_its_page_does_not_show(client, token_headers, field):
    sign_in(client, token_headers("root", TokenRole.ADMIN)["Authorization"])
    page = parse_page(client.get("/tokens", headers=HTML))
    assert page.findall(f".//form//*[@name='{field}']") == []
    answer = client.post("/tokens", data=WANTED | {field: "bob"}, headers=HTML | FORM)
    assert answer.status_code == 422
    assert f"{field}: this form has no such field" in answer.text
    assert client.get("/api/v1/tokens?user=bob").json() == []


def test_browser_of_an_admin_revokes_no_tokens_of_others(client, token_headers):
    token_headers("bob")
    sign_in(client, token_headers("root", TokenRole.ADMIN)["Authorization"])
    assert client.post("/tokens/1/revoke", headers=HTML | FORM).status_code == 404


def created_token_text(answer):
    """The text of the token that the page shows."""
    assert answer.status_code == 200, answer.text
    return parse_page(answer).find(".//code[@class='secret']").text


def test_created_token_is_shown_once_and_identifies_its_user(alice, client):
    answer = alice.post("/tokens", data=WANTED, headers=HTML | FORM)
    assert "no-store" in answer.headers["cache-control"]
    token_text = created_token_text(answer)
    headers = {"Authorization": f"Bearer {token_text}"}
    assert client.get("/api/v1/me", headers=headers).json()["user"] == "alice"
    later = alice.get("/tokens", headers=HTML)
    assert token_text not in later.text
    assert "nightly report" in element_text(parse_page(later).find(".//main"))


def test_revoked_token_is_rejected(alice, client):
    token_text = created_token_text(alice.post("/tokens", data=WANTED, headers=HTML | FORM))
    action = parse_page(alice.get("/tokens", headers=HTML)).find(".//table//form").get("action")
    answer = alice.post(action, headers=FORM, follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, "/tokens")
    assert (
        client.get("/api/v1/me", headers={"Authorization": f"Bearer {token_text}"}).status_code
        == 401
    )
    assert "You have no tokens." in element_text(
        parse_page(alice.get("/tokens", headers=HTML)).find(".//main")
    )


def test_token_created_with_a_token_is_revoked_with_it(client, token_headers):
    (bearer,) = token_headers("alice").values()
    sign_in(client, bearer)
    token_text = created_token_text(client.post("/tokens", data=WANTED, headers=HTML | FORM))
    client.cookies.clear()
    headers = {"Authorization": f"Bearer {token_text}"}
    assert client.get("/api/v1/me", headers=headers).status_code == 200
    number = client.get("/api/v1/tokens", headers={"Authorization": bearer}).json()[0]["id"]
    revoked = client.delete(f"/api/v1/tokens/{number}", headers={"Authorization": bearer})
    assert revoked.status_code == 204
    assert client.get("/api/v1/me", headers=headers).status_code == 401


@pytest.mark.parametrize("origin", [{}, {"Origin": "https://evil.example"}, {"Origin": "null"},
                                    {"Origin": "http://testserver:8080"}])  # fmt: skip
@pytest.mark.parametrize("address", ["/tokens", "/tokens/1/revoke"])
def test_forms_of_other_origins_cannot_create_or_revoke_tokens(
    alice, client, token_headers, origin, address
):
    """Whether the user is named by a proxy or by a cookie, which browsers send by themselves."""
    (bearer,) = token_headers("alice").values()
    assert alice.post(address, data=WANTED, headers=HTML | origin).status_code == 403
    sign_in(client, bearer)
    assert client.post(address, data=WANTED, headers=HTML | origin).status_code in (401, 403)
    assert len(alice.get("/api/v1/tokens").json()) == 1


def test_cookie_cannot_change_tokens_through_the_api(client, token_headers):
    sign_in(client, token_headers("alice")["Authorization"])
    assert client.post("/api/v1/tokens", json={"label": "x"}, headers=FORM).status_code == 401
    assert client.delete("/api/v1/tokens/1", headers=FORM).status_code == 401


def test_tokens_of_other_users_are_hidden_and_cannot_be_revoked(alice, proxy_client, token_headers):
    token_headers("bob")
    assert "You have no tokens." in element_text(
        parse_page(alice.get("/tokens", headers=HTML)).find(".//main")
    )
    assert alice.post("/tokens/1/revoke", headers=HTML | FORM).status_code == 404
    # Tokens of others are listed by the API only.
    page = parse_page(proxy_client("root").get("/tokens", headers=HTML))
    assert "You have no tokens." in element_text(page.find(".//main"))


@pytest.mark.parametrize(
    ("form", "status", "message"),
    [
        ({"days": "30"}, 422, "label: is required"),
        ({"label": "x", "days": "soon"}, 422, "days: expected a whole number"),
        ({"label": "x", "days": "30", "role": "admin"}, 422, "role"),
        ({"label": "x", "days": "30", "user": "bob"}, 422, "user"),
    ],
)
def test_invalid_token_request_is_explained(alice, form, status, message):
    answer = alice.post("/tokens", data=form, headers=HTML | FORM)
    assert answer.status_code == status
    assert message in element_text(parse_page(answer).find(".//main"))


def test_form_offers_roles_up_to_own_role(proxy_client):
    page = parse_page(proxy_client("vera").get("/tokens", headers=HTML))
    assert [each.text for each in page.findall(".//select[@name='role']/option")] == (
        ["user", "viewer"]
    )
    token_text = created_token_text(
        proxy_client("vera").post("/tokens", data=WANTED | {"role": "viewer"}, headers=HTML | FORM)
    )
    answer = proxy_client("vera").get("/api/v1/tokens")
    assert token_text.startswith("bj_")
    assert [row["role"] for row in answer.json()] == [TokenRole.VIEWER]
