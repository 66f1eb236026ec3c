"""Every page, light and dark, wide and narrow: no error, nothing too wide, no barrier.

axe-core looks for barriers to people with disabilities.
"""

import pytest

from tests.e2e.pages.browser import draw_plots, save_screenshot

pytestmark = pytest.mark.e2e
axe = pytest.importorskip("axe_playwright_python.sync_playwright")

PAGES = (
    "/", "/mine", "/jobs", "/jobs?user=bob&state=FAILED&cpu_efficiency_at_most=0.9",
    "/jobs?sort=-usage_energy_joules&limit=5", "/usage", "/usage?by=account&show=emissions",
    "/usage?show=cpu&since=2026-03-28", "/clusters", "/clusters/alpha", "/clusters/beta-gpu",
    "/clusters/alpha/nodes/a010", "/clusters/beta-gpu/nodes/b010", "/admin",
    "/clusters/alpha/accounts/physics", "/embed/jobs/40120?cluster=alpha", "/embed/jobs",
    "/search", "/search?q=39000", "/search?q=%3Cb%3Enothing",
    "/jobs/40120?cluster=alpha", "/jobs/40133?cluster=alpha", "/jobs/40107?cluster=alpha",
    "/jobs/40012", "/tokens", "/help", "/help/report", "/compare",
    "/compare?job=alpha:40120&job=alpha:40133&job=beta-gpu:40024",
    "/jobs/nothing", "/usage?since=yesterday", "/signed-out",
)  # fmt: skip
PAGES_OF_A_USER = (
    "/", "/mine", "/jobs", "/usage", "/clusters", "/clusters/alpha", "/clusters/beta-gpu",
    "/clusters/alpha/nodes/a010", "/clusters/beta-gpu/nodes/b010",
    "/clusters/alpha/accounts/physics", "/tokens", "/embed/jobs", "/embed/jobs/49999",
    "/jobs/49999", "/jobs/40012", "/jobs/40013?cluster=alpha", "/jobs/40107", "/jobs/40110",
    "/jobs/40145", "/jobs/40153", "/jobs/40153/script",
)  # fmt: skip


@pytest.mark.parametrize("width", [1400, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_page(sign_in, site, scheme, width):
    page = sign_in(color_scheme=scheme, viewport={"width": width, "height": 900})
    for number, path in enumerate(PAGES):
        check_page(page, site[0] + path)
        save_screenshot(page, f"{number:02}-{scheme}-{width}")
    assert all(url.startswith((site[0], "data:", "blob:")) for url in page.requested_urls), (
        page.requested_urls
    )


@pytest.mark.parametrize(("scheme", "width"), [("dark", 1400), ("light", 390)])
def test_every_page_of_a_user(sign_in, site, scheme, width):
    """The user's own jobs and scripts, what is shown of others' jobs, and the sign-in page."""
    page = sign_in("alice", color_scheme=scheme, viewport={"width": width, "height": 900})
    for number, path in enumerate(PAGES_OF_A_USER):
        check_page(page, site[0] + path)
        save_screenshot(page, f"user-{number:02}-{scheme}-{width}")
    page.context.clear_cookies()
    check_page(page, site[0])
    assert page.inner_text("h1") == "Sign in"


def check_page(page, url):
    """Open a page; it has no errors, no barriers, and nothing wider than the screen."""
    page.goto(url)
    draw_plots(page)
    assert page.troubles == [], url
    sideways = page.evaluate("document.documentElement.scrollWidth - innerWidth")
    assert sideways <= 0, f"{url} is {sideways} pixels too wide"
    violations = axe.Axe().run(page).response["violations"]
    summary = [(each["id"], each["help"], each["nodes"][0]["html"][:200]) for each in violations]
    assert summary == [], url
