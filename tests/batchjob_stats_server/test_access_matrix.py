"""Every route, every role, own and others' data: a route without a rule fails."""

from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sa
from fastapi.testclient import TestClient

from batchjob_stats_db.database import schema, scripts, tokens
from batchjob_stats_db.database.tokens import Maker, TokenRole
from batchjob_stats_server import app
from batchjob_stats_server.app import ROUTERS
from tests.batchjob_stats_server.conftest import NOW, PROXY, SECRET
from tests.batchjob_stats_server.samples.recording import recorded, with_samples

P = "/api/v1"
WHOLE = {"since": "0"}
OTHERS = {"user": "bob"}
JOB = {"label": "x"}

# What is asked, and what the answer holds for: nobody, alice (user), dave (coordinates physics),
# vera (viewer), root (admin), and for vera, root and alice with tokens for cluster c2 alone.
# A number from 100 is a status, one below the number of rows; a set holds the users of the rows.
MINE, PHYSICS, ALL = {"alice"}, {"alice", "carol"}, {"alice", "bob", "carol"}
NONE, ENDED = set(), {"alice", "bob"}
NO, GOOD, FINE = [NONE] * 3, [200] * 3, [200] * 7
ROLES = ("nobody", "alice", "dave", "vera", "root")
LIMITED = ("vera on c2", "root on c2", "alice on c2")
COLUMNS = (*ROLES, *LIMITED)
RULES = {
    ("GET", P, ""): (401, *FINE),
    ("GET", f"{P}/", ""): (401, *FINE),
    ("GET", f"{P}/me", ""): (401, *FINE),
    ("GET", f"{P}/jobs", ""): (401, MINE, PHYSICS, ALL, ALL, MINE, MINE, MINE),
    ("GET", f"{P}/jobs", "user=bob"): (401, NONE, NONE, {"bob"}, {"bob"}, *NO),
    ("GET", f"{P}/jobs", "node=n002"): (401, NONE, {"carol"}, {"carol"}, {"carol"}, *NO),
    ("GET", f"{P}/jobs/{{jobid}}", "1"): (401, MINE, MINE, MINE, MINE, MINE, MINE, MINE),
    ("GET", f"{P}/jobs/{{jobid}}", "2"): (401, NONE, NONE, {"bob"}, {"bob"}, *NO),
    ("GET", f"{P}/jobs/{{jobid}}", "3"): (401, NONE, {"carol"}, {"carol"}, {"carol"}, *NO),
    ("GET", f"{P}/jobs/{{jobid}}/samples", "2/samples"): (401, 0, 0, 1, 1, 0, 0, 0),
    ("GET", f"{P}/jobs/{{jobid}}/samples", "2/samples?format=gzip"): (401, *FINE),
    ("GET", f"{P}/jobs/{{jobid}}/{{part}}", "2/nodes"): (401, 0, 0, 1, 1, 0, 0, 0),
    ("GET", f"{P}/jobs/{{jobid}}/{{part}}", "3/nodes"): (401, 0, 1, 1, 1, 0, 0, 0),
    # No time series database is configured here; test_metrics_route.py has who sees what.
    ("GET", f"{P}/jobs/{{jobid}}/metrics", "2/metrics"): (401, 503, 503, 503, 503, 503, 503, 503),
    # A script is its user's and the admins' alone: neither a coordinator's nor a viewer's.
    ("GET", f"{P}/jobs/{{jobid}}/script", "1/script"): (401, 1, 0, 0, 1, 0, 0, 0),
    ("GET", f"{P}/jobs/{{jobid}}/script", "2/script"): (401, 0, 0, 0, 1, 0, 0, 0),
    ("GET", f"{P}/jobs/{{jobid}}/script", "3/script"): (401, 0, 0, 0, 1, 0, 0, 0),
    ("GET", f"{P}/job-groups", "started_from=0"): (401, MINE, MINE, MINE, MINE, *NO),
    ("GET", f"{P}/job-groups", "started_from=0&kind=het"): (401, MINE, MINE, MINE, MINE, *NO),
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
    ("GET", f"{P}/stats/waits", "since=0&cluster=c1"): (401, 1, 1, 1, 1, 0, 0, 0),
    ("GET", f"{P}/stats/idle-gpus", ""): (401, NONE, NONE, NONE, NONE, *NO),
    ("GET", f"{P}/stats/unfinished", ""): (401, 1, 2, 2, 2, 0, 0, 0),
    ("GET", f"{P}/jobs/{{jobid}}/report", "2/report"): (401, 404, 404, 200, 200, 404, 404, 404),
    ("GET", f"{P}/jobs/{{jobid}}/report", "3/report"): (401, 404, 200, 200, 200, 404, 404, 404),
    ("GET", f"{P}/users", "since=0"): (401, MINE, PHYSICS, ALL, ALL, MINE, MINE, MINE),
    ("GET", f"{P}/accounts", "since=0"): (401, 2, 1, 3, 3, 1, 1, 1),
    ("GET", f"{P}/clusters", ""): (401, *FINE),
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
    ("GET", f"{P}/tokens", ""): (401, *FINE),
    ("GET", f"{P}/tokens", "user=bob"): (401, 403, 403, 403, 200, 403, 200, 403),
    ("POST", f"{P}/tokens", ""): (401, 201, 201, 201, 201, 201, 201, 201),
    ("POST", f"{P}/tokens", "for bob"): (401, 403, 403, 403, 201, 403, 201, 403),
    ("POST", f"{P}/tokens", "admin"): (401, 403, 403, 403, 201, 403, 201, 403),
    ("POST", f"{P}/tokens", "viewer"): (401, 403, 403, 201, 201, 201, 201, 403),
    ("POST", f"{P}/tokens", "on c1"): (401, 201, 201, 201, 201, 403, 403, 403),
    ("DELETE", f"{P}/tokens/{{token_id}}", "bob's"): (401, 404, 404, 404, 204, 404, 404, 404),
    ("GET", f"{P}/emission-factors", ""): (401, *FINE),
}
UNITS = {"vera": "viewer", "root": "admin"}
BODIES = {
    "": {"label": "x"},
    "for bob": {"label": "x", "user": "bob"},
    "admin": {"label": "x", "role": "admin"},
    "viewer": {"label": "x", "role": "viewer"},
    "on c1": {"label": "x", "cluster": "c1"},
}


