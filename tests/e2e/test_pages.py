"""Every page in a real browser: light and dark, wide and narrow; nothing breaks or shuts out.

Chromium from Debian, driven by Playwright; axe-core looks for what people with disabilities would
stumble over. `PAGES_SCREENSHOTS=FOLDER` keeps pictures to look at.
"""

import os
import shutil
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import quote, unquote

import pytest
import sqlalchemy as sa
import uvicorn

from batchjob_stats_db.database import schema, scripts
from batchjob_stats_db.database.engine import parse_url, writer_engine
from batchjob_stats_db.poller.options import DatabaseOptions
from batchjob_stats_server import app
from batchjob_stats_server.options import ServerSettings, ServerWebOptions
from batchjob_stats_server.services import build
from tests.batchjob_stats_server import example_site
from tests.batchjob_stats_server.pages.example_history import measured

pytestmark = pytest.mark.e2e
playwright = pytest.importorskip("playwright.sync_api")
axe = pytest.importorskip("axe_playwright_python.sync_playwright")

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or ""
ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
)
PAGES = (
    "/", "/jobs", "/jobs?user=bob&state=FAILED&cpu_efficiency_at_most=0.9",
    "/jobs?sort=-usage_energy_joules&limit=5", "/usage", "/usage?by=account&show=emissions",
    "/usage?show=cpu&since=2026-03-28", "/clusters", "/clusters/alpha", "/clusters/beta-gpu",
    "/clusters/alpha/nodes/a010", "/clusters/beta-gpu/nodes/b010", "/admin",
    "/clusters/alpha/accounts/physics", "/embed/jobs/40120?cluster=alpha", "/embed/jobs",
    "/search", "/search?q=39000", "/search?q=%3Cb%3Enothing",
    "/jobs/40120?cluster=alpha", "/jobs/40133?cluster=alpha", "/jobs/40107?cluster=alpha",
    "/jobs/40012", "/tokens", "/compare",
    "/compare?job=alpha:40120&job=alpha:40133&job=beta-gpu:40024",
    "/jobs/nothing", "/usage?since=yesterday", "/signed-out",
)  # fmt: skip

PAGES_OF_A_USER = (
    "/", "/jobs", "/usage", "/clusters", "/clusters/alpha", "/clusters/beta-gpu",
    "/clusters/alpha/nodes/a010", "/clusters/beta-gpu/nodes/b010",
    "/clusters/alpha/accounts/physics", "/tokens", "/embed/jobs", "/embed/jobs/49999",
    "/jobs/49999", "/jobs/40012", "/jobs/40013?cluster=alpha", "/jobs/40107", "/jobs/40110",
    "/jobs/40145", "/jobs/40153", "/jobs/40153/script",
)  # fmt: skip
SCRIPT = "#!/bin/sh\n" + "srun --cpu-bind=cores ./a.out <input.txt\n" * 40
FRAME = "<!doctype html><title>Portal</title><iframe width=900 height=600 src='{}'></iframe>"


@pytest.fixture(scope="module")
def portal():
    """Another origin of the same site, by its port: /?ADDRESS shows the address in a frame."""

    class Portal(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(FRAME.format(unquote(self.path.partition("?")[2])).encode())

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Portal) as server:
        threading.Thread(target=server.serve_forever).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


@pytest.fixture(scope="module")
def site(tmp_path_factory, portal):
    """Where the example site is served, and tokens for a user and an admin."""
    path = tmp_path_factory.mktemp("site") / "jobs.db"
    tokens = example_site.make(path)
    example_site.add_large_job(path)
    _keep_scripts(path)
    web = ServerWebOptions(("127.0.0.1", 0), frame_ancestors=(portal,))
    made = build(ServerSettings(DatabaseOptions(f"sqlite:///{path}"), web))
    config = uvicorn.Config(app.make(measured(made)), port=0, log_level="warning", access_log=False)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        thread.join(0.05)
        assert thread.is_alive()
    port = server.servers[0].sockets[0].getsockname()[1]
    yield f"http://127.0.0.1:{port}", *tokens
    server.should_exit = True
    thread.join()


def _keep_scripts(path):
    engine = writer_engine(parse_url(f"sqlite:///{path}"))
    with engine.begin() as db:
        scripts.store(db, db.scalars(sa.select(schema.job.c.id)).all(), SCRIPT, 1000)
    engine.dispose()


@pytest.fixture(scope="module")
def browser():
    if not CHROMIUM:
        pytest.skip("no chromium")
    with playwright.sync_playwright() as driver:
        made = driver.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield made
        made.close()


