"""The database of this machine, asked by the server's application without a socket."""

import asyncio
import ipaddress
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urljoin

from batchjob.runtime.process import login
from batchjob_cli.client.connect import ApiReply, Ask, Parameters, next_page
from batchjob_cli.client.problems import UnreachableError
from batchjob_cli.up import options, records, stack
from batchjob_stats_db.database.engine import DatabaseError
from batchjob_stats_server import app, services
from batchjob_stats_server.options import AuthOptions

_HOST = "127.0.0.1"
_PREFIX = "/api/v1/"


@contextmanager
def local(data: Path) -> Iterator[Ask]:
    """Who can open the database may read all of it. Raises SettingsError."""
    settings = options.settings([f"--data={data}"])
    try:
        url = records.record_runs(data)
        made = services.build(stack.server_settings(settings, data, url))
    except DatabaseError as error:
        raise UnreachableError(str(error)) from error
    except OSError as error:
        raise UnreachableError(f"{error.filename or data}: {error.strerror or error}") from error
    # The application wants to know who asks: it is told as a trusted proxy would tell it.
    user, secret = login(), secrets.token_urlsafe()
    auth = AuthOptions(trusted_peer=(ipaddress.ip_network(f"{_HOST}/32"),), admin=(user,))
    made = made._replace(settings=made.settings._replace(auth=auth), proxy_secret=secret)
    application = app.make(made)
    headers = {
        "host": _HOST,
        auth.user_header: user,
        auth.secret_header: secret,
    }

    def ask(path: str, parameters: Parameters) -> ApiReply:
        target = urljoin(_PREFIX, path)
        plain, _, query = target.partition("?")
        query = query or urlencode(dict(parameters), doseq=True)
        return asyncio.run(_get(application, plain, query, headers))

    try:
        yield ask
    finally:
        made.stop()


async def _get(application: Any, path: str, query: str, headers: dict[str, str]) -> ApiReply:
    """One request, as the ASGI specification 3.0 has it."""
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "GET",
        "scheme": "http", "path": path, "raw_path": path.encode(), "root_path": "",
        "query_string": query.encode(), "client": (_HOST, 1), "server": (_HOST, 80),
        "headers": [(name.lower().encode(), value.encode()) for name, value in headers.items()],
    }  # fmt: skip
    answered = asyncio.Event()
    status, body, links = 500, b"", ""
    told = False

    async def receive() -> dict[str, Any]:
        nonlocal told
        if not told:
            told = True
            return {"type": "http.request", "body": b"", "more_body": False}
        await answered.wait()
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        nonlocal status, body, links
        if message["type"] == "http.response.start":
            status = message["status"]
            links = dict(message["headers"]).get(b"link", b"").decode("latin-1")
        else:
            body += message.get("body", b"")
            if not message.get("more_body"):
                answered.set()

    await application(scope, receive, send)
    return ApiReply(status, body, next_page(links))
