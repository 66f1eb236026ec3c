"""Logging in through an OpenID provider on loopback, and attacks on the log-in."""

import html
import re
from dataclasses import replace
from urllib.parse import parse_qs, urlsplit

import pytest
import requests
from fastapi.testclient import TestClient
from joserfc.jwk import RSAKey

from batchjob_stats_db.database import schema
from batchjob_stats_server import app
from batchjob_stats_server.auth.oidc import OidcProvider
from batchjob_stats_server.options import AccountGroup, OidcOptions
from tests.batchjob_stats_server.conftest import NOW
from tests.helpers.waiting import scaled
from tests.simulated import oidc_provider

P = "/api/v1"
URL = "http://testserver"
HTML = {"Accept": "text/html"}
SECRET = "a secret of server and provider"
OWN = {"Origin": URL}


@pytest.fixture
def current_time():
    """[now], which a test may change."""
    return [float(NOW)]


@pytest.fixture
def provider(current_time):
    made = oidc_provider.OidcProvider("batchjob", SECRET, lambda: current_time[0])
    made.redirect_uris = {f"{URL}/oidc/callback"}
    with oidc_provider.serving(made):
        yield made


@pytest.fixture
def services(services, provider, current_time):
    options = OidcOptions(
        issuer=provider.issuer, client_id="batchjob", server_url=URL, name="Example University"
    )
    auth = replace(
        services.settings.auth,
        admin_group=("hpc-admins",),
        viewer_group=("hpc-staff",),
        account_group=(AccountGroup("chemists", "c1", "chem"),),
    )

    def clock():
        return current_time[0]

    return services._replace(
        settings=services.settings._replace(oidc=options, auth=auth),
        provider=OidcProvider(options, SECRET, clock, clock),
        clock=clock,
    )


@pytest.fixture
def make_browser(services):
    """Make separate browsers."""
    made = app.make(services)
    return lambda: TestClient(made, client=("203.0.113.5", 50000), headers=HTML)


def callback_path(client, next_path="/jobs?state=FAILED"):
    """Go to the provider and back as far as the callback's address, as a browser does."""
    redirect = client.get("/oidc/log-in", params={"next": next_path}, follow_redirects=False)
    assert redirect.status_code == 303
    response = requests.get(redirect.headers["location"], allow_redirects=False, timeout=scaled(5))
    return response.headers["Location"].removeprefix(URL)


def log_in(client, **more):
    return client.get(callback_path(client, **more), follow_redirects=False)


def whoami(client):
    answer = client.get(f"{P}/me")
    identity = answer.json()
    return (
        (identity["user"], identity["role"], identity["via"]) if answer.status_code == 200 else 401
    )


def test_sign_in_page_links_to_provider(make_browser):
    page = make_browser().get("/usage?by=account")
    assert page.status_code == 401
    link = re.search(r'href="(/oidc/log-in[^"]*)">([^<]*)', page.text)
    assert html.unescape(link[1]) == "/oidc/log-in?next=%2Fusage%3Fby%3Daccount"
    assert link[2] == "Log in with Example University"


def test_log_in(make_browser):
    alice = make_browser()
    answer = log_in(alice)
    assert answer.status_code == 200
    assert 'content="0;url=/jobs?state=FAILED"' in answer.text
    cookies = answer.headers.get_list("set-cookie")
    assert any(
        re.fullmatch(r"batchjob-80=bs_[\w-]+; HttpOnly; Path=/; SameSite=strict", each)
        for each in cookies
    )
    assert whoami(alice) == ("alice", "user", "session")
    rows = alice.get(f"{P}/jobs").json()
    assert {row["user"] for row in rows} == {"alice"}
    assert "Sign out" in alice.get("/").text


@pytest.mark.parametrize(
    ("groups", "role", "users"),
    [
        (["staff"], "user", {"alice"}),
        (["chemists"], "user", {"alice", "bob"}),
        (["hpc-staff"], "viewer", {"alice", "bob", "carol"}),
        (["hpc-admins", "hpc-staff"], "admin", {"alice", "bob", "carol"}),
        ("hpc-staff", "viewer", {"alice", "bob", "carol"}),
        (None, "user", {"alice"}),
        ([{"hpc-admins": 1}, 7], "user", {"alice"}),
    ],
)
@pytest.mark.parametrize("in_userinfo", [(), ("groups", "preferred_username")])
def test_groups_give_roles_and_accounts(make_browser, provider, groups, role, users, in_userinfo):
    provider.user_claims |= {"groups": groups}
    provider.userinfo_only = in_userinfo
    alice = make_browser()
    log_in(alice)
    assert whoami(alice) == ("alice", role, "session")
    assert {row["user"] for row in alice.get(f"{P}/jobs").json()} == users


