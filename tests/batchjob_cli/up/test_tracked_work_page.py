"""Tracked work as people see it: a program that tracks its work, `batchjob up`, and a browser."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from batchjob.runtime.formatting import format_duration, size
from tests.helpers.processes import end, free_ports
from tests.helpers.waiting import scaled, until
from tests.security.remote_up import ROOT, start

playwright = pytest.importorskip("playwright.sync_api")
axe = pytest.importorskip("axe_playwright_python.sync_playwright")

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or ""
PROGRAM = """
import sys, time
from batchjob import track
with track("mesh", tool="openfoam", parameters={"cells": 1000}, id="task-17") as work:
    held = bytearray(64 << 20)
    held[::4096] = b"x" * len(held[::4096])
    while time.process_time() < 0.7: pass
    work.fail("no mesh <b>here</b>", return_code=3)
"""


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Any]:
    """A browser that is logged in at `batchjob up`."""
    if not CHROMIUM:
        pytest.skip("no chromium")
    (port,) = free_ports(1)
    address = f"127.0.0.1:{port}"
    process = start(tmp_path, address, "--interval=0.5s")
    try:
        token = (tmp_path / "data" / "token").read_text().strip()
        with playwright.sync_playwright() as driver, contextlib.closing(
            driver.chromium.launch(
                executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu",
                "--disable-dev-shm-usage", "--disable-background-networking"],
            )
        ) as browser:  # fmt: skip
            browser_page = browser.new_page()
            browser_page.goto(f"http://{address}/?token={token}")
            yield browser_page
    finally:
        end(process)


def test_page_of_failed_work_is_complete(page: Any, tmp_path: Path) -> None:
    environment = {
        **os.environ, "PYTHONPATH": str(ROOT), "BATCHJOB_DATA": str(tmp_path / "data")
    }  # fmt: skip
    subprocess.run([sys.executable, "-c", PROGRAM], env=environment, check=True, timeout=scaled(60))
    (path,) = (tmp_path / "data" / "runs").glob("*.json")
    record = json.loads(path.read_text())
    jobs = page.url.rstrip("/")

    def loaded_text() -> str:
        page.goto(f"{jobs}/jobs/{record['jobid']}")
        text = str(page.inner_text("main")).replace("\u202f", " ")
        return text if "openfoam" in text and "it has not ended" not in text else ""

    text = until(loaded_text, "the page of the work", 30)
    user, system = record["user_cpu_seconds"], record["system_cpu_seconds"]
    for expected in (
        "openfoam", '{"cells": 1000}', "no mesh <b>here</b>", "task-17",
        f"{record['wall_seconds']:.3f} s",  # to the millisecond
        f"user {format_duration(user)}, system {format_duration(system)}",
        format_duration(user + system),
        size(record["peak_memory_bytes"]),
    ):  # fmt: skip
        assert expected in text, expected
    facts = dict(
        zip(
            page.locator("dl.facts dt").all_inner_texts(),
            page.locator("dl.facts dd").all_inner_texts(),
            strict=True,
        )
    )
    assert facts["Exit"].startswith("3"), facts
    assert (facts["Tool"], facts["External id"]) == ("openfoam", "task-17")
    assert record["peak_memory_bytes"] > 64 << 20
    for scheme, width in (("light", 1400), ("dark", 390)):
        page.emulate_media(color_scheme=scheme)
        page.set_viewport_size({"width": width, "height": 900})
        page.goto(f"{jobs}/jobs/{record['jobid']}")
        assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
        barriers = axe.Axe().run(page).response["violations"]
        assert [(each["id"], each["help"]) for each in barriers] == []
    page.goto(f"{jobs}/jobs?name=mesh")
    assert "mesh" in page.inner_text("main")
