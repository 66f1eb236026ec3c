"""Plots and statistics of jobs and nodes."""

from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.e2e.pages.browser import draw_plots, load_statistics, save_screenshot, wait_until

pytestmark = pytest.mark.e2e


def test_plots_show_limits_nodes_and_gpus_and_zoom_together(sign_in, site):
    page = sign_in()
    page.goto(f"{site[0]}/jobs/40120?cluster=alpha")
    draw_plots(page)
    assert "limit 64 GiB" in page.inner_text("#told-2")
    traces = page.evaluate("document.querySelector('.drawing').data.map(each => each.name)")
    assert {"a001", "a002", "a003", "a004"} <= set(filter(None, traces))
    third = "document.querySelectorAll('.drawing')[2].data"
    assert page.evaluate(f"{third}.length") == 3  # the median, and the edges of the band
    assert "median of 16 GPUs" in page.inner_text("#told-3")
    page.get_by_role("button", name="Each of 16 GPUs").first.click()
    wait_until(page, f"{third}.length === 16")
    assert len(set(page.evaluate(f"{third}.map(each => each.line.color)"))) == 16
    assert page.evaluate("document.querySelectorAll('.drawing')[2].layout.showlegend")
    page.evaluate(
        "Plotly.relayout(document.querySelector('.drawing'),"
        "{'xaxis.range[0]': '2026-04-04T09:00:00', 'xaxis.range[1]': '2026-04-04T09:30:00'})"
    )
    wait_until(
        page, "document.querySelectorAll('.drawing')[1].layout.xaxis.range[0].includes('09:00')"
    )
    assert page.url.endswith("#from=1775293200&to=1775295000")
    page.reload()
    draw_plots(page)
    assert "09:00" in page.evaluate("document.querySelector('.drawing').layout.xaxis.range[0]")
    assert page.troubles == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_plots_shade_low_efficiency(sign_in, site, scheme):
    """With a dotted edge and an entry in the legend, on the screen and on paper."""
    page = sign_in(color_scheme=scheme, viewport={"width": 1400, "height": 900})
    page.goto(f"{site[0]}/jobs/49999?cluster=beta-gpu")
    draw_plots(page)
    use = page.locator("figure.plot", has_text="GPU use")
    for media in ("screen", "print"):
        page.emulate_media(media=media, color_scheme="light" if media == "print" else scheme)
        wait_until(page, "document.querySelectorAll('.legendtext').length > 0")
        legend_entry = use.locator(".legendtext", has_text="little used: below 30 %")
        assert legend_entry.bounding_box()["width"] > 50
        area = use.locator(".shapelayer path[style*='stroke-dasharray']").first
        assert area.bounding_box()["width"] > 400
        save_screenshot(page, f"zones-{scheme}-{media}")
    assert "shaded is little used: below 30 %" in use.locator(".told").inner_text()
    page.goto(f"{site[0]}/clusters/beta-gpu/nodes/b010")
    draw_plots(page)
    use = page.locator("figure.plot", has_text="GPU use")
    assert use.locator(".legendtext", has_text="little used: below 25 %").is_visible()
    assert page.troubles == []


def test_512_gpus_are_legible(sign_in, site):
    """The whole first, then a row for each, then the eight of a node in colours of their own."""
    page = sign_in(viewport={"width": 1400, "height": 900})
    page.goto(f"{site[0]}/jobs/49999?cluster=beta-gpu")
    draw_plots(page)
    gpus = page.locator("figure.plot").nth(2)
    assert "median of 512 GPUs" in gpus.inner_text()
    drawing = "document.querySelectorAll('.drawing')[2]"
    assert page.evaluate(f"{drawing}.data.length") == 3
    shaded = page.evaluate(
        f"{drawing}.layout.shapes.filter(s => s.type === 'rect' && !s.name).length"
    )
    assert shaded == 4
    gpus.get_by_role("button", name="Each of 512 GPUs").click()
    wait_until(page, f"{drawing}.querySelector('canvas.heat') !== null")
    assert "A row for each of 512 GPUs" in gpus.locator("canvas").get_attribute("aria-label")
    save_screenshot(page, "heat")
    gpus.locator("select").select_option("b005")
    wait_until(page, f"{drawing}.data && {drawing}.data.filter(t => t.name).length >= 8")
    colours = page.evaluate(f"{drawing}.data.filter(t => t.name).map(t => t.line.color)")
    assert len(set(colours)) == 8
    assert page.evaluate(f"{drawing}.layout.showlegend")
    gpus.get_by_role("button", name="Median and band").click()
    wait_until(page, f"{drawing}.data.length === 3")
    assert page.troubles == []


