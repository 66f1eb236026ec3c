"""Content of the pages."""

import csv
import io
import re
from urllib.parse import parse_qs, urlsplit

import pytest
import sqlalchemy as sa
from fastapi.testclient import TestClient

from batchjob_stats_db.database import schema
from batchjob_stats_server import app
from batchjob_stats_server.options import GrafanaOptions, LogsOptions
from batchjob_stats_server.pages.job import MAX_JOBS
from batchjob_stats_server.pages.rendering.frame import POLICY
from tests.batchjob_stats_server import example_site
from tests.batchjob_stats_server.conftest import PROXY, SECRET
from tests.batchjob_stats_server.pages.conftest import (
    HTML,
    element_text,
    parse_page,
    svg_elements,
)


def table_rows(document, heading):
    """Rows of the table, or of the part of one, that has a heading: lists of texts."""
    for part in (*document.iter("section"), *document.iter("tbody")):
        title = part.find(".//h2")
        if title is not None and heading in element_text(title):
            rows = part.findall(".//tbody/tr") if part.tag == "section" else part.findall("tr")
            return [
                [element_text(cell) for cell in row if cell.tag in ("td", "th")]
                for row in rows
                if row.find("th") is not None
            ]
    return None


def test_job_list_has_running_waiting_and_ended_jobs_in_order(page):
    document = page("root", "/jobs")
    titles = [element_text(each) for each in document.iter("h2")]
    assert [title.split()[0] for title in titles] == ["Running", "Waiting", "Ended"]
    assert table_rows(document, "Running")[0][1] == "3"
    assert table_rows(document, "Waiting")[0][1] == "8"


def test_job_ids_are_displayed_as_in_the_scheduler(page):
    displayed_ids = {row[1] for row in table_rows(page("alice", "/mine"), "Ended")}
    assert displayed_ids == {"1", "4_7", "6+1", "0f3a2b1c…"}


def test_active_filters_are_shown_with_links_that_remove_them(page):
    document = page("root", "/jobs", user="bob", state="COMPLETED", name="")
    assert [row[1] for row in table_rows(document, "Ended")] == ["2"]
    assert document.find(".//input[@id='f-user']").get("value") == "bob"
    hrefs = [each.get("href") for each in document.findall(".//ul[@class='asked']//a")]
    assert hrefs == ["/jobs?state=COMPLETED&name=", "/jobs?user=bob&name="]


def test_list_of_jobs_that_never_started(page):
    document = page("alice", "/jobs", started="false")
    assert [row[1] for row in table_rows(document, "Ended without")] == ["9"]


def test_paging_reaches_all_ended_jobs(proxy_client):
    vera = proxy_client("vera")
    path, displayed_ids = "/jobs?limit=2", []
    while path:
        document = parse_page(vera.get(path, headers=HTML))
        displayed_ids += [row[1] for row in table_rows(document, "Ended") or ()]
        link = document.find(".//a[@rel='next']")
        path = link.get("href") if link is not None else None
    assert sorted(displayed_ids) == sorted(["1", "1", "1", "2", "4_7", "6+1", "0f3a2b1c…"])


def test_job_names_are_escaped(page):
    """Markup, quotes, template braces and formulas are shown as text."""
    name = "<img src=x onerror=alert(1)>\"'&{{ 7*7 }}"
    document = page("alice", "/jobs", name=name)
    assert document.find(".//input[@id='f-name']").get("value") == name
    assert name in element_text(document.find(".//ul[@class='asked']"))
    assert not list(document.iter("img"))
    assert name in element_text(page("alice", "/search", q=name).find(".//main"))


@pytest.mark.parametrize(
    ("params", "says"),
    [
        ({"state": "DONE"}, "state"),
        ({"usr": "bob"}, "usr"),
        ({"cursor": "x"}, "cursor"),
        ({"limit": "0"}, "limit"),
    ],
)
def test_invalid_parameter_is_named_on_error_page(page, params, says):
    document = page("alice", "/jobs", 422, **params)
    assert says in element_text(document.find(".//main"))


def test_not_found_page(page):
    assert "404" in element_text(page("alice", "/nowhere", 404).find(".//main"))
    assert "c3" in element_text(page("alice", "/clusters/c3", 404).find(".//main"))


