"""Who is believed, and about whom."""

import pytest
import sqlalchemy as sa
from fastapi.testclient import TestClient

from batchjob.schedulers.accounting import Batch
from batchjob.schedulers.records import Administrator, Associations
from batchjob_stats_db.admin.migrate import migrate
from batchjob_stats_db.database import schema, tokens
from batchjob_stats_db.database.engine import parse_url, writer_engine
from batchjob_stats_db.database.store import Store, UsagePolicy
from batchjob_stats_db.database.tokens import TokenRole
from batchjob_stats_db.poller.options import DatabaseOptions
from batchjob_stats_server import app
from batchjob_stats_server.options import AuthOptions, ServerSettings, ServerWebOptions
from batchjob_stats_server.services import build
from tests.batchjob_stats_server.conftest import record

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
        "sees_all_of": [],
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


WHOLE = {"c1:adam", "c1:eve", "c1:olga"}


@pytest.mark.parametrize(
    ("least", "seen"),
    [
        ("none", {"olga": {"c1:olga"}, "adam": {"c1:adam"}}),
        ("administrator", {"olga": {"c1:olga"}, "adam": WHOLE}),
        ("operator", {"olga": WHOLE, "adam": WHOLE}),
    ],
)
def test_slurm_s_administrators_see_their_cluster(tmp_path, least, seen, now):
    """By their level in that cluster's accounting, and of that cluster alone."""
    engine = writer_engine(parse_url(f"sqlite:///{tmp_path}/admins.db"), create=True)
    migrate(engine)
    levels = (Administrator("olga", "operator"), Administrator("adam", "administrator"))
    for cluster, people in (("c1", Associations((), levels, ())), ("c2", Associations((), (), ()))):
        store = Store(engine, cluster, UsagePolicy(), clock=lambda: now)
        users = ("adam", "olga", "eve") if cluster == "c1" else ("eve",)
        rows = (record(str(i), cluster=cluster, user=user) for i, user in enumerate(users))
        store.write(Batch(tuple(rows), (), "", 0), "s")
        store.write_associations(people, "people")
    auth = AuthOptions(slurm_admins=least)
    made = build(
        ServerSettings(
            DatabaseOptions(f"sqlite:///{tmp_path}/admins.db"),
            ServerWebOptions(allowed_host=("testserver",)),
            auth,
        )
    )
    with engine.begin() as db:
        texts = {user: tokens.create(db, user, TokenRole.USER, "", 1) for user in seen}
        elsewhere = tokens.create(db, "adam", TokenRole.USER, "", 1, cluster="c2")
    engine.dispose()
    with TestClient(app.make(made)) as asker:

        def rows(text, path="jobs"):
            return asker.get(f"/api/v1/{path}", headers={"Authorization": f"Bearer {text}"}).json()

        for user, jobs in seen.items():
            assert sorted(f"{row['cluster']}:{row['user']}" for row in rows(texts[user])) == (
                sorted(jobs)
            )
            assert {row["user"] for row in rows(texts[user], "usage?by=user&since=0")} <= {
                each[3:] for each in jobs
            }
            assert rows(texts[user], "me")["sees_all_of"] == (["c1"] if len(jobs) > 1 else [])
            assert rows(texts[user], "me")["role"] == "user"
        assert rows(elsewhere) == []


@pytest.mark.parametrize("role", [TokenRole.VIEWER, TokenRole.ADMIN])
def test_a_role_reaches_as_far_as_its_token(client, token, role):
    """One for a cluster sees all of that cluster, and makes tokens for it alone."""
    headers = token("vera", role, cluster="c2")
    known = client.get(ME, headers=headers).json()
    assert (known["clusters"], known["sees_all_of"]) == (["c2"], ["c2"])
    wanted = {"label": "x", "role": role}
    for more, status in (
        ({"cluster": "c1"}, 403),
        ({"cluster": "c2"}, 201),
        ({}, 201),
        ({"user": "bob", "cluster": "c1"}, 403),
        ({"user": "bob"}, 201 if role is TokenRole.ADMIN else 403),
    ):
        answer = client.post("/api/v1/tokens", headers=headers, json={**wanted, **more})
        assert answer.status_code == status
        if status == 201:
            made = {"Authorization": f"Bearer {answer.json()['token']}"}
            assert client.get(ME, headers=made).json()["clusters"] == ["c2"]
