"""Pages of a cluster, its nodes and accounts, and the admin page."""

from urllib.parse import parse_qs, urlsplit

import pytest
from fastapi.testclient import TestClient

from batchjob.schedulers.records import QuarantinedRow
from batchjob_stats_db.database.upsert import store_quarantined
from batchjob_stats_server import app
from tests.batchjob_stats_server.conftest import PROXY, SECRET
from tests.batchjob_stats_server.pages.conftest import HTML, element_text, open_as, parse_page
from tests.batchjob_stats_server.pages.test_pages import table_rows

FEW = "\u2013fewer than ten jobs started in the last 30 days"


def main_text(document):
    return element_text(document.find(".//main"))


def test_partitions_are_visible_to_all_without_jobs_of_other_users(page):
    document = page("bob", "/clusters/c1")
    assert table_rows(document, "Partitions") == [["cpu", "1", "1", "4", "0", "1", "0", "0", FEW]]
    assert "carol" not in main_text(document)
    assert "alice" not in main_text(document)
    assert "at least ten jobs started" in main_text(document)


def test_cluster_totals_can_be_restricted_to_viewers(services):
    auth = services.settings.auth.__class__(
        **{**vars(services.settings.auth), "cluster_totals": "viewers"}
    )
    closed = services._replace(settings=services.settings._replace(auth=auth))
    shown = {}
    with TestClient(app.make(closed), client=(PROXY, 50000)) as client:
        for who in ("bob", "vera"):
            headers = {"X-Grafana-User": who, "X-Batchjob-Secret": SECRET, **HTML}
            shown[who] = parse_page(client.get("/clusters/c1", headers=headers))
    assert table_rows(shown["bob"], "Partitions") is None
    assert table_rows(shown["bob"], "Waits in") is None
    assert table_rows(shown["vera"], "Partitions")


def test_node_states_and_totals(example_page):
    text = main_text(parse_page(example_page("/clusters/beta-gpu")))
    assert "Nodes in use25 of 40, 2 take no jobs" in text
    assert "GPUs free" in text
    assert "of 320" in text
    assert "1 down" in text
    assert "drain: bad DIMM" in example_page("/clusters/beta-gpu").text


def test_user_without_waiting_jobs_is_not_told_that_nobody_waits(page):
    """alice has one that waits."""
    document = page("bob", "/clusters/c1")
    assert "counts include only jobs that you may see" in main_text(document)
    assert "No job that you may see is ready to start" in main_text(document)


def test_partition_waits_by_day(example_page):
    document = parse_page(example_page("/clusters/alpha?partition=long"))
    assert "Waits in long" in main_text(document)
    assert len(table_rows(document, "Waits in long")) == 30


def test_node_page_shows_state_gpus_and_time_series(example_page):
    text = example_page("/clusters/beta-gpu/nodes/b010").text
    document = parse_page(example_page("/clusters/beta-gpu/nodes/b010"))
    assert "Stateallocated" in main_text(document)
    assert "Exporteranswers" in main_text(document)
    assert len(document.findall(".//ul[@class='gpus']/li")) == 8
    assert 'data-curves="gpu_utilization"' in text
    assert "no job" in main_text(document)
    rows = example_page(
        "/api/v1/clusters/beta-gpu/nodes/b010/metrics?metric=memory&metric=gpu_power&points=5"
    ).json()
    assert {(row["metric"], row["line"]) for row in rows} == {
        ("memory", ""), *(("gpu_power", f"GPU {number}") for number in range(8)),
    }  # fmt: skip
    assert 100 < rows[0]["mean"] / 2**30 < 256


@pytest.mark.parametrize(
    "path",
    ["/jobs/40120?cluster=alpha", "/embed/jobs/40120?cluster=alpha", "/clusters/alpha",
     "/clusters/alpha/nodes/a010", "/compare?job=alpha:40120", "/admin"],
)  # fmt: skip
def test_page_without_a_time_series_database_says_so(example_services, path):
    services, root_token = example_services
    with open_as(root_token, services) as get:
        assert "no time series database is configured" in get(path).text


def test_node_page_without_exporter_says_so(example_page):
    text = main_text(parse_page(example_page("/clusters/alpha/nodes/a009")))
    assert "Exporterdoes not answer" in text
    assert "no exporter of this node is answering" in text


def test_jobs_of_other_users_on_a_node_are_anonymous(page):
    document = page("dave", "/clusters/c1/nodes/n001", since=1775290000, until=1775300000)
    titles = [each.text for each in document.iter("{http://www.w3.org/2000/svg}title")]
    assert titles.count("A job of another user") == 1
    assert "bob" not in main_text(document)


def test_account_page_shows_members_fair_share_and_limits(example_page):
    text = main_text(parse_page(example_page("/clusters/alpha/accounts/physics")))
    assert "Fair share (above 1: less used than granted)1.8 has used less than its share" in text
    assert "GrpTREScpu=512,gres/gpu=8" in text
    found = table_rows(parse_page(example_page("/clusters/alpha/accounts/physics")), "Members")
    assert {row[0] for row in found} == {"alice", "carol"}


def test_account_member_sees_only_own_usage(page):
    found = table_rows(page("alice", "/clusters/c1/accounts/physics"), "You")
    assert [row[:2] for row in found] == [["alice", "member"]]
    page("alice", "/clusters/c1/accounts/chem", 404)


def test_admin_page_lists_missing_data_and_links_emails(example_page):
    document = parse_page(example_page("/admin"))
    assert "Nodes that never report1 of 40" in main_text(document)
    headings = [element_text(each) for each in document.iter("h3")]
    assert len(headings) == len(set(headings))  # they distinguish the sections
    failures = document.find(".//section[@aria-labelledby='h-failures-1']")
    assert element_text(failures.find(".//tbody/tr/th")) == "failed"
    bad = document.find(".//section[@aria-labelledby='h-bad-1']")
    found = {row[0]: row[2] for row in ([*map(element_text, each)] for each in bad.iter("tr"))}
    assert found["a005"] == "only 60 % of the time measured"
    assert "sends no measurements" in found["a009"]
    coverage = document.find(".//section[@aria-labelledby='h-coverage-1']")
    assert len(coverage.findall(".//tbody/tr/th")) == 40
    links = [each.get("href") for each in document.iter("a") if "Write" in element_text(each)]
    parts = urlsplit(links[0])
    assert parts.scheme == "mailto"
    assert parts.path.endswith("@example.org")
    assert "/jobs?user=" in parse_qs(parts.query)["body"][0]


def test_admin_page_lists_what_was_refused_by_source_and_rule(services, proxy_client):
    bad = [QuarantinedRow("sacct", "energy_joules is 1e300", f"job {n}", "range") for n in (1, 2)]
    with services.writer.begin() as db:
        store_quarantined(db, "c1", bad, 1)
    document = parse_page(proxy_client("root").get("/admin", headers=HTML))
    (table,) = [each for each in document.iter("table") if "Refused" in element_text(each)]
    words = element_text(table)
    assert "sacct2" in words.replace(" ", "")
    assert "within the limits of its quantity" in words


def test_advice_links_to_help_of_the_site(example_page):
    text = example_page("/jobs/40133?cluster=alpha").text
    assert 'href="https://hpc.example.org/advice#unbalanced-nodes"' in text
