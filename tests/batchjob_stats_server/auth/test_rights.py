"""Rights of a token follow its creator: revoked, demoted, restricted or gone."""

from dataclasses import replace

import pytest
from fastapi.testclient import TestClient

from batchjob_stats_db.database import tokens
from batchjob_stats_db.database.tokens import TokenRole
from batchjob_stats_server import app
from batchjob_stats_server.auth.certificates import Certificates
from batchjob_stats_server.auth.rights import MAX_TOKEN_CHAIN, ProcessToken
from tests.batchjob_stats_server.authority import pem
from tests.batchjob_stats_server.conftest import NOW, PROXY, SECRET

P = "/api/v1"


@pytest.fixture
def make_client(services):
    """A client of a server with other settings of `auth`, on the same database."""

    def make(user=None, peer=PROXY, **auth):
        settings = services.settings._replace(auth=replace(services.settings.auth, **auth))
        headers = {"X-Grafana-User": user, "X-Batchjob-Secret": SECRET} if user else {}
        application = app.make(services._replace(settings=settings))
        return TestClient(application, client=(peer, 50000), headers=headers)

    return make


def create_token(client, headers=None, **wanted):
    """Create a token through the API, and return the header to send."""
    answer = client.post(f"{P}/tokens", headers=headers, json={"label": "x", **wanted})
    assert answer.status_code == 201, answer.text
    return {"Authorization": f"Bearer {answer.json()['token']}"}


def identity_of(client, headers):
    """(user, role) of a token, or the status if it is rejected."""
    answer = client.get(f"{P}/me", headers=headers)
    told = answer.json()
    return (told["user"], told["role"]) if answer.status_code == 200 else answer.status_code


def test_revoking_a_token_revokes_tokens_created_with_it(client, token_headers):
    stolen = token_headers("alice")
    child = create_token(client, stolen)
    grandchild = create_token(client, child)
    other = token_headers("alice")
    rows = client.get(f"{P}/tokens", headers=other).json()
    assert [(row["id"], row["made_by"], row["made_with"]) for row in rows] == [
        (1, "", None), (2, "alice", 1), (3, "alice", 2), (4, "", None)
    ]  # fmt: skip
    assert client.delete(f"{P}/tokens/1", headers=other).status_code == 204
    assert [identity_of(client, each) for each in (stolen, child, grandchild)] == [401] * 3
    assert identity_of(client, other) == ("alice", "user")


def test_token_of_former_admin_loses_admin_rights(client, make_client):
    boss = make_client("boss", admin=("boss",))
    own, viewing = create_token(boss, role="admin"), create_token(boss, role="viewer")
    for_bob = create_token(boss, user="bob")
    before, after = make_client(peer="203.0.113.5", admin=("boss",)), client
    assert [identity_of(before, each) for each in (own, viewing, for_bob)] == [
        ("boss", "admin"), ("boss", "viewer"), ("bob", "user")
    ]  # fmt: skip
    assert [identity_of(after, each) for each in (own, viewing)] == [("boss", "user")] * 2
    answer = after.get(f"{P}/me", headers=for_bob)
    assert answer.status_code == 401
    assert (
        "boss, who created the token, can no longer create tokens for others"
        in answer.json()["detail"]
    )
    demoted = make_client(peer="203.0.113.5", viewer=("boss",))
    assert identity_of(demoted, own) == ("boss", "viewer")


def test_rights_of_derived_token_are_limited_by_first_creator(client, make_client):
    boss = make_client("boss", admin=("boss",))
    first = create_token(boss, role="admin")
    network = make_client(peer="203.0.113.5", admin=("boss",))
    second, for_bob = (
        create_token(network, first, role="admin"),
        create_token(network, first, user="bob"),
    )
    assert identity_of(network, second) == ("boss", "admin")
    assert identity_of(client, second) == ("boss", "user")
    assert (identity_of(network, for_bob), identity_of(client, for_bob)) == (("bob", "user"), 401)


def test_token_is_limited_to_clusters_of_its_creator(client, make_client):
    vera = make_client("vera")
    everywhere, on_c1 = (
        create_token(vera, role="viewer"),
        create_token(vera, role="viewer", cluster="c1"),
    )
    confined = make_client(peer="203.0.113.5", cluster=("c2",))
    assert confined.get(f"{P}/me", headers=everywhere).json()["clusters"] == ["c2"]
    rows = confined.get(f"{P}/jobs", headers=everywhere).json()
    assert {row["cluster"] for row in rows} == {"c2"}
    assert identity_of(confined, on_c1) == 401
    assert identity_of(client, on_c1) == ("vera", "viewer")


