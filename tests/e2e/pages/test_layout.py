"""Widths, tables on paper, time zones, names with markup, and no JavaScript."""

import pytest

from tests.e2e.pages.browser import draw_plots, load_statistics, wait_until

pytestmark = pytest.mark.e2e


def test_full_width_is_used(sign_in, site):
    page = sign_in(viewport={"width": 1400, "height": 900})
    page.goto(f"{site[0]}/jobs/40120?cluster=alpha")
    draw_plots(page)
    tables = "[...document.querySelectorAll('main table')]"
    right = page.evaluate(f"{tables}.map(each => each.getBoundingClientRect().right)")
    assert max(right) > 1300


def test_printed_table_headings_align_with_columns(sign_in, site):
    page = sign_in(viewport={"width": 1400, "height": 900})
    for path in ("/jobs", "/jobs/40120?cluster=alpha"):
        page.goto(site[0] + path)
        draw_plots(page)
        if page.query_selector("#statistics"):
            load_statistics(page)
        page.emulate_media(media="print")
        distances = page.evaluate(
            """[...document.querySelectorAll('main table')].flatMap(table => {
                const left = row => [...row.cells].filter(each => each.offsetWidth)
                    .map(each => each.getBoundingClientRect().left)
                const heads = left(table.tHead.rows[0]), cells = left(table.tBodies[0].rows[0])
                return heads.map((at, i) => Math.abs(at - cells[i]))
            })"""
        )
        assert distances
        assert max(distances) < 1, path
        unreadable = page.evaluate(
            "[...document.querySelectorAll('main thead .sorter')].filter(each => !each.offsetWidth)"
            ".length"
        )
        assert unreadable == 0
        cut = page.evaluate(
            "[...document.querySelectorAll('.tall')]"
            ".filter(each => each.scrollHeight > each.clientHeight + 1).length"
        )
        assert cut == 0
        page.emulate_media(media="screen")


def test_job_list_with_gpus_fits_a_laptop(sign_in, site):
    page = sign_in(viewport={"width": 1366, "height": 768})
    page.goto(f"{site[0]}/jobs")
    overflows = page.evaluate(
        "[...document.querySelectorAll('form.live .scroll')]"
        ".map(each => each.scrollWidth - each.clientWidth)"
    )
    assert overflows
    assert max(overflows) == 0


def test_times_are_local_with_a_button_for_utc(sign_in, site):
    page = sign_in(timezone_id="America/New_York")
    page.goto(f"{site[0]}/jobs/40120?cluster=alpha")
    draw_plots(page)
    first = page.locator("dl.facts time").first
    local = first.inner_text()
    assert local.endswith((" EDT", " GMT-4")), local
    shown = "document.querySelector('.drawing').data.at(-1).x[0]"
    assert page.evaluate(shown).startswith("2026-04-04T03")
    page.get_by_role("button", name="Show UTC").click()
    assert first.inner_text().endswith(" UTC")
    assert first.inner_text() != local
    wait_until(page, f"{shown}.startsWith('2026-04-04T07')")
    page.goto(f"{site[0]}/jobs")
    assert "Started (UTC)" in page.locator("thead").last.inner_text()
    assert page.troubles == []


def test_users_in_utc_have_no_time_zone_button(sign_in, site):
    page = sign_in(timezone_id="UTC")
    page.goto(f"{site[0]}/jobs")
    assert page.inner_text("footer .zone") == "UTC"
    assert not page.locator("#zone").is_visible()


def test_markup_in_names_is_not_rendered(sign_in, site):
    """Names with markup are on these pages; none of it runs or is an element."""
    page = sign_in()
    page.on("dialog", lambda dialog: page.troubles.append(f"dialog: {dialog.message}"))
    for path in ("/jobs?limit=200", "/jobs/40107?cluster=alpha"):
        page.goto(site[0] + path)
        assert "<script>alert(1)" in page.inner_text("main")
        assert page.query_selector("main img, main script") is None
    assert page.troubles == []


def test_pages_work_without_javascript(sign_in, site):
    page = sign_in(java_script_enabled=False)
    page.goto(f"{site[0]}/jobs?limit=5")
    assert page.locator("tbody tr:has(th)").count() > 5
    page.goto(f"{site[0]}/jobs/40133?cluster=alpha")
    assert "Plots need JavaScript" in page.inner_text("main")
    assert "unbalanced-nodes" in page.inner_text("main")


def test_list_on_a_phone_has_its_67_jobs_in_4000_pixels(sign_in, site):
    """Each job is two lines: cards of fifteen labelled fields were 19,500 pixels."""
    page = sign_in(viewport={"width": 390, "height": 844})
    page.goto(f"{site[0]}/jobs?limit=50")
    jobs = page.evaluate("document.querySelectorAll('.cards tbody tr:has(th)').length")
    height = page.evaluate("document.documentElement.scrollHeight")
    assert jobs > 10
    rows = "[...document.querySelectorAll('.cards tbody tr:has(th)')]"
    tallest = page.evaluate(f"Math.max(...{rows}.map(row => row.offsetHeight))")
    assert height - jobs * tallest < 900  # what is above and below the jobs
    assert 67 * tallest < 3600
    cut = page.evaluate(
        "[...document.querySelectorAll('.cards .bar, .cards .state')]"
        ".filter(each => each.offsetWidth > each.parentElement.clientWidth + 1)"
        ".map(each => each.innerText)"
    )
    assert cut == []
