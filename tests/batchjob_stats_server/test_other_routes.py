"""Usage, people, factors and tokens."""

from batchjob_stats_db.queries import usage
from collectors.emissions.providers.stats_server import PATH, parse

API = "/api/v1"


def test_usage_by_user_and_day(proxied):
    rows = proxied("vera").get(f"{API}/usage?since=0&by=user&by=cluster").json()
    assert [(row["cluster"], row["user"]) for row in rows] == [
        ("c2", "alice") if row["cluster"] == "c2" else ("c1", row["user"]) for row in rows
    ]
    bob = next(row for row in rows if row["user"] == "bob")
    assert bob["jobs_started"] == 1
    assert bob["account"] is None  # not told apart
    days = proxied("vera").get(f"{API}/usage?since=0&by=day").json()
    assert all(row["day_rfc3339"].endswith("T00:00:00Z") for row in days)


def test_usage_of_chosen_keys(proxied):
    ask = f"{API}/usage?since=0&by=user&user=bob&cluster=c1&fields="
    (row,) = proxied("vera").get(ask + "user,jobs_started").json()
    assert row == {"user": "bob", "jobs_started": 1}
    assert proxied("vera").get(ask + "user").json() == [{"user": "bob"}]
    everybody = proxied("vera").get(f"{API}/usage?since=0&by=&fields=cluster").json()
    assert everybody == [{"cluster": None}]


def test_usage_refuses_more_rows_than_memory_should_hold(proxied, monkeypatch):
    monkeypatch.setattr(usage, "MAX_ROWS", 1)
    for path in ("usage", "usage/emissions"):
        assert proxied("bob").get(f"{API}/{path}?since=0&by=user").status_code == 200
    answer = proxied("vera").get(f"{API}/usage?since=0&by=user&by=day")
    assert answer.status_code == 422
    assert "fewer days" in answer.json()["detail"]


def test_usage_refuses_what_it_does_not_know(proxied):
    assert proxied("vera").get(f"{API}/usage?by=digest").status_code == 422
    assert proxied("vera").get(f"{API}/users?since=x").status_code == 422


def test_accounts_and_their_parents(proxied):
    rows = proxied("dave").get(f"{API}/accounts?since=0").json()
    assert rows == [{"cluster": "c1", "account": "physics", "parent": "root", "limits": ""}]


def test_clusters_and_their_sources(proxied):
    rows = proxied("alice").get(f"{API}/clusters").json()
    assert {row["name"] for row in rows} == {"c1", "c2"}


def test_an_exporter_understands_the_factors(client, token, now):
    answer = client.get(PATH, headers=token("exporter"))
    (factor,) = parse(answer.json(), now)
    assert (factor.provider, factor.zone) == ("owid", "FR")


def test_without_a_provider_there_is_no_factor(services, token):
    from fastapi.testclient import TestClient

    from batchjob_stats_server import app

    asker = TestClient(app.make(services._replace(factors=None)))
    assert asker.get(PATH, headers=token("exporter")).json() == {"factors": []}


def test_a_token_works_until_it_is_revoked(proxied, client):
    alice = proxied("alice")
    made = alice.post(f"{API}/tokens", json={"label": "script"})
    assert made.headers["cache-control"] == "no-store"
    headers = {"Authorization": f"Bearer {made.json()['token']}"}
    assert client.get(f"{API}/me", headers=headers).json()["user"] == "alice"
    (row,) = alice.get(f"{API}/tokens").json()
    assert row["label"] == "script"
    assert made.json()["token"] not in alice.get(f"{API}/tokens").text
    assert alice.delete(f"{API}/tokens/{row['id']}").status_code == 204
    assert alice.delete(f"{API}/tokens/{row['id']}").status_code == 404
    assert client.get(f"{API}/me", headers=headers).status_code == 401


def test_a_token_makes_none_that_outlives_it(client, token, now):
    headers = token("alice", expiry_time=now + 600)
    made = client.post(f"{API}/tokens", headers=headers, json={"label": "x"}).json()
    assert made["expiry_time"] == (now + 600) * 1000


def test_a_token_makes_none_for_other_clusters(client, token):
    headers = token("alice", cluster="c1")
    other = client.post(f"{API}/tokens", headers=headers, json={"label": "x", "cluster": "c2"})
    assert other.status_code == 403
    made = client.post(f"{API}/tokens", headers=headers, json={"label": "x"}).json()["token"]
    known = client.get(f"{API}/me", headers={"Authorization": f"Bearer {made}"}).json()
    assert known["clusters"] == ["c1"]


def test_bad_tokens_are_refused(proxied):
    alice = proxied("alice")
    for body in ({}, {"label": "x", "role": "god"}, {"label": "x", "more": 1}, [], "x"):
        assert alice.post(f"{API}/tokens", json=body).status_code == 422
    assert alice.post(f"{API}/tokens", content="label=x").status_code == 422
    assert alice.delete(f"{API}/tokens/99999999999999999999").status_code == 422
    assert proxied("root").post(
        f"{API}/tokens", json={"label": "x", "user": "a, b"}
    ).status_code == 422  # fmt: skip


def test_nobody_has_the_answer_to_somebody_else(proxied):
    def users(who):
        return {row["user"] for row in proxied(who).get(f"{API}/usage?by=user&since=0").json()}

    assert users("vera") == {"alice", "bob", "carol"}
    assert users("alice") == {"alice"}
    assert users("bob") == {"bob"}


def test_data_sources_of_the_simple_json_protocol_fail_their_connection_test(proxied):
    """They ask with a content type, as for the POSTs that nobody would answer."""
    for path in (API, f"{API}/", "/"):
        answer = proxied("alice").get(path, headers={"Content-Type": "application/json"})
        assert answer.status_code == 400
        assert "yesoreyeram-infinity-datasource" in answer.json()["message"]
        assert proxied("alice").get(path).status_code == 200


def test_readiness_needs_no_user(proxied):
    """Infinity checks a data source without a viewer, and sends the variable's name instead."""
    assert proxied("${__user.login}").get("/-/ready").status_code == 200
    assert proxied("${__user.login}").get(API).status_code == 400
