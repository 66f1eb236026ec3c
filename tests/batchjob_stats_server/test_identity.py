"""Who is believed, and about whom."""

import pytest
import sqlalchemy as sa
from fastapi.testclient import TestClient

from batchjob_stats_db import schema
from batchjob_stats_db.tokens import TokenRole
from batchjob_stats_server import app

ME = "/api/v1/me"


def test_no_identity_no_data(client):
    answer = client.get(ME)
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["title"] == "Unauthorized"


def test_a_token_is_its_user(client, token):
    known = client.get(ME, headers=token("alice")).json()
    assert known == {
        "user": "alice", "role": "user", "via": "token", "clusters": [], "coordinates": [],
    }  # fmt: skip
    assert client.get(ME, headers=token("x", TokenRole.VIEWER)).json()["role"] == "viewer"
    assert client.get(ME, headers=token("alice", cluster="c1")).json()["clusters"] == ["c1"]


def test_the_use_of_a_token_is_noted(client, token, services, now):
    client.get(ME, headers=token("alice"))
    with services.reader.connect() as db:
        assert db.execute(sa.select(schema.api_token.c.last_used_time)).scalar() == now


@pytest.mark.parametrize(
    "value", ["Bearer ", "Bearer", "Bearer bj_wrong", "bearer ", "Basic YTpi", "", "bj_x"]
)
def test_a_wrong_token_is_refused(client, value):
    assert client.get(ME, headers={"Authorization": value}).status_code == 401


def test_an_expired_token_is_refused(client, token, now):
    assert client.get(ME, headers=token("alice", expiry_time=now)).status_code == 401
    assert client.get(ME, headers=token("alice", expiry_time=now + 1)).status_code == 200


def test_a_trusted_peer_names_the_user(proxied):
    assert proxied("alice").get(ME).json()["via"] == "header"
    assert proxied("dave").get(ME).json()["coordinates"] == [
        {"cluster": "c1", "account": "physics"}
    ]
    roles = [proxied(user).get(ME).json()["role"] for user in ("alice", "vera", "root")]
    assert roles == ["user", "viewer", "admin"]


def test_the_header_of_anybody_else_is_refused(client, proxied):
    """Neither the right secret from elsewhere nor the right peer without it is enough."""
    forged = {"X-Grafana-User": "alice", "X-Batchjob-Secret": "correct horse battery staple"}
    assert client.get(ME, headers=forged).status_code == 401
    assert client.get(ME, headers={**forged, "X-Forwarded-For": "192.0.2.10"}).status_code == 401
    for secret in ("", "wrong", "correct horse battery stapl\u00e9".encode()):
        answer = proxied("alice").get(ME, headers={"X-Batchjob-Secret": secret})
        assert answer.status_code == 401


def test_exactly_one_identity(proxied, token):
    grafana = proxied("alice")
    assert grafana.get(ME, headers=token("alice")).status_code == 400
    twice = [("X-Grafana-User", "alice"), ("X-Grafana-User", "bob")]
    assert proxied("alice").get(ME, headers=twice).status_code == 400
    secrets = [("X-Batchjob-Secret", "correct horse battery staple")] * 2
    assert proxied("alice").get(ME, headers=secrets).status_code == 401


@pytest.mark.parametrize("user", ["", " ", "alice, bob", "a/b", "-x", "a" * 200, "' OR 1=1"])
def test_a_name_that_is_no_login_is_refused(proxied, user):
    assert proxied(user).get(ME).status_code == 400


def test_a_browser_s_password_for_the_proxy_is_no_second_identity(proxied):
    assert proxied("alice").get(ME, headers={"Authorization": "Basic YTpi"}).status_code == 200


def test_without_a_trusted_peer_the_header_means_nothing(services, token):
    auth = services.settings.auth.__class__()
    alone = services._replace(settings=services.settings._replace(auth=auth))
    asker = TestClient(app.make(alone), client=("192.0.2.10", 1))
    assert asker.get(ME, headers={"X-Grafana-User": "alice"}).status_code == 401
    answer = asker.get(ME, headers={"X-Grafana-User": "bob", **token("alice")})
    assert answer.json()["user"] == "alice"
