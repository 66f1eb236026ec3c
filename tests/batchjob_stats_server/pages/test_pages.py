"""What stands on the pages."""

import re

import pytest

from batchjob_stats_server.pages.frame import POLICY
from tests.batchjob_stats_server.pages.conftest import HTML, drawings, parsed, words


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
    assert [row[1] for row in table(document, "Ended before")] == ["9"]


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
    assert "none of it was measured" in words(document.find(".//main"))


def test_a_node_over_time(page, now):
    document = page("root", "/clusters/c1/nodes/n001")
    (line,) = drawings(document, "timeline")
    assert len(list(line.iter("{http://www.w3.org/2000/svg}a"))) == 6
    assert len(table(document, "Jobs")) == 6
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
    assert answer.headers.get_list("content-security-policy") == [POLICY]
    assert "unsafe" not in POLICY
    assert answer.headers["cache-control"] == "private, no-store"
    assert answer.headers["x-content-type-options"] == "nosniff"


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