@pytest.fixture
def visit(browser, site):
    """Open pages as somebody, and note what goes wrong and where the browser asks."""
    address, alice, root = site
    contexts = []

    def opened(who="root", **settings):
        context = browser.new_context(**settings)
        contexts.append(context)
        page = context.new_page()
        page.troubles, page.asked = [], set()
        # A 401, 404 or 422 of the page itself is told on the console as well.
        page.on("console", lambda said: _noted(page, said))
        page.on("pageerror", lambda error: page.troubles.append(str(error)))
        page.on("request", lambda request: page.asked.add(request.url))
        page.goto(f"{address}/?token={root if who == 'root' else alice}")
        assert "token" not in page.url
        return page

    yield opened
    for context in contexts:
        context.close()


def _noted(page, said):
    if said.type in ("error", "warning") and "Failed to load resource" not in said.text:
        page.troubles.append(said.text)


def _until(page, expression):
    """Wait for it; Playwright's own way runs text as code in the page, which the policy forbids."""
    end = time.monotonic() + 120
    while not page.evaluate(expression):
        assert time.monotonic() < end, expression
        page.wait_for_timeout(50)


def _drawn(page):
    """Scroll to each plot that is not drawn yet, until all are; a browser skips what it passes."""
    end = time.monotonic() + 120
    missing = (
        "[...document.querySelectorAll('figure.plot')]"
        ".filter(each => !each.querySelector('.told').textContent)"
    )
    while page.evaluate(f"{missing}.length"):
        assert time.monotonic() < end, page.url
        page.evaluate(f"{missing}[0]?.scrollIntoView()")
        page.wait_for_timeout(50)


def _statistics(page):
    """Wait for the table of statistics, which is asked for once its place is seen."""
    page.evaluate("document.querySelector('.plots-end').scrollIntoView()")
    _until(page, "!document.getElementById('statistics').hidden")


