"""Citizens who use a browser's session as a token."""

from unittest import mock

from batchjob_stats_db.database.tokens import TokenRole
from batchjob_stats_server.auth.rights import ProcessToken
from tests.security.citizens.citizen import CITIZEN_UID, VICTIM_UID, citizen
from tests.security.one_bad_citizen import Site

COOKIE = "cookie"
_COOKIE_NAME = "batchjob-80"


def session_cookie(site: Site, role: TokenRole = TokenRole.USER) -> str:
    """What the browser of alice holds after she has signed in with a token."""
    text = site.token("alice", role)
    answer = site.client.post("/sign-in", data={"token": text}, follow_redirects=False)
    site.client.cookies.clear()
    return answer.cookies[_COOKIE_NAME]


@citizen(COOKIE)
def port_that_sends_the_cookie_as_a_token(site, dice):
    text = session_cookie(site, dice.choice(list(TokenRole)))
    for value in (f"Bearer {text}", f"Bearer {text.partition('_')[2]}"):
        answer = site.client.get("/api/v1/me", headers={"Authorization": value})
        assert answer.status_code == 401


@citizen(COOKIE)
def program_of_another_user_with_the_cookie(site, dice):
    """In `batchjob up`: whose socket is at the other end is asked of the kernel."""
    text = session_cookie(site)
    process = ProcessToken("bj_of_the_process", "alice", TokenRole.ADMIN)
    uid = dice.choice([CITIZEN_UID, VICTIM_UID])
    services = site.services._replace(process_token=process)
    with (
        mock.patch("batchjob_stats_server.auth.browser_session.local_uid", return_value=uid),
        mock.patch.object(site.client.app.state, "services", services),
    ):
        answer = site.client.get("/api/v1/me", headers={"Cookie": f"{_COOKIE_NAME}={text}"})
    assert answer.status_code == 401


@citizen(COOKIE)
def page_of_another_site_that_sends_a_form(site, dice):
    text = session_cookie(site)
    origin = dice.choice(
        [
            "http://evil.example",
            "https://testserver:1",
            "null",
            "http://testserver:8080",
            "http://testserver.evil.example",
        ]
    )
    headers = dice.choice(
        [{"Origin": origin}, {"Origin": "http://testserver", "Sec-Fetch-Site": "cross-site"}]
    )
    for path in ("/tokens", "/tokens/1/revoke", "/sign-out"):
        cookie = {"Cookie": f"{_COOKIE_NAME}={text}"}
        answer = site.client.post(path, data={"label": "x", "days": "1"}, headers=headers | cookie)
        assert answer.status_code in (401, 403), path


@citizen(COOKIE)
def port_that_sets_a_second_cookie(site, dice):
    own = session_cookie(site)
    pair = [f"{_COOKIE_NAME}={own}", f"{_COOKIE_NAME}=bw_{dice.getrandbits(64)}"]
    dice.shuffle(pair)
    headers = {"Cookie": "; ".join(pair)}
    assert site.client.get("/api/v1/me", headers=headers).status_code == 400


@citizen(COOKIE)
def session_that_changes_through_the_api(site, dice):
    text = session_cookie(site, TokenRole.ADMIN)
    headers = {"Cookie": f"{_COOKIE_NAME}={text}", "Origin": "http://testserver"}
    for method, path in (("POST", "/api/v1/tokens"), ("DELETE", "/api/v1/tokens/1")):
        answer = site.client.request(method, path, json={"label": "x"}, headers=headers)
        assert answer.status_code == 401


@citizen(COOKIE)
def token_that_outlives_the_process_that_made_it(site, dice):
    """A token made through `batchjob up` ends with it, whoever holds the token."""
    first, second = (
        ProcessToken(f"bj_{dice.getrandbits(200):050x}", "alice", TokenRole.ADMIN) for _ in range(2)
    )
    state = site.client.app.state
    with mock.patch.object(state, "services", site.services._replace(process_token=first)):
        made = site.client.post(
            "/api/v1/tokens",
            json={"label": "x", "lifetime_seconds": 86400},
            headers={"Authorization": f"Bearer {first.text}"},
        )
        headers = {"Authorization": f"Bearer {made.json()['token']}"}
        assert site.client.get("/api/v1/me", headers=headers).status_code == 200
    for process in (second, None):
        services = site.services._replace(process_token=process)
        with mock.patch.object(state, "services", services):
            assert site.client.get("/api/v1/me", headers=headers).status_code == 401