@pytest.fixture
def services(services, tmp_path):
    """With a sample of bob's job, and the script of one job of each user."""
    with services.writer.begin() as db:
        for row in db.execute(sa.select(schema.job).where(schema.job.c.cluster == "c1")).all():
            if row.jobid in ("1", "2", "3") and row.submit_time == NOW - 7200:
                scripts.store(db, [row.id], "#!/bin/sh\nexport TOKEN=...\n", 100)
    recorded(tmp_path, "2", "bob", [NOW - 5000])
    return with_samples(services, tmp_path)._replace(histories=None)


def test_every_route_has_a_rule():
    # The gate's routes are confined by its own tests, against real stores; so are those of runs.
    routes = {
        (method, route.path)
        for router in ROUTERS
        for route in router.routes
        for method in route.methods
        if not route.path.startswith((f"{P}/prometheus/", f"{P}/runs"))
    }
    assert routes == {(method, path) for method, path, _ in RULES}


GIVEN = {"vera": TokenRole.VIEWER, "root": TokenRole.ADMIN}


# The names of the same callers in the threat model of docs/guide/security.md.
IN_THE_DOCS = {
    "nobody": "anybody who reaches a port",
    "alice": "a user of the server",
    "dave": "a coordinator",
    "vera": "a viewer",
    "root": "an admin",
}
ALSO_IN_THE_DOCS = (
    "a user on a node", "a user with the same login", "a Slurm administrator",
    "the thief of a token", "a trusted peer", "an operator", "root on a node", "root at the site's",
)  # fmt: skip


def test_the_threat_model_has_every_caller():
    page = Path(__file__).parents[2] / "docs/guide/security.md"
    table = page.read_text().partition("## Threat model")[2].partition("## ")[0]
    rows = [line for line in table.splitlines() if line.startswith("| ")][2:]  # without its head
    who = [line.split("|")[1].strip() for line in rows]
    assert IN_THE_DOCS.keys() == set(ROLES)
    for name in (*IN_THE_DOCS.values(), *ALSO_IN_THE_DOCS):
        assert any(each.startswith(name) for each in who), name
    assert len(who) == len(IN_THE_DOCS) + len(ALSO_IN_THE_DOCS)
    assert {role.value for role in TokenRole} == {"user", "viewer", "admin"}


@pytest.mark.parametrize("via", ["header", "token", "certificate"])
@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: " ".join(rule))
def test_matrix(rule, role, via, client, proxied, token, certified, services):
    headers = {}
    if via == "token" and role != "nobody":
        headers = token(role, GIVEN.get(role, TokenRole.USER))
    elif via == "header" and role != "nobody":
        client = proxied(role)
    elif via == "certificate" and role != "nobody":
        client = certified(role, UNITS.get(role, "people"))
    # A certificate makes viewers and admins, and nobody else.
    known = role if via != "certificate" or role in UNITS else "nobody"
    check(rule, known, client, headers, token, services)


@pytest.mark.parametrize("role", ROLES[1:])
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: " ".join(rule))
def test_a_token_may_no_more_than_its_maker_may_now(rule, role, client, token, services):
    """Whatever role it was given: its maker was an admin then, and is known by a proxy."""
    headers = token(role, TokenRole.ADMIN, maker=Maker(role, "header"))
    check(rule, role, client, headers, token, services)


