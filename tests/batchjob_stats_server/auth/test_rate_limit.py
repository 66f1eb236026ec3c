"""Limits on the rate of requests."""

import pytest
from fastapi.testclient import TestClient

from batchjob.runtime.rate_limit import RateLimiter
from batchjob_stats_server import app

ME = "/api/v1/me"


@pytest.fixture
def limited_client(services):
    """Make a client at an address, with limits of two requests per user and four per peer."""
    slow = services._replace(user_rate=RateLimiter(0.01, 2), peer_rate=RateLimiter(0.01, 4))

    def at(host, **headers):
        return TestClient(app.make(slow), client=(host, 1), headers=headers)

    return at


def rejected_count(services, by):
    name = "batchjob_stats_server_rate_limited_total"
    return services.metrics.registry.get_sample_value(name, {"by": by})


def test_user_above_rate_gets_429(limited_client, token_headers, services):
    alice = limited_client("192.0.2.77", **token_headers("alice"))
    assert [alice.get(ME).status_code for _ in range(3)] == [200, 200, 429]
    answer = alice.get(ME)
    assert answer.headers["content-type"] == "application/problem+json"
    assert 90 <= int(answer.headers["retry-after"]) <= 200
    assert rejected_count(services, "user") == 2
    # The address, too, has had its four; health has no such limit, others are elsewhere.
    assert alice.get(ME, headers=token_headers("bob")).status_code == 429
    assert rejected_count(services, "peer") == 1
    assert alice.get("/-/healthy").status_code == 200
    assert limited_client("192.0.2.78", **token_headers("bob")).get(ME).status_code == 200


def test_tokens_created_by_one_user_share_a_limit(services, token_headers):
    """Otherwise twenty tokens would give one user twenty times the rate."""
    limited = services._replace(user_rate=RateLimiter(0.01, 4), peer_rate=RateLimiter(0, 0))
    test_client = TestClient(app.make(limited))
    first = token_headers("alice")
    wanted = [{"label": "x", "cluster": name} for name in ("c1", "nowhere")]
    created = [
        test_client.post("/api/v1/tokens", json=each, headers=first).json() for each in wanted
    ]
    given = [{"Authorization": f"Bearer {each['token']}"} for each in created]
    assert [test_client.get(ME, headers=each).status_code for each in (*given, *given)] == [
        200, 200, 429, 429
    ]  # fmt: skip
    namesake = token_headers("alice", cluster="c2")
    assert test_client.get(ME, headers=namesake).status_code == 200


def test_ipv6_network_counts_as_one_peer(limited_client):
    codes = [limited_client(f"2001:db8::{number}").get(ME).status_code for number in range(5)]
    assert codes == [401] * 4 + [429]
    assert limited_client("2001:db8:0:1::1").get(ME).status_code == 401


def test_trusted_peer_is_limited_per_user(limited_client):
    def ask(user):
        secret = "correct horse battery staple"
        return limited_client("192.0.2.10", **{"X-Grafana-User": user, "X-Batchjob-Secret": secret})

    assert [ask(f"user{number}").get(ME).status_code for number in range(9)] == [200] * 9
    assert [ask("user0").get(ME).status_code for _ in range(2)] == [200, 429]
