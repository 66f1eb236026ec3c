"""The example site in a server, and Chromium from Debian, driven by Playwright."""

import shutil
import threading
from urllib.parse import unquote

import pytest
import sqlalchemy as sa
import uvicorn

from batchjob_stats_db.database import schema, scripts
from batchjob_stats_db.database.engine import parse_url, writer_engine
from batchjob_stats_db.poller.options import DatabaseOptions
from batchjob_stats_server import app
from batchjob_stats_server.options import ServerSettings, ServerWebOptions
from batchjob_stats_server.services import build
from tests.batchjob_stats_server import example_site
from tests.batchjob_stats_server.pages.example_history import with_example_history
from tests.helpers.http_server import Response, serving

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or ""
ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
)
SCRIPT = "#!/bin/sh\n" + "srun --cpu-bind=cores ./a.out <input.txt\n" * 40
FRAME = "<!doctype html><title>Portal</title><iframe width=900 height=600 src='{}'></iframe>"


@pytest.fixture(scope="module")
def portal():
    """The address of a portal, another origin: its page /?ADDRESS shows ADDRESS in a frame."""

    def answer(request):
        body = FRAME.format(unquote(request.query)).encode()
        return Response(body, headers=(("Content-Type", "text/html"),))

    with serving(answer) as server:
        yield server.url


@pytest.fixture(scope="module")
def site(tmp_path_factory, portal):
    """The address of a server of the example site, and the tokens of a user and an admin."""
    path = tmp_path_factory.mktemp("site") / "jobs.db"
    tokens = example_site.make(path)
    example_site.add_large_job(path)
    _store_scripts(path)
    web = ServerWebOptions(listen_address=("127.0.0.1", 0), frame_ancestors=(portal,))
    services = build(ServerSettings(DatabaseOptions(f"sqlite:///{path}"), web))
    config = uvicorn.Config(
        app.make(with_example_history(services)), port=0, log_level="warning", access_log=False
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        thread.join(0.05)
        assert thread.is_alive()
    port = server.servers[0].sockets[0].getsockname()[1]
    yield f"http://127.0.0.1:{port}", *tokens
    server.should_exit = True
    thread.join()


def _store_scripts(path):
    engine = writer_engine(parse_url(f"sqlite:///{path}"))
    with engine.begin() as db:
        scripts.store(db, db.scalars(sa.select(schema.job.c.id)).all(), SCRIPT, 1000)
    engine.dispose()


@pytest.fixture(scope="module")
def browser():
    """Chromium without a window."""
    if not CHROMIUM:
        pytest.skip("no chromium")
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as driver:
        launched = driver.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield launched
        launched.close()


@pytest.fixture
def sign_in(browser, site):
    """sign_in(user, settings...) opens a page that records its errors and the URLs it requests."""
    address, alice, root = site
    contexts = []

    def open_page(user="root", **settings):
        context = browser.new_context(**settings)
        contexts.append(context)
        page = context.new_page()
        page.troubles, page.requested_urls = [], set()
        # The status 401, 404 or 422 of the page itself is reported on the console as well.
        page.on("console", lambda message: _note_trouble(page, message))
        page.on("pageerror", lambda error: page.troubles.append(str(error)))
        page.on("request", lambda request: page.requested_urls.add(request.url))
        page.goto(f"{address}/?token={root if user == 'root' else alice}")
        assert "token" not in page.url
        return page

    yield open_page
    for context in contexts:
        context.close()


def _note_trouble(page, message):
    if message.type in ("error", "warning") and "Failed to load resource" not in message.text:
        page.troubles.append(message.text)
