"""Makes the pictures of the README: pages of the demo's cluster in a headless Chromium.

`python docs/screenshots.py` from the root of the repository; it needs the test extra.
"""

import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import uvicorn
from playwright.sync_api import Page, sync_playwright

from batchjob.runtime.values import ListenAddress
from batchjob_cli.up import demo_month
from batchjob_cli.up.demo_cluster import CLUSTER
from batchjob_stats_db.admin.migrate import migrate
from batchjob_stats_db.database import tokens
from batchjob_stats_db.database.engine import parse, writer
from batchjob_stats_db.database.tokens import TokenRole
from batchjob_stats_db.poller.options import DatabaseOptions
from batchjob_stats_server import app
from batchjob_stats_server.options import SamplesOptions, ServerSettings, ServerWebOptions
from batchjob_stats_server.services import build

IMAGES = Path(__file__).parent / "images"
_WIDTH, _HEIGHT = 1360, 760
_LIGHT: Literal["light"] = "light"
_DARK: Literal["dark"] = "dark"


@contextmanager
def served(data: Path) -> Iterator[str]:
    """The demo's cluster behind a server; the address that signs in."""
    url = f"sqlite:///{data / 'jobs.db'}"
    engine = writer(parse(url), create=True)
    migrate(engine)
    now = int(time.time())
    demo_month.make(engine, data / "samples", now)
    with engine.begin() as db:
        token = tokens.create(db, "operator", TokenRole.ADMIN, "pictures", now)
    engine.dispose()
    settings = ServerSettings(
        DatabaseOptions(url), ServerWebOptions(ListenAddress("127.0.0.1", 0)),
        samples=SamplesOptions(str(data / "samples")),
    )  # fmt: skip
    made = app.make(build(settings))
    server = uvicorn.Server(uvicorn.Config(made, port=0, log_level="warning", access_log=False))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.1)
    port = server.servers[0].sockets[0].getsockname()[1]
    yield f"http://127.0.0.1:{port}/?token={token}"
    server.should_exit = True
    thread.join()


def take_list(page: Page, root: str) -> None:
    """The list of all jobs."""
    page.goto(f"{root}jobs?cluster={CLUSTER}")
    page.wait_for_timeout(1000)
    page.screenshot(path=IMAGES / "jobs-light.png")


def take_job(page: Page, root: str) -> None:
    """A job with GPUs."""
    page.goto(f"{root}jobs?cluster={CLUSTER}&name=train-resnet&state=COMPLETED")
    page.locator("tbody th a").first.click()
    page.wait_for_selector(".plot .main-svg", timeout=120_000)
    page.wait_for_timeout(5000)
    page.screenshot(path=IMAGES / "job-dark.png")


def main() -> None:
    """One in light, one in dark."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    with (
        tempfile.TemporaryDirectory() as data,
        served(Path(data)) as address,
        sync_playwright() as driver,
    ):
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
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
