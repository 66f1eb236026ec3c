"""The command `batchjob_stats_server`."""

import argparse
import gc
import logging
import math
import os
import socket
import ssl
import sys
import threading
import time

import sqlalchemy as sa
import uvicorn

from batchjob import __version__
from batchjob.runtime import log as logs
from batchjob.runtime.logins import is_login
from batchjob.runtime.output import run_with_stdout
from batchjob.runtime.settings import (
    Parser,
    SettingsError,
    add_flags,
    exit_status,
    listen_error,
    parse_flags,
)
from batchjob.runtime.signals import notify
from batchjob.runtime.values import ListenAddress, duration
from batchjob_stats_db.database import tokens
from batchjob_stats_db.database.engine import DatabaseError
from batchjob_stats_db.database.tokens import TokenRole
from batchjob_stats_server import app
from batchjob_stats_server.auth.certificates import tls_context
from batchjob_stats_server.http.accept import BACKLOG, Acceptor, OpenConnections
from batchjob_stats_server.http.protocol import Connection, set_socket_options
from batchjob_stats_server.options import SECTIONS, ServerSettings, setting_errors, settings
from batchjob_stats_server.services import Services, build

log = logging.getLogger(__name__)

_OBJECTS_BETWEEN_COLLECTIONS = 50_000
_TICKS_PER_WATCHDOG = 50
_CUT_OFF_SECONDS = 3.0  # in addition to the time within which requests must end


def main(arguments: list[str] | None = None) -> int:
    """Run the command; exit status 2 for wrong settings, 1 for errors that may pass."""
    try:
        return _main(sys.argv[1:] if arguments is None else arguments)
    except (SettingsError, DatabaseError) as error:
        print(f"batchjob_stats_server: {error}", file=sys.stderr)
        return exit_status(error)


def _main(arguments: list[str]) -> int:
    flags = parse_flags(_parser(), arguments)
    extra = {name: flags.pop(name) for name in list(flags) if "." not in name}
    chosen = settings(flags, extra["config_file"])
    logs.set_up(chosen.log)
    errors = list(setting_errors(chosen))
    if errors:
        raise SettingsError("; ".join(errors))
    if extra["check"]:
        services = build(chosen)
        services.stop()
        if problem := services.samples_problem():
            raise SettingsError(f"samples.directory: {problem}")
        _tls(chosen, services)
        print("configuration OK")
        return 0
    if "user" in extra:
        command = argparse.Namespace(**extra)
        return run_with_stdout("batchjob_stats_server", lambda: _make_token(chosen, command))
    return _serve(chosen)


def _make_token(chosen: ServerSettings, command: argparse.Namespace) -> int:
    """Print a token: the API cannot create the first one."""
    if not is_login(command.user):
        raise SettingsError(f"token: expected the name of a user, got {command.user!r}")
    services = build(chosen)
    now = int(time.time())
    try:
        with services.writer.begin() as db:
            text = tokens.create(
                db, command.user, TokenRole(command.role), command.label, now,
                cluster=command.cluster, expiry_time=now + int(command.lifetime),
            )  # fmt: skip
    except sa.exc.DBAPIError as error:
        raise DatabaseError(f"the token cannot be stored: {error.orig}") from error
    finally:
        services.stop()
    print(text)
    return 0


def _parser() -> Parser:
    parser = Parser(
        prog="batchjob_stats_server",
        description="Serve the job API, web pages and the PromQL gate.",
        allow_abbrev=False,
    )
    version = f"batchjob_stats_server {__version__}"
    parser.add_argument("--version", action="version", version=version)
    parser.add_argument("--config.file", dest="config_file", default="", metavar="PATH",
                        help="YAML file with options.")  # fmt: skip
    parser.add_argument(
        "--check", action="store_true", help="Check the configuration and the database, and exit."
    )
    add_flags(parser, SECTIONS)
    commands = parser.add_subparsers(metavar="COMMAND", parser_class=Parser)
    commands.add_parser("run", help="Serve until stopped (default).")
    token = commands.add_parser("token", help="Create a token and print it.")
    token.add_argument("user", help="User of the token.")
    token.add_argument("--role", choices=[role.value for role in TokenRole], default="user",
                       help="Maximum role of the token (default: user).")  # fmt: skip
    token.add_argument("--label", default="created on the server", help="Description of the token.")
    token.add_argument("--cluster", default="", help="Restrict the token to jobs of this cluster.")
    token.add_argument("--lifetime", type=duration, default=90 * 86400.0,
                       help="Lifetime of the token (default: 90d).")  # fmt: skip
    return parser