def test_usage_by_user_and_account(page):
    rows = table_rows(page("root", "/usage", since="0", until="2026-04-05"), "By user")
    assert {row[0] for row in rows} == {"alice", "bob", "carol"}
    rows = table_rows(page("root", "/usage", by="account"), "By account")
    assert {row[0] for row in rows} == {"physics", "chem", "x"}
    document = page("root", "/usage", show="cpu")
    assert svg_elements(document, "columns")
    assert len(table_rows(document, "by day")) == 31


def test_usage_downloads_the_rows_of_its_table(page, proxy_client):
    document = page("root", "/usage", since="0", until="2026-04-05")
    (path,) = [link.get("href") for link in document.iter("a") if link.text == "CSV"]
    assert "by=user&by=cluster" in path
    rows = list(csv.DictReader(io.StringIO(proxy_client("root").get(path).text)))
    assert len(rows) == len(table_rows(document, "By user"))


def test_usage_page_says_what_was_not_measured(page):
    document = page("alice", "/usage")
    assert "no energy was measured" in element_text(document.find(".//dl"))
    assert "CPU time by day" in element_text(document.find(".//main"))
    energy = page("alice", "/usage", show="energy")
    assert "nothing was measured on these days" in element_text(energy.find(".//main"))


def test_node_page_timeline(page, now):
    document = page("root", "/clusters/c1/nodes/n001")
    (line,) = svg_elements(document, "timeline")
    assert len(list(line.iter("{http://www.w3.org/2000/svg}a"))) == 6
    assert len(table_rows(document, "Jobs 6")) == 6
    empty = page("root", "/clusters/c1/nodes/n001", until=now - 8000)
    assert "No job" in element_text(empty.find(".//main"))
    page("root", "/clusters/c1/nodes/n001", 422, since=now, until=now - 1)
    unknown = page("alice", "/clusters/c1/nodes/n999", 404)
    assert "c1 has no node n999: no job ran there" in element_text(unknown.find(".//main"))


def test_cluster_page(page):
    document = page("root", "/clusters/c1")
    assert [element_text(each) for each in document.findall(".//ul[@class='nodes tall']//a")] == [
        "n002 1 jobs"
    ]
    assert element_text(document.find(".//dl/div/dd")) == "1 jobs"


