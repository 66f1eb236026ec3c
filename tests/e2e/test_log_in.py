"""Log in and out in a real browser, at a provider that is another site to it.

Server and provider are both on loopback: `localhost` and `127.0.0.1` are two sites to a browser, so
SameSite, form-action and frame-ancestors hold as between hosts.
"""

import functools
import http.server
import shutil
import socket
import threading
import time

import pytest

from batchjob_stats_db.poller.options import DatabaseOptions
from batchjob_stats_server.options import AuthOptions, OidcOptions, ServerSettings, ServerWebOptions
from batchjob_stats_server.services import build
from tests.batchjob_stats_server import example_site
from tests.batchjob_stats_server.serving import serving
from tests.helpers.waiting import scaled
from tests.simulated import oidc_provider

pytestmark = pytest.mark.e2e
playwright = pytest.importorskip("playwright.sync_api")

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or ""
SECRET = "a secret of server and provider"


@pytest.fixture
def provider():
    made = oidc_provider.OidcProvider("batchjob", SECRET)
    made.user_claims = {"sub": "1", "preferred_username": "vera", "groups": ["hpc-staff"]}
    with oidc_provider.serving(made):
        yield made


@pytest.fixture
def portal(tmp_path):
    """A page of another port of localhost, which is the same site, with ours in a frame."""
    made = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0),
        functools.partial(http.server.SimpleHTTPRequestHandler, directory=tmp_path),
    )
    thread = threading.Thread(target=made.serve_forever)
    thread.start()
    yield f"http://localhost:{made.server_address[1]}", tmp_path
    made.shutdown()
    thread.join()
    made.server_close()


@pytest.fixture
def address(tmp_path, provider, portal):
    """Where the server is, as browsers know it."""
    path = tmp_path / "jobs.db"
    example_site.make(path, 40)
    secret = tmp_path / "secret"
    secret.touch(0o600)
    secret.write_text(SECRET)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    url = f"http://localhost:{port}"
    provider.redirect_uris = {f"{url}/oidc/callback"}
    settings = ServerSettings(
        DatabaseOptions(f"sqlite:///{path}"),
        ServerWebOptions(listen_address=("127.0.0.1", port), frame_ancestors=(portal[0],)),
        AuthOptions(viewer_group=("hpc-staff",)),
        oidc=OidcOptions(
            issuer=provider.issuer, client_id="batchjob", client_secret_file=str(secret),
            server_url=url, name="Example University",
        ),
    )  # fmt: skip
    services = build(settings)
    with serving(services, port):
        yield url


@pytest.fixture
def browser():
    if not CHROMIUM:
        pytest.skip("no chromium")
    with playwright.sync_playwright() as driver:
        made = driver.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"]
        )
        yield made
        made.close()


def log_in(page, address):
    page.goto(f"{address}/jobs?user=alice")
    page.get_by_role("link", name="Log in with Example University").click()
    page.wait_for_url(f"{address}/jobs?user=alice")
    return page


def test_log_in_and_out(browser, address, provider):
    laptop, phone = (log_in(browser.new_context().new_page(), address) for _ in range(2))
    for page in (laptop, phone):
        assert page.get_by_text("Signed in as vera").count() == 1
        assert page.locator("main").get_by_text("alice").count()
    troubles = []
    laptop.on("console", lambda said: troubles.append(said.text))
    laptop.get_by_role("button", name="Sign out").click()
    laptop.wait_for_url(f"{address}/signed-out")
    assert "/log-out" in provider.requested_paths
    assert not troubles
    phone.reload()
    assert phone.get_by_role("heading", name="Sign in").count() == 1


def test_allowed_portal_shows_pages_in_a_frame(browser, address, portal):
    url, folder = portal
    (folder / "index.html").write_text(f'<iframe src="{address}/jobs?user=alice"></iframe>')
    page = log_in(browser.new_context().new_page(), address)
    page.goto(f"{url}/index.html")
    assert page.frame_locator("iframe").locator("h1").first.inner_text().startswith("Jobs")
    page.goto(f"{url.replace('localhost', '127.0.0.1')}/index.html")  # a site that nobody named
    end = time.monotonic() + scaled(60)
    while not page.frames[1].url.startswith("chrome-error:"):
        assert time.monotonic() < end, page.frames[1].url
        page.wait_for_timeout(50)
