"""What stands on the pages."""

import re
import threading

import pytest
from fastapi.testclient import TestClient

from batchjob_stats_server import app
from batchjob_stats_server.options import GrafanaOptions
from batchjob_stats_server.pages.rendering.frame import POLICY
from tests.batchjob_stats_server import example_site
from tests.batchjob_stats_server.conftest import PROXY, SECRET
from tests.batchjob_stats_server.pages.conftest import HTML, asked_as, drawings, parsed, words
from tests.batchjob_stats_server.pages.example_history import ExampleHistory, measured


def table(document, heading):
    """Rows of the table in the section of a heading: lists of texts."""
    for section in document.iter("section"):
        if heading in words(section.find(".//h2")):
            return [
                [words(cell) for cell in row if cell.tag in ("td", "th")]
                for row in section.findall(".//tbody/tr")
            ]
    return None


def test_running_jobs_come_first(page):
    document = page("root", "/jobs")
    titles = [words(each) for each in document.iter("h2")]
    assert [title.split()[0] for title in titles] == ["Running", "Waiting", "Ended"]
    assert table(document, "Running")[0][1] == "3"
    assert table(document, "Waiting")[0][1] == "8"


def test_ids_as_people_know_them(page):
    found = {row[1] for row in table(page("alice", "/"), "Ended")}
    assert found == {"1", "4_7", "6+1", "0f3a2b1c…"}


def test_filters_are_in_the_address(page):
    document = page("root", "/jobs", user="bob", state="COMPLETED", name="")
    assert [row[1] for row in table(document, "Ended")] == ["2"]
    assert document.find(".//input[@id='f-user']").get("value") == "bob"
    hrefs = [each.get("href") for each in document.findall(".//ul[@class='asked']//a")]
    assert hrefs == ["/jobs?state=COMPLETED&name=", "/jobs?user=bob&name="]


def test_those_that_never_began(page):
    document = page("alice", "/jobs", started="false")
    assert [row[1] for row in table(document, "Ended without")] == ["9"]


def test_pages_follow_each_other(proxied):
    vera = proxied("vera")
    path, found = "/jobs?limit=2", []
    while path:
        document = parsed(vera.get(path, headers=HTML))
        found += [row[1] for row in table(document, "Ended") or ()]
        link = document.find(".//a[@rel='next']")
        path = link.get("href") if link is not None else None
    assert sorted(found) == sorted(["1", "1", "1", "2", "4_7", "6+1", "0f3a2b1c…"])


def test_names_are_text(page):
    """Markup, quotes, template braces, formulas: shown as they are, doing nothing."""
    name = "<img src=x onerror=alert(1)>\"'&{{ 7*7 }}"
    document = page("alice", "/jobs", name=name)
    assert document.find(".//input[@id='f-name']").get("value") == name
    assert name in words(document.find(".//ul[@class='asked']"))
    assert not list(document.iter("img"))
    assert name in words(page("alice", "/search", q=name).find(".//main"))


@pytest.mark.parametrize(
    ("params", "says"),
    [
        ({"state": "DONE"}, "state"),
        ({"usr": "bob"}, "usr"),
        ({"cursor": "x"}, "cursor"),
        ({"limit": "0"}, "limit"),
    ],
)
def test_bad_input_is_a_page_that_names_it(page, params, says):
    document = page("alice", "/jobs", 422, **params)
    assert says in words(document.find(".//main"))


def test_what_is_not_there_is_a_page(page):
    assert "404" in words(page("alice", "/nowhere", 404).find(".//main"))
    assert "c3" in words(page("alice", "/clusters/c3", 404).find(".//main"))


def test_usage_by_user_and_account(page):
    rows = table(page("root", "/usage", since="0", until="2026-04-05"), "By user")
    assert {row[0] for row in rows} == {"alice", "bob", "carol"}
    rows = table(page("root", "/usage", by="account"), "By account")
    assert {row[0] for row in rows} == {"physics", "chem", "x"}
    document = page("root", "/usage", show="cpu")
    assert drawings(document, "columns")
    assert len(table(document, "by day")) == 31