@pytest.mark.parametrize(
    ("search_text", "location"),
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
def test_search_with_one_match_redirects(proxy_client, search_text, location):
    answer = proxy_client("root").get("/search", params={"q": search_text}, follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, location)


def test_search_with_several_matches_lists_them(page):
    document = page("root", "/search", q="1")
    clusters = {row[1] for row in table_rows(document, "Jobs")}
    assert clusters == {"c1", "c2"}


def test_security_headers(proxy_client):
    answer = proxy_client("alice").get("/", headers=HTML)
    assert answer.headers.get_list("content-security-policy") == [f"{POLICY}'none'"]
    assert "unsafe" not in POLICY
    assert answer.headers["cache-control"] == "private, no-store"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers.get_list("referrer-policy") == ["same-origin"]


@pytest.mark.parametrize(
    "path", ["/", "/mine", "/jobs", "/usage", "/clusters", "/clusters/c1", "/search"]
)
def test_page_markup_is_accessible_and_loads_nothing_external(page, path):
    document = page("root", path)
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


def test_page_of_ended_job(page):
    document = page("alice", "/jobs/5", cluster="c1")
    assert element_text(document.find(".//h1")) == "Job 4_7 completed train"
    time_of_limit = table_rows(document, "Efficiency")[2]
    assert time_of_limit[:3] == ["Time", "\u2013no time limit is known", "1 h"]
    assert [row[0] for row in table_rows(document, "Nodes")] == ["n001"]
    assert "Its usage is unknown" in element_text(document.find(".//main"))


def test_page_of_pending_job(page):
    document = page("alice", "/jobs/8")
    assert "it has not started" in element_text(document.find(".//dl"))
    assert table_rows(document, "Efficiency") is None


def test_jobs_that_depend_on_each_other_have_links(page, services):
    with services.writer.begin() as db:
        waiting = sa.update(schema.job).where(schema.job.c.jobid == "8")
        db.execute(waiting.values(username="carol", dependencies="afterany:3(unfulfilled)"))
    links = {each.get("href") for each in page("root", "/jobs/8").iter("a")}
    assert "/jobs/3?cluster=c1" in links
    facts = page("root", "/jobs/3").find(".//dl[@class='facts']")
    assert "Waiting for it" in element_text(facts)
    assert [each.text for each in facts.iter("a")][-1] == "8"
    assert "Waiting for it" not in element_text(page("root", "/jobs/8").find(".//dl"))


def test_job_page_names_what_waits_for_it_among_many_with_similar_ids(page, services):
    job = schema.job.c
    with services.writer.begin() as db:
        row = dict(db.execute(sa.select(schema.job).where(job.jobid == "3")).mappings().one())
        del row["id"]
        waiting = {**row, "username": "carol", "state": "PENDING", "start_time": None,
                   "end_time": None}  # fmt: skip
        others = [{"jobid": str(30 + n), "dependencies": f"afterany:3{n:02}"} for n in range(20)]
        more = [{"jobid": "29", "dependencies": "afterany:3"}, *others]
        for n, each in enumerate(more):
            values = waiting | each | {"submit_time": row["submit_time"] + n}
            db.execute(sa.insert(schema.job).values(values))
        running = sa.update(schema.job).where(job.jobid == "3")
        db.execute(running.values(username="carol", state="RUNNING", end_time=None))
    facts = element_text(page("root", "/jobs/3").find(".//dl[@class='facts']"))
    assert "Waiting for it" in facts


def test_ambiguous_job_id_lists_the_clusters(page):
    rows = table_rows(page("root", "/jobs/1"), "Choose one")
    assert {row[1] for row in rows} == {"c1", "c2"}


def test_page_lists_runs_with_the_same_id(page, now):
    document = page("root", "/jobs/1", cluster="c1")
    assert len(table_rows(document, "Runs with this id")) == 2
    older = page("root", "/jobs/1", cluster="c1", submitted=now - 7200)
    assert "2026-04-04 08:53 UTC" in element_text(older.find(".//dl"))
    page("root", "/jobs/1", 404, cluster="c1", submitted=now)


def test_grafana_links_contain_time_range(services, proxy_client, now):
    del proxy_client
    settings = services.settings._replace(grafana=GrafanaOptions("https://grafana.example.org"))
    client = TestClient(
        app.make(services._replace(settings=settings)), client=(PROXY, 1),
        headers={"X-Grafana-User": "root", "X-Batchjob-Secret": SECRET, **HTML},
    )  # fmt: skip
    links = [each.get("href") for each in parse_page(client.get("/jobs/2")).iter("a")]
    assert (
        "https://grafana.example.org/d/batchjob-job?var-cluster=c1&var-job=2"
        f"&from={(now - 6060) * 1000}&to={(now - 3340) * 1000}"
    ) in links
    node = parse_page(client.get(f"/clusters/c1/nodes/n001?until={now}"))
    assert any("/d/batchjob-node?var-cluster=c1&var-node=n001&" in each.get("href", "")
               for each in node.iter("a"))  # fmt: skip


def test_job_has_links_to_the_lines_of_its_nodes_for_those_who_see_it(services, proxy_client):
    del proxy_client
    settings = services.settings._replace(logs=LogsOptions("https://logs.example.org/?n={node}"))
    client = TestClient(app.make(services._replace(settings=settings)), client=(PROXY, 1))
    headers = {"X-Batchjob-Secret": SECRET, **HTML}
    link = "https://logs.example.org/?n=n001"
    for user, sees in (("root", True), ("bob", True), ("alice", False)):
        answer = client.get("/jobs/2", headers={**headers, "X-Grafana-User": user})
        assert (link in answer.text) == sees
        rows = client.get(
            "/api/v1/job/report/logs?jobid=2", headers={**headers, "X-Grafana-User": user}
        )
        assert rows.json() == ([{"nodes": "n001", "url": link}] if sees else [])
    assert link in [each.get("href") for each in parse_page(
        client.get("/jobs/2", headers={**headers, "X-Grafana-User": "bob"})).iter("a")]  # fmt: skip


def test_page_of_a_job_whose_allocation_is_not_known(page, services):
    unknown = dict.fromkeys(("allocated_cpus", "allocated_memory_bytes", "allocated_nodes"))
    with services.writer.begin() as db:
        resized = sa.update(schema.job).where(schema.job.c.jobid == "2")
        db.execute(resized.values(**unknown, resized_cpu_seconds=0.0))
    shown = element_text(page("root", "/jobs/2").find(".//main"))
    assert "no limits" not in shown
    assert "not all changes were read" in shown


def test_compare_page(page):
    document = page("root", "/compare", job=["2", "c1:5", "nono", "c1:1775292800:1:1"])
    assert [element_text(each) for each in document.findall(".//thead//a")] == ["2", "4_7", "1"]
    assert "Job nono does not exist, or is not yours to see." in element_text(
        document.find(".//main")
    )


def test_compare_page_says_of_a_resized_job_that_it_held_other_cpus_before(page, services):
    with services.writer.begin() as db:
        resized = sa.update(schema.job).where(schema.job.c.jobid == "2")
        db.execute(resized.values(resized_cpu_seconds=7200.0, resized_memory_byte_seconds=0.0))
    rows = page("root", "/compare", job=["2", "c1:5"]).findall(".//tbody/tr")
    cells = {element_text(row[0]): [element_text(each) for each in row[1:]] for row in rows}
    assert [cell.endswith("at last") for cell in cells["CPUs"]] == [True, False]
    assert not any("at last" in cell for cell in cells["Memory"])


def test_compare_page_says_of_energy_by_accounting_that_it_is_that_of_whole_nodes(page, services):
    job, usage = schema.job, schema.job_usage
    accounted = sa.select(job.c.id).where(job.c.jobid == "2").scalar_subquery()
    with services.writer.begin() as db:
        db.execute(sa.delete(usage).where(usage.c.job_id == accounted))
        db.execute(sa.update(job).where(job.c.jobid == "2").values(energy_joules=7.2e6))
    rows = page("root", "/compare", job=["2", "1"]).findall(".//tbody/tr")
    cells = {element_text(row[0]): [element_text(each) for each in row[1:]] for row in rows}
    assert [cell.endswith("of its nodes") for cell in cells["Energy"]] == [True, False]


def test_compare_page_of_many_jobs_has_a_way_to_the_others(page):
    words = ["1", "c1:5", "2", "c1:7", *(f"no{number}" for number in range(MAX_JOBS))]
    document = page("root", "/compare", job=words)
    (note,) = [each for each in document.iter("p") if element_text(each).startswith("You chose")]
    assert element_text(note) == (
        f"You chose {MAX_JOBS + 4} jobs. These are the first {MAX_JOBS}; "
        "more cannot be compared at once. Compare the other 4"
    )
    (others,) = [each.get("href") for each in note.iter("a")]
    assert parse_qs(urlsplit(others).query)["job"] == words[MAX_JOBS:]


def test_underused_node_is_marked(example_page):
    document = parse_page(example_page("/jobs/40133?cluster=alpha"))
    nodes = table_rows(document, "Nodes")
    assert [row[4].endswith("(low)") for row in nodes] == [False, True]
    assert "unbalanced-nodes" in element_text(document.find(".//main"))
    policy = example_page("/jobs/40133?cluster=alpha").headers["content-security-policy"]
    assert "style-src 'self'; style-src-attr 'unsafe-inline';" in policy
    assert "script-src 'self';" in policy


def test_every_page_of_the_example_is_valid(example_page):
    for path in (
        "/", "/mine", "/jobs", "/usage", "/usage?show=emissions&by=account", "/clusters/alpha",
        "/clusters/alpha/nodes/a010", "/search?q=39000", "/jobs/40120?cluster=alpha",
        "/jobs/40107?cluster=alpha", "/compare?job=alpha:40120&job=alpha:40133", "/jobs/40012",
    ):  # fmt: skip
        document = parse_page(example_page(path))
        assert not [each for each in document.iter() if each.tag == "img"]
        assert example_site.HOSTILE_NAME not in example_page(path).text
