"""Every route for every role, with own and others' data: a route without a rule fails."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sa
from fastapi.testclient import TestClient

from batchjob_stats_db.database import schema, scripts, subscriptions, tokens
from batchjob_stats_db.database.subscriptions import Subscription
from batchjob_stats_db.database.tokens import Maker, TokenRole
from batchjob_stats_server import app
from batchjob_stats_server.app import ROUTERS
from batchjob_stats_server.turns import TimeSeriesPool
from tests.batchjob_stats_server.api.recording import with_samples, write_sample_file
from tests.batchjob_stats_server.conftest import NOW, PROXY, SECRET

P = "/api/v1"

# Each request with the expected answers to nobody, alice (user), dave (coordinates physics),
# vera (viewer), root (admin), and to vera, root and alice with tokens for cluster c2 alone.
# A number from 100 is a status, one below the number of rows; a set holds the users of the rows.
MINE, PHYSICS, ALL = {"alice"}, {"alice", "carol"}, {"alice", "bob", "carol"}
NONE = set()
NO, OK = [NONE] * 3, [200] * 7
ROLES = ("nobody", "alice", "dave", "vera", "root")
CLUSTER_LOGINS = ("vera on c2", "root on c2", "alice on c2")
COLUMNS = (*ROLES, *CLUSTER_LOGINS)
RULES = {
    ("GET", P, ""): (401, *OK),
    ("GET", f"{P}/", ""): (401, *OK),
    ("GET", f"{P}/me", ""): (401, *OK),
    ("GET", f"{P}/jobs", ""): (401, MINE, PHYSICS, ALL, ALL, MINE, MINE, MINE),
    ("GET", f"{P}/jobs", "user=bob"): (401, NONE, NONE, {"bob"}, {"bob"}, *NO),
    ("GET", f"{P}/jobs", "node=n002"): (401, NONE, {"carol"}, {"carol"}, {"carol"}, *NO),
    ("GET", f"{P}/jobs/{{jobid}}", "1"): (401, MINE, MINE, MINE, MINE, MINE, MINE, MINE),
    ("GET", f"{P}/jobs/{{jobid}}", "2"): (401, NONE, NONE, {"bob"}, {"bob"}, *NO),
    ("GET", f"{P}/jobs/{{jobid}}", "3"): (401, NONE, {"carol"}, {"carol"}, {"carol"}, *NO),
    ("GET", f"{P}/jobs/{{jobid}}/samples", "2/samples"): (401, 0, 0, 1, 1, 0, 0, 0),
    ("GET", f"{P}/jobs/{{jobid}}/{{part}}", "2/nodes"): (401, 0, 0, 1, 1, 0, 0, 0),
    ("GET", f"{P}/jobs/{{jobid}}/{{part}}", "3/nodes"): (401, 0, 1, 1, 1, 0, 0, 0),
    # No time series database is configured here; test_metrics_route.py has who sees what.
    ("GET", f"{P}/jobs/{{jobid}}/metrics", "2/metrics"): (401, 503, 503, 503, 503, 503, 503, 503),
    # Only its user and admins see a script: neither coordinators nor viewers.
    ("GET", f"{P}/jobs/{{jobid}}/script", "1/script"): (401, 1, 0, 0, 1, 0, 0, 0),
    ("GET", f"{P}/jobs/{{jobid}}/script", "2/script"): (401, 0, 0, 0, 1, 0, 0, 0),
    ("GET", f"{P}/jobs/{{jobid}}/script", "3/script"): (401, 0, 0, 0, 1, 0, 0, 0),
    # Nothing is measured.
    ("GET", f"{P}/stats/waste", "since=0"): (401, NONE, NONE, NONE, NONE, *NO),
    ("GET", f"{P}/stats/failures", "since=0"): (
        401,
        MINE,
        {"alice"},
        {"alice", "bob"},
        {"alice", "bob"},
        MINE,
        MINE,
        MINE,
    ),
    ("GET", f"{P}/stats/usual-waits", "cluster=c1"): (401, 0, 0, 0, 0, 0, 0, 0),
    ("GET", f"{P}/stats/waits", "since=0&cluster=c1"): (401, 1, 1, 1, 1, 0, 0, 0),
    ("GET", f"{P}/stats/idle-gpus", ""): (401, NONE, NONE, NONE, NONE, *NO),
    ("GET", f"{P}/stats/nodes", ""): (401, 403, 403, 1, 1, 1, 1, 403),
    ("GET", f"{P}/stats/unfinished", ""): (401, 1, 2, 2, 2, 0, 0, 0),
    ("GET", f"{P}/jobs/{{jobid}}/report", "2/report"): (401, 404, 404, 200, 200, 404, 404, 404),
    ("GET", f"{P}/jobs/{{jobid}}/report", "3/report"): (401, 404, 200, 200, 200, 404, 404, 404),
    ("GET", f"{P}/job", "jobid=1"): (401, MINE, MINE, MINE, MINE, MINE, MINE, MINE),
    ("GET", f"{P}/job", "jobid=2"): (401, NONE, NONE, {"bob"}, {"bob"}, *NO),
    ("GET", f"{P}/job/{{part}}", "nodes?jobid=2"): (401, 0, 0, 1, 1, 0, 0, 0),
    ("GET", f"{P}/job/{{part}}", "nodes?jobid=3"): (401, 0, 1, 1, 1, 0, 0, 0),
    ("GET", f"{P}/job/report/{{part}}", "efficiency?jobid=2"): (401, 0, 0, 3, 3, 0, 0, 0),
    ("GET", f"{P}/job/report/{{part}}", "efficiency?jobid=3"): (401, 0, 3, 3, 3, 0, 0, 0),
    ("GET", f"{P}/job/metrics", "jobid=2"): (401, 503, 503, 503, 503, 503, 503, 503),
    ("GET", f"{P}/accounts", "since=0"): (401, 2, 1, 3, 3, 1, 1, 1),
    ("GET", f"{P}/clusters", ""): (401, *OK),
    # No time series database is configured here.
    ("GET", f"{P}/clusters/{{cluster}}/nodes/{{node}}/metrics", "c1/nodes/n001/metrics"): (
        401,
        403,
        403,
        503,
        503,
        403,
        403,
        403,
    ),
    ("GET", f"{P}/usage", "since=0&by=user"): (401, MINE, PHYSICS, ALL, ALL, MINE, MINE, MINE),
    ("GET", f"{P}/usage/emissions", "since=0&by=user"): (401, NONE, NONE, NONE, NONE, *NO),
    # test_digest.py has whose jobs are in it.
    ("GET", f"{P}/digest", "user=bob"): (401, *OK),
    # test_now.py has whose jobs are in them.
    ("GET", f"{P}/now", ""): (401, *OK),
    ("GET", f"{P}/current-use", ""): (401, *OK),
    ("GET", f"{P}/tokens", ""): (401, *OK),
    ("GET", f"{P}/tokens", "user=bob"): (401, 403, 403, 403, 200, 403, 200, 403),
    ("POST", f"{P}/tokens", ""): (401, 201, 201, 201, 201, 201, 201, 201),
    ("POST", f"{P}/tokens", "for bob"): (401, 403, 403, 403, 201, 403, 201, 403),
    ("POST", f"{P}/tokens", "admin"): (401, 403, 403, 403, 201, 403, 201, 403),
    ("POST", f"{P}/tokens", "viewer"): (401, 403, 403, 201, 201, 201, 201, 403),
    ("POST", f"{P}/tokens", "on c1"): (401, 201, 201, 201, 201, 403, 403, 403),
    ("DELETE", f"{P}/tokens/{{token_id}}", "bob's"): (401, 404, 404, 404, 204, 404, 404, 404),
    ("GET", f"{P}/messages", ""): (401, *OK),
    # Bob's are nobody else's, not even an admin's.
    ("GET", f"{P}/subscriptions", ""): (401, 0, 0, 0, 0, 0, 0, 0),
    ("POST", f"{P}/subscriptions", "end"): (401, 201, 201, 201, 201, 201, 201, 201),
    ("POST", f"{P}/subscriptions", "on c1"): (401, 201, 201, 201, 201, 403, 403, 403),
    ("POST", f"{P}/subscriptions", "of physics"): (401, 422, 201, 422, 422, 422, 422, 422),
    ("POST", f"{P}/subscriptions", "to an address"): (401, *[422] * 7),
    ("DELETE", f"{P}/subscriptions/{{subscription_id}}", "bob's"): (401, *[404] * 7),
    ("GET", f"{P}/emission-factors", ""): (401, *OK),
}
CERTIFICATE_UNITS = {"vera": "viewer", "root": "admin"}
SUBSCRIPTION_REQUESTS = {
    "end": {"event": "end"},
    "on c1": {"event": "end", "cluster": "c1"},
    "of physics": {"event": "digest", "account": "physics"},
    "to an address": {"event": "end", "target": "eve@example.net"},
}
TOKEN_REQUESTS = {
    "": {"label": "x"},
    "for bob": {"label": "x", "user": "bob"},
    "admin": {"label": "x", "role": "admin"},
    "viewer": {"label": "x", "role": "viewer"},
    "on c1": {"label": "x", "cluster": "c1"},
}


@pytest.fixture
def services(services, tmp_path):
    """The services with a sample of bob's job, and the script of one job of each user."""
    with services.writer.begin() as db:
        for row in db.execute(sa.select(schema.job).where(schema.job.c.cluster == "c1")).all():
            if row.jobid in ("1", "2", "3") and row.submit_time == NOW - 7200:
                scripts.store(db, [row.id], "#!/bin/sh\nexport TOKEN=...\n", 100)
        subscriptions.write_offer(db, "c1", subscriptions.Offer(("mail",)), NOW)
        db.execute(sa.delete(schema.subscription))
        row = Subscription(0, "bob", "end", "mail", "", "", "", "", "", 0, NOW)
        subscriptions.add(db, row)
    write_sample_file(tmp_path, "2", "bob", [NOW - 5000])
    return with_samples(services, tmp_path)._replace(stores=TimeSeriesPool(()))


