"""Web servers as reverse proxies, configured as docs/guide/proxy.md shows."""

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
from tests.helpers.processes import call, daemon, free_ports
from tests.helpers.waiting import scaled, until

pytestmark = pytest.mark.e2e

PROXY_GUIDE = (Path(__file__).parents[2] / "docs/guide/proxy.md").read_text()
SECRET = "0123456789abcdef0123456789abcdef"


class Proxy(NamedTuple):
    """A running reverse proxy, and how to send requests to it."""

    port: int
    tls_context: ssl.SSLContext
    bobs_token: str
    program: str

    def request(self, path: str, user: str = "", **headers: str) -> tuple[int, str]:
        """Status and body of the response; `user` logs in at the proxy."""
        http_request = urllib.request.Request(f"https://127.0.0.1:{self.port}{path}")
        http_request.add_header("Host", "stats.example.org")
        if user:
            credentials = base64.b64encode(f"{user}:word".encode()).decode()
            http_request.add_header("Authorization", f"Basic {credentials}")
        for name, value in headers.items():
            http_request.add_header(name.replace("_", "-"), value)
        try:
            with urllib.request.urlopen(
                http_request, context=self.tls_context, timeout=scaled(10)
            ) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()


def documented_block(language: str) -> str:
    (found,) = re.findall(rf"```{language}\n(.*?)```", PROXY_GUIDE, re.DOTALL)
    return found


def replace_each(text: str, replacements: Mapping[str, str]) -> str:
    for old, new in replacements.items():
        assert old in text, old
        text = text.replace(old, new)
    return text


class ProxySetup(NamedTuple):
    """Directory and port of a web server, and the port of the server behind it."""

    folder: Path
    port: int
    server_port: int

    def write_file(self, name: str, text: str) -> str:
        """Write a file; its path."""
        (self.folder / name).write_text(text)
        return str(self.folder / name)

    def site_configuration(self, language: str, replacements: Mapping[str, str]) -> str:
        """The documented block with the paths and ports of this test."""
        common_replacements = {
            "the secret": SECRET,
            "127.0.0.1:10912": f"127.0.0.1:{self.server_port}",
        }
        return replace_each(documented_block(language), common_replacements | replacements)


