"""The command `batchjob_stats_server`."""

import socket
import ssl
import sys
from typing import Any

import uvicorn

from batchjob import __version__, logs
from batchjob.sd_notify import notify
from batchjob.settings import Parser, SettingsError, add_flags, parse_flags
from batchjob_stats_db.engine import DatabaseError
from batchjob_stats_server import app
from batchjob_stats_server.options import SECTIONS, Settings, WebOptions, problems, settings
from batchjob_stats_server.services import build

_GRACE_SECONDS = 20


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns the exit status: 1 for a failure, 2 for wrong settings."""
    try:
        return _main(sys.argv[1:] if arguments is None else arguments)
    except (SettingsError, DatabaseError) as error:
        print(f"batchjob_stats_server: {error}", file=sys.stderr)
        return 2


def _main(arguments: list[str]) -> int:
    given = parse_flags(_parser(), arguments)
    extra = {name: given.pop(name) for name in list(given) if "." not in name}
    chosen = settings(given, extra["config_file"])
    logs.set_up(chosen.log)
    wrong = list(problems(chosen))
    if wrong:
        raise SettingsError("; ".join(wrong))
    _check_tls(chosen.web)
    if extra["check"]:
        build(chosen).stop()
        print("the configuration is good")
        return 0
    return _serve(chosen)


def _parser() -> Parser:
    parser = Parser(
        prog="batchjob_stats_server", description="Answer questions about jobs.", allow_abbrev=False
    )
    version = f"batchjob_stats_server {__version__}"
    parser.add_argument("--version", action="version", version=version)
    parser.add_argument("--config.file", dest="config_file", default="", metavar="PATH",
                        help="YAML file with options.")  # fmt: skip
    parser.add_argument("--check", action="store_true",
                        help="Check the configuration and the database, and end.")  # fmt: skip
    add_flags(parser, SECTIONS)
    return parser


def _check_tls(web: WebOptions) -> None:
    if not web.tls_cert_file:
        return
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(web.tls_cert_file, web.tls_key_file)
    except OSError as error:  # ssl.SSLError is one
        raise SettingsError(
            f"web.tls-cert-file: {web.tls_cert_file}, {web.tls_key_file}: {error}"
        ) from error


class _Server(uvicorn.Server):
    """Tells systemd when requests are taken."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            notify("READY=1")

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        notify("STOPPING=1")
        await super().shutdown(sockets)


def _serve(chosen: Settings) -> int:
    services = build(chosen)
    tls: dict[str, Any] = {}
    if chosen.web.tls_cert_file:
        tls = {"ssl_certfile": chosen.web.tls_cert_file, "ssl_keyfile": chosen.web.tls_key_file}
    config = uvicorn.Config(
        app.make(services),
        # Who the peer is decides who is believed: it is never taken from a header.
        proxy_headers=False,
        server_header=False,
        access_log=False,
        log_config=None,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=_GRACE_SECONDS,
        limit_concurrency=1000,
        **tls,
    )
    with _listening(chosen.web.listen_address) as listener:
        server = _Server(config)
        server.run(sockets=[listener])
    return 0 if server.started else 1


def _listening(address: tuple[str, int]) -> socket.socket:
    host, port = address
    try:
        if not host and socket.has_dualstack_ipv6():
            return socket.create_server(("::", port), family=socket.AF_INET6, dualstack_ipv6=True)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family)
    except OSError as error:
        told = error.strerror or error
        raise SettingsError(f"web.listen-address: {host}:{port}: {told}") from error


if __name__ == "__main__":
    sys.exit(main())