class AnsweringServer(uvicorn.Server):
    """Notifies systemd when requests are accepted; objects that exist then are permanent."""

    # If true, the process ends without waiting for its threads: a thread that waits for a database
    # cannot be cancelled.
    ends_process = False

    def __init__(self, config: uvicorn.Config, connections: OpenConnections) -> None:
        super().__init__(config)
        self._connections = connections

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup([])
        accepting = [
            Acceptor(each, self._connections, self._create_connection, self.config.ssl)
            for each in sockets or ()
        ]
        self.servers += accepting  # type: ignore[arg-type]  # closed like uvicorn's own
        gc.freeze()  # otherwise each full collection scans all of it again, while requests wait
        # With its default thresholds, the collector would run dozens of times during a page of many
        # rows, which rarely leave cycles behind.
        gc.set_threshold(_OBJECTS_BETWEEN_COLLECTIONS)
        if self.started:
            notify("READY=1")

    async def on_tick(self, counter: int) -> bool:
        """Called by uvicorn ten times a second; a loop that hangs no longer notifies systemd."""
        if counter % _TICKS_PER_WATCHDOG == 0:
            notify("WATCHDOG=1")
        return await super().on_tick(counter)

    def _create_connection(self) -> Connection:
        return Connection(
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        notify("STOPPING=1")
        if self.ends_process:
            seconds = (self.config.timeout_graceful_shutdown or 0) + _CUT_OFF_SECONDS
            timer = threading.Timer(seconds, _abort)
            timer.daemon = True
            timer.start()
        await super().shutdown(sockets)


def _abort() -> None:
    log.warning("requests that have not finished in time are aborted")
    os._exit(0)


def create_server(chosen: ServerSettings, services: Services) -> AnsweringServer:
    config = uvicorn.Config(
        app.make(services),
        http=Connection,
        ws="none",
        # Access depends on who the peer is, so its address must not be taken from a header.
        proxy_headers=False,
        server_header=False,
        access_log=False,
        log_config=None,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=math.ceil(chosen.web.stop_timeout),
    )
    config.load()
    config.ssl = _tls(chosen, services)
    limit, trusted = chosen.limit, chosen.auth.trusted_peer
    dropped = services.metrics.dropped
    connections = OpenConnections(limit.connections, limit.peer_connections, trusted, dropped)
    services.metrics.client_connections.set_function(lambda: len(connections))
    return AnsweringServer(config, connections)


def _serve(chosen: ServerSettings) -> int:
    services = build(chosen)
    server = create_server(chosen, services)
    server.ends_process = True
    with open_listener(chosen.web.listen_address) as listener:
        server.run(sockets=[listener])
    return 0 if server.started else 1


def _tls(chosen: ServerSettings, services: Services) -> ssl.SSLContext | None:
    """None: plain HTTP."""
    refused = services.metrics.refused.labels("certificate")
    return tls_context(chosen.web, chosen.auth, refused.inc) if chosen.web.tls_cert_file else None


def open_listener(address: ListenAddress) -> socket.socket:
    """A listening socket; raises SettingsError."""
    try:
        listener = _bind(*address)
    except OSError as error:
        raise listen_error(address, error) from error
    set_socket_options(listener)
    return listener


def _bind(host: str, port: int) -> socket.socket:
    if not host and socket.has_dualstack_ipv6():
        return socket.create_server(
            ("::", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=BACKLOG
        )
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=BACKLOG)


if __name__ == "__main__":
    sys.exit(main())
