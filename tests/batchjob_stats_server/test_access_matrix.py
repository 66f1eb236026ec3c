"""Every route, every role, own and others' data: a route without a rule fails."""

import pytest

from batchjob_stats_db.tokens import TokenRole
from batchjob_stats_server.app import ROUTERS
from tests.batchjob_stats_server.conftest import NOW
from tests.batchjob_stats_server.samples.recording import recorded, with_samples

P = "/api/v1"
WHOLE = {"since": "0"}
OTHERS = {"user": "bob"}
JOB = {"label": "x"}

# What is asked, and what the answer holds for: nobody, alice (user), dave (coordinates physics),
# vera (viewer), root (admin). A number is a status; a set holds the users of the rows.
MINE, PHYSICS, ALL = {"alice"}, {"alice", "carol"}, {"alice", "bob", "carol"}
NONE, ENDED = set(), {"alice", "bob"}
ROLES = ("nobody", "alice", "dave", "vera", "root")
RULES = {
    ("GET", P, ""): (401, 200, 200, 200, 200),
    ("GET", f"{P}/", ""): (401, 200, 200, 200, 200),
    ("GET", f"{P}/me", ""): (401, 200, 200, 200, 200),
    ("GET", f"{P}/jobs", ""): (401, MINE, PHYSICS, ALL, ALL),
    ("GET", f"{P}/jobs", "user=bob"): (401, NONE, NONE, {"bob"}, {"bob"}),
    ("GET", f"{P}/jobs", "node=n002"): (401, NONE, {"carol"}, {"carol"}, {"carol"}),
    ("GET", f"{P}/jobs/{{jobid}}", "1"): (401, MINE, MINE, MINE, MINE),
    ("GET", f"{P}/jobs/{{jobid}}", "2"): (401, NONE, NONE, {"bob"}, {"bob"}),
    ("GET", f"{P}/jobs/{{jobid}}", "3"): (401, NONE, {"carol"}, {"carol"}, {"carol"}),
    ("GET", f"{P}/jobs/{{jobid}}/samples", "2/samples"): (401, 0, 0, 1, 1),
    ("GET", f"{P}/jobs/{{jobid}}/samples", "2/samples?format=gzip"): (401, 200, 200, 200, 200),
    ("GET", f"{P}/jobs/{{jobid}}/{{part}}", "2/nodes"): (401, 0, 0, 1, 1),
    ("GET", f"{P}/jobs/{{jobid}}/{{part}}", "3/nodes"): (401, 0, 1, 1, 1),
    # No time series database is configured here; test_metrics_route.py has who sees what.
    ("GET", f"{P}/jobs/{{jobid}}/metrics", "2/metrics"): (401, 503, 503, 503, 503),
    ("GET", f"{P}/job-groups", "started_from=0"): (401, MINE, MINE, MINE, MINE),
    ("GET", f"{P}/job-groups", "started_from=0&kind=het"): (401, MINE, MINE, MINE, MINE),
    ("GET", f"{P}/stats/waste", "since=0"): (401, NONE, NONE, NONE, NONE),  # nothing is measured
    ("GET", f"{P}/stats/failures", "since=0"): (
        401,
        MINE,
        {"alice"},
        {"alice", "bob"},
        {"alice", "bob"},
    ),
    ("GET", f"{P}/stats/waits", "since=0&cluster=c1"): (401, 1, 1, 1, 1),
    ("GET", f"{P}/stats/idle-gpus", ""): (401, NONE, NONE, NONE, NONE),
    ("GET", f"{P}/stats/unfinished", ""): (401, 1, 2, 2, 2),
    ("GET", f"{P}/jobs/{{jobid}}/report", "2/report"): (401, 404, 404, 200, 200),
    ("GET", f"{P}/jobs/{{jobid}}/report", "3/report"): (401, 404, 200, 200, 200),
    ("GET", f"{P}/users", "since=0"): (401, MINE, PHYSICS, ALL, ALL),
    ("GET", f"{P}/accounts", "since=0"): (401, 2, 1, 3, 3),
    ("GET", f"{P}/clusters", ""): (401, 200, 200, 200, 200),
    ("GET", f"{P}/usage", "since=0&by=user"): (401, MINE, PHYSICS, ALL, ALL),
    ("GET", f"{P}/usage/emissions", "since=0&by=user"): (401, NONE, NONE, NONE, NONE),
    ("GET", f"{P}/tokens", ""): (401, 200, 200, 200, 200),
    ("GET", f"{P}/tokens", "user=bob"): (401, 403, 403, 403, 200),
    ("POST", f"{P}/tokens", ""): (401, 201, 201, 201, 201),
    ("POST", f"{P}/tokens", "for bob"): (401, 403, 403, 403, 201),
    ("POST", f"{P}/tokens", "admin"): (401, 403, 403, 403, 201),
    ("POST", f"{P}/tokens", "viewer"): (401, 403, 403, 201, 201),
    ("DELETE", f"{P}/tokens/{{token_id}}", "bob's"): (401, 404, 404, 404, 204),
    ("GET", f"{P}/emission-factors", ""): (401, 200, 200, 200, 200),
}
UNITS = {"vera": "viewer", "root": "admin"}
BODIES = {
    "": {"label": "x"},
    "for bob": {"label": "x", "user": "bob"},
    "admin": {"label": "x", "role": "admin"},
    "viewer": {"label": "x", "role": "viewer"},
}


@pytest.fixture
def services(services, tmp_path):
    """With a sample of bob's job."""
    recorded(tmp_path, "2", "bob", [NOW - 5000])
    return with_samples(services, tmp_path)._replace(histories=None)


def test_every_route_has_a_rule():
    # The gate's routes are confined by its own tests, against real stores.
    routes = {
        (method, route.path)
        for router in ROUTERS
        for route in router.routes
        for method in route.methods
        if not route.path.startswith(f"{P}/prometheus/")
    }
    assert routes == {(method, path) for method, path, _ in RULES}


@pytest.mark.parametrize("via", ["header", "token", "certificate"])
@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: " ".join(rule))
def test_matrix(rule, role, via, client, proxied, token, certified):
    method, path, what = rule
    headers = {}
    if role != "nobody":
        roles = {"vera": TokenRole.VIEWER, "root": TokenRole.ADMIN}
        if via == "token":
            headers = token(role, roles.get(role, TokenRole.USER))
        elif via == "header":
            client = proxied(role)
        else:
            client = certified(role, UNITS.get(role, "people"))
    if method == "DELETE":
        token("bob")
        path = path.format(token_id=2 if headers else 1)
    elif "{" in path:
        path = f"{P}/jobs/{what}"
    elif method == "GET" and what:
        path = f"{path}?{what}"
    body = BODIES[what] if method == "POST" else None
    answer = client.request(method, path, headers=headers, json=body)
    # A certificate makes viewers and admins, and nobody else.
    known = role if via != "certificate" or role in UNITS else "nobody"
    expected = RULES[rule][ROLES.index(known)]
    if isinstance(expected, set):
        assert {row["user"] for row in answer.json()} == expected
    elif expected < 100:
        rows = answer.text.splitlines() if path.endswith("/samples") else answer.json()
        assert len(rows) == expected
    else:
        assert answer.status_code == expected


def test_a_token_on_one_cluster_sees_nothing_of_another(client, token):
    rows = client.get(f"{P}/jobs", headers=token("alice", cluster="c2")).json()
    assert {row["cluster"] for row in rows} == {"c2"}