@pytest.mark.parametrize(
    ("claims", "message"),
    [
        ({"aud": "another"}, "invalid ID token"),
        ({"aud": ["batchjob", "another"], "azp": "another"}, "invalid ID token"),
        ({"iss": "https://evil.example"}, "invalid ID token"),
        ({"nonce": "of another log-in"}, "invalid ID token"),
        ({"nonce": None}, "invalid ID token"),
        ({"exp": NOW - 120}, "invalid ID token"),
        ({"exp": None}, "invalid ID token"),
        ({"iat": NOW + 3600}, "invalid ID token"),
        ({"sub": None}, "invalid ID token"),
        ({"at_hash": "of_another_access_token"}, "invalid ID token"),
        ({"preferred_username": "root, admin"}, "expected a login"),
        ({"preferred_username": ["alice"]}, "sent no preferred_username"),
    ],
)
def test_invalid_id_token_is_rejected(make_browser, provider, claims, message):
    provider.claims = claims
    alice = make_browser()
    answer = log_in(alice)
    assert answer.status_code == 403
    assert message in answer.text
    assert whoami(alice) == 401


def test_changed_provider_key_is_fetched(make_browser, provider, current_time):
    log_in(make_browser())
    assert provider.requested_paths.count("/keys") == 1
    provider.renew_key()
    current_time[0] += 20
    alice = make_browser()
    log_in(alice)
    assert whoami(alice) == ("alice", "user", "session")
    assert provider.requested_paths.count("/keys") == 2


def test_signature_of_another_key_is_rejected(make_browser, provider):
    other = RSAKey.generate_key(2048, {"kid": provider.key.kid})
    provider.signed = lambda claims: oidc_provider.OidcProvider.signed(provider, claims, other)
    assert log_in(make_browser()).status_code == 403


def test_log_in_is_finished_only_by_the_browser_that_started_it(make_browser):
    """A link cannot sign a user in as another one (RFC 6749, 10.12)."""
    stolen = callback_path(make_browser())
    alice = make_browser()
    assert alice.get(stolen).status_code == 403
    callback_path(alice)  # with a log-in of her own under way
    assert alice.get(stolen).status_code == 403
    assert whoami(alice) == 401


def test_callback_works_once(make_browser):
    alice = make_browser()
    address = callback_path(alice)
    assert alice.get(address, follow_redirects=False).status_code == 200
    assert alice.get(address, follow_redirects=False).status_code == 403


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda query: {**query, "iss": "https://evil.example"},
            "the response is from another provider",
        ),
        (
            lambda query: {"state": query["state"], "error": "access_denied"},
            "refused: access_denied",
        ),
        (lambda query: {"state": query["state"]}, "sent no authorization code"),
        (lambda query: {**query, "code": "another"}, "refused the code"),
        (lambda query: {**query, "state": "another"}, "not started in this browser"),
    ],
)
def test_invalid_provider_response_is_rejected(make_browser, change, message):
    alice = make_browser()
    query = {name: each[0] for name, each in parse_qs(urlsplit(callback_path(alice)).query).items()}
    answer = alice.get("/oidc/callback", params=change(query))
    assert answer.status_code == 403
    assert message in html.unescape(answer.text)


@pytest.mark.parametrize(
    "next_path", ["https://evil.example/x", "//evil.example", "/\\evil.example", "http://["]
)
def test_log_in_never_redirects_to_another_site(make_browser, next_path):
    answer = log_in(make_browser(), next_path=next_path)
    (target,) = re.findall(r'content="0;url=([^"]*)"', answer.text)
    assert target.startswith("/")
    assert not target.startswith(("//", "/\\"))


def test_unreachable_provider_gives_503(make_browser, services, provider):
    gone = services.settings.oidc.__class__(
        issuer="http://127.0.0.1:1", client_id="batchjob", server_url=URL
    )
    client = TestClient(app.make(services._replace(provider=OidcProvider(gone, SECRET))))
    answer = client.get("/oidc/log-in")
    assert answer.status_code == 503
    assert "no answer from the provider" in answer.json()["detail"]


def test_provider_with_another_issuer_is_rejected(make_browser, provider):
    described = provider.discovery_document
    provider.discovery_document = lambda: {**described(), "issuer": "https://evil.example"}
    assert make_browser().get("/oidc/log-in").status_code == 503


