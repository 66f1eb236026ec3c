"""Signing in with a token, and who may make a browser do what."""

from dataclasses import replace

import pytest
from fastapi.testclient import TestClient

from batchjob_stats_server import app
from batchjob_stats_server.http.hosts import allowed_hosts
from batchjob_stats_server.options import ServerWebOptions
from tests.batchjob_stats_server.pages.conftest import HTML, parsed, words

COOKIE = "batchjob-80"
TYPED = {"Sec-Fetch-Site": "none"}  # what browsers send with an address that somebody typed


@pytest.fixture
def text(token):
    """The text of alice's token."""
    return token("alice")["Authorization"].removeprefix("Bearer ")


def test_without_identity_a_page_says_how_to_sign_in(client):
    answer = client.get("/usage?by=account", headers=HTML)
    assert answer.status_code == 401
    document = parsed(answer)
    assert document.find(".//h1").text == "Sign in"
    assert document.find(".//input[@name='next']").get("value") == "/usage?by=account"


def test_a_program_gets_a_problem_document(client):
    assert client.get("/usage").headers["content-type"] == "application/problem+json"
    answer = client.get("/api/v1/jobs", headers=HTML)
    assert answer.headers["content-type"] == "application/problem+json"


def test_a_token_in_the_address_becomes_a_cookie_and_goes_away(client, text):
    answer = client.get(f"/jobs?state=FAILED&token={text}", headers=TYPED, follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, "/jobs?state=FAILED")
    (cookie,) = answer.headers.get_list("set-cookie")
    assert cookie == f"{COOKIE}={text}; HttpOnly; Path=/; SameSite=strict"
    assert client.get("/jobs", headers=HTML).status_code == 200
    assert client.get("/api/v1/me").json()["via"] == "cookie"


def test_over_tls_the_cookie_is_bound_to_this_host(services, text):
    client = TestClient(app.make(services), base_url="https://testserver")
    answer = client.get(f"/?token={text}", headers=TYPED, follow_redirects=False)
    cookie = answer.headers["set-cookie"]
    assert cookie.startswith(f"__Host-batchjob={text};")
    assert "Secure" in cookie
    assert client.get("/", headers=HTML).status_code == 200


@pytest.mark.parametrize(
    "address",
    ["/?token=x", "/?token=bj_short", "/?token={text}&token={text}", "/?token=%00bj_" + "x" * 30],
)
def test_what_is_no_token_becomes_no_cookie(client, text, address):
    answer = client.get(address.format(text=text), headers=TYPED, follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    assert "set-cookie" not in answer.headers


@pytest.mark.parametrize("site", ["cross-site", "same-site", None])
def test_no_other_site_signs_anybody_in(client, text, site):
    """Without the header, as of every browser over plain HTTP, nobody knows whose link it was."""
    headers = {"Sec-Fetch-Site": site} if site else {}
    answer = client.get(f"/?token={text}", headers=headers, follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    assert "set-cookie" not in answer.headers


def test_a_token_in_the_address_of_the_api_is_a_parameter_nobody_knows(client, text):
    answer = client.get(f"/api/v1/me?token={text}")
    assert answer.status_code == 401


def test_sign_in_by_form_leads_back(client, text):
    form = {"token": f" {text} ", "next": "/usage?by=account"}
    answer = client.post("/sign-in", data=form, follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, "/usage?by=account")
    assert COOKIE in answer.headers["set-cookie"]


@pytest.mark.parametrize(
    "there",
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
def test_sign_in_leads_to_no_other_site(client, text, there):
    answer = client.post("/sign-in", data={"token": text, "next": there}, follow_redirects=False)
    location = answer.headers["location"]
    assert location.startswith("/")
    assert not location.startswith(("//", "/\\"))


def test_a_revoked_token_is_forgotten(client):
    client.cookies.set(COOKIE, "bj_" + "x" * 43)
    answer = client.get("/", headers=HTML)
    assert answer.status_code == 401
    assert 'batchjob-80=""' in answer.headers["set-cookie"]
    assert "revoked" in words(parsed(answer).find(".//p[@role='alert']"))


def test_sign_out(client, text):
    client.get(f"/?token={text}", headers=TYPED)
    answer = client.post("/sign-out", headers=HTML)
    assert words(parsed(answer).find(".//h1")) == "Signed out"
    assert client.get("/", headers=HTML).status_code == 401


def test_the_cookie_reads_and_nothing_else(client, text):
    client.get(f"/?token={text}", headers=TYPED)
    assert client.get("/api/v1/tokens").status_code == 200
    assert client.post("/api/v1/tokens", json={"label": "x"}).status_code == 401
    assert client.delete("/api/v1/tokens/1").status_code == 401


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://testserver", 303),
        ("https://evil.example", 403),
        ("http://testserver:8080", 403),
        ("http://testserver.evil.example", 403),
        ("null", 403),
    ],
)
def test_forms_of_other_origins_are_refused(client, origin, status):
    answer = client.post("/sign-out", headers={"Origin": origin}, follow_redirects=False)
    assert answer.status_code == status


@pytest.mark.parametrize(
    ("host", "status"),
    [("testserver", 200), ("TestServer:10912", 200), ("evil.example", 421), ("", 400), ("[", 400)],
)
def test_no_name_but_its_own(client, host, status):
    """DNS rebinding: a name of somebody else's that leads here."""
    assert client.get("/-/healthy", headers={"Host": host}).status_code == status


@pytest.mark.parametrize(
    ("web", "hosts"),
    [
        (ServerWebOptions(("127.0.0.1", 1)), {"localhost", "127.0.0.1", "::1"}),
        (ServerWebOptions(("::1", 1)), {"localhost", "127.0.0.1", "::1"}),
        (ServerWebOptions(("", 1)), None),
        (
            ServerWebOptions(("127.0.0.1", 1), allowed_host=("Stats.Example.org",)),
            {"stats.example.org", "localhost", "127.0.0.1", "::1"},
        ),
        (
            ServerWebOptions(("::", 1), allowed_host=("[2001:db8::1]",)),
            {"2001:db8::1", "localhost", "127.0.0.1", "::1"},
        ),
    ],
)
def test_the_names_that_are_good(web, hosts):
    assert allowed_hosts(web) == hosts


def test_who_comes_from_another_site_goes_on_with_the_cookie(client):
    answer = client.get("/jobs?user=bob", headers={**HTML, "Sec-Fetch-Site": "cross-site"})
    document = parsed(answer)
    assert document.find(".//meta[@http-equiv='refresh']") is not None
    again = client.get("/jobs", headers={**HTML, "Sec-Fetch-Site": "same-origin"})
    assert parsed(again).find(".//meta[@http-equiv='refresh']") is None


@pytest.mark.parametrize(
    ("origins", "said"),
    [
        ((), "frame-ancestors 'none'"),
        (("https://ondemand.example.org",), "frame-ancestors 'self' https://ondemand.example.org"),
    ],
)
def test_pages_are_framed_by_those_that_are_named(services, text, origins, said):
    web = replace(services.settings.web, frame_ancestors=origins)
    made = services._replace(settings=services.settings._replace(web=web))
    asker = TestClient(app.make(made), headers={**HTML, "Authorization": f"Bearer {text}"})
    for path in ("/", "/jobs/1", "/jobs/none", "/signed-out"):
        policy = asker.get(path).headers["content-security-policy"]
        assert policy.endswith(said)
        assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in asker.get("/api/v1/me").headers["content-security-policy"]
