"""Links from a job to the lines of its nodes in a log database."""

import json
from urllib.parse import parse_qs, unquote, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchjob_stats_server.report import forms
from batchjob_stats_server.report.build import build_report
from batchjob_stats_server.report.log_links import log_links, parse_log_address
from tests.batchjob_stats_server.report.test_report import RULES, T, material

# As in docs/logs.md: Grafana's Explore, whose query is JSON, and VictoriaLogs' own page.
EXPLORE = (
    "https://grafana.example.org/explore?schemaVersion=1&panes=%7B%22a%22:%7B%22datasource%22:"
    "%22batchjob-logs%22,%22queries%22:%5B%7B%22refId%22:%22A%22,%22expr%22:%22%7Bcluster%3D%5C%22"
    "{cluster}%5C%22,host%3D~%5C%22{node}%5C%22%7D%22%7D%5D,%22range%22:%7B%22from%22:%22{start_ms}"
    "%22,%22to%22:%22{end_ms}%22%7D%7D%7D"
)
VICTORIALOGS = (
    "http://logs:9428/select/vmui/?#/?query=%7Bcluster%3D%22{cluster}%22%2Chost%3D~%22{node}%22%7D"
    "%20_time%3A%5B{start}%2C%20{end}%5D"
)


def links(address, nodes=("n1",), **changed):
    inputs = material(**changed)._replace(shares=[{"node": node} for node in nodes])
    return list(log_links(parse_log_address(address), inputs))


def test_link_to_explore_has_cluster_nodes_and_time():
    (link,) = links(EXPLORE, ("n1", "n2"))
    (panes,) = parse_qs(urlsplit(link.url).query)["panes"]
    (query,) = json.loads(panes)["a"]["queries"]
    assert query["expr"] == '{cluster="c1",host=~"n1|n2"}'
    begin, end = str((T - 60) * 1000), str((T + 7260) * 1000)
    assert json.loads(panes)["a"]["range"] == {"from": begin, "to": end}
    assert link.nodes == "n1 … n2"


def test_link_to_victorialogs_has_cluster_node_and_time():
    (link,) = links(VICTORIALOGS)
    query = unquote(urlsplit(link.url).fragment.partition("query=")[2])
    assert query == ('{cluster="c1",host=~"n1"} _time:[2026-04-04T10:52:20Z, 2026-04-04T12:54:20Z]')


def test_running_job_is_linked_until_now_and_waiting_job_not():
    (link,) = links("http://logs/{end_ms}", state="RUNNING", end_time=None)
    assert link.url == f"http://logs/{(T + 8060) * 1000}"
    assert links("http://logs/{node}", state="PENDING", start_time=None, end_time=None) == []
    assert links("http://logs/{node}", nodes=()) == []


def test_values_are_percent_encoded():
    (link,) = links("http://logs/{job}?u={user}", jobid="12[3].srv", username="a+b@site")
    assert link.url == "http://logs/12%5B3%5D.srv?u=a%2Bb%40site"


@pytest.mark.parametrize("name", ['x"} or {user="bob', "a\\b", "a b", "", "a\nb", "{node}"])
def test_job_with_a_value_that_could_change_the_query_has_no_link(name):
    assert links("http://logs/{user}", username=name) == []
    assert len(links("http://logs/{job}", username=name)) == 1


def test_large_job_has_a_link_for_each_fifty_nodes():
    found = links("http://logs/{node}", [f"n{number:04}" for number in range(2000)])
    assert [each.nodes for each in found[:2]] == ["n0000 … n0049", "n0050 … n0099"]
    assert len(found) == 20
    assert max(len(each.url) for each in found) < 1000


@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("http://logs/", "with {node}"),
        ("logs/{node}", "with {node}"),
        ("javascript:alert({node})", "with {node}"),
        ("http:///{node}", "with {node}"),
        ("http://[/{node}", "with {node}"),
        ("http://logs/{node} {job}", "with {node}"),
        ("http://logs/{nodes}", "{nodes}: expected one of {cluster}, {node}"),
        (7, "with {node}"),
    ],
)
def test_invalid_address_is_refused(address, says):
    with pytest.raises(ValueError, match="expected") as raised:
        parse_log_address(address)
    assert says in str(raised.value)


@given(st.text(), st.text(), st.text())
def test_no_value_leaves_its_place_in_the_address(user, jobid, node):
    for link in links("http://logs/a?u={user}&j={job}&n={node}#x", [node], username=user,
                      jobid=jobid):  # fmt: skip
        parts = urlsplit(link.url)
        assert parse_qs(parts.query) == {"u": [user], "j": [jobid], "n": [node]}
        assert (parts.netloc, parts.path, parts.fragment) == ("logs", "/a", "x")


def test_every_form_of_a_report_has_the_link():
    inputs = material()._replace(shares=[{"node": "n1"}])
    report = build_report(inputs, RULES, None, "http://logs.example.org/?n={node}")
    (link,) = json.loads(forms.as_json(report))["logs"]
    assert link == {"nodes": "n1", "url": "http://logs.example.org/?n=n1"}
    for write in (forms.as_text, forms.as_html):
        assert link["url"] in write(report)
    assert "Log of n1" in forms.as_markdown(report)