def test_every_route_has_a_rule():
    # The routes of the gate and of runs have tests of their own, against real stores.
    routes = {
        (method, route.path)
        for router in ROUTERS
        for route in router.routes
        for method in route.methods
        if not route.path.startswith((f"{P}/prometheus/", f"{P}/runs"))
    }
    assert routes == {(method, path) for method, path, _ in RULES}


TOKEN_ROLES = {"vera": TokenRole.VIEWER, "root": TokenRole.ADMIN}

# The names of the same callers in the threat model of docs/guide/security.md.
DOCUMENTED_NAMES = {
    "nobody": "anybody who reaches a port",
    "alice": "a user of the server",
    "dave": "a coordinator",
    "vera": "a viewer",
    "root": "an admin",
}
OTHER_DOCUMENTED_NAMES = (
    "a user on a node", "a user with the same login", "a Slurm administrator",
    "the thief of a token", "a trusted peer", "an operator", "root on a node", "root at the site's",
)  # fmt: skip


def test_threat_model_documents_every_caller():
    guide = Path(__file__).parents[2] / "docs/guide/security.md"
    table = guide.read_text().partition("## Threat model")[2].strip().partition("\n\n")[0]
    rows = [line for line in table.splitlines() if line.startswith("| ")][2:]  # without the header
    callers = [line.split("|")[1].strip() for line in rows]
    assert DOCUMENTED_NAMES.keys() == set(ROLES)
    for name in (*DOCUMENTED_NAMES.values(), *OTHER_DOCUMENTED_NAMES):
        assert any(caller.startswith(name) for caller in callers), name
    assert len(callers) == len(DOCUMENTED_NAMES) + len(OTHER_DOCUMENTED_NAMES)
    assert {role.value for role in TokenRole} == {"user", "viewer", "admin"}


