"""Jobs as scripts and Grafana ask for them."""

import csv
import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from batchjob_stats_server.api.jobs import JobRow
from batchjob_stats_server.api.params import parse_time

JOBS = "/api/v1/jobs"


@pytest.fixture
def ask(proxied):
    vera = proxied("vera")
    return lambda path="", **params: vera.get(JOBS + path, params=params)


def ids(answer):
    assert answer.status_code == 200, answer.text
    return [row["jobid"] for row in answer.json()]


def test_rows_are_flat_and_have_every_key(ask, now):
    row = ask(user="bob").json()[0]
    assert set(row) == set(JobRow.model_fields)
    assert JobRow.model_validate(row)
    assert row["start_time"] == (now - 6000) * 1000
    assert row["start_time_rfc3339"] == "2026-04-04T09:13:20Z"
    assert row["usage_energy_host_active_joules"] is None  # not measured is not zero


def test_the_window_of_a_job_is_ready_for_a_dashboard_s_address(ask, now):
    (ended,), (running,) = ask(user="bob").json(), ask(state="RUNNING").json()
    assert ended["window_from"] == str((now - 6060) * 1000)
    assert ended["window_to"] == str((now - 3340) * 1000)
    assert (running["window_from"], running["window_to"]) == (str((now - 5060) * 1000), "now")
    waiting = ask(started=False, state="PENDING").json()[0]
    assert (waiting["window_from"], waiting["window_to"]) == ("now-1h", "now")


@pytest.mark.parametrize("query", ["user=alice&user=bob", "limit=1&limit=2", "sort=name&sort=name"])
def test_a_parameter_that_is_no_list_must_not_be_repeated(proxied, query):
    answer = proxied("vera").get(f"{JOBS}?{query}")
    assert answer.status_code == 422
    assert answer.json()["detail"] == f"{query.split('=')[0]}: must not be repeated"


def test_a_parameter_with_several_values_is_given_as_often(proxied):
    assert proxied("vera").get(f"{JOBS}?state=RUNNING&state=FAILED").status_code == 200


def test_nothing_found_is_an_empty_list(ask):
    assert ask(user="nobody").json() == []
    assert ask("/4711").json() == []


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({"account": "chem"}, ["2"]),
        ({"cluster": "c2"}, ["1"]),
        ({"node": "n002"}, ["3"]),
        ({"state": ["RUNNING", "FAILED"]}, ["1", "3"]),
        ({"state": "RUNNING,FAILED", "user": "", "cluster": ".*"}, ["1", "3"]),
        ({"state": ".*", "name": "=cmd()", "limit": ""}, ["2"]),
        ({"name": "=cmd()"}, ["2"]),
        ({"array_jobid": "4"}, ["5"]),
        ({"elapsed_at_most": 60}, ["0f3a2b1c-aaaa-4bbb-8ccc-123456789abc", "9"]),
        ({"started_from": "2026-04-04T12:51:00+02:00"}, ["1"]),
        ({"started": False}, ["9", "8"]),
        ({"started": False, "state": "PENDING"}, ["8"]),
        ({"state": "PENDING"}, ["8"]),
        ({"sort": "start_time", "limit": 2}, ["8", "1"]),
        ({"sort": "start_time", "limit": 2, "started": True}, ["1", "2"]),
    ],
)
def test_filters(ask, params, expected):
    assert ids(ask(**params)) == expected


@pytest.mark.parametrize(
    "params", [{}, {"sort": "start_time"}, {"started": False}, {"node": "n001"}], ids=str
)
def test_pages_follow_each_other(proxied, params):
    vera = proxied("vera")
    whole = [row["id"] for row in vera.get(JOBS, params=params).json()]
    found, answer = [], vera.get(JOBS, params={**params, "limit": 1})
    found += [row["id"] for row in answer.json()]
    while "next" in answer.links:
        answer = vera.get(answer.links["next"]["url"])
        found += [row["id"] for row in answer.json()]
    assert found == whole


def test_fields_and_formats(ask):
    assert ask(user="bob", fields="jobid,name").json() == [{"jobid": "2", "name": "=cmd()"}]
    lines = ask(fields="jobid", format="ndjson", limit=2, started=True).text.splitlines()
    assert [json.loads(line) for line in lines] == [{"jobid": "1"}, {"jobid": "1"}]
    table = ask(user="bob", fields="jobid,name,qos", format="csv")
    assert table.headers["content-type"].startswith("text/csv")
    # A name is no formula in a spreadsheet.
    assert list(csv.DictReader(table.text.splitlines())) == [
        {"jobid": "2", "name": "'=cmd()", "qos": ""}
    ]


