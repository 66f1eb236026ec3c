"""nginx in front of the server, with the files that docs/guide/proxy.md shows."""

import base64
import contextlib
import json
import os
import re
import shutil
import ssl
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest
import trustme

from batchjob_stats_db.main import main as stats_db
from tests.e2e.processes import call, daemon, free_ports, until

pytestmark = pytest.mark.e2e

PAGE = (Path(__file__).parents[2] / "docs/guide/proxy.md").read_text()
SECRET = "0123456789abcdef0123456789abcdef"


class Front(NamedTuple):
    """The proxy, asked as browsers and programs ask it."""

    port: int
    trust: ssl.SSLContext
    bobs_token: str

    def ask(self, path: str, user: str = "", **headers: str) -> tuple[int, str]:
        """Status and body; `user` logs in at the proxy."""
        request = urllib.request.Request(f"https://127.0.0.1:{self.port}{path}")
        request.add_header("Host", "stats.example.org")
        if user:
            login = base64.b64encode(f"{user}:word".encode()).decode()
            request.add_header("Authorization", f"Basic {login}")
        for name, value in headers.items():
            request.add_header(name.replace("_", "-"), value)
        try:
            with urllib.request.urlopen(request, context=self.trust, timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()


def block(language: str) -> str:
    (found,) = re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    return found


def replaced(text: str, changes: Mapping[str, str]) -> str:
    for old, new in changes.items():
        assert old in text, old
        text = text.replace(old, new)
    return text


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    if shutil.which("nginx") is None:
        pytest.skip("not installed: nginx")
    folder = tmp_path_factory.mktemp("proxy")
    port, behind = free_ports(2)
    ca = trustme.CA()
    leaf = ca.issue_cert("127.0.0.1", "stats.example.org")
    leaf.cert_chain_pems[0].write_to_path(str(folder / "stats.pem"))
    leaf.private_key_pem.write_to_path(str(folder / "stats.key"))
    (folder / "people").write_text("alice:{PLAIN}word\nbob:{PLAIN}word\n")
    (folder / "secret").write_text(SECRET)
    (folder / "secret").chmod(0o600)
    assert stats_db([f"--db.url=sqlite:///{folder}/jobs.db", "migrate"]) == 0
    server = replaced(
        block("yaml"),
        {
            "/var/lib/batchjob/jobs.db": f"{folder}/jobs.db",
            "127.0.0.1:10912": f"127.0.0.1:{behind}",
            "/etc/batchjob/proxy.secret": f"{folder}/secret",
        },
    )
    (folder / "server.yml").write_text(server)
    site = replaced(
        block("nginx"),
        {
            "listen 443 ssl": f"listen 127.0.0.1:{port} ssl",
            "/etc/ssl/": f"{folder}/",
            "/etc/nginx/people": f"{folder}/people",
            "the secret": SECRET,
            "127.0.0.1:10912": f"127.0.0.1:{behind}",
        },
    )
    (folder / "nginx.conf").write_text(
        f"pid {folder}/pid;\nerror_log stderr;\ndaemon off;\nworker_processes 1;\n"
        + ("user root;\n" if os.geteuid() == 0 else "")
        + "events {}\nhttp {\naccess_log off;\n"
        + "".join(
            f"{name}_temp_path {folder}/{name};\n"
            for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        )
        + site
        + "}\n"
    )
    call("nginx", "-t", "-c", str(folder / "nginx.conf"))
    trust = ssl.create_default_context()
    ca.configure_trust(trust)
    with contextlib.ExitStack() as stack:
        log = folder / "log"
        run = (
            sys.executable,
            "-m",
            "batchjob_stats_server.main",
            f"--config.file={folder}/server.yml",
        )
        stack.enter_context(daemon(run, log, dict(os.environ)))
        stack.enter_context(daemon(("nginx", "-c", str(folder / "nginx.conf")), log))
        made = Front(port, trust, call(*run, "token", "bob").strip())
        until(lambda: _answers(made), f"nginx and the server: {log}", 60, 0.5)
        yield made


def _answers(front: Front) -> bool:
    with contextlib.suppress(OSError):
        return front.ask("/api/v1/jobs", "alice")[0] == 200
    return False


def test_who_is_logged_in_is_known(front: Front) -> None:
    assert front.ask("/api/v1/jobs")[0] == 401
    assert front.ask("/")[0] == 401
    assert front.ask("/", "alice")[0] == 200
    assert user_of(front, "alice") == "alice"


def user_of(front: Front, login: str = "", **headers: str) -> str:
    """Whom the server takes us for."""
    status, text = front.ask("/api/v1/me", login, **headers)
    assert status == 200, text
    return str(json.loads(text)["user"])


def test_headers_of_a_client_name_nobody(front: Front) -> None:
    forged = {"X_Remote_User": "root", "X_Batchjob_Secret": SECRET}
    assert user_of(front, "alice", **forged) == "alice"
    token = {"Authorization": "Bearer nonsense"}
    assert front.ask("/api/v1/jobs", **forged, **token)[0] == 401


def test_programs_with_a_token_need_no_log_in(front: Front) -> None:
    token = {"Authorization": f"Bearer {front.bobs_token}"}
    assert user_of(front, **token) == "bob"


def test_what_is_not_for_the_world(front: Front) -> None:
    assert front.ask("/metrics", "alice")[0] == 404
    assert front.ask("/-/ready", "alice")[0] == 404
