"""What tests do with a page that is open in the browser.

`PAGES_SCREENSHOTS=FOLDER` keeps screenshots to look at.
"""

import os
import time
from pathlib import Path

from tests.helpers.waiting import scaled


def wait_until(page, expression):
    """Wait for a condition. Playwright's own way needs eval, which the page's policy forbids."""
    end = time.monotonic() + scaled(120)
    while not page.evaluate(expression):
        assert time.monotonic() < end, expression
        page.wait_for_timeout(50)


def draw_plots(page):
    """Scroll to one plot after the other until all are drawn: they are drawn when they are seen."""
    end = time.monotonic() + scaled(120)
    missing = (
        "[...document.querySelectorAll('figure.plot')]"
        ".filter(each => !/^(?!Loading)./.test(each.querySelector('.told').textContent))"
    )
    while page.evaluate(f"{missing}.length"):
        assert time.monotonic() < end, page.url
        page.evaluate(f"{missing}[0]?.scrollIntoView()")
        page.wait_for_timeout(50)


def load_statistics(page):
    """Scroll to the table of statistics until it is there: it is requested when it is seen."""
    end = time.monotonic() + scaled(120)
    while page.evaluate("document.getElementById('statistics').hidden"):
        assert time.monotonic() < end, page.url
        page.evaluate("document.querySelector('.plots-end').scrollIntoView()")
        page.wait_for_timeout(50)


def save_screenshot(page, name):
    """Save a screenshot, if somebody wants them."""
    if folder := os.environ.get("PAGES_SCREENSHOTS"):
        page.screenshot(path=Path(folder) / f"{name}.png", full_page=True)
