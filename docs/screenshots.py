"""Makes pictures of the pages of the demo's cluster in a headless Chromium.

`python docs/screenshots.py` from the root of the repository makes those of the README, and
`python docs/screenshots.py FOLDER` one of every page in FOLDER: light, dark, on a phone, printed.
It needs the test extra.
"""

import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import uvicorn
from playwright.sync_api import Browser, Page, ViewportSize, sync_playwright

from batchjob.runtime.values import ListenAddress
from batchjob_cli.up import demo_cluster, demo_nodes
from batchjob_cli.up.demo_recording import CLUSTER
from batchjob_stats_db.admin.migrate import migrate
from batchjob_stats_db.database import tokens
from batchjob_stats_db.database.engine import parse_url, writer_engine
from batchjob_stats_db.database.tokens import TokenRole
from batchjob_stats_db.poller.options import DatabaseOptions
from batchjob_stats_db.poller.service import PollerService
from batchjob_stats_server import app
from batchjob_stats_server.options import SamplesOptions, ServerSettings, ServerWebOptions
from batchjob_stats_server.services import build

IMAGES = Path(__file__).parent / "images"
_WIDTH, _HEIGHT = 1360, 760
_HEIGHT_WITH_PLOTS = 1270
_LIGHT: Literal["light"] = "light"
_DARK: Literal["dark"] = "dark"


@contextmanager
def served(data: Path) -> Iterator[str]:
    """The demo's cluster behind a server; the address that signs in."""
    url = f"sqlite:///{data / 'jobs.db'}"
    engine = writer_engine(parse_url(url), create=True)
    migrate(engine)
    now = int(time.time())
    source = demo_cluster.load(engine, data / "samples")
    poller = PollerService(demo_cluster.poller_settings(source, url, data / "samples"), engine)
    poller.start()
    with engine.begin() as db:
        token = tokens.create(db, "ada", TokenRole.ADMIN, "pictures", now)
    settings = ServerSettings(
        DatabaseOptions(url), ServerWebOptions(ListenAddress("127.0.0.1", 0)),
        samples=SamplesOptions(str(data / "samples")),
    )  # fmt: skip
    services = demo_nodes.with_nodes(build(settings), data / "samples", source.recording)
    made = app.make(services)
    server = uvicorn.Server(uvicorn.Config(made, port=0, log_level="warning", access_log=False))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.1)
    port = server.servers[0].sockets[0].getsockname()[1]
    yield f"http://127.0.0.1:{port}/?token={token}"
    server.should_exit = True
    thread.join()
    poller.stop()
    engine.dispose()


def take_list(page: Page, root: str) -> None:
    """The list of all jobs."""
    for _ in range(2):  # a list does not wait for lines of jobs, which are there the next time
        page.goto(f"{root}jobs?cluster={CLUSTER}")
        page.wait_for_timeout(4000)
    page.screenshot(path=IMAGES / "jobs-light.png")


def take_job(page: Page, root: str) -> None:
    """A job with GPUs."""
    page.goto(f"{root}jobs?cluster={CLUSTER}&name=train-resnet&state=COMPLETED")
    page.locator("tbody th a").first.click()
    page.set_viewport_size({"width": _WIDTH, "height": _HEIGHT_WITH_PLOTS})
    page.wait_for_selector(".plot .main-svg", timeout=120_000)
    page.wait_for_timeout(5000)
    page.screenshot(path=IMAGES / "job-dark.png")


PAGES = {
    "my-jobs": "/",
    "jobs": f"/jobs?cluster={CLUSTER}",
    "job": "",  # the first of the list with GPUs
    "usage": f"/usage?cluster={CLUSTER}",
    "clusters": "/clusters",
    "cluster": f"/clusters/{CLUSTER}",
    "node": f"/clusters/{CLUSTER}/nodes/g01",
    "account": f"/clusters/{CLUSTER}/accounts/vision",
    "admin": "/admin",
    "search": "/search?q=train",
    "embedded-jobs": "/embed/jobs",
    "embedded-job": "",
    "not-found": "/jobs/nothing",
}
_PHONE: ViewportSize = {"width": 390, "height": 800}


def take_all(browser: Browser, address: str, folder: Path) -> None:
    """Every page in each way, whole."""
    root = address.partition("/?")[0]
    for way, scheme, size in (
        ("light", _LIGHT, None), ("dark", _DARK, None), ("phone", _LIGHT, _PHONE),
    ):  # fmt: skip
        page = browser.new_page(
            viewport=size or {"width": _WIDTH, "height": _HEIGHT}, color_scheme=scheme
        )
        page.set_default_timeout(120_000)
        page.goto(address)
        page.goto(f"{root}/jobs?cluster={CLUSTER}&name=train-resnet&state=COMPLETED")
        found = page.locator("tbody th a").first.get_attribute("href") or "/"
        for name, path in (PAGES | {"job": found, "embedded-job": f"/embed{found}"}).items():
            page.goto(root + path)
            page.emulate_media(media="screen")
            for figure in page.query_selector_all("figure.plot"):
                figure.evaluate("each => each.scrollIntoView()")
                page.wait_for_timeout(100)  # a browser draws nothing that it only passes
            page.wait_for_timeout(4000 if page.query_selector("figure.plot") else 500)
            page.screenshot(path=folder / f"{name}-{way}.png", full_page=True)
            if way == "light":
                page.emulate_media(media="print")
                page.screenshot(path=folder / f"{name}-print.png", full_page=True)
        page.close()


def main() -> None:
    """One in light, one in dark; or all."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    with (
        tempfile.TemporaryDirectory() as data,
        served(Path(data)) as address,
        sync_playwright() as driver,
    ):
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        if folder:
            folder.mkdir(parents=True, exist_ok=True)
            take_all(browser, address, folder)
            return
        for take, scheme in ((take_list, _LIGHT), (take_job, _DARK)):
            page = browser.new_page(
                viewport={"width": _WIDTH, "height": _HEIGHT}, color_scheme=scheme
            )
            page.set_default_timeout(120_000)
            page.goto(address)
            take(page, address.partition("?")[0])
        browser.close()


if __name__ == "__main__":
    main()