@pytest.mark.parametrize("why", ["its parent is revoked", "its maker is no admin any more"])
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: " ".join(rule))
def test_tokens_that_are_good_no_more(rule, why, client, token, services):
    if why == "its parent is revoked":
        (parent,) = token("root", TokenRole.ADMIN).values()
        number = number_of(services, parent)
        headers = token("root", TokenRole.ADMIN, maker=Maker("root", parent_id=number))
        with services.writer.begin() as db:
            assert len(tokens.revoke(db, number)) == 2
    else:
        headers = token("bob", maker=Maker("alice", "header"))
    check(rule, "nobody", client, headers, token, services)


@pytest.mark.parametrize("role", LIMITED)
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: " ".join(rule))
def test_tokens_for_one_cluster(rule, role, client, token, services):
    """Whatever their role."""
    user, cluster = role.split(" on ")
    headers = token(user, GIVEN.get(user, TokenRole.USER), cluster=cluster)
    answer = check(rule, role, client, headers, token, services)
    told = rule[1].removeprefix(P)
    if answer.status_code == 200 and told not in ("", "/", "/me", "/clusters", "/emission-factors"):
        rows = [] if told.endswith("/samples") else answer.json()
        assert {row["cluster"] for row in rows} <= {cluster, None}  # sums over clusters have none


def check(rule, role, client, headers, token, services):
    """Ask as a rule says, and compare with what it has for the role."""
    method, path, what = rule
    if method == "DELETE":
        (text,) = token("bob").values()
        path = path.format(token_id=number_of(services, text))
    elif "{" in path:
        path = path[: path.index("{")] + what
    elif method == "GET" and what:
        path = f"{path}?{what}"
    body = BODIES[what] if method == "POST" else None
    answer = client.request(method, path, headers=headers, json=body)
    expected = RULES[rule][COLUMNS.index(role)]
    if isinstance(expected, set):
        assert {row["user"] for row in answer.json()} == expected
    elif expected < 100:
        rows = answer.text.splitlines() if path.endswith("/samples") else answer.json()
        assert len(rows) == expected
    else:
        assert answer.status_code == expected
    return answer


def number_of(services, text):
    with services.reader.connect() as db:
        return tokens.find(db, text.removeprefix("Bearer "), NOW).id


def test_sums_of_a_viewer_of_one_cluster_are_those_of_the_cluster(client, token):
    limited, whole = (token("vera", TokenRole.VIEWER, cluster=cluster) for cluster in ("c2", ""))
    for path in ("usage?since=0&by=user", "usage?since=0&by=account", "usage?since=0&by=day"):
        of_all, of_one = (
            client.get(f"{P}/{path}", headers=whole).json(),
            client.get(f"{P}/{path}&cluster=c2", headers=whole).json(),
        )
        assert client.get(f"{P}/{path}", headers=limited).json() == of_one != of_all
        assert client.get(f"{P}/{path}&cluster=c1", headers=limited).json() == []


def test_namesakes_neither_see_nor_revoke_each_other_s_tokens(client, token):
    """alice on c1, alice on c2, and alice on all clusters may be three people."""
    whose = {cluster: token("alice", cluster=cluster) for cluster in ("c1", "c2", "")}
    ids = {row["cluster"]: row["id"] for row in client.get(f"{P}/tokens", headers=whose[""]).json()}
    assert ids.keys() == whose.keys()
    for cluster in ("c1", "c2"):
        rows = client.get(f"{P}/tokens", headers=whose[cluster]).json()
        assert [row["id"] for row in rows] == [ids[cluster]]
        for other in ids.keys() - {cluster}:
            answer = client.delete(f"{P}/tokens/{ids[other]}", headers=whose[cluster])
            assert answer.status_code == 404
    assert client.delete(f"{P}/tokens/{ids['c1']}", headers=whose["c1"]).status_code == 204
    assert client.delete(f"{P}/tokens/{ids['c2']}", headers=whose[""]).status_code == 204


def test_logins_of_a_proxy_for_some_clusters_have_only_the_tokens_of_these(services, token):
    auth = replace(services.settings.auth, cluster=("c2",))
    services = services._replace(settings=services.settings._replace(auth=auth))
    for cluster in ("c1", "c2", ""):
        token("alice", cluster=cluster)
    headers = {"X-Grafana-User": "alice", "X-Batchjob-Secret": SECRET}
    with TestClient(app.make(services), client=(PROXY, 50000), headers=headers) as asker:
        rows = asker.get(f"{P}/tokens").json()
        assert [row["cluster"] for row in rows] == ["c2"]
        assert [asker.delete(f"{P}/tokens/{number}").status_code for number in (1, 2, 3)] == (
            [404, 204, 404]
        )