def test_node_with_many_gpus_shows_median_and_band_in_its_place(sign_in, site):
    page = sign_in()
    page.goto(f"{site[0]}/clusters/beta-gpu/nodes/b010")
    draw_plots(page)
    use = page.locator("figure.plot", has_text="GPU use")
    assert "median of 8 GPUs" in use.locator(".told").inner_text()
    use.get_by_role("button", name="Each of 8 GPUs").click()
    names = "[...document.querySelectorAll('.drawing')[3].data].map(each => each.name).join()"
    wait_until(page, f"{names} === '{','.join(f'GPU {number}' for number in range(8))}'")
    drawing, below = (use.locator(name).bounding_box() for name in (".main-svg >> nth=0", ".told"))
    assert drawing["y"] + drawing["height"] <= below["y"] + 1
    assert page.troubles == []


def test_plots_zoom_by_keyboard(sign_in, site):
    page = sign_in()
    page.goto(f"{site[0]}/jobs/40120?cluster=alpha")
    draw_plots(page)
    drawn = "[...document.querySelectorAll('.drawing')].filter(each => each.layout)"
    ranges = f"{drawn}.map(each => each.layout.xaxis.range[0])"
    begin = page.evaluate(ranges)[0]
    page.get_by_role("button", name="Zoom in").press("Enter")
    wait_until(page, f"new Set({ranges}).size === 1 && {ranges}[0] > '{begin}'")
    assert "#from=" in page.url
    page.get_by_role("button", name="Earlier").press("Enter")
    wait_until(page, f"{ranges}[0] <= '{begin}'")
    page.get_by_role("button", name="Zoom out").press("Enter")
    wait_until(page, "!location.hash")
    assert page.troubles == []


def test_plots_zoom_by_touch(sign_in, site):
    page = sign_in(has_touch=True, viewport={"width": 390, "height": 800})
    page.goto(f"{site[0]}/jobs/40120?cluster=alpha")
    draw_plots(page)
    begin = page.evaluate("document.querySelector('.drawing').layout.xaxis.range[0]")
    page.get_by_role("button", name="Zoom in").tap()
    wait_until(page, f"document.querySelector('.drawing').layout.xaxis.range[0] > '{begin}'")
    assert page.troubles == []


TICKS = """
    [...document.querySelectorAll('.drawing')].filter(each => each.layout?.yaxis.ticktext)
        .flatMap(each => each.layout.yaxis.ticktext)
"""


@pytest.mark.parametrize(("value", "count"), [(0, 0), (2.7e-11, 1), (3.3, 3), (12345678.9, 17)])
def test_ticks_are_round_whatever_the_values(sign_in, site, value, count):
    """At most three digits, none below a thousandth, and whole numbers of processes."""
    page = sign_in()
    rows = []

    def answer(route):
        metrics = parse_qs(urlsplit(route.request.url).query).get("metric", [])
        for metric in metrics:
            unit = {"processes": "count", "threads": "count", "cpu": "cores"}.get(metric, "bytes/s")
            number = count if unit == "count" else value
            rows[:] = [
                {"metric": metric, "node": "a010", "line": "a010", "unit": unit, "time": at,
                 "mean": number, "min": number, "max": number}
                for at in (1775000000000, 1775000060000)
            ]  # fmt: skip
        route.fulfill(json=rows)

    page.route("**/api/v1/jobs/*/metrics*", answer)
    page.goto(f"{site[0]}/jobs/40120?cluster=alpha")
    draw_plots(page)
    ticks = page.evaluate(TICKS)
    assert len(ticks) > 6
    assert [each for each in ticks if "e" in each.split()[0]] == []
    processes = "[...document.querySelectorAll('[data-curves^=processes] .drawing')]"
    whole = page.evaluate(f"{processes}.flatMap(each => each.layout.yaxis.tickvals)")
    assert whole
    assert all(each == int(each) for each in whole)
    assert page.troubles == []