@pytest.mark.parametrize("width", [1400, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_page(visit, site, scheme, width):
    page = visit(color_scheme=scheme, viewport={"width": width, "height": 900})
    for number, path in enumerate(PAGES):
        _faultless(page, site[0] + path)
        _pictured(page, f"{number:02}-{scheme}-{width}")
    assert all(url.startswith((site[0], "data:", "blob:")) for url in page.asked), page.asked


@pytest.mark.parametrize(("scheme", "width"), [("dark", 1400), ("light", 390)])
def test_every_page_of_a_user(visit, site, scheme, width):
    """The user's own jobs and scripts, what is shown of others' jobs, and the sign-in page."""
    page = visit("alice", color_scheme=scheme, viewport={"width": width, "height": 900})
    for number, path in enumerate(PAGES_OF_A_USER):
        _faultless(page, site[0] + path)
        _pictured(page, f"user-{number:02}-{scheme}-{width}")
    page.context.clear_cookies()
    _faultless(page, site[0])
    assert page.inner_text("h1") == "Sign in"


def _faultless(page, url):
    """Open it, and look for errors, for what is wider than the screen, and for barriers."""
    page.goto(url)
    _drawn(page)
    assert page.troubles == [], url
    sideways = page.evaluate("document.documentElement.scrollWidth - innerWidth")
    assert sideways <= 0, f"{url} is {sideways} pixels too wide"
    found = axe.Axe().run(page).response["violations"]
    told = [(each["id"], each["help"], each["nodes"][0]["html"][:200]) for each in found]
    assert told == [], url


def _pictured(page, name):
    if folder := os.environ.get("PAGES_SCREENSHOTS"):
        page.screenshot(path=Path(folder) / f"{name}.png", full_page=True)


def test_plots_show_limits_nodes_and_gpus_and_zoom_together(visit, site):
    page = visit()
    page.goto(f"{site[0]}/jobs/40120?cluster=alpha")
    _drawn(page)
    assert "limit 64 GiB" in page.inner_text("#told-2")
    traces = page.evaluate("document.querySelector('.drawing').data.map(each => each.name)")
    assert {"a001", "a002", "a003", "a004"} <= set(filter(None, traces))
    third = "document.querySelectorAll('.drawing')[2].data"
    assert page.evaluate(f"{third}.length") == 3  # the median, and the edges of the band
    assert "median of 16 GPUs" in page.inner_text("#told-3")
    page.get_by_role("button", name="Each of 16 GPUs").first.click()
    _until(page, f"{third}.length === 16")
    assert len(set(page.evaluate(f"{third}.map(each => each.line.color)"))) == 16
    assert page.evaluate("document.querySelectorAll('.drawing')[2].layout.showlegend")
    page.evaluate(
        "Plotly.relayout(document.querySelector('.drawing'),"
        "{'xaxis.range[0]': '2026-04-04T09:00:00', 'xaxis.range[1]': '2026-04-04T09:30:00'})"
    )
    _until(page, "document.querySelectorAll('.drawing')[1].layout.xaxis.range[0].includes('09:00')")
    assert page.url.endswith("#from=1775293200&to=1775295000")
    page.reload()
    _drawn(page)
    assert "09:00" in page.evaluate("document.querySelector('.drawing').layout.xaxis.range[0]")
    assert page.troubles == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_plots_shade_what_is_wasteful(visit, site, scheme):
    """With a dotted edge and an entry in the legend, on the screen and on paper."""
    page = visit(color_scheme=scheme, viewport={"width": 1400, "height": 900})
    page.goto(f"{site[0]}/jobs/49999?cluster=beta-gpu")
    _drawn(page)
    use = page.locator("figure.plot", has_text="GPU use")
    for media in ("screen", "print"):
        page.emulate_media(media=media, color_scheme="light" if media == "print" else scheme)
        _until(page, "document.querySelectorAll('.legendtext').length > 0")
        entry = use.locator(".legendtext", has_text="little used: below 30 %")
        assert entry.bounding_box()["width"] > 50
        area = use.locator(".shapelayer path[style*='stroke-dasharray']").first
        assert area.bounding_box()["width"] > 400
        _pictured(page, f"zones-{scheme}-{media}")
    assert "shaded is little used: below 30 %" in use.locator(".told").inner_text()
    page.goto(f"{site[0]}/clusters/beta-gpu/nodes/b010")
    _drawn(page)
    use = page.locator("figure.plot", has_text="GPU use")
    assert use.locator(".legendtext", has_text="little used: below 25 %").is_visible()
    assert page.troubles == []


def test_512_gpus_are_legible(visit, site):
    """The whole first, then a row for each, then the eight of a node in colours of their own."""
    page = visit(viewport={"width": 1400, "height": 900})
    page.goto(f"{site[0]}/jobs/49999?cluster=beta-gpu")
    _drawn(page)
    gpus = page.locator("figure.plot").nth(2)
    assert "median of 512 GPUs" in gpus.inner_text()
    drawing = "document.querySelectorAll('.drawing')[2]"
    assert page.evaluate(f"{drawing}.data.length") == 3
    shaded = page.evaluate(
        f"{drawing}.layout.shapes.filter(s => s.type === 'rect' && !s.name).length"
    )
    assert shaded == 4
    gpus.get_by_role("button", name="Each of 512 GPUs").click()
    _until(page, f"{drawing}.querySelector('canvas.heat') !== null")
    assert "A row for each of 512 GPUs" in gpus.locator("canvas").get_attribute("aria-label")
    _pictured(page, "heat")
    gpus.locator("select").select_option("b005")
    _until(page, f"{drawing}.data && {drawing}.data.filter(t => t.name).length >= 8")
    colours = page.evaluate(f"{drawing}.data.filter(t => t.name).map(t => t.line.color)")
    assert len(set(colours)) == 8
    assert page.evaluate(f"{drawing}.layout.showlegend")
    gpus.get_by_role("button", name="Median and band").click()
    _until(page, f"{drawing}.data.length === 3")
    assert page.troubles == []


def test_jobs_are_shown_in_the_frames_of_a_portal(visit, site, portal):
    page = visit("alice")
    for path, shown in (("/embed/jobs", "My jobs"), ("/embed/jobs/49999", "Job 49999")):
        page.goto(f"{portal}/?{quote(site[0] + path)}")
        frame = page.frame_locator("iframe")
        frame.locator("h1").wait_for()
        assert shown in frame.locator("h1").inner_text()
        assert frame.locator("nav").count() == 0
    frame.locator(".plot .main-svg").first.wait_for(timeout=60_000)
    _pictured(page, "frame")


def test_no_other_site_may_frame_them(visit, site, portal):
    page = visit("alice")
    page.goto(f"{portal.replace('127.0.0.1', 'localhost')}/?{quote(site[0] + '/embed/jobs')}")
    end = time.monotonic() + 60
    while not (
        page.frames[1].url.startswith("chrome-error:")
        and any("frame-ancestors" in trouble for trouble in page.troubles)
    ):
        assert time.monotonic() < end, (page.frames[1].url, page.troubles)
        page.wait_for_timeout(50)


def test_full_width_is_used(visit, site):
    page = visit(viewport={"width": 1400, "height": 900})
    page.goto(f"{site[0]}/jobs/40120?cluster=alpha")
    _drawn(page)
    tables = "[...document.querySelectorAll('main table')]"
    right = page.evaluate(f"{tables}.map(each => each.getBoundingClientRect().right)")
    assert max(right) > 1300


def test_a_node_has_curves_and_gpu_cells(visit, site):
    page = visit()
    page.goto(f"{site[0]}/clusters/beta-gpu/nodes/b010")
    _drawn(page)
    assert page.locator(".gpus li").count() == 8
    names = page.evaluate("document.querySelectorAll('.drawing')[3].data.map(t => t.name)")
    assert {f"GPU {number}" for number in range(8)} <= set(filter(None, names))
    assert page.troubles == []


def test_a_plot_is_a_picture(visit, site):
    page = visit()
    page.goto(f"{site[0]}/jobs/40120?cluster=alpha")
    _drawn(page)
    with page.expect_download() as coming:
        page.get_by_role("button", name="PNG").first.click()
    assert coming.value.suggested_filename == "job-40120-cpu.png"
    assert Path(coming.value.path()).read_bytes().startswith(b"\x89PNG")
    assert page.troubles == []


def test_all_plots_are_drawn_before_they_are_printed(visit, site):
    page = visit(viewport={"width": 1400, "height": 500})
    page.add_init_script("window.print = () => { window.printed = true; }")
    page.goto(f"{site[0]}/jobs/40120?cluster=alpha")
    page.keyboard.press("Control+p")
    _until(page, "window.printed === true")
    told = page.locator(".plot .told").all_inner_texts()
    assert all(told), told


def test_heads_stand_over_their_columns_on_paper(visit, site):
    page = visit(viewport={"width": 1400, "height": 900})
    for path in ("/jobs", "/jobs/40120?cluster=alpha"):
        page.goto(site[0] + path)
        _drawn(page)
        if page.query_selector("#statistics"):
            _statistics(page)
        page.emulate_media(media="print")
        apart = page.evaluate(
            """[...document.querySelectorAll('main table')].flatMap(table => {
                const left = row => [...row.cells].filter(each => each.offsetWidth)
                    .map(each => each.getBoundingClientRect().left)
                const heads = left(table.tHead.rows[0]), cells = left(table.tBodies[0].rows[0])
                return heads.map((at, i) => Math.abs(at - cells[i]))
            })"""
        )
        assert apart
        assert max(apart) < 1, path
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


def test_what_was_not_measured_is_one_line(visit, site):
    page = visit()
    page.goto(f"{site[0]}/jobs/40120?cluster=alpha")
    _drawn(page)
    told = page.inner_text(".plots + .also")
    assert told.startswith("Not measured for this job: ")
    assert "Block devices" in told
    assert not page.locator("figcaption", has_text="Block devices").is_visible()
    assert page.locator("figcaption", has_text="CPUs in use").is_visible()
    _statistics(page)
    names = page.locator("#statistics tbody tr td:first-child").all_inner_texts()
    assert {"CPUs in use", "Memory: all", "Memory: without idle page cache"} <= set(names)


def test_statistics_that_cannot_be_had_say_why(visit, site):
    page = visit()
    refusal = {"status": 503, "json": {"detail": "the time series database does not answer"}}
    page.route("**/jobs/40120/metrics?*points=1&*", lambda route: route.fulfill(**refusal))
    page.goto(f"{site[0]}/jobs/40120?cluster=alpha")
    _drawn(page)
    _statistics(page)
    told = "Cannot be shown: the time series database does not answer"
    assert page.inner_text("#statistics .scroll") == told


def test_measurements_that_are_no_longer_kept_were_made_all_the_same(visit, site):
    page = visit()
    page.route("**/jobs/40120/metrics?*", lambda route: route.fulfill(json=[]))
    page.goto(f"{site[0]}/jobs/40120?cluster=alpha")
    _drawn(page)
    told = "The job was measured, but its measurements over time are no longer kept."
    assert page.inner_text(".plots + .also") == told


def test_a_list_of_several_clusters_with_gpus_fits_a_laptop(visit, site):
    page = visit(viewport={"width": 1366, "height": 768})
    page.goto(f"{site[0]}/jobs")
    beyond = page.evaluate(
        "[...document.querySelectorAll('.jobs .scroll')]"
        ".map(each => each.scrollWidth - each.clientWidth)"
    )
    assert beyond
    assert max(beyond) == 0


def test_times_are_local_and_utc_one_click_away(visit, site):
    page = visit(timezone_id="America/New_York")
    page.goto(f"{site[0]}/jobs/40120?cluster=alpha")
    _drawn(page)
    first = page.locator("dl.facts time").first
    local = first.inner_text()
    assert local.endswith((" EDT", " GMT-4")), local
    shown = "document.querySelector('.drawing').data.at(-1).x[0]"
    assert page.evaluate(shown).startswith("2026-04-04T03")
    page.get_by_role("button", name="Show UTC").click()
    assert first.inner_text().endswith(" UTC")
    assert first.inner_text() != local
    _until(page, f"{shown}.startsWith('2026-04-04T07')")
    page.goto(f"{site[0]}/jobs")
    assert "Started (UTC)" in page.locator("thead").last.inner_text()
    assert page.troubles == []


def test_a_job_renews_itself_and_says_when_the_server_is_gone(visit, site):
    page = visit()
    page.clock.install()
    page.goto(f"{site[0]}/jobs/40120?cluster=alpha")
    _drawn(page)
    # On a slow machine the page has renewed itself by now, and would not put in the same again.
    page.evaluate("delete document.querySelector('[data-live]').dataset.seen")
    page.evaluate("document.querySelector('[data-live] h2').textContent = 'old'")
    page.clock.run_for(20_000)
    _until(page, "document.querySelector('[data-live] h2').textContent === 'Efficiency'")
    page.context.set_offline(True)
    page.clock.run_for(20_000)
    _until(page, "!document.getElementById('gone').hidden")
    assert "The server has not answered since" in page.inner_text("#gone")
    page.context.set_offline(False)
    page.clock.run_for(20_000)
    _until(page, "document.getElementById('gone').hidden")


def test_a_page_says_when_one_has_been_signed_out(visit, site):
    page = visit()
    page.clock.install()
    page.goto(f"{site[0]}/clusters/alpha")
    page.context.clear_cookies()
    page.clock.run_for(20_000)
    _until(page, "!document.getElementById('gone').hidden")
    assert "You have been signed out" in page.inner_text("#gone")


def test_who_lives_in_utc_has_no_zone_to_choose(visit, site):
    page = visit(timezone_id="UTC")
    page.goto(f"{site[0]}/jobs")
    assert page.inner_text("footer .zone") == "UTC"
    assert not page.locator("#zone").is_visible()


def test_names_do_nothing(visit, site):
    """Names with markup are on these pages; none of it runs or is an element."""
    page = visit()
    page.on("dialog", lambda dialog: page.troubles.append(f"dialog: {dialog.message}"))
    for path in ("/jobs?limit=200", "/jobs/40107?cluster=alpha"):
        page.goto(site[0] + path)
        assert "<script>alert(1)" in page.inner_text("main")
        assert page.query_selector("main img, main script") is None
    assert page.troubles == []


def test_without_javascript(visit, site):
    page = visit(java_script_enabled=False)
    page.goto(f"{site[0]}/jobs?limit=5")
    assert page.locator("svg.spark").count() > 5
    page.goto(f"{site[0]}/jobs/40133?cluster=alpha")
    assert "Plots need JavaScript" in page.inner_text("main")
    assert "unbalanced-nodes" in page.inner_text("main")


def test_a_list_renews_itself_but_not_under_somebody_s_hand(visit, site):
    page = visit()
    page.clock.install()
    page.goto(f"{site[0]}/jobs?limit=5")
    marked = "document.querySelector('form.live caption').textContent = 'old'"
    page.evaluate(marked)
    page.locator("input[name=job]").first.check()
    page.clock.run_for(40_000)
    page.wait_for_timeout(500)
    assert page.evaluate("document.querySelector('form.live caption').textContent") == "old"
    page.locator("input[name=job]").first.uncheck()
    page.evaluate("document.activeElement.blur()")
    page.clock.run_for(40_000)
    _until(page, "document.querySelector('form.live caption').textContent === 'Running jobs'")
    assert page.troubles == []


def test_a_list_brings_lines_that_came_late_soon(visit, site):
    page = visit()
    page.clock.install()
    answers = []

    def without_lines(route):
        answer = route.fetch()
        text = answer.text()
        if not answers:
            text = text.replace(
                '<svg class="spark"', '<span class="late">-</span><svg class="spark"'
            )
        answers.append(text)
        route.fulfill(response=answer, body=text)

    page.route("**/jobs?limit=6", without_lines)
    page.goto(f"{site[0]}/jobs?limit=6")
    assert page.locator(".late").count()
    page.clock.run_for(4_000)
    _until(page, "!document.querySelector('.late')")
    assert page.locator("svg.spark").count()
    assert page.troubles == []


def test_a_user_walks_through(visit, site):
    """From the list to a job, by keyboard and mouse, to the comparison, and out."""
    page = visit("alice")
    page.goto(site[0])
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


def test_a_user_makes_and_revokes_a_token(visit, site):
    page = visit("alice")
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
