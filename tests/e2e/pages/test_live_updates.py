"""Pages that update themselves."""

import pytest

from tests.e2e.pages.browser import draw_plots, wait_until

pytestmark = pytest.mark.e2e


def test_job_page_updates_and_reports_an_unreachable_server(sign_in, site):
    page = sign_in()
    page.clock.install()
    page.goto(f"{site[0]}/jobs/40120?cluster=alpha")
    draw_plots(page)
    # On a slow machine the page has been updated by now, and would not be by the same text again.
    page.evaluate("delete document.querySelector('[data-live]').dataset.seen")
    page.evaluate("document.querySelector('[data-live] h2').textContent = 'old'")
    page.clock.run_for(20_000)
    wait_until(page, "document.querySelector('[data-live] h2').textContent === 'Efficiency'")
    page.context.set_offline(True)
    page.clock.run_for(20_000)
    wait_until(page, "!document.getElementById('gone').hidden")
    assert "The server has not answered since" in page.inner_text("#gone")
    page.context.set_offline(False)
    page.clock.run_for(20_000)
    wait_until(page, "document.getElementById('gone').hidden")


def test_page_reports_a_lost_session(sign_in, site):
    page = sign_in()
    page.clock.install()
    page.goto(f"{site[0]}/clusters/alpha")
    page.context.clear_cookies()
    page.clock.run_for(20_000)
    wait_until(page, "!document.getElementById('gone').hidden")
    assert "You have been signed out" in page.inner_text("#gone")


def test_job_list_updates_except_while_in_use(sign_in, site):
    page = sign_in()
    page.clock.install()
    page.goto(f"{site[0]}/jobs?limit=5")
    change_caption = "document.querySelector('form.live caption').textContent = 'old'"
    # On a slow machine the list has been updated by now, and would not be by the same text again.
    page.evaluate(
        "document.querySelectorAll('[data-live]').forEach(each => delete each.dataset.seen)"
    )
    page.evaluate(change_caption)
    page.locator("input[name=job]").first.check()
    page.clock.run_for(40_000)
    page.wait_for_timeout(500)
    assert page.evaluate("document.querySelector('form.live caption').textContent") == "old"
    page.locator("input[name=job]").first.uncheck()
    page.evaluate("document.activeElement.blur()")
    page.clock.run_for(40_000)
    wait_until(
        page, "document.querySelector('form.live caption').textContent.startsWith('Jobs: running')"
    )
    assert page.troubles == []
