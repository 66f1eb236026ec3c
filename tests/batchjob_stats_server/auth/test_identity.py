"""Who a request is from: tokens and user headers of trusted peers."""

from contextlib import contextmanager

import pytest
import sqlalchemy as sa
from fastapi.testclient import TestClient

from batchjob.runtime.logins import is_login
from batchjob.schedulers.accounting import Batch
from batchjob.schedulers.records import Administrator, Associations
from batchjob_stats_db.admin.migrate import migrate
from batchjob_stats_db.database import schema, tokens
from batchjob_stats_db.database.engine import parse_url, writer_engine
from batchjob_stats_db.database.store import Store, UsagePolicy
from batchjob_stats_db.database.tokens import TokenRole
from batchjob_stats_db.poller.options import DatabaseOptions
from batchjob_stats_server import app
from batchjob_stats_server.auth.rights import CredentialError
from batchjob_stats_server.options import AuthOptions, ServerSettings, ServerWebOptions
from batchjob_stats_server.services import build
from tests.batchjob_stats_server.conftest import job_record
from tests.helpers.clock import Clock

ME = "/api/v1/me"


def test_request_without_identity_is_rejected(client):
    answer = client.get(ME)
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["title"] == "Unauthorized"


def test_token_identifies_its_user(client, token_headers):
    me = client.get(ME, headers=token_headers("alice")).json()
    assert me == {
        "user": "alice", "role": "user", "via": "token", "clusters": [], "coordinates": [],
        "sees_all_of": [],
    }  # fmt: skip
    assert client.get(ME, headers=token_headers("x", TokenRole.VIEWER)).json()["role"] == "viewer"
    assert client.get(ME, headers=token_headers("alice", cluster="c1")).json()["clusters"] == ["c1"]


def test_last_use_of_token_is_recorded(client, token_headers, services, now):
    client.get(ME, headers=token_headers("alice"))
    with services.reader.connect() as db:
        assert db.execute(sa.select(schema.api_token.c.last_used_time)).scalar() == now


@pytest.mark.parametrize(
    "value", ["Bearer ", "Bearer", "Bearer bj_wrong", "bearer ", "Basic YTpi", "", "bj_x"]
)
def test_invalid_token_is_rejected(client, value):
    assert client.get(ME, headers={"Authorization": value}).status_code == 401


def test_expired_token_is_rejected(client, token_headers, now):
    assert client.get(ME, headers=token_headers("alice", expiry_time=now)).status_code == 401
    assert client.get(ME, headers=token_headers("alice", expiry_time=now + 1)).status_code == 200


def test_trusted_peer_names_the_user(proxy_client):
    assert proxy_client("alice").get(ME).json()["via"] == "header"
    assert proxy_client("dave").get(ME).json()["coordinates"] == [
        {"cluster": "c1", "account": "physics"}
    ]
    roles = [proxy_client(user).get(ME).json()["role"] for user in ("alice", "vera", "root")]
    assert roles == ["user", "viewer", "admin"]


def test_user_header_needs_trusted_peer_and_secret(client, proxy_client):
    """Neither the right secret from another peer nor the right peer without it is enough."""
    forged = {"X-Grafana-User": "alice", "X-Batchjob-Secret": "correct horse battery staple"}
    assert client.get(ME, headers=forged).status_code == 401
    assert client.get(ME, headers={**forged, "X-Forwarded-For": "192.0.2.10"}).status_code == 401
    for secret in ("", "wrong", "correct horse battery stapl\u00e9".encode()):
        answer = proxy_client("alice").get(ME, headers={"X-Batchjob-Secret": secret})
        assert answer.status_code == 401


def test_several_identities_are_rejected(proxy_client, token_headers):
    grafana = proxy_client("alice")
    assert grafana.get(ME, headers=token_headers("alice")).status_code == 400
    twice = [("X-Grafana-User", "alice"), ("X-Grafana-User", "bob")]
    assert proxy_client("alice").get(ME, headers=twice).status_code == 400
    secrets = [("X-Batchjob-Secret", "correct horse battery staple")] * 2
    assert proxy_client("alice").get(ME, headers=secrets).status_code == 401


@pytest.mark.parametrize(
    "user", ["", " ", "alice, bob", "a:b", "a" * 256, "a\tb", " x", "${__user.login}"]
)
def test_invalid_login_name_is_rejected(proxy_client, user):
    assert not is_login(user)
    assert proxy_client(user).get(ME).status_code in (400, 401)


@pytest.mark.parametrize(
    "user", ["CORP\\alice", "CORP+alice", "j\u00fcrgen", "host$", "bob@corp.example", "a b"]
)
def test_names_of_directory_services_identify_their_users(proxy_client, user, services):
    answer = proxy_client(user.encode()).get(ME)
    assert (answer.status_code, answer.json().get("user")) == (200, user)
    made = proxy_client(user.encode()).post("/api/v1/tokens", json={"label": "x"}).json()
    headers = {"Authorization": f"Bearer {made['token']}"}
    assert TestClient(app.make(services), headers=headers).get(ME).json()["user"] == user


def test_basic_authorization_beside_user_header_is_ignored(proxy_client):
    assert proxy_client("alice").get(ME, headers={"Authorization": "Basic YTpi"}).status_code == 200


def test_user_header_is_ignored_without_trusted_peers(services, token_headers):
    auth = services.settings.auth.__class__()
    alone = services._replace(settings=services.settings._replace(auth=auth))
    test_client = TestClient(app.make(alone), client=("192.0.2.10", 1))
    assert test_client.get(ME, headers={"X-Grafana-User": "alice"}).status_code == 401
    answer = test_client.get(ME, headers={"X-Grafana-User": "bob", **token_headers("alice")})
    assert answer.json()["user"] == "alice"