@pytest.mark.parametrize("endpoint", ["token_endpoint", "jwks_uri", "userinfo_endpoint"])
def test_endpoint_in_plain_http_is_rejected(make_browser, provider, endpoint):
    described = provider.discovery_document
    provider.discovery_document = lambda: {**described(), endpoint: "http://idp.example/here"}
    provider.userinfo_only = ("preferred_username",)
    alice = make_browser()
    answer = log_in(alice)
    assert answer.status_code == 503
    assert f"the provider's {endpoint} is not an https URL" in html.unescape(answer.text)
    assert whoami(alice) == 401


def test_sign_out_ends_all_sessions_of_the_user(make_browser, provider):
    laptop, phone, other = make_browser(), make_browser(), make_browser()
    log_in(laptop)
    log_in(phone)
    provider.user_claims = {"sub": "7", "preferred_username": "bob"}
    log_in(other)
    copied = dict(laptop.cookies)
    answer = laptop.post("/sign-out", headers=OWN)
    (leading,) = re.findall(r'content="0;url=([^"]*)"', answer.text)
    away = html.unescape(leading)
    assert away.startswith(f"{provider.issuer}/log-out?client_id=batchjob&")
    back = requests.get(away, allow_redirects=False, timeout=scaled(5)).headers["Location"]
    assert back == f"{URL}/signed-out"
    assert "Your sessions have ended" in laptop.get("/signed-out").text
    thief = make_browser()
    thief.cookies.update(copied)
    assert [whoami(each) for each in (laptop, phone, thief)] == [401] * 3
    assert whoami(other) == ("bob", "user", "session")


def test_back_channel_log_out_ends_session(make_browser, provider):
    alice, server = make_browser(), make_browser()
    log_in(alice)
    wrong = (
        provider.logout_token(aud="another"),
        provider.logout_token(nonce="x"),
        provider.logout_token(events={}),
        provider.logout_token(iat=NOW - 3600),
        provider.logout_token(sid=None),
        provider.id_token("x"),
        "junk",
    )
    for token in wrong:
        answer = server.post("/oidc/back-channel-log-out", data={"logout_token": token})
        assert answer.status_code == 400
    assert whoami(alice) == ("alice", "user", "session")
    token = provider.logout_token()
    twice = f"logout_token={token}&logout_token={token}"
    assert server.post("/oidc/back-channel-log-out", content=twice).status_code == 422
    assert (
        server.post("/oidc/back-channel-log-out", data={"logout_token": token}).status_code == 200
    )
    assert whoami(alice) == 401


def test_session_expires(make_browser, current_time, services):
    alice = make_browser()
    log_in(alice)
    current_time[0] += services.settings.oidc.session
    assert whoami(alice) == 401
    assert "the session has ended" in alice.get("/").text.lower()
    log_in(alice)
    with services.reader.connect() as db:
        assert len(db.execute(schema.login_session.select()).all()) == 1


def test_token_role_follows_groups_of_the_last_log_in(
    make_browser, provider, current_time, services
):
    """A user removed from a group loses its role at the next log-in, or after some time."""
    provider.user_claims |= {"groups": ["hpc-admins"]}
    alice = make_browser()
    log_in(alice)
    wanted = {"label": "x", "role": "viewer", "days": "300"}
    for headers in ({}, OWN):  # a program's request, as another site may cause it
        assert alice.post(f"{P}/tokens", json={"label": "x"}, headers=headers).status_code == 401
    shown = alice.post("/tokens", data=wanted, headers=OWN).text
    made = re.search(r"bj_[\w-]{43}", shown)[0]
    program = make_browser()
    program.headers["Authorization"] = f"Bearer {made}"
    assert whoami(program) == ("alice", "viewer", "token")
    current_time[0] += 30 * 86400
    assert whoami(program) == ("alice", "user", "token")
    log_in(alice)
    assert whoami(program) == ("alice", "viewer", "token")
    provider.user_claims |= {"groups": []}
    log_in(make_browser())
    assert [whoami(each)[1] for each in (program, alice)] == ["user", "user"]


def test_log_in_without_provider_is_not_found(services, make_browser):
    alice = make_browser()
    log_in(alice)
    nobody = TestClient(app.make(services._replace(provider=None)), headers=HTML)
    nobody.cookies.update(alice.cookies)
    assert nobody.get("/oidc/log-in").status_code == 404
    answer = nobody.get("/")
    assert answer.status_code == 401
    assert "Log in with" not in answer.text
