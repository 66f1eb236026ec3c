"""`batchjob up`: everything on this machine, and a few lines that say where to look."""

import contextlib
import dataclasses
import logging
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import sqlalchemy as sa

from batchjob.local_runs.directory import data_directory
from batchjob.runtime import log
from batchjob.runtime.settings import SettingsError, UnavailableError
from batchjob.runtime.values import LOOPBACK, ListenAddress
from batchjob_cli.client.running_up import TOKEN_FILE, announce, find_running_up
from batchjob_cli.run import cgroup as cgroups
from batchjob_cli.run import user_scope
from batchjob_cli.up import records, stack
from batchjob_cli.up.demo_recording import CLUSTER
from batchjob_cli.up.options import UpSettings, settings
from batchjob_stats_db.database.engine import DatabaseError, DatabaseUnavailableError
from batchjob_stats_db.database.revision import unusable_error
from batchjob_stats_server import main as server_main

_EVERY_HOST = ("0.0.0.0", "::")  # noqa: S104 (accepted values)
_LOOPBACK = "127.0.0.1"
_PORTS_TRIED = 100


def run(arguments: list[str]) -> int:
    """Run until SIGINT or SIGTERM; the exit status. Raises SettingsError."""
    chosen = settings(arguments)
    log.set_up(chosen.log)
    if chosen.log.level == "info":  # of the start, around the lines that say where to look
        for name in ("batchjob.runtime.background", "uvicorn.error"):
            logging.getLogger(name).setLevel(logging.WARNING)
    # Who starts commands here is recorded, whatever else is shown. Otherwise, who looks at jobs is
    # the bearer of the token, for whom a line for each page would be noise.
    audit = logging.INFO if chosen.runs.remote else logging.WARNING
    logging.getLogger("batchjob.audit").setLevel(audit)
    data = data_directory(chosen.up.data)
    try:
        return _run(chosen, data)
    except DatabaseUnavailableError as error:
        raise UnavailableError(str(error)) from error
    except DatabaseError as error:
        raise SettingsError(str(error)) from error
    except sa.exc.DBAPIError as error:
        raise SettingsError(str(unusable_error(records.database_url(data), error))) from error
    except OSError as error:
        raise SettingsError(f"{error.filename or data}: {error.strerror or error}") from error


def _run(chosen: UpSettings, data: Path) -> int:
    if other := find_running_up(data):
        raise UnavailableError(
            f"{data}: already served by batchjob up at {other.url} (process {other.pid}); "
            "use --data for another directory"
        )
    with (
        _exiting_on(signal.SIGTERM),
        _open_listener(chosen) as listener,
        contextlib.ExitStack() as running,
    ):
        asked = chosen.up.listen_address
        address = asked._replace(port=listener.getsockname()[1])
        chosen = chosen._replace(up=dataclasses.replace(chosen.up, listen_address=address))
        parts = running.enter_context(stack.start_stack(chosen, data))
        running.enter_context(announce(data, _url(chosen, _LOOPBACK)))
        if address.port != asked.port:
            print(f"port      {asked.port} is in use; the pages are on {address.port}")
        demo_lines = _demo_lines(chosen, parts) if chosen.up.demo else ()
        print("\n".join((*_status_lines(chosen, data, parts), *demo_lines)), flush=True)
        parts.server.run(sockets=[listener])
        return 0 if parts.server.started else 1


@contextlib.contextmanager
def _exiting_on(number: signal.Signals) -> Iterator[None]:
    """Exit status 0, unlike for Ctrl-C: systemd would take any other for a failure.

    While it runs, the server has handlers of its own and calls ours afterwards.
    """

    def end(_number: int, _frame: FrameType | None) -> None:
        raise SystemExit(0)

    before = signal.signal(number, end)
    try:
        yield
    finally:
        signal.signal(number, before)


def _open_listener(chosen: UpSettings) -> socket.socket:
    """The socket of pages and API, opened first: a port in use is a common mistake.

    On a shared machine, others run `up` as well: the default port stands for the next free one.
    """
    address = chosen.up.listen_address
    if chosen.any_port:
        for port in range(address.port, address.port + _PORTS_TRIED):
            with contextlib.suppress(UnavailableError):
                return server_main.open_listener(address._replace(port=port))
    try:
        return server_main.open_listener(address)
    except SettingsError as error:
        told = str(error).removeprefix("web.")
        raise SettingsError(f"{told}; use --listen-address for another port") from error


def _status_lines(chosen: UpSettings, data: Path, parts: stack.Stack) -> Iterator[str]:
    scheduler = parts.scheduler
    found = f"{scheduler.title}, cluster {scheduler.cluster}" if scheduler else "no scheduler"
    yield f"pages     {_url(chosen)}/?token={parts.token}"
    yield f"token     {data / TOKEN_FILE} (new at each start)"
    yield f"jobs      {found}; and runs started with `batchjob run -- COMMAND`"
    yield f"kept      {parts.database}, {chosen.tsdb.url or f'samples in {data}'}"
    yield f"metrics   {_metrics_address(chosen.up.exporter_address)}"
    if (why := cgroups.creation_error()) and not user_scope.is_possible():
        yield (
            f"runs      without a cgroup ({why}): --memory and --io are left out, and --cpus binds "
            "to CPUs; docs/run.md says how to allow limits"
        )
    if not chosen.web.tls_cert_file and chosen.up.listen_address.host not in LOOPBACK:
        yield (
            "warning   token and pages are sent unencrypted; set --web.tls-cert-file and "
            "--web.tls-key-file"
        )


def _demo_lines(chosen: UpSettings, parts: stack.Stack) -> Iterator[str]:
    if parts.demo_jobs:
        pages = f"{_url(chosen)}/jobs?cluster={CLUSTER}"
        yield f"demo      a generated cluster, {parts.demo_jobs} jobs in four weeks: {pages}"
    yield f"demo      {parts.demo_runs} jobs started on this machine"
    yield "next      in a second terminal, batchjob run -- COMMAND; then batchjob jobs"


def _url(chosen: UpSettings, any_host: str = "") -> str:
    """The address of the pages; for all addresses, by `any_host` or the host name."""
    scheme = "https" if chosen.web.tls_cert_file else "http"
    address = chosen.up.listen_address
    if address.host in _EVERY_HOST:
        address = ListenAddress(any_host or socket.gethostname(), address.port)
    return f"{scheme}://{address}"


def _metrics_address(address: str) -> str:
    if not address:
        return "not exposed; set --exporter-address=127.0.0.1:10910 for Prometheus"
    url = address if address.startswith("unix:") else f"http://{address}/metrics"
    return f"{url}, with the token, for Prometheus"