ALL_OF_C1 = {"c1:adam", "c1:eve", "c1:olga"}


@pytest.mark.parametrize(
    ("minimum_level", "jobs_by_user"),
    [
        ("none", {"olga": {"c1:olga"}, "adam": {"c1:adam"}}),
        ("administrator", {"olga": {"c1:olga"}, "adam": ALL_OF_C1}),
        ("operator", {"olga": ALL_OF_C1, "adam": ALL_OF_C1}),
    ],
)
def test_slurm_administrator_sees_all_jobs_of_own_cluster(
    tmp_path, minimum_level, jobs_by_user, now
):
    """According to their level in the accounting of that cluster, and on no other cluster."""
    engine = writer_engine(parse_url(f"sqlite:///{tmp_path}/admins.db"), create=True)
    migrate(engine)
    levels = (Administrator("olga", "operator"), Administrator("adam", "administrator"))
    for cluster, people in (("c1", Associations((), levels, ())), ("c2", Associations((), (), ()))):
        store = Store(engine, cluster, UsagePolicy(), clock=lambda: now)
        users = ("adam", "olga", "eve") if cluster == "c1" else ("eve",)
        rows = (job_record(str(i), cluster=cluster, user=user) for i, user in enumerate(users))
        store.write(Batch(tuple(rows), (), "", 0), "s")
        store.write_associations(people, "people")
    auth = AuthOptions(slurm_admins=minimum_level)
    made = build(
        ServerSettings(
            DatabaseOptions(f"sqlite:///{tmp_path}/admins.db"),
            ServerWebOptions(allowed_host=("testserver",)),
            auth,
        )
    )
    with engine.begin() as db:
        texts = {user: tokens.create(db, user, TokenRole.USER, "", 1) for user in jobs_by_user}
        elsewhere = tokens.create(db, "adam", TokenRole.USER, "", 1, cluster="c2")
    engine.dispose()
    with TestClient(app.make(made)) as test_client:

        def rows(text, path="jobs"):
            return test_client.get(
                f"/api/v1/{path}", headers={"Authorization": f"Bearer {text}"}
            ).json()

        for user, jobs in jobs_by_user.items():
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
def test_role_of_cluster_token_is_limited_to_that_cluster(client, token_headers, role):
    """It sees all of that cluster, and creates tokens for that cluster only."""
    headers = token_headers("vera", role, cluster="c2")
    me = client.get(ME, headers=headers).json()
    assert (me["clusters"], me["sees_all_of"]) == (["c2"], ["c2"])
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


@contextmanager
def statements(services):
    """What is read from the database meanwhile."""
    read = []

    def note(_db, _cursor, statement, *_):
        read.append(statement)

    sa.event.listen(services.reader, "before_cursor_execute", note)
    yield read
    sa.event.remove(services.reader, "before_cursor_execute", note)


@pytest.mark.parametrize("named_by", ["token", "header"])
def test_known_caller_is_looked_up_again_when_the_database_has_changed(
    client, proxy_client, token_headers, services, now, named_by
):
    dave = proxy_client("dave")
    if named_by == "token":
        dave, dave.headers = client, token_headers("dave")
    coordinated = [{"cluster": "c1", "account": "physics"}]
    for _ in range(2):  # after the first, the use of the token is recorded
        assert dave.get(ME).json()["coordinates"] == coordinated
    with statements(services) as read:
        assert dave.get(ME).json()["coordinates"] == coordinated
        assert read == []
    with services.writer.begin() as db:
        db.execute(sa.delete(schema.association).where(schema.association.c.username == "dave"))
    assert dave.get(ME).json()["coordinates"] == []


def test_token_of_known_caller_is_refused_once_it_is_revoked(client, token_headers, services, now):
    alice = token_headers("alice")
    assert [client.get(ME, headers=alice).status_code for _ in range(3)] == [200, 200, 200]
    with services.writer.begin() as db:
        (token,) = tokens.list_tokens(db, "alice")
        tokens.revoke(db, token.id)
    assert client.get(ME, headers=alice).status_code == 401


def test_token_of_known_caller_expires_in_time(services, token_headers, now):
    clock = Clock(now)
    alice = token_headers("alice", expiry_time=now + 30)
    with TestClient(app.make(services._replace(clock=clock))) as test_client:
        for clock.now in (now, now, now + 29.9):
            assert test_client.get(ME, headers=alice).status_code == 200
        clock.now = now + 30
        assert test_client.get(ME, headers=alice).status_code == 401


def test_known_name_is_no_identity_without_the_secret(proxy_client):
    alice = proxy_client("alice")
    for _ in range(2):
        assert alice.get(ME).status_code == 200
    assert alice.get(ME, headers={"X-Batchjob-Secret": "wrong"}).status_code == 401
    assert alice.get(ME, headers={"X-Grafana-User": "bob"}).json()["user"] == "bob"


def test_certificate_of_a_tokens_maker_is_checked_at_each_request(
    client, certificate_client, services, monkeypatch
):
    root = certificate_client("root", "admin")
    made = root.post("/api/v1/tokens", json={"label": "x", "user": "alice"}).json()
    alice = {"Authorization": f"Bearer {made['token']}"}
    assert [client.get(ME, headers=alice).status_code for _ in range(3)] == [200, 200, 200]

    def refuse(_name, _now):
        raise CredentialError("the certificate has been revoked")

    monkeypatch.setattr(services.certificates, "check_issuer_and_revocation", refuse)
    assert client.get(ME, headers=alice).status_code == 401