@pytest.mark.parametrize("via", ["header", "token", "certificate"])
@pytest.mark.parametrize("role", ROLES)
def test_access_matrix(
    role, via, client, proxy_client, token_headers, certificate_client, services
):
    headers = {}
    if via == "token" and role != "nobody":
        headers = token_headers(role, TOKEN_ROLES.get(role, TokenRole.USER))
    elif via == "header" and role != "nobody":
        client = proxy_client(role)
    elif via == "certificate" and role != "nobody":
        client = certificate_client(role, CERTIFICATE_UNITS.get(role, "people"))
    # Certificates identify viewers and admins only.
    effective_role = role if via != "certificate" or role in CERTIFICATE_UNITS else "nobody"
    assert wrong_answers(effective_role, client, headers, token_headers, services) == []


@pytest.mark.parametrize("role", ROLES[1:])
def test_token_rights_are_limited_to_current_rights_of_its_maker(
    role, client, token_headers, services
):
    """The token has the role admin, as its maker had when creating it."""
    headers = token_headers(role, TokenRole.ADMIN, maker=Maker(role, "header"))
    assert wrong_answers(role, client, headers, token_headers, services) == []


@pytest.mark.parametrize("why", ["its parent is revoked", "its maker is no admin any more"])
def test_token_with_revoked_parent_or_unprivileged_maker_is_rejected(
    why, client, token_headers, services
):
    if why == "its parent is revoked":
        (parent,) = token_headers("root", TokenRole.ADMIN).values()
        parent_id = token_id(services, parent)
        headers = token_headers("root", TokenRole.ADMIN, maker=Maker("root", parent_id=parent_id))
        with services.writer.begin() as db:
            assert len(tokens.revoke(db, parent_id)) == 2
    else:
        headers = token_headers("bob", maker=Maker("alice", "header"))
    assert wrong_answers("nobody", client, headers, token_headers, services) == []


