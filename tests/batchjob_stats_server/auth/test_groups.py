"""Unix groups of logins, and the roles and accounts they give."""

import grp
import os
import pwd
from dataclasses import replace

import pytest
from fastapi.testclient import TestClient

from batchjob_stats_server import app
from batchjob_stats_server.auth.groups import Groups
from batchjob_stats_server.options import AccountGroup, AuthOptions
from tests.batchjob_stats_server.conftest import NOW, PROXY, SECRET

P = "/api/v1"
NEEDED = AuthOptions(unix_groups=True, viewer_group=("staff",))


def test_groups_of_a_login_of_this_host():
    user = pwd.getpwuid(os.getuid())
    groups = Groups(NEEDED, None, 1, lambda: NOW)
    assert grp.getgrgid(user.pw_gid).gr_name in groups.of(user.pw_name)
    assert groups.of("nobody-of-this-name") == frozenset()


def test_groups_are_cached_for_a_minute():
    asked, now = [], [0.0]

    def ask(user):
        asked.append(user)
        return frozenset({f"group of {user}"})

    groups = Groups(NEEDED, None, 1, lambda: NOW, look_up=ask, monotonic=lambda: now[0])
    for moment in (0, 59, 60.5):
        now[0] = moment
        assert groups.of("alice") == {"group of alice"}
    assert asked == ["alice", "alice"]


def test_slow_directory_service_does_not_block_other_requests(services):
    threads = services.threads

    def ask(_user):
        return frozenset({"held up" if threads.is_busy() else "free"})

    groups = Groups(NEEDED, None, 1, lambda: NOW, threads.while_waiting, ask)
    assert threads.run_short(lambda: groups.of("alice")) == {"free"}


def test_groups_are_not_looked_up_when_no_option_uses_them():
    groups = Groups(AuthOptions(unix_groups=True), None, 1, lambda: NOW)
    assert groups.of(pwd.getpwuid(os.getuid()).pw_name) == frozenset()


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
    auth = replace(services.settings.auth, unix_groups=True, **auth_options)

    class Known(Groups):
        def of(self, user):
            return frozenset({"g"}) if user == "alice" else frozenset()

    made = services._replace(
        settings=services.settings._replace(auth=auth),
        groups=Known(auth, None, 1, lambda: NOW),
    )
    headers = {"X-Grafana-User": "alice", "X-Batchjob-Secret": SECRET}
    asker = TestClient(app.make(made), client=(PROXY, 50000), headers=headers)
    assert asker.get(f"{P}/me").json()["role"] == role
    assert {row["user"] for row in asker.get(f"{P}/jobs").json()} == users
