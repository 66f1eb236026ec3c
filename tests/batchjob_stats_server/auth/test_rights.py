"""What a token may do follows its maker: revoked, demoted, confined or gone."""

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
def asking(services):
    """A client of a server with other settings of `auth`, on the same database."""

    def make(user=None, peer=PROXY, **auth):
        settings = services.settings._replace(auth=replace(services.settings.auth, **auth))
        headers = {"X-Grafana-User": user, "X-Batchjob-Secret": SECRET} if user else {}
        made = app.make(services._replace(settings=settings))
        return TestClient(made, client=(peer, 50000), headers=headers)

    return make


def made(client, headers=None, **wanted):
    """The header of a token that was made through the API."""
    answer = client.post(f"{P}/tokens", headers=headers, json={"label": "x", **wanted})
    assert answer.status_code == 201, answer.text
    return {"Authorization": f"Bearer {answer.json()['token']}"}


def known(client, headers):
    """(user, role) of a token, or the refusal."""
    answer = client.get(f"{P}/me", headers=headers)
    told = answer.json()
    return (told["user"], told["role"]) if answer.status_code == 200 else answer.status_code


def test_revoking_a_token_revokes_all_that_were_made_with_it(client, token):
    stolen = token("alice")
    child = made(client, stolen)
    grandchild = made(client, child)
    other = token("alice")
    rows = client.get(f"{P}/tokens", headers=other).json()
    assert [(row["id"], row["made_by"], row["made_with"]) for row in rows] == [
        (1, "", None), (2, "alice", 1), (3, "alice", 2), (4, "", None)
    ]  # fmt: skip
    assert client.delete(f"{P}/tokens/1", headers=other).status_code == 204
    assert [known(client, each) for each in (stolen, child, grandchild)] == [401] * 3
    assert known(client, other) == ("alice", "user")


def test_a_token_of_somebody_who_was_admin_is_no_admin_s(client, asking):
    boss = asking("boss", admin=("boss",))
    own, viewing = made(boss, role="admin"), made(boss, role="viewer")
    for_bob = made(boss, user="bob")
    before, after = asking(peer="203.0.113.5", admin=("boss",)), client
    assert [known(before, each) for each in (own, viewing, for_bob)] == [
        ("boss", "admin"), ("boss", "viewer"), ("bob", "user")
    ]  # fmt: skip
    assert [known(after, each) for each in (own, viewing)] == [("boss", "user")] * 2
    answer = after.get(f"{P}/me", headers=for_bob)
    assert answer.status_code == 401
    assert (
        "boss, who created the token, can no longer create tokens for others"
        in answer.json()["detail"]
    )
    demoted = asking(peer="203.0.113.5", viewer=("boss",))
    assert known(demoted, own) == ("boss", "viewer")


def test_what_was_made_with_a_token_is_bounded_by_the_first_maker(client, asking):
    boss = asking("boss", admin=("boss",))
    first = made(boss, role="admin")
    network = asking(peer="203.0.113.5", admin=("boss",))
    second, for_bob = made(network, first, role="admin"), made(network, first, user="bob")
    assert known(network, second) == ("boss", "admin")
    assert known(client, second) == ("boss", "user")
    assert (known(network, for_bob), known(client, for_bob)) == (("bob", "user"), 401)


def test_a_token_reaches_no_further_than_the_clusters_of_its_maker(client, asking):
    vera = asking("vera")
    everywhere, on_c1 = made(vera, role="viewer"), made(vera, role="viewer", cluster="c1")
    confined = asking(peer="203.0.113.5", cluster=("c2",))
    assert confined.get(f"{P}/me", headers=everywhere).json()["clusters"] == ["c2"]
    rows = confined.get(f"{P}/jobs", headers=everywhere).json()
    assert {row["cluster"] for row in rows} == {"c2"}
    assert known(confined, on_c1) == 401
    assert known(client, on_c1) == ("vera", "viewer")


def test_a_token_made_with_a_certificate_ends_with_it(
    services, site_authority, certified, tmp_path
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
        assert known(TestClient(app.make(judged)), headers) == expected
    without = services._replace(certificates=None)
    assert known(TestClient(app.make(without)), headers) == 401


def test_tokens_are_made_with_one_another_only_so_often(client, token):
    headers = token("alice")
    for _ in range(MAX_TOKEN_CHAIN - 1):
        headers = made(client, headers)
    assert known(client, headers) == ("alice", "user")
    answer = client.post(f"{P}/tokens", headers=headers, json={"label": "x"})
    assert (answer.status_code, answer.json()["detail"]) == (
        403, f"tokens created with one another: at most {MAX_TOKEN_CHAIN} in a row"
    )  # fmt: skip


def test_nobody_fills_the_database_with_tokens(client, token, services, now):
    first = token("alice")
    with services.writer.begin() as db:
        for number in range(tokens.MAX_PER_USER - 1):
            end = now - 1 if number == 0 else now + 60
            tokens.create(db, "alice", TokenRole.USER, "x", now - 90, expiry_time=end)
    made(client, first)  # in the place of the one that has ended
    answer = client.post(f"{P}/tokens", headers=first, json={"label": "x"})
    assert (answer.status_code, answer.json()["detail"]) == (
        409, "alice has 1000 tokens; revoke some first"
    )  # fmt: skip
    made(client, token("bob"))


def test_a_token_whose_maker_s_is_revoked_meanwhile_is_revoked(client, token, services, now):
    child = made(client, token("alice"))
    text = child["Authorization"].removeprefix("Bearer ")
    with services.reader.connect() as db:
        found = tokens.find(db, text, now)
    assert client.delete(f"{P}/tokens/{found.parent_id}", headers=child).status_code == 204
    with services.reader.connect() as db:
        assert tokens.with_ancestors(db, found) == []


def test_who_makes_uses_and_revokes_a_token_for_somebody_is_noted(client, token, caplog):
    root = token("root", TokenRole.ADMIN)
    caplog.set_level("INFO", "batchjob.audit")
    client.get(f"{P}/tokens", headers=root)
    own = made(client, root)
    assert not caplog.messages
    for_bob = made(client, root, user="bob", cluster="c1")
    more = made(client, for_bob)
    client.get(f"{P}/jobs/2", headers=more)
    client.get(f"{P}/jobs/2", headers=token("bob"))
    client.delete(f"{P}/tokens/3", headers=root)
    assert caplog.messages == [
        "root (admin) made a token for bob (user, cluster c1)",
        "root as bob (user) used token 3",
        "root as bob (user) made a token for bob (user, cluster c1)",
        "root as bob (user) used token 4",
        "root as bob (user) saw job 2 of bob",
        "root (admin) revoked token 3 of bob, 4 of bob",
    ]
    assert known(client, own) == ("root", "user")


def test_a_token_of_the_process_is_in_no_database(services, client):
    given = ProcessToken("bj_" + "p" * 43, "me", TokenRole.ADMIN)
    headers = {"Authorization": f"Bearer {given.text}"}
    running = TestClient(app.make(services._replace(process_token=given)))
    assert known(running, headers) == ("me", "admin")
    kept = made(running, headers, role="viewer")
    assert known(client, headers) == 401
    assert known(client, kept) == ("me", "viewer")
    with services.reader.connect() as db:
        assert [each.username for each in tokens.list_tokens(db)] == ["me"]
    limited = services._replace(process_token=given._replace(can_make_tokens=False))
    asker = TestClient(app.make(limited), headers=headers)
    assert asker.post(f"{P}/tokens", json={"label": "x"}).status_code == 403
    assert asker.delete(f"{P}/tokens/1").status_code == 403