def test_node_page_has_curves_and_gpu_cells(sign_in, site):
    page = sign_in()
    page.goto(f"{site[0]}/clusters/beta-gpu/nodes/b010")
    draw_plots(page)
    assert page.locator(".gpus li").count() == 8
    assert page.troubles == []


def test_plot_downloads_as_png(sign_in, site):
    page = sign_in()
    page.goto(f"{site[0]}/jobs/40120?cluster=alpha")
    draw_plots(page)
    with page.expect_download() as download:
        page.get_by_role("button", name="PNG").first.click()
    assert download.value.suggested_filename == "job-40120-cpu.png"
    assert Path(download.value.path()).read_bytes().startswith(b"\x89PNG")
    assert page.troubles == []


def test_all_plots_are_drawn_before_printing(sign_in, site):
    page = sign_in(viewport={"width": 1400, "height": 500})
    page.add_init_script("window.print = () => { window.printed = true; }")
    page.goto(f"{site[0]}/jobs/40120?cluster=alpha")
    page.keyboard.press("Control+p")
    wait_until(page, "window.printed === true")
    captions = page.locator(".plot .told").all_inner_texts()
    assert all(captions), captions


def test_missing_measurements_are_one_line(sign_in, site):
    page = sign_in()
    page.goto(f"{site[0]}/jobs/40120?cluster=alpha")
    draw_plots(page)
    text = page.inner_text(".plots + .also")
    assert text.startswith("Not measured for this job: ")
    assert "Block devices" in text
    assert not page.locator("figcaption", has_text="Block devices").is_visible()
    assert page.locator("figcaption", has_text="CPUs in use").is_visible()
    load_statistics(page)
    names = page.locator("#statistics tbody tr td:first-child").all_inner_texts()
    assert {"CPUs in use", "Memory: all", "Memory: no idle cache"} <= set(names)


def test_statistics_are_requested_after_a_jump_past_the_plots(sign_in, site):
    page = sign_in(viewport={"width": 1280, "height": 400})
    page.goto(f"{site[0]}/jobs/40120?cluster=alpha")
    page.evaluate("scrollTo(0, document.querySelector('.plots-end').offsetTop + 50)")
    wait_until(page, "!document.getElementById('statistics').hidden")
    assert page.troubles == []


def test_failed_statistics_show_the_reason(sign_in, site):
    page = sign_in()
    refusal = {"status": 503, "json": {"detail": "the time series database does not answer"}}
    page.route("**/jobs/40120/metrics?*points=1&*", lambda route: route.fulfill(**refusal))
    page.goto(f"{site[0]}/jobs/40120?cluster=alpha")
    draw_plots(page)
    load_statistics(page)
    reason = "Cannot be shown: the time series database does not answer"
    assert page.inner_text("#statistics .scroll") == reason


def test_expired_measurements_are_reported_as_no_longer_kept(sign_in, site):
    page = sign_in()
    page.route("**/jobs/40120/metrics?*", lambda route: route.fulfill(json=[]))
    page.goto(f"{site[0]}/jobs/40120?cluster=alpha")
    draw_plots(page)
    text = "The job was measured, but its measurements over time are no longer kept."
    assert page.inner_text(".plots + .also") == text
