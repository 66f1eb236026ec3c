"""Pages in frames of other sites."""

import time
from urllib.parse import quote

import pytest

from tests.e2e.pages.browser import save_screenshot
from tests.helpers.waiting import scaled

pytestmark = pytest.mark.e2e


def test_configured_portal_may_frame_pages(sign_in, site, portal):
    page = sign_in("alice")
    for path, shown in (("/embed/jobs", "My jobs"), ("/embed/jobs/49999", "Job 49999")):
        page.goto(f"{portal}/?{quote(site[0] + path)}")
        frame = page.frame_locator("iframe")
        frame.locator("h1").wait_for()
        assert shown in frame.locator("h1").inner_text()
        assert frame.locator("nav").count() == 0
    frame.locator(".plot .main-svg").first.wait_for(timeout=scaled(60_000))
    save_screenshot(page, "frame")


def test_other_sites_may_not_frame_pages(sign_in, site, portal):
    page = sign_in("alice")
    page.goto(f"{portal.replace('127.0.0.1', 'localhost')}/?{quote(site[0] + '/embed/jobs')}")
    end = time.monotonic() + scaled(60)
    while not (
        page.frames[1].url.startswith("chrome-error:")
        and any("frame-ancestors" in trouble for trouble in page.troubles)
    ):
        assert time.monotonic() < end, (page.frames[1].url, page.troubles)
        page.wait_for_timeout(50)
