"""The routes of usage, accounts, clusters, emission factors and tokens."""

from batchjob_stats_db.queries import usage
from collectors.emissions.providers.stats_server import PATH, parse
from collectors.emissions.site_factors import SiteFactors

API = "/api/v1"


def test_usage_by_user_and_day(proxy_client):
    rows = proxy_client("vera").get(f"{API}/usage?since=0&by=user&by=cluster").json()
    assert [(row["cluster"], row["user"]) for row in rows] == [
        ("c2", "alice") if row["cluster"] == "c2" else ("c1", row["user"]) for row in rows
    ]
    bob = next(row for row in rows if row["user"] == "bob")
    assert bob["jobs_started"] == 1
    assert bob["account"] is None  # rows are not grouped by account
    days = proxy_client("vera").get(f"{API}/usage?since=0&by=day").json()
    assert all(row["day_rfc3339"].endswith("T00:00:00Z") for row in days)


def test_usage_with_filters_and_selected_fields(proxy_client):
    path = f"{API}/usage?since=0&by=user&user=bob&cluster=c1&fields="
    (row,) = proxy_client("vera").get(path + "user,jobs_started").json()
    assert row == {"user": "bob", "jobs_started": 1}
    assert proxy_client("vera").get(path + "user").json() == [{"user": "bob"}]
    total = proxy_client("vera").get(f"{API}/usage?since=0&by=&fields=cluster").json()
    assert total == [{"cluster": None}]


def test_usage_with_too_many_rows_is_rejected(proxy_client, monkeypatch):
    monkeypatch.setattr(usage, "MAX_ROWS", 1)
    for path in ("usage", "usage/emissions"):
        assert proxy_client("bob").get(f"{API}/{path}?since=0&by=user").status_code == 200
    answer = proxy_client("vera").get(f"{API}/usage?since=0&by=user&by=day")
    assert answer.status_code == 422
    assert "fewer days" in answer.json()["detail"]


def test_usage_rejects_unknown_key_and_invalid_time(proxy_client):
    assert proxy_client("vera").get(f"{API}/usage?by=digest").status_code == 422
    assert proxy_client("vera").get(f"{API}/accounts?since=x").status_code == 422


def test_accounts_and_their_parents(proxy_client):
    rows = proxy_client("dave").get(f"{API}/accounts?since=0").json()
    assert rows == [{"cluster": "c1", "account": "physics", "parent": "root", "limits": ""}]


def test_clusters_are_listed(proxy_client):
    rows = proxy_client("alice").get(f"{API}/clusters").json()
    assert {row["name"] for row in rows} == {"c1", "c2"}


def test_exporter_parses_emission_factors(client, token_headers, now):
    answer = client.get(PATH, headers=token_headers("exporter"))
    (factor,) = parse(answer.json(), now)
    assert (factor.provider, factor.zone) == ("owid", "FR")


def test_emission_factors_are_empty_without_provider(services, token_headers):
    from fastapi.testclient import TestClient

    from batchjob_stats_server import app

    client = TestClient(app.make(services._replace(factors=SiteFactors((), ()))))
    assert client.get(PATH, headers=token_headers("exporter")).json() == {"factors": []}


def test_token_works_until_revoked(proxy_client, client):
    alice = proxy_client("alice")
    created = alice.post(f"{API}/tokens", json={"label": "script"})
    assert created.headers["cache-control"] == "private, no-store"
    headers = {"Authorization": f"Bearer {created.json()['token']}"}
    assert client.get(f"{API}/me", headers=headers).json()["user"] == "alice"
    (row,) = alice.get(f"{API}/tokens").json()
    assert row["label"] == "script"
    assert created.json()["token"] not in alice.get(f"{API}/tokens").text
    assert alice.delete(f"{API}/tokens/{row['id']}").status_code == 204
    assert alice.delete(f"{API}/tokens/{row['id']}").status_code == 404
    assert client.get(f"{API}/me", headers=headers).status_code == 401


def test_token_created_with_token_does_not_outlive_it(client, token_headers, now):
    headers = token_headers("alice", expiry_time=now + 600)
    created = client.post(f"{API}/tokens", headers=headers, json={"label": "x"}).json()
    assert created["expiry_time"] == (now + 600) * 1000


def test_cluster_token_cannot_create_token_for_other_cluster(client, token_headers):
    headers = token_headers("alice", cluster="c1")
    other = client.post(f"{API}/tokens", headers=headers, json={"label": "x", "cluster": "c2"})
    assert other.status_code == 403
    created = client.post(f"{API}/tokens", headers=headers, json={"label": "x"}).json()["token"]
    identity = client.get(f"{API}/me", headers={"Authorization": f"Bearer {created}"}).json()
    assert identity["clusters"] == ["c1"]


def test_invalid_token_requests_are_rejected(proxy_client):
    alice = proxy_client("alice")
    for body in ({}, {"label": "x", "role": "god"}, {"label": "x", "more": 1}, [], "x"):
        assert alice.post(f"{API}/tokens", json=body).status_code == 422
    assert alice.post(f"{API}/tokens", content="label=x").status_code == 422
    assert alice.delete(f"{API}/tokens/99999999999999999999").status_code == 422
    assert proxy_client("root").post(
        f"{API}/tokens", json={"label": "x", "user": "a, b"}
    ).status_code == 422  # fmt: skip


def test_usage_answers_are_separate_for_each_user(proxy_client):
    def users_in_usage(user):
        return {
            row["user"] for row in proxy_client(user).get(f"{API}/usage?by=user&since=0").json()
        }

    assert users_in_usage("vera") == {"alice", "bob", "carol"}
    assert users_in_usage("alice") == {"alice"}
    assert users_in_usage("bob") == {"bob"}


def test_simple_json_data_source_fails_its_connection_test(proxy_client):
    """Such a data source sends a content type, and would POST to routes that do not exist."""
    for path in (API, f"{API}/", "/"):
        answer = proxy_client("alice").get(path, headers={"Content-Type": "application/json"})
        assert answer.status_code == 400
        assert "yesoreyeram-infinity-datasource" in answer.json()["message"]
        assert answer.json()["error"] == {"code": "400", "message": answer.json()["detail"]}
        assert proxy_client("alice").get(path).status_code == 200


def test_readiness_needs_no_valid_user(proxy_client):
    """Infinity checks a data source without a user, and sends the name of the variable."""
    for path in ("/-/ready", f"{API}/ready"):
        assert proxy_client("${__user.login}").get(path).status_code == 200
    assert proxy_client("${__user.login}").get(API).status_code == 400