def test_usage_says_what_was_not_measured(page):
    document = page("alice", "/usage")
    assert "no energy was measured" in words(document.find(".//dl"))
    assert "CPU time by day" in words(document.find(".//main"))
    energy = page("alice", "/usage", show="energy")
    assert "nothing was measured on these days" in words(energy.find(".//main"))


def test_a_node_over_time(page, now):
    document = page("root", "/clusters/c1/nodes/n001")
    (line,) = drawings(document, "timeline")
    assert len(list(line.iter("{http://www.w3.org/2000/svg}a"))) == 6
    assert len(table(document, "Jobs 6")) == 6
    empty = page("root", "/clusters/c1/nodes/n001", until=now - 8000)
    assert "No job" in words(empty.find(".//main"))
    page("root", "/clusters/c1/nodes/n001", 422, since=now, until=now - 1)


def test_a_cluster(page):
    document = page("root", "/clusters/c1")
    assert [words(each) for each in document.findall(".//ul[@class='nodes']//a")] == ["n002 1 jobs"]
    assert words(document.find(".//dl/div/dd")) == "1 jobs"


@pytest.mark.parametrize(
    ("words_", "leads_to"),
    [
        ("2", "/jobs/2?cluster=c1"),
        ("4_7", "/jobs/5?cluster=c1"),
        ("4", "/jobs/5?cluster=c1"),
        ("6+1", "/jobs/7?cluster=c1"),
        ("0f3a2b1c", "/jobs/0f3a2b1c-aaaa-4bbb-8ccc-123456789abc?cluster=c1"),
        ("carol", "/jobs?user=carol"),
        ("physics", "/jobs?account=physics"),
        ("=cmd()", "/jobs?name=%3Dcmd%28%29"),
        ("n002", "/clusters/c1/nodes/n002"),
        ("c2", "/clusters/c2"),
    ],
)
def test_one_meaning_is_gone_to(proxied, words_, leads_to):
    answer = proxied("root").get("/search", params={"q": words_}, follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, leads_to)


def test_several_meanings_are_shown(page):
    document = page("root", "/search", q="1")
    clusters = {row[1] for row in table(document, "Jobs")}
    assert clusters == {"c1", "c2"}


def test_headers(proxied):
    answer = proxied("alice").get("/", headers=HTML)
    assert answer.headers.get_list("content-security-policy") == [f"{POLICY}'none'"]
    assert "unsafe" not in POLICY
    assert answer.headers["cache-control"] == "private, no-store"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers.get_list("referrer-policy") == ["same-origin"]


@pytest.mark.parametrize("there", ["/", "/jobs", "/usage", "/clusters", "/clusters/c1", "/search"])
def test_every_page_is_whole(page, there):
    document = page("root", there)
    assert document.get("lang") == "en"
    assert document.find(".//title").text.endswith("batchjob")
    assert len(document.findall(".//h1")) == 1
    assert document.find(".//a[@class='skip']").get("href") == "#main"
    for each in document.iter("table"):
        assert each.find("caption") is not None
        assert all(head.get("scope") for head in each.iter("th"))
    for each in document.iter():
        assert each.get("style") is None
        assert not [name for name in each.attrib if name.startswith("on")]
        for name in ("src", "href", "action"):
            assert re.match(r"(/(?!/)|#|$)", each.get(name) or ""), each.get(name)


def test_static_files(client):
    sheet = client.get("/static/style.css", headers={"Accept-Encoding": "gzip"})
    assert sheet.headers["content-encoding"] == "gzip"
    assert "immutable" in sheet.headers["cache-control"]
    assert "url(" not in sheet.text
    plotly = client.get("/static/plotly.js")
    assert plotly.headers["content-type"].startswith("text/javascript")
    assert b"plotly.js v" in plotly.content[:200]
    for name in ("none.css", "..%2Fframe.py", "style.css%00"):
        assert client.get(f"/static/{name}").status_code == 404


def test_a_job(page):
    document = page("alice", "/jobs/5", cluster="c1")
    assert words(document.find(".//h1")) == "Job 4_7 completed train"
    time_of_limit = table(document, "Efficiency")[2]
    assert time_of_limit[:3] == ["Time", "\u2013no time limit is known", "1 h"]
    assert [row[0] for row in table(document, "Nodes")] == ["n001"]
    assert "Its usage is unknown" in words(document.find(".//main"))


