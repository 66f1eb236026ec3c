"""Signing in with a token, and protection against requests from other sites."""

from dataclasses import replace

import pytest
from fastapi.testclient import TestClient

from batchjob_stats_server import app
from batchjob_stats_server.auth.peers import allowed_hosts
from batchjob_stats_server.options import ServerWebOptions
from tests.batchjob_stats_server.conftest import PROXY
from tests.batchjob_stats_server.pages.conftest import HTML, element_text, parse_page

COOKIE = "batchjob-80"
TYPED = {"Sec-Fetch-Site": "none"}  # what browsers send with a typed URL


@pytest.fixture
def token_text(token_headers):
    """The text of alice's token."""
    return token_headers("alice")["Authorization"].removeprefix("Bearer ")


def test_page_without_identity_is_sign_in_form(client):
    answer = client.get("/usage?by=account", headers=HTML)
    assert answer.status_code == 401
    document = parse_page(answer)
    assert document.find(".//h1").text == "Sign in"
    assert document.find(".//input[@name='next']").get("value") == "/usage?by=account"


def test_program_without_identity_gets_problem_document(client):
    assert client.get("/usage").headers["content-type"] == "application/problem+json"
    answer = client.get("/api/v1/jobs", headers=HTML)
    assert answer.headers["content-type"] == "application/problem+json"


def test_token_in_url_is_moved_to_cookie(client, token_text):
    answer = client.get(
        f"/jobs?state=FAILED&token={token_text}", headers=TYPED, follow_redirects=False
    )
    assert (answer.status_code, answer.headers["location"]) == (303, "/jobs?state=FAILED")
    (cookie,) = answer.headers.get_list("set-cookie")
    assert cookie.startswith(f"{COOKIE}=bw_")
    assert cookie.endswith("; HttpOnly; Path=/; SameSite=strict")
    assert token_text not in cookie
    assert client.get("/jobs", headers=HTML).status_code == 200
    assert client.get("/api/v1/me").json()["via"] == "cookie"


def test_cookie_over_tls_is_secure_and_host_only(services, token_text):
    client = TestClient(app.make(services), base_url="https://testserver")
    answer = client.get(f"/?token={token_text}", headers=TYPED, follow_redirects=False)
    cookie = answer.headers["set-cookie"]
    assert cookie.startswith("__Host-batchjob=bw_")
    assert "Secure" in cookie
    assert client.get("/", headers=HTML).status_code == 200


@pytest.mark.parametrize(
    "address",
    ["/?token=x", "/?token=bj_short", "/?token={text}&token={text}", "/?token=%00bj_" + "x" * 30],
)
def test_invalid_token_in_url_sets_no_cookie(client, token_text, address):
    answer = client.get(address.format(text=token_text), headers=TYPED, follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    assert "set-cookie" not in answer.headers


@pytest.mark.parametrize("site", ["cross-site", "same-site", None])
def test_token_in_url_from_another_site_is_ignored(client, token_text, site):
    """Browsers omit the header over plain HTTP; the origin of the link is then unknown."""
    headers = {"Sec-Fetch-Site": site} if site else {}
    answer = client.get(f"/?token={token_text}", headers=headers, follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    assert "set-cookie" not in answer.headers


def test_api_ignores_token_in_url(client, token_text):
    answer = client.get(f"/api/v1/me?token={token_text}")
    assert answer.status_code == 401


def test_sign_in_form_redirects_to_requested_page(client, token_text):
    form = {"token": f" {token_text} ", "next": "/usage?by=account"}
    answer = client.post("/sign-in", data=form, follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, "/usage?by=account")
    assert COOKIE in answer.headers["set-cookie"]


@pytest.mark.parametrize(
    "next_path",
    [
        "https://evil.example/x",
        "//evil.example",
        "/\\evil.example",
        "\\\\evil.example",
        "",
        "http://[",
        "http://[x]/",
        "//[::1/",
    ],
)
def test_sign_in_never_redirects_to_another_site(client, token_text, next_path):
    answer = client.post(
        "/sign-in", data={"token": token_text, "next": next_path}, follow_redirects=False
    )
    location = answer.headers["location"]
    assert location.startswith("/")
    assert not location.startswith(("//", "/\\"))


def test_cookie_of_revoked_token_is_deleted(client):
    client.post("/sign-in", data={"token": "bj_" + "x" * 43}, follow_redirects=False)
    answer = client.get("/", headers=HTML)
    assert answer.status_code == 401
    assert 'batchjob-80=""' in answer.headers["set-cookie"]
    assert "revoked" in element_text(parse_page(answer).find(".//p[@role='alert']"))


def test_sign_out(client, token_text):
    client.get(f"/?token={token_text}", headers=TYPED)
    answer = client.post("/sign-out", headers=HTML)
    assert element_text(parse_page(answer).find(".//h1")) == "Signed out"
    assert client.get("/", headers=HTML).status_code == 401


def test_cookie_cannot_change_anything_through_the_api(client, token_text):
    client.get(f"/?token={token_text}", headers=TYPED)
    assert client.get("/api/v1/tokens").status_code == 200
    assert client.post("/api/v1/tokens", json={"label": "x"}).status_code == 401
    assert client.delete("/api/v1/tokens/1").status_code == 401


@pytest.mark.parametrize("kept", ["session", "token"])
def test_cookie_is_worthless_without_the_process_that_made_it(client, token_text, kept):
    """As a bearer, and as the cookie of a server that did not begin the session."""
    client.get(f"/?token={token_text}", headers=TYPED)
    session = client.cookies[COOKIE]
    client.cookies.clear()
    assert (
        client.get("/api/v1/me", headers={"Authorization": f"Bearer {session}"}).status_code == 401
    )
    other = session[:-8] + ("A" * 8 if session[-8:] != "A" * 8 else "B" * 8)
    client.cookies.set(COOKIE, other if kept == "session" else token_text)
    answer = client.get("/", headers=HTML)
    assert answer.status_code == 401
    assert "sign in again" in element_text(parse_page(answer).find(".//p[@role='alert']"))


@pytest.mark.parametrize(
    ("peer", "headers", "is_https"),
    [
        (PROXY, {"X-Forwarded-Proto": "https"}, True),
        (PROXY, {"X-Forwarded-Proto": "http"}, False),
        (PROXY, {}, False),
        ("203.0.113.5", {"X-Forwarded-Proto": "https"}, False),
    ],
)
def test_scheme_comes_from_a_trusted_proxy_only(services, token_text, peer, headers, is_https):
    client = TestClient(app.make(services), client=(peer, 50000), headers=headers)
    answer = client.get(f"/?token={token_text}", headers=TYPED, follow_redirects=False)
    cookie = answer.headers["set-cookie"]
    assert cookie.startswith("__Host-batchjob=" if is_https else f"{COOKIE}=")
    assert ("Secure" in cookie) is is_https
    assert ("strict-transport-security" in answer.headers) is is_https
    own = {"https" if is_https else "http", *headers.values()}
    for scheme in ("http", "https"):
        posted = client.post("/sign-out", headers={"Origin": f"{scheme}://testserver"})
        assert (posted.status_code != 403) is (scheme in own)


def test_change_that_another_site_causes_is_refused(client):
    answer = client.post("/sign-out", headers={"Sec-Fetch-Site": "cross-site"})
    assert answer.status_code == 403


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://testserver", 303),
        ("https://testserver", 403),
        ("https://evil.example", 403),
        ("http://testserver:8080", 403),
        ("http://testserver.evil.example", 403),
        ("null", 403),
    ],
)
def test_form_from_another_origin_is_rejected(client, origin, status):
    answer = client.post("/sign-out", headers={"Origin": origin}, follow_redirects=False)
    assert answer.status_code == status


