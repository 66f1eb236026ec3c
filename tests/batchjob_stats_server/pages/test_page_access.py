"""Whose jobs each page shows to each role. A page without a rule fails."""

import re

import pytest
import sqlalchemy as sa

from batchjob_stats_db.database import schema, scripts
from batchjob_stats_db.database.tokens import TokenRole
from batchjob_stats_server.app import PAGES
from tests.batchjob_stats_server.pages.conftest import HTML, parse_page

ROLES = ("nobody", "alice", "dave", "vera", "root")
NONE, MINE, PHYSICS, ALL = "", "alice", "alice carol", "alice bob carol"

# Whose jobs a page shows to nobody, alice (user), dave (coordinates physics), vera (viewer) and
# root (admin): names, or a status.
RULES = {
    ("/", ""): (401, MINE, NONE, NONE, NONE),
    ("/mine", ""): (401, MINE, NONE, NONE, NONE),
    ("/mine", "user=bob"): (401, MINE, NONE, NONE, NONE),
    ("/jobs", ""): (401, MINE, PHYSICS, ALL, ALL),
    ("/jobs", "user=bob"): (401, NONE, NONE, "bob", "bob"),
    ("/usage", "since=0&by=user"): (401, MINE, PHYSICS, ALL, ALL),
    ("/clusters", ""): (401, NONE, NONE, NONE, NONE),
    ("/clusters/{cluster}", "c1"): (401, MINE, PHYSICS, PHYSICS, PHYSICS),
    ("/clusters/{cluster}/nodes/{node}", "c1 n001"): (401, MINE, MINE, "alice bob", "alice bob"),
    ("/clusters/{cluster}/nodes/{node}", "c1 n002"): (401, NONE, "carol", "carol", "carol"),
    ("/clusters/{cluster}/accounts/{account}", "c1 physics"): (
        401,
        MINE,
        PHYSICS,
        PHYSICS,
        PHYSICS,
    ),
    ("/clusters/{cluster}/accounts/{account}", "c1 chem"): (401, 404, 404, "bob", "bob"),
    ("/admin", ""): (401, 403, 403, PHYSICS, PHYSICS),
    ("/embed/jobs", ""): (401, MINE, NONE, NONE, NONE),
    ("/embed/jobs/{jobid}", "1"): (401, MINE, MINE, MINE, MINE),
    ("/embed/jobs/{jobid}", "2"): (401, 404, 404, "bob", "bob"),
    ("/jobs/{jobid}", "1"): (401, MINE, MINE, MINE, MINE),
    ("/jobs/{jobid}", "2"): (401, 404, 404, "bob", "bob"),
    ("/jobs/{jobid}", "3"): (401, 404, "carol", "carol", "carol"),
    # A script is its user's and the admins' alone.
    ("/jobs/{jobid}/script", "2"): (401, 404, 404, 404, "bob"),
    ("/tokens", ""): (401, NONE, NONE, NONE, NONE),
    ("/messages", ""): (401, NONE, NONE, NONE, NONE),
    ("/help", ""): (401, NONE, NONE, NONE, NONE),
    ("/help/{chapter}", "user"): (401, NONE, NONE, NONE, NONE),
    ("/unsubscribe", "user=alice&signature=forged"): (403, 403, 403, 403, 403),
    ("/compare", "job=2&job=3"): (401, NONE, "carol", "bob carol", "bob carol"),
    ("/search", "q=1"): (401, MINE, 303, MINE, MINE),
    ("/search", "q=bob"): (401, NONE, NONE, 303, 303),
    ("/search", "q=2"): (401, NONE, NONE, 303, 303),
    ("/search", "q=n002"): (401, NONE, 303, 303, 303),
}
OPEN = {"/signed-out", "/static/{name}"}
CHANGING = {
    "/sign-in", "/sign-out", "/tokens", "/tokens/{token_id}/revoke", "/messages",
    "/messages/{subscription_id}/remove", "/unsubscribe",
}  # fmt: skip
SECRETS = {"bob": ("=cmd()", "chem"), "carol": ("n002",)}


@pytest.fixture
def services(services):
    """With a script of each job."""
    with services.writer.begin() as db:
        ids = db.scalars(sa.select(schema.job.c.id)).all()
        scripts.store(db, ids, "#!/bin/sh\nexport TOKEN=<1>\n", 100)
    return services


def test_every_page_has_a_rule():
    routes = {
        (method, route.path)
        for router in PAGES
        for route in router.routes
        for method in route.methods
    }
    reading = {path for path, _ in RULES} | OPEN
    assert routes == {("GET", path) for path in reading} | {("POST", path) for path in CHANGING}


def page_address(path, what):
    values = iter(what.split())
    filled = re.sub(r"\{\w+\}", lambda _: next(values), path)
    return filled if filled != path else f"{path}?{what}"


@pytest.mark.parametrize("role", ROLES)
def test_pages_show_each_role_only_its_jobs(role, client, proxy_client):
    """One application answers for all rules: to start one takes longer than to ask it."""
    role_client = client if role == "nobody" else proxy_client(role)
    faults = []
    for rule, expected in RULES.items():
        answer = role_client.get(page_address(*rule), headers=HTML, follow_redirects=False)
        faults += [(rule, fault) for fault in faults_of(rule, role, expected, answer)]
    assert faults == []


def faults_of(rule, role, expected, answer):
    """What a page shows to a role and should not, or the other way round."""
    expected = expected[ROLES.index(role)]
    if isinstance(expected, int) or answer.status_code != 200:
        if answer.status_code != expected:
            yield answer.status_code
        return
    main = parse_page(answer).find(".//main")
    shown = " ".join([*main.itertext(), *(each.get("href") or "" for each in main.iter("a"))])
    named = {user for user in ("alice", "bob", "carol") if re.search(rf"\b{user}\b", shown)}
    asked = {role, rule[1].removeprefix("user=").removeprefix("q=")}
    if not named - asked <= set(expected.split()):
        yield named
    if rule[0] in ("/jobs", "/usage") and named - asked != set(expected.split()) - asked:
        yield named
    for user, secrets in SECRETS.items():
        if user not in expected.split():
            yield from (each for each in secrets if each not in rule[1] and each in shown)


def test_pages_accept_either_get_or_post():
    for router in PAGES:
        for route in router.routes:
            assert route.methods in ({"GET"}, {"POST"})


REFUSED = {
    (403, "/unsubscribe"),
    (404, "/jobs/{jobid}"), (404, "/jobs/{jobid}/script"), (404, "/embed/jobs/{jobid}"),
    (404, "/clusters/{cluster}/accounts/{account}"), (303, "/search"),
}  # fmt: skip


@pytest.mark.parametrize("role", [TokenRole.VIEWER, TokenRole.ADMIN])
def test_token_of_one_cluster_shows_no_jobs_of_another(role, client, token_headers):
    headers = HTML | token_headers("vera", role, cluster="c2")
    for rule in RULES:
        answer = client.get(page_address(*rule), headers=headers, follow_redirects=False)
        if answer.status_code != 200:
            assert (answer.status_code, rule[0]) in REFUSED
            continue
        shown = " ".join(parse_page(answer).find(".//main").itertext())
        named = re.search(r"\b(bob|carol)\b", shown.replace(rule[1].partition("=")[2], ""))
        assert not named, rule
        secrets = [each for each in sum(SECRETS.values(), ()) if each not in rule[1]]
        assert not [each for each in secrets if each in shown], rule
