"""How full a cluster is, for everybody, and what its nodes, accounts and operators have."""

from urllib.parse import parse_qs, urlsplit

import pytest
from fastapi.testclient import TestClient

from batchjob.runtime.settings import SettingsError
from batchjob_stats_server import app
from batchjob_stats_server.mail_template import load_mail_template
from batchjob_stats_server.options import ReportOptions
from tests.batchjob_stats_server.conftest import PROXY, SECRET
from tests.batchjob_stats_server.pages.conftest import HTML, parsed, words
from tests.batchjob_stats_server.pages.test_pages import table

FEW = "\u2013fewer than ten jobs started in the last 30 days"


def main(document):
    return words(document.find(".//main"))


def test_everybody_sees_the_queues_and_nobody_elses_jobs(page):
    document = page("bob", "/clusters/c1")
    assert table(document, "Partitions") == [["cpu", "1", "1", "4", "0", "1", "0", "0", FEW]]
    assert "carol" not in main(document)
    assert "alice" not in main(document)
    assert "at least ten jobs started" in main(document)


def test_totals_may_be_kept_for_viewers(services):
    auth = services.settings.auth.__class__(
        **{**vars(services.settings.auth), "cluster_totals": "viewers"}
    )
    closed = services._replace(settings=services.settings._replace(auth=auth))
    shown = {}
    with TestClient(app.make(closed), client=(PROXY, 50000)) as client:
        for who in ("bob", "vera"):
            headers = {"X-Grafana-User": who, "X-Batchjob-Secret": SECRET, **HTML}
            shown[who] = parsed(client.get("/clusters/c1", headers=headers))
    assert table(shown["bob"], "Partitions") is None
    assert table(shown["bob"], "Waits in") is None
    assert table(shown["vera"], "Partitions")


def test_nodes_by_state_and_totals(example):
    text = main(parsed(example("/clusters/beta-gpu")))
    assert "Nodes in use25 of 40, 2 take no jobs" in text
    assert "GPUs allocated" in text
    assert "of 320" in text
    assert "1 down" in text
    assert "drain: bad DIMM" in example("/clusters/beta-gpu").text


def test_waits_of_a_partition_by_day(example):
    document = parsed(example("/clusters/alpha?partition=long"))
    assert "Waits in long" in main(document)
    assert len(table(document, "Waits in long")) == 30


def test_a_node_has_its_state_gpus_and_curves(example):
    text = example("/clusters/beta-gpu/nodes/b010").text
    document = parsed(example("/clusters/beta-gpu/nodes/b010"))
    assert "Stateallocated" in main(document)
    assert "Exporteranswers" in main(document)
    assert len(document.findall(".//ul[@class='gpus']/li")) == 8
    assert 'data-curves="gpu_utilization"' in text
    assert "no job" in main(document)
    rows = example(
        "/api/v1/clusters/beta-gpu/nodes/b010/metrics?metric=memory&metric=gpu_power&points=5"
    ).json()
    assert {(row["metric"], row["line"]) for row in rows} == {
        ("memory", ""), *(("gpu_power", f"GPU {number}") for number in range(8)),
    }  # fmt: skip
    assert 100 < rows[0]["mean"] / 2**30 < 256


def test_a_node_that_does_not_report_says_so(example):
    text = main(parsed(example("/clusters/alpha/nodes/a009")))
    assert "Exporterdoes not answer" in text
    assert "no exporter of this node is answering" in text


def test_others_on_a_node_are_bars_without_a_name(page):
    document = page("dave", "/clusters/c1/nodes/n001", since=1775290000, until=1775300000)
    titles = [each.text for each in document.iter("{http://www.w3.org/2000/svg}title")]
    assert titles.count("A job of another user") == 1
    assert "bob" not in main(document)


def test_an_account_has_members_fair_share_and_limits(example):
    text = main(parsed(example("/clusters/alpha/accounts/physics")))
    assert "Fair share: shares divided by use1.8 has used less than its share" in text
    assert "GrpTREScpu=512,gres/gpu=8" in text
    found = table(parsed(example("/clusters/alpha/accounts/physics")), "Members")
    assert {row[0] for row in found} == {"alice", "carol"}


def test_a_member_sees_own_use_of_an_account_alone(page):
    found = table(page("alice", "/clusters/c1/accounts/physics"), "You")
    assert [row[:2] for row in found] == [["alice", "member"]]
    page("alice", "/clusters/c1/accounts/chem", 404)


def test_the_admin_page_shows_what_is_missing_and_prepares_e_mails(example):
    document = parsed(example("/admin"))
    assert "Nodes that never report1 of 40" in main(document)
    headings = [words(each) for each in document.iter("h3")]
    assert len(headings) == len(set(headings))  # sections are told apart by them
    silent = document.find(".//section[@aria-labelledby='h-silent-1']")
    assert words(silent.find(".//tbody/tr/th")) == "a009"
    coverage = document.find(".//section[@aria-labelledby='h-coverage-1']")
    assert words(coverage.findall(".//tbody/tr/th")[1]) == "a005"
    links = [each.get("href") for each in document.iter("a") if "Write" in words(each)]
    parts = urlsplit(links[0])
    assert parts.scheme == "mailto"
    assert parts.path.endswith("@example.org")
    assert "hours of allocated CPU time" in parse_qs(parts.query)["body"][0]


def test_advice_leads_to_the_sites_own_help(example):
    text = example("/jobs/40133?cluster=alpha").text
    assert 'href="https://hpc.example.org/advice#unbalanced-nodes"' in text


def test_mail_templates_name_what_is_wrong_with_their_template(tmp_path):
    with pytest.raises(SettingsError, match=r"mail-address: expected .user."):
        load_mail_template(ReportOptions(mail_address="help@example.org"))
    (tmp_path / "template").write_text("Your jobs\n{name}, please look\n")
    options = ReportOptions(mail_address="{user}@x", mail_file=str(tmp_path / "template"))
    with pytest.raises(
        SettingsError, match=r"mail-file: unknown field .name.; expected one of user, cluster"
    ):
        load_mail_template(options)
