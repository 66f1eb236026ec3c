"""Groups that the provider named, and the roles and accounts they give."""

from dataclasses import replace

import pytest
from fastapi.testclient import TestClient

from batchjob_stats_db.database import sessions
from batchjob_stats_server import app
from batchjob_stats_server.options import AccountGroup, OidcOptions
from tests.batchjob_stats_server.conftest import NOW, PROXY, SECRET

P = "/api/v1"


@pytest.mark.parametrize(
    ("auth_options", "role", "users"),
    [
        ({"viewer_group": ("g",)}, "viewer", {"alice", "bob", "carol"}),
        ({"admin_group": ("g",)}, "admin", {"alice", "bob", "carol"}),
        ({"account_group": (AccountGroup("g", "c1", "chem"),)}, "user", {"alice", "bob"}),
        ({"account_group": (AccountGroup("other", "c1", "chem"),)}, "user", {"alice"}),
        ({"account_group": (AccountGroup("g", "c2", "chem"),)}, "user", {"alice"}),
        (
            {"account_group": (AccountGroup("g", "c1", "chem"),), "cluster": ("c2",)},
            "user",
            {"alice"},
        ),
    ],
)
def test_groups_of_proxy_user_give_roles_and_accounts(services, auth_options, role, users):
    auth = replace(services.settings.auth, **auth_options)
    oidc = OidcOptions(issuer="https://sso.example.org")
    with services.writer.begin() as db:
        at_provider = ("alice", "")
        sessions.begin(db, "alice", {"g"}, at_provider, NOW, NOW + 3600)
    made = services._replace(settings=services.settings._replace(auth=auth, oidc=oidc))
    headers = {"X-Grafana-User": "alice", "X-Batchjob-Secret": SECRET}
    asker = TestClient(app.make(made), client=(PROXY, 50000), headers=headers)
    assert asker.get(f"{P}/me").json()["role"] == role
    assert {row["user"] for row in asker.get(f"{P}/jobs").json()} == users
