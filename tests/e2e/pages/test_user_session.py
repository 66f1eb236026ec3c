"""What a user does from sign-in to sign-out."""

import pytest

pytestmark = pytest.mark.e2e
axe = pytest.importorskip("axe_playwright_python.sync_playwright")


def test_user_compares_searches_and_signs_out(sign_in, site):
    """From the list to a job, by keyboard and mouse, to the comparison, and out."""
    page = sign_in("alice")
    page.goto(f"{site[0]}/mine")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    ticks = page.locator("input[name=job]")
    ticks.nth(0).check()
    ticks.nth(1).check()
    page.get_by_role("button", name="Compare selected jobs").first.click()
    assert "2 jobs" in page.inner_text("h1")
    page.fill("#q", "bob")
    page.keyboard.press("Enter")
    page.wait_for_url("**/search?q=bob")
    assert "Nothing that you may see" in page.inner_text("main")
    page.get_by_role("button", name="Sign out").click()
    page.wait_for_url("**/signed-out")
    page.goto(f"{site[0]}/jobs")
    assert page.inner_text("h1") == "Sign in"
    page.fill("#token", site[1])
    page.keyboard.press("Enter")
    page.wait_for_url("**/jobs")
    assert page.troubles == []


def test_user_creates_and_revokes_a_token(sign_in, site):
    page = sign_in("alice")
    page.get_by_role("link", name="alice").first.click()
    page.wait_for_url("**/tokens")
    page.fill("input[name=label]", "nightly report")
    page.get_by_role("button", name="Create").click()
    text = page.inner_text("code.secret")
    assert text.startswith("bj_")
    assert axe.Axe().run(page).response["violations"] == []
    page.get_by_role("link", name="alice").first.click()
    assert text not in page.content()
    page.get_by_role("button", name="Revoke nightly report").click()
    page.wait_for_url("**/tokens")
    assert "nightly report" not in page.inner_text("main")
    assert page.troubles == []