@pytest.mark.parametrize(
    ("jobid", "found"),
    [
        ("1", 3),  # two runs here, one on the other cluster
        ("4_7", 1),
        ("6+1", 1),
        ("6%2B1", 1),
        ("0f3a2b1c", 1),
        ("0f3a2b1c-aaaa-4bbb-8ccc-123456789abc", 1),
        ("4_8", 0),
        ("0f3", 0),
        ("1%00", 422),
        ("..%2F..%2Fetc%2Fpasswd", 404),
    ],
)
def test_ids_as_the_scheduler_writes_them(ask, jobid, found):
    answer = ask(f"/{jobid}")
    if found > 100:
        assert answer.status_code == found
    else:
        assert len(ids(answer)) == found


def test_the_latest_run_comes_first(ask):
    times = [row["submit_time"] for row in ask("/1", cluster="c1").json()]
    assert times == sorted(times, reverse=True)
    assert len(times) == 2


def test_parts(ask):
    (node,) = ask("/2/nodes").json()
    assert (node["node"], node["cpus"]) == ("n001", 4)
    assert ask("/2/steps").json() == []
    assert ask("/2/secrets").status_code == 422


def test_parts_are_those_of_one_run(ask):
    latest, first = (row["id"] for row in ask("/1", cluster="c1").json())
    (node,) = ask("/1/nodes", cluster="c1").json()
    assert node["job_id"] == latest
    (node,) = ask("/1/nodes", cluster="c1", run=first).json()
    assert node["job_id"] == first
    assert ask("/1/nodes", cluster="c1", run=10**6).json() == []


@pytest.mark.parametrize(
    ("params", "names"),
    [
        ({"usr": "alice"}, "usr"),
        ({"fields": "jobid,digest"}, "digest"),
        ({"sort": "digest"}, "sort"),
        ({"sort": "--name"}, "sort"),
        ({"limit": "0"}, "limit"),
        ({"limit": "1001"}, "limit"),
        ({"state": "DONE"}, "state"),
        ({"started_from": "yesterday"}, "started_from"),
        ({"started_from": "9" * 40}, "started_from"),
        ({"elapsed_at_most": "1" * 30}, "elapsed_at_most"),
        ({"format": "xml"}, "format"),
        ({"name": "x" * 300}, "name"),
        ({"name": "\x00"}, "name"),
        ({"cursor": "x"}, "cursor"),
        ({"cursor": "e30="}, "cursor"),
        ({"cursor": "WzEsMiwzXQ=="}, "cursor"),
    ],
    ids=str,
)
def test_bad_input_names_the_parameter(ask, params, names):
    answer = ask(**params)
    assert answer.status_code == 422
    assert answer.headers["content-type"] == "application/problem+json"
    assert names in answer.json()["detail"]


def test_a_cursor_of_another_question_is_refused(proxied):
    vera = proxied("vera")
    link = vera.get(JOBS, params={"limit": 1}).links["next"]["url"]
    assert "another query" in vera.get(f"{link}&user=bob").json()["detail"]


def test_who_saw_whose_job_is_noted(ask, proxied, caplog):
    caplog.set_level("INFO", "batchjob.audit")
    proxied("alice").get(f"{JOBS}/1")
    assert not caplog.messages
    ask("/2")
    assert caplog.messages == ["vera (viewer) saw job 2 of bob"]


def test_no_cache_keeps_an_answer(proxied):
    assert proxied("vera").get(JOBS).headers["cache-control"] == "private, no-store"


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    name=st.sampled_from(["user", "name", "fields", "cursor", "started_from", "limit", "jobid"]),
    value=st.text(st.characters(exclude_categories=["Cs"]), max_size=40),
)
def test_no_text_makes_an_error_of_ours(ask, name, value):
    """SQL, PromQL, markup, paths: whatever stands there, it is a value or it is refused."""
    assert ask(**{name: value}).status_code in (200, 422)


@pytest.mark.parametrize("text", ["1775300000", "1775300000000", "2026-04-04T10:53:20Z"])
def test_times_in_three_ways(text):
    assert parse_time(text) == 1_775_300_000