def test_token_created_with_certificate_expires_with_it(
    services, site_authority, certificate_client, tmp_path
):
    certificate, _ = site_authority.issue(("CN", "root"), ("OU", "admin"))
    chain = {"tls": {"client_cert_chain": [pem(certificate).decode()]}}
    own = app.make(services)

    async def over_tls(scope, receive, send):
        await own({**scope, "extensions": chain}, receive, send)

    holder = TestClient(over_tls, client=("203.0.113.5", 50000))
    answer = holder.post(
        f"{P}/tokens", json={"label": "x", "role": "admin", "lifetime_seconds": 30 * 86400}
    )
    assert answer.json()["expiry_time"] == (NOW + 5 * 86400) * 1000
    headers = {"Authorization": f"Bearer {answer.json()['token']}"}
    ca, crl = tmp_path / "clients.pem", tmp_path / "crl.pem"
    for revoked, expected in (((), ("root", "admin")), ((certificate,), 401)):
        crl.write_bytes(site_authority.revocation_list(*revoked))
        judged = services._replace(certificates=Certificates(str(ca), str(crl)))
        assert identity_of(TestClient(app.make(judged)), headers) == expected
    without = services._replace(certificates=Certificates("", ""))
    assert identity_of(TestClient(app.make(without)), headers) == 401


def test_token_chain_length_is_limited(client, token_headers):
    headers = token_headers("alice")
    for _ in range(MAX_TOKEN_CHAIN - 1):
        headers = create_token(client, headers)
    assert identity_of(client, headers) == ("alice", "user")
    answer = client.post(f"{P}/tokens", headers=headers, json={"label": "x"})
    assert (answer.status_code, answer.json()["detail"]) == (
        403, f"tokens created with one another: at most {MAX_TOKEN_CHAIN} in a row"
    )  # fmt: skip


def test_token_count_per_user_is_limited(client, token_headers, services, now):
    first = token_headers("alice")
    with services.writer.begin() as db:
        for number in range(tokens.MAX_PER_USER - 1):
            end = now - 1 if number == 0 else now + 60
            tokens.create(db, "alice", TokenRole.USER, "x", now - 90, expiry_time=end)
    create_token(client, first)  # takes the place of the expired one
    answer = client.post(f"{P}/tokens", headers=first, json={"label": "x"})
    assert (answer.status_code, answer.json()["detail"]) == (
        409, "alice has 1000 tokens; revoke some first"
    )  # fmt: skip
    create_token(client, token_headers("bob"))


def test_token_has_no_ancestors_after_its_parent_is_revoked(client, token_headers, services, now):
    child = create_token(client, token_headers("alice"))
    text = child["Authorization"].removeprefix("Bearer ")
    with services.reader.connect() as db:
        found = tokens.find(db, text, now)
    assert client.delete(f"{P}/tokens/{found.parent_id}", headers=child).status_code == 204
    with services.reader.connect() as db:
        assert tokens.with_ancestors(db, found) == []


def test_tokens_for_other_users_are_logged_in_audit_log(client, token_headers, caplog):
    root = token_headers("root", TokenRole.ADMIN)
    caplog.set_level("INFO", "batchjob.audit")
    client.get(f"{P}/tokens", headers=root)
    own = create_token(client, root)
    assert not caplog.messages
    for_bob = create_token(client, root, user="bob", cluster="c1")
    more = create_token(client, for_bob)
    client.get(f"{P}/jobs/2", headers=more)
    client.get(f"{P}/jobs/2", headers=token_headers("bob"))
    client.delete(f"{P}/tokens/3", headers=root)
    assert caplog.messages == [
        "root (admin) made a token for bob (user, cluster c1)",
        "root as bob (user) used token 3",
        "root as bob (user) made a token for bob (user, cluster c1)",
        "root as bob (user) used token 4",
        "root as bob (user) asked for '/api/v1/jobs/2'",
        "root as bob (user) saw job 2 of bob",
        "root (admin) revoked token 3 of bob, 4 of bob",
    ]
    assert identity_of(client, own) == ("root", "user")


def test_process_token_is_not_stored(services, client):
    given = ProcessToken("bj_" + "p" * 43, "me", TokenRole.ADMIN)
    headers = {"Authorization": f"Bearer {given.text}"}
    running = TestClient(app.make(services._replace(process_token=given)))
    assert identity_of(running, headers) == ("me", "admin")
    kept = create_token(running, headers, role="viewer")
    assert identity_of(client, headers) == 401
    assert identity_of(running, kept) == ("me", "viewer")
    assert identity_of(client, kept) == 401  # a server on the same database
    restarted = given._replace(text="bj_" + "q" * 43)
    assert (
        identity_of(TestClient(app.make(services._replace(process_token=restarted))), kept) == 401
    )
    with services.reader.connect() as db:
        assert [each.username for each in tokens.list_tokens(db)] == ["me"]