def test_a_job_that_waits(page):
    document = page("alice", "/jobs/8")
    assert "it has not started" in words(document.find(".//dl"))
    assert table(document, "Efficiency") is None


def test_several_jobs_of_one_id_are_a_choice(page):
    rows = table(page("root", "/jobs/1"), "Choose one")
    assert {row[1] for row in rows} == {"c1", "c2"}


def test_runs_of_one_id(page, now):
    document = page("root", "/jobs/1", cluster="c1")
    assert len(table(document, "Runs with this id")) == 2
    older = page("root", "/jobs/1", cluster="c1", submitted=now - 7200)
    assert "2026-04-04 08:53 UTC" in words(older.find(".//dl"))
    page("root", "/jobs/1", 404, cluster="c1", submitted=now)


def test_links_to_grafana_have_the_window(services, proxied, now):
    del proxied
    settings = services.settings._replace(grafana=GrafanaOptions("https://grafana.example.org"))
    client = TestClient(
        app.make(services._replace(settings=settings)), client=(PROXY, 1),
        headers={"X-Grafana-User": "root", "X-Batchjob-Secret": SECRET, **HTML},
    )  # fmt: skip
    links = [each.get("href") for each in parsed(client.get("/jobs/2")).iter("a")]
    assert (
        "https://grafana.example.org/d/batchjob-job?var-cluster=c1&var-job=2"
        f"&from={(now - 6060) * 1000}&to={(now - 3340) * 1000}"
    ) in links
    node = parsed(client.get(f"/clusters/c1/nodes/n001?until={now}"))
    assert any("/d/batchjob-node?var-cluster=c1&var-node=n001&" in each.get("href", "")
               for each in node.iter("a"))  # fmt: skip


def test_compare(page):
    document = page("root", "/compare", job=["2", "c1:5", "nono", "c1:1775292800:1:1"])
    assert [words(each) for each in document.findall(".//thead//a")] == ["2", "4_7", "1"]
    assert "There is no job nono" in words(document.find(".//main"))
    page("root", "/compare", 422, job=[str(number) for number in range(9)])


def test_lines_of_jobs_in_a_list(example):
    document = parsed(example("/jobs?limit=20"))
    (line, *_) = drawings(document, "spark")
    assert line.get("role") == "img"
    assert re.match(r"CPU use between \d", line.get("aria-label"))


def test_a_slow_store_keeps_nobody_waiting(example_services, monkeypatch):
    made, root = example_services
    release = threading.Event()
    monkeypatch.setattr(ExampleHistory, "job_series", lambda *_: release.wait(60) and [])
    with asked_as(root, measured(made, seconds=0.05)) as example:
        document = parsed(example("/jobs?limit=20&state=COMPLETED&sort=start_time"))
        release.set()
    assert not drawings(document, "spark")
    assert "no measurements in time" in words(document.find(".//main"))


def test_what_does_less_than_the_others_shows(example):
    document = parsed(example("/jobs/40133?cluster=alpha"))
    nodes = table(document, "Nodes")
    assert [row[4].endswith("(low)") for row in nodes] == [False, True]
    assert "unbalanced-nodes" in words(document.find(".//main"))
    policy = example("/jobs/40133?cluster=alpha").headers["content-security-policy"]
    assert "style-src 'self'; style-src-attr 'unsafe-inline';" in policy
    assert "script-src 'self';" in policy


def test_every_page_of_the_example_is_valid(example):
    for there in (
        "/", "/jobs", "/usage", "/usage?show=emissions&by=account", "/clusters/alpha",
        "/clusters/alpha/nodes/a010", "/search?q=39000", "/jobs/40120?cluster=alpha",
        "/jobs/40107?cluster=alpha", "/compare?job=alpha:40120&job=alpha:40133", "/jobs/40012",
    ):  # fmt: skip
        document = parsed(example(there))
        assert not [each for each in document.iter() if each.tag == "img"]
        assert example_site.HOSTILE not in example(there).text