@pytest.mark.parametrize(
    ("host", "status"),
    [("testserver", 200), ("TestServer:10912", 200), ("evil.example", 421), ("", 400), ("[", 400)],
)
def test_unknown_host_header_is_rejected(client, host, status):
    """DNS rebinding: a foreign host name that resolves to this server."""
    assert client.get("/-/healthy", headers={"Host": host}).status_code == status


@pytest.mark.parametrize(
    ("web", "hosts"),
    [
        (ServerWebOptions(listen_address=("127.0.0.1", 1)), {"localhost", "127.0.0.1", "::1"}),
        (ServerWebOptions(listen_address=("::1", 1)), {"localhost", "127.0.0.1", "::1"}),
        (ServerWebOptions(listen_address=("", 1)), None),
        (
            ServerWebOptions(listen_address=("127.0.0.1", 1), allowed_host=("Stats.Example.org",)),
            {"stats.example.org", "localhost", "127.0.0.1", "::1"},
        ),
        (
            ServerWebOptions(listen_address=("::", 1), allowed_host=("[2001:db8::1]",)),
            {"2001:db8::1", "localhost", "127.0.0.1", "::1"},
        ),
    ],
)
def test_allowed_hosts(web, hosts):
    assert allowed_hosts(web) == hosts


def test_request_from_another_site_is_repeated_from_this_one(client):
    answer = client.get("/jobs?user=bob", headers={**HTML, "Sec-Fetch-Site": "cross-site"})
    document = parse_page(answer)
    assert document.find(".//meta[@http-equiv='refresh']") is not None
    again = client.get("/jobs", headers={**HTML, "Sec-Fetch-Site": "same-origin"})
    assert parse_page(again).find(".//meta[@http-equiv='refresh']") is None


@pytest.mark.parametrize(
    ("origins", "expected_policy"),
    [
        ((), "frame-ancestors 'none'"),
        (("https://ondemand.example.org",), "frame-ancestors 'self' https://ondemand.example.org"),
    ],
)
def test_frame_ancestors_policy(services, token_text, origins, expected_policy):
    web = replace(services.settings.web, frame_ancestors=origins)
    framed_services = services._replace(settings=services.settings._replace(web=web))
    alice = TestClient(
        app.make(framed_services), headers={**HTML, "Authorization": f"Bearer {token_text}"}
    )
    for path in ("/", "/jobs/1", "/jobs/none", "/signed-out"):
        policy = alice.get(path).headers["content-security-policy"]
        assert policy.endswith(expected_policy)
        assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in alice.get("/api/v1/me").headers["content-security-policy"]