ROUTES_WITHOUT_CLUSTER = (
    "",
    "/",
    "/me",
    "/clusters",
    "/messages",
    "/digest",
    "/now",
    "/emission-factors",
)


@pytest.mark.parametrize("role", CLUSTER_LOGINS)
def test_token_of_one_cluster_sees_only_that_cluster(role, client, token_headers, services):
    user, cluster = role.split(" on ")
    headers = token_headers(user, TOKEN_ROLES.get(user, TokenRole.USER), cluster=cluster)

    def is_of_cluster(rule, answer):
        route = rule[1].removeprefix(P)
        if answer.status_code != 200 or route in ROUTES_WITHOUT_CLUSTER:
            return True
        rows = [] if route.endswith("/samples") else answer.json()
        return {row["cluster"] for row in rows} <= {cluster, None}  # sums over clusters have none

    assert wrong_answers(role, client, headers, token_headers, services, is_of_cluster) == []


def wrong_answers(
    role, client, headers, token_headers, services, is_right=lambda rule, answer: True
):
    """Send the request of each rule; the rules and answers other than those expected for the role.

    One application answers all of them: to build one takes far longer than to ask it.
    """
    wrong = []
    for rule in RULES:
        answer = send(rule, client, headers, token_headers, services)
        found, expected = compared(rule, role, answer)
        if found != expected or not is_right(rule, answer):
            wrong.append((" ".join(rule), found, expected))
    return wrong


def send(rule, client, headers, token_headers, services):
    """The answer to the request of a rule."""
    method, path, query = rule
    if method == "DELETE":
        (bearer,) = token_headers("bob").values()
        path = path.format(token_id=token_id(services, bearer), subscription_id=1)
    elif "{" in path:
        path = path[: path.index("{")] + query
    elif method == "GET" and query:
        path = f"{path}?{query}"
    requests = SUBSCRIPTION_REQUESTS if path.endswith("/subscriptions") else TOKEN_REQUESTS
    body = requests[query] if method == "POST" else None
    return client.request(method, path, headers=headers, json=body)


def compared(rule, role, answer):
    """What a rule is about in an answer (its users, number of rows or status), and the expected."""
    expected = RULES[rule][COLUMNS.index(role)]
    if isinstance(expected, set):
        rows = answer.json()
        return {row["user"] for row in rows} if isinstance(rows, list) else rows, expected
    if expected < 100:
        path = rule[1]
        rows = answer.text.splitlines() if path.endswith("/samples") else answer.json()
        return len(rows), expected
    return answer.status_code, expected


def token_id(services, bearer):
    with services.reader.connect() as db:
        return tokens.find(db, bearer.removeprefix("Bearer "), NOW).id


