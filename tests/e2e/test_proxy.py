"""Web servers in front of the server, with the files that docs/guide/proxy.md shows."""

import base64
import contextlib
import json
import os
import re
import shutil
import ssl
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import bcrypt
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
    program: str

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


class Place(NamedTuple):
    """Where a web server's files are, where it listens, and where the server behind it does."""

    folder: Path
    port: int
    behind: int

    def path(self, name: str, text: str) -> str:
        """Of a file with this text."""
        (self.folder / name).write_text(text)
        return str(self.folder / name)

    def site(self, language: str, changes: Mapping[str, str]) -> str:
        """The page's block with this machine's paths and ports."""
        common = {"the secret": SECRET, "127.0.0.1:10912": f"127.0.0.1:{self.behind}"}
        return replaced(block(language), common | changes)


def nginx(place: Place) -> tuple[str, ...]:
    people = place.path("people", "alice:{PLAIN}word\nbob:{PLAIN}word\n")
    site = place.site(
        "nginx",
        {
            "listen 443 ssl": f"listen 127.0.0.1:{place.port} ssl",
            "/etc/ssl/": f"{place.folder}/",
            "/etc/nginx/people": people,
        },
    )
    temporary = "".join(
        f"{name}_temp_path {place.folder}/{name};\n"
        for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    user = "user root;\n" if os.geteuid() == 0 else ""
    configuration = place.path(
        "nginx.conf",
        f"pid {place.folder}/pid;\nerror_log stderr;\ndaemon off;\nworker_processes 1;\n{user}"
        f"events {{}}\nhttp {{\naccess_log off;\n{temporary}{site}}}\n",
    )
    call("nginx", "-t", "-c", configuration)
    return "nginx", "-c", configuration


# Those that the page names, and what Debian's package loads by itself.
APACHE_MODULES = (
    "ssl", "proxy", "proxy_http", "headers", "auth_basic", "authn_core", "authn_file",
    "authz_core", "authz_user", "mpm_event", "socache_shmcb",
)  # fmt: skip


def apache2(place: Place) -> tuple[str, ...]:
    hashed = call("openssl", "passwd", "-apr1", "word").strip()
    people = place.path("people", f"alice:{hashed}\nbob:{hashed}\n")
    site = place.site(
        "apache",
        {
            "*:443": f"127.0.0.1:{place.port}",
            "/etc/ssl/": f"{place.folder}/",
            "/etc/apache2/people": people,
        },
    )
    modules = "".join(
        f"LoadModule {name}_module /usr/lib/apache2/modules/mod_{name}.so\n"
        for name in APACHE_MODULES
    )
    configuration = place.path(
        "apache.conf",
        f"ServerRoot {place.folder}\nServerName localhost\nPidFile {place.folder}/pid\n{modules}"
        f"User nobody\nGroup nogroup\nErrorLog {place.folder}/error\n"
        f"Mutex file:{place.folder} default\nListen 127.0.0.1:{place.port} https\n{site}",
    )
    call("apache2", "-t", "-f", configuration)
    return "apache2", "-DFOREGROUND", "-f", configuration


def caddy(place: Place) -> tuple[str, ...]:
    hashed = bcrypt.hashpw(b"word", bcrypt.gensalt(4)).decode()  # its own takes a second a try
    changes = {
        "stats.example.org {": f"https://stats.example.org:{place.port} {{\n"
        f"    bind 127.0.0.1\n    tls {place.folder}/stats.pem {place.folder}/stats.key",
        "$2a$14$the-hash-that-caddy-hash-password-prints": f"{hashed}\n        bob {hashed}",
    }
    version = call("caddy", "version").removeprefix("v").split(".")
    if (int(version[0]), int(version[1])) < (2, 8):
        changes["basic_auth"] = "basicauth"  # as the page says
    options = "{\n    admin off\n    auto_https off\n    default_sni stats.example.org\n}\n"
    configuration = place.path("Caddyfile", options + place.site("caddy", changes))
    return "caddy", "run", "--adapter=caddyfile", f"--config={configuration}"


WEB_SERVERS: tuple[Callable[[Place], tuple[str, ...]], ...] = (nginx, apache2, caddy)


@pytest.fixture(scope="module", params=WEB_SERVERS, ids=lambda each: each.__name__)
def front(request: pytest.FixtureRequest) -> Iterator[Front]:
    if shutil.which(request.param.__name__) is None:
        pytest.skip(f"not installed: {request.param.__name__}")
    with tempfile.TemporaryDirectory() as folder:
        yield from running(request.param, Path(folder))


def running(web_server: Callable[[Place], tuple[str, ...]], folder: Path) -> Iterator[Front]:
    """A server with this in front of it."""
    folder.chmod(0o711)  # Apache reads who may log in as its own user
    place = Place(folder, *free_ports(2))
    ca = trustme.CA()
    leaf = ca.issue_cert("127.0.0.1", "stats.example.org")
    leaf.cert_chain_pems[0].write_to_path(str(folder / "stats.pem"))
    leaf.private_key_pem.write_to_path(str(folder / "stats.key"))
    (folder / "secret").write_text(SECRET)
    (folder / "secret").chmod(0o600)
    assert stats_db([f"--db.url=sqlite:///{folder}/jobs.db", "migrate"]) == 0
    server = replaced(
        block("yaml"),
        {
            "/var/lib/batchjob/jobs.db": f"{folder}/jobs.db",
            "127.0.0.1:10912": f"127.0.0.1:{place.behind}",
            "/etc/batchjob/proxy.secret": f"{folder}/secret",
        },
    )
    (folder / "server.yml").write_text(server)
    argv = web_server(place)
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
        stack.enter_context(daemon(argv, log, {**os.environ, "HOME": str(folder)}))
        made = Front(place.port, trust, call(*run, "token", "bob").strip(), argv[0])
        until(lambda: _answers(made), f"{argv[0]} and the server: {log}", 120, 0.5)
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


def test_programs_with_a_token(front: Front) -> None:
    """nginx' file lets them in without a log-in; the others give them a second name."""
    token = {"Authorization": f"Bearer {front.bobs_token}"}
    if front.program == "nginx":
        assert user_of(front, **token) == "bob"
    else:
        assert front.ask("/api/v1/me", **token)[0] == 401


def test_what_is_not_for_the_world(front: Front) -> None:
    for path in ("/metrics", "/-/ready"):
        assert front.ask(path, "alice")[0] in (403, 404)