def nginx(setup: ProxySetup) -> tuple[str, ...]:
    password_file = setup.write_file("people", "alice:{PLAIN}word\nbob:{PLAIN}word\n")
    site = setup.site_configuration(
        "nginx",
        {
            "listen 443 ssl": f"listen 127.0.0.1:{setup.port} ssl",
            "/etc/ssl/": f"{setup.folder}/",
            "/etc/nginx/people": password_file,
        },
    )
    temporary = "".join(
        f"{name}_temp_path {setup.folder}/{name};\n"
        for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    user = "user root;\n" if os.geteuid() == 0 else ""
    configuration = setup.write_file(
        "nginx.conf",
        f"pid {setup.folder}/pid;\nerror_log stderr;\ndaemon off;\nworker_processes 1;\n{user}"
        f"events {{}}\nhttp {{\naccess_log off;\n{temporary}{site}}}\n",
    )
    call("nginx", "-t", "-c", configuration)
    return "nginx", "-c", configuration


# Modules named on the page, and those that Debian's package loads by default.
APACHE_MODULES = (
    "ssl", "proxy", "proxy_http", "headers", "auth_basic", "authn_core", "authn_file",
    "authz_core", "authz_user", "mpm_event", "socache_shmcb",
)  # fmt: skip


def apache2(setup: ProxySetup) -> tuple[str, ...]:
    password_hash = call("openssl", "passwd", "-apr1", "word").strip()
    password_file = setup.write_file("people", f"alice:{password_hash}\nbob:{password_hash}\n")
    site = setup.site_configuration(
        "apache",
        {
            "*:443": f"127.0.0.1:{setup.port}",
            "/etc/ssl/": f"{setup.folder}/",
            "/etc/apache2/people": password_file,
        },
    )
    modules = "".join(
        f"LoadModule {name}_module /usr/lib/apache2/modules/mod_{name}.so\n"
        for name in APACHE_MODULES
    )
    configuration = setup.write_file(
        "apache.conf",
        f"ServerRoot {setup.folder}\nServerName localhost\nPidFile {setup.folder}/pid\n{modules}"
        f"User nobody\nGroup nogroup\nErrorLog {setup.folder}/error\n"
        f"Mutex file:{setup.folder} default\nListen 127.0.0.1:{setup.port} https\n{site}",
    )
    call("apache2", "-t", "-f", configuration)
    return "apache2", "-DFOREGROUND", "-f", configuration


def caddy(setup: ProxySetup) -> tuple[str, ...]:
    # Caddy's default cost takes a second a try.
    password_hash = bcrypt.hashpw(b"word", bcrypt.gensalt(4)).decode()
    accounts = f"{password_hash}\n        bob {password_hash}"
    replacements = {
        "stats.example.org {": f"https://stats.example.org:{setup.port} {{\n"
        f"    bind 127.0.0.1\n    tls {setup.folder}/stats.pem {setup.folder}/stats.key",
        "$2a$14$the-hash-that-caddy-hash-password-prints": accounts,
    }
    version = call("caddy", "version").removeprefix("v").split(".")
    if (int(version[0]), int(version[1])) < (2, 8):
        replacements["basic_auth"] = "basicauth"  # as the page says
    options = "{\n    admin off\n    auto_https off\n    default_sni stats.example.org\n}\n"
    configuration = setup.write_file(
        "Caddyfile", options + setup.site_configuration("caddy", replacements)
    )
    return "caddy", "run", "--adapter=caddyfile", f"--config={configuration}"


WEB_SERVERS: tuple[Callable[[ProxySetup], tuple[str, ...]], ...] = (nginx, apache2, caddy)


@pytest.fixture(scope="module", params=WEB_SERVERS, ids=lambda each: each.__name__)
def proxy(request: pytest.FixtureRequest) -> Iterator[Proxy]:
    if shutil.which(request.param.__name__) is None:
        pytest.skip(f"not installed: {request.param.__name__}")
    with tempfile.TemporaryDirectory() as folder:
        yield from running_proxy(request.param, Path(folder))


def running_proxy(
    write_configuration: Callable[[ProxySetup], tuple[str, ...]], folder: Path
) -> Iterator[Proxy]:
    """Start the server and a web server in front of it."""
    folder.chmod(0o711)  # Apache reads the password file as its own user
    setup = ProxySetup(folder, *free_ports(2))
    ca = trustme.CA()
    certificate = ca.issue_cert("127.0.0.1", "stats.example.org")
    certificate.cert_chain_pems[0].write_to_path(str(folder / "stats.pem"))
    certificate.private_key_pem.write_to_path(str(folder / "stats.key"))
    (folder / "secret").write_text(SECRET)
    (folder / "secret").chmod(0o600)
    assert stats_db([f"--db.url=sqlite:///{folder}/jobs.db", "migrate"]) == 0
    server_configuration = replace_each(
        documented_block("yaml"),
        {
            "/var/lib/batchjob/jobs.db": f"{folder}/jobs.db",
            "127.0.0.1:10912": f"127.0.0.1:{setup.server_port}",
            "/etc/batchjob/proxy.secret": f"{folder}/secret",
        },
    )
    (folder / "server.yml").write_text(server_configuration)
    proxy_command = write_configuration(setup)
    tls_context = ssl.create_default_context()
    ca.configure_trust(tls_context)
    with contextlib.ExitStack() as stack:
        log = folder / "log"
        server_command = (
            sys.executable,
            "-m",
            "batchjob_stats_server.main",
            f"--config.file={folder}/server.yml",
        )
        stack.enter_context(daemon(server_command, log, dict(os.environ)))
        stack.enter_context(daemon(proxy_command, log, {**os.environ, "HOME": str(folder)}))
        proxy = Proxy(
            setup.port, tls_context, call(*server_command, "token", "bob").strip(), proxy_command[0]
        )
        until(lambda: _is_ready(proxy), f"{proxy_command[0]} and the server: {log}", 120, 0.5)
        yield proxy


def _is_ready(proxy: Proxy) -> bool:
    with contextlib.suppress(OSError):
        return proxy.request("/api/v1/jobs", "alice")[0] == 200
    return False


def test_login_at_proxy_identifies_user(proxy: Proxy) -> None:
    assert proxy.request("/api/v1/jobs")[0] == 401
    assert proxy.request("/")[0] == 401
    assert proxy.request("/", "alice")[0] == 200
    assert user_seen_by_server(proxy, "alice") == "alice"


def user_seen_by_server(proxy: Proxy, login: str = "", **headers: str) -> str:
    """The user that the server identified."""
    status, text = proxy.request("/api/v1/me", login, **headers)
    assert status == 200, text
    return str(json.loads(text)["user"])


def test_forged_identity_headers_are_ignored(proxy: Proxy) -> None:
    forged = {"X_Remote_User": "root", "X_Batchjob_Secret": SECRET}
    assert user_seen_by_server(proxy, "alice", **forged) == "alice"
    token = {"Authorization": "Bearer nonsense"}
    assert proxy.request("/api/v1/jobs", **forged, **token)[0] == 401


def test_token_authentication_through_proxy(proxy: Proxy) -> None:
    """Only the nginx configuration lets requests with a token pass without a log-in."""
    token = {"Authorization": f"Bearer {proxy.bobs_token}"}
    if proxy.program == "nginx":
        assert user_seen_by_server(proxy, **token) == "bob"
    else:
        assert proxy.request("/api/v1/me", **token)[0] == 401


def test_internal_endpoints_are_not_exposed(proxy: Proxy) -> None:
    for path in ("/metrics", "/-/ready"):
        assert proxy.request(path, "alice")[0] in (403, 404)