# Routes that name neither jobs nor other users; those of tokens have audit lines of their own.
ROUTES_WITHOUT_JOBS = {
    *(P + route for route in ("", "/", "/me", "/tokens", "/tokens/{token_id}", "/messages")),
    *(P + route for route in ("/subscriptions", "/subscriptions/{subscription_id}")),
    f"{P}/emission-factors",
}


@pytest.mark.parametrize("role", ["alice", "dave", "vera", "root"])
def test_audit_log_has_every_question_about_others_whatever_the_answer(
    role, proxy_client, token_headers, services, caplog
):
    client, sees_others = proxy_client(role), role != "alice"
    caplog.set_level("INFO", "batchjob.audit")
    for rule in RULES:
        caplog.clear()
        answer = send(rule, client, {}, token_headers, services)
        question = f"asked for {answer.request.url.path!r}"
        asked = [message for message in caplog.messages if question in message]
        assert len(asked) == (sees_others and rule[1] not in ROUTES_WITHOUT_JOBS), rule


def test_audit_log_has_the_question_of_every_page_about_others(proxy_client, caplog):
    client = proxy_client("vera")
    caplog.set_level("INFO", "batchjob.audit")
    silent = set()
    for router in app.PAGES:
        for route in router.routes:
            if "GET" not in getattr(route, "methods", ()):
                continue
            caplog.clear()
            path = re.sub("{[^}]*}", "2", route.path)
            client.get(path, follow_redirects=False)
            if not any(f"asked for {path!r}" in message for message in caplog.messages):
                silent.add(route.path)
    assert silent == {
        "/tokens", "/messages", "/unsubscribe", "/signed-out", "/static/{name}", "/help",
        "/help/{chapter}",
    }  # fmt: skip


def test_usage_sums_of_cluster_viewer_cover_only_that_cluster(client, token_headers):
    cluster_headers, all_headers = (
        token_headers("vera", TokenRole.VIEWER, cluster=cluster) for cluster in ("c2", "")
    )
    for path in ("usage?since=0&by=user", "usage?since=0&by=account", "usage?since=0&by=day"):
        all_sums, cluster_sums = (
            client.get(f"{P}/{path}", headers=all_headers).json(),
            client.get(f"{P}/{path}&cluster=c2", headers=all_headers).json(),
        )
        assert client.get(f"{P}/{path}", headers=cluster_headers).json() == cluster_sums != all_sums
        assert client.get(f"{P}/{path}&cluster=c1", headers=cluster_headers).json() == []


def test_same_login_on_another_cluster_cannot_see_or_revoke_tokens(client, token_headers):
    """alice on c1, alice on c2 and alice on all clusters may be three people."""
    headers = {cluster: token_headers("alice", cluster=cluster) for cluster in ("c1", "c2", "")}
    ids = {
        row["cluster"]: row["id"] for row in client.get(f"{P}/tokens", headers=headers[""]).json()
    }
    assert ids.keys() == headers.keys()
    for cluster in ("c1", "c2"):
        rows = client.get(f"{P}/tokens", headers=headers[cluster]).json()
        assert [row["id"] for row in rows] == [ids[cluster]]
        for other in ids.keys() - {cluster}:
            answer = client.delete(f"{P}/tokens/{ids[other]}", headers=headers[cluster])
            assert answer.status_code == 404
    assert client.delete(f"{P}/tokens/{ids['c1']}", headers=headers["c1"]).status_code == 204
    assert client.delete(f"{P}/tokens/{ids['c2']}", headers=headers[""]).status_code == 204


def test_proxy_login_of_one_cluster_sees_only_tokens_of_that_cluster(services, token_headers):
    auth = replace(services.settings.auth, cluster=("c2",))
    services = services._replace(settings=services.settings._replace(auth=auth))
    for cluster in ("c1", "c2", ""):
        token_headers("alice", cluster=cluster)
    headers = {"X-Grafana-User": "alice", "X-Batchjob-Secret": SECRET}
    with TestClient(app.make(services), client=(PROXY, 50000), headers=headers) as client:
        rows = client.get(f"{P}/tokens").json()
        assert [row["cluster"] for row in rows] == ["c2"]
        assert [client.delete(f"{P}/tokens/{number}").status_code for number in (1, 2, 3)] == (
            [404, 204, 404]
        )
