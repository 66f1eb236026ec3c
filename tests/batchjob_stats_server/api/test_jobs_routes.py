"""The job routes, as scripts and Grafana use them."""

import csv
import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from batchjob.schedulers.accounting import Batch
from batchjob_stats_db.database.engine import parse_url, writer_engine
from batchjob_stats_db.database.store import Store, UsagePolicy
from batchjob_stats_db.queries.job_list import MAX_PAGE_ROWS
from batchjob_stats_server.api.jobs import JobRow
from batchjob_stats_server.api.params import parse_time
from tests.batchjob_stats_server.conftest import job_record

API = "/api/v1"
JOBS = f"{API}/jobs"


@pytest.fixture
def get_jobs(proxy_client):
    vera = proxy_client("vera")
    return lambda path="", **params: vera.get(JOBS + path, params=params)


def jobids(answer):
    assert answer.status_code == 200, answer.text
    return [row["jobid"] for row in answer.json()]


def test_rows_are_flat_and_have_every_key(get_jobs, now):
    row = get_jobs(user="bob").json()[0]
    assert set(row) == set(JobRow.model_fields)
    assert JobRow.model_validate(row)
    assert row["start_time"] == (now - 6000) * 1000
    assert row["start_time_rfc3339"] == "2026-04-04T09:13:20Z"
    assert row["usage_energy_host_active_joules"] is None  # not measured is not zero


def test_job_window_is_usable_as_dashboard_time_range(get_jobs, now):
    (ended,), (running,) = get_jobs(user="bob").json(), get_jobs(state="RUNNING").json()
    assert ended["window_from"] == str((now - 6060) * 1000)
    assert ended["window_to"] == str((now - 3340) * 1000)
    assert (running["window_from"], running["window_to"]) == (str((now - 5060) * 1000), "now")
    waiting = get_jobs(started=False, state="PENDING").json()[0]
    assert (waiting["window_from"], waiting["window_to"]) == ("now-1h", "now")


@pytest.mark.parametrize("query", ["user=alice&user=bob", "limit=1&limit=2", "sort=name&sort=name"])
def test_repeated_scalar_parameter_is_rejected(proxy_client, query):
    answer = proxy_client("vera").get(f"{JOBS}?{query}")
    assert answer.status_code == 422
    assert answer.json()["detail"] == f"{query.split('=')[0]}: must not be repeated"


def test_list_parameter_may_be_repeated(proxy_client):
    assert proxy_client("vera").get(f"{JOBS}?state=RUNNING&state=FAILED").status_code == 200


def test_no_match_is_empty_list(get_jobs):
    assert get_jobs(user="nobody").json() == []
    assert get_jobs("/4711").json() == []


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
def test_filters(get_jobs, params, expected):
    assert jobids(get_jobs(**params)) == expected


@pytest.mark.parametrize(
    "params", [{}, {"sort": "start_time"}, {"started": False}, {"node": "n001"}], ids=str
)
def test_pages_together_have_all_rows_in_order(proxy_client, params):
    vera = proxy_client("vera")
    all_ids = [row["id"] for row in vera.get(JOBS, params=params).json()]
    page_ids, answer = [], vera.get(JOBS, params={**params, "limit": 1})
    page_ids += [row["id"] for row in answer.json()]
    while "next" in answer.links:
        answer = vera.get(answer.links["next"]["url"])
        page_ids += [row["id"] for row in answer.json()]
    assert page_ids == all_ids


def test_fields_and_formats(get_jobs):
    assert get_jobs(user="bob", fields="jobid,name").json() == [{"jobid": "2", "name": "=cmd()"}]
    lines = get_jobs(fields="jobid", format="ndjson", limit=2, started=True).text.splitlines()
    assert [json.loads(line) for line in lines] == [{"jobid": "1"}, {"jobid": "1"}]
    csv_answer = get_jobs(user="bob", fields="jobid,name,qos", format="csv")
    assert csv_answer.headers["content-type"].startswith("text/csv")
    # A name is no formula in a spreadsheet.
    assert list(csv.DictReader(csv_answer.text.splitlines())) == [
        {"jobid": "2", "name": "'=cmd()", "qos": ""}
    ]


@pytest.mark.parametrize(
    ("jobid", "expected"),
    [
        ("1", 3),  # two runs on c1, one on c2
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
def test_job_is_found_by_id_in_scheduler_notation(get_jobs, jobid, expected):
    answer = get_jobs(f"/{jobid}")
    if expected > 100:
        assert answer.status_code == expected
    else:
        assert len(jobids(answer)) == expected


def test_latest_run_comes_first(get_jobs):
    times = [row["submit_time"] for row in get_jobs("/1", cluster="c1").json()]
    assert times == sorted(times, reverse=True)
    assert len(times) == 2


def test_nodes_and_steps_of_job(get_jobs):
    (node,) = get_jobs("/2/nodes").json()
    assert (node["node"], node["cpus"]) == ("n001", 4)
    assert get_jobs("/2/steps").json() == []
    assert get_jobs("/2/secrets").status_code == 422


def test_nodes_are_those_of_latest_or_chosen_run(get_jobs):
    latest, first = (row["id"] for row in get_jobs("/1", cluster="c1").json())
    (node,) = get_jobs("/1/nodes", cluster="c1").json()
    assert node["job_id"] == latest
    (node,) = get_jobs("/1/nodes", cluster="c1", run=first).json()
    assert node["job_id"] == first
    assert get_jobs("/1/nodes", cluster="c1", run=10**6).json() == []


@pytest.mark.parametrize(
    ("params", "parameter"),
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
def test_invalid_parameter_is_named_in_error(get_jobs, params, parameter):
    answer = get_jobs(**params)
    assert answer.status_code == 422
    assert answer.headers["content-type"] == "application/problem+json"
    assert parameter in answer.json()["detail"]


def test_cursor_of_another_query_is_rejected(proxy_client):
    vera = proxy_client("vera")
    link = vera.get(JOBS, params={"limit": 1}).links["next"]["url"]
    assert "another query" in vera.get(f"{link}&user=bob").json()["detail"]


def test_view_of_another_users_job_is_audited(get_jobs, proxy_client, caplog):
    caplog.set_level("INFO", "batchjob.audit")
    proxy_client("alice").get(f"{JOBS}/1")
    assert not caplog.messages
    get_jobs("/2")
    assert caplog.messages == [
        "vera (viewer) asked for '/api/v1/jobs/2'",
        "vera (viewer) saw job 2 of bob",
    ]


def test_answers_are_not_cached(proxy_client):
    assert proxy_client("vera").get(JOBS).headers["cache-control"] == "private, no-store"


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    name=st.sampled_from(["user", "name", "fields", "cursor", "started_from", "limit", "jobid"]),
    value=st.text(st.characters(exclude_categories=["Cs"]), max_size=40),
)
def test_arbitrary_text_never_causes_server_error(get_jobs, name, value):
    """SQL, PromQL, markup, paths: any text is taken as a value or rejected."""
    assert get_jobs(**{name: value}).status_code in (200, 422)


@pytest.mark.parametrize("text", ["1775300000", "1775300000000", "2026-04-04T10:53:20Z"])
def test_time_formats(text):
    assert parse_time(text) == 1_775_300_000


@pytest.mark.parametrize("query", ["", "jobid=", "jobid=.*", "jobid=999", "jobid=2&cluster=c2"])
def test_job_by_parameter_that_is_not_there_has_no_rows(proxy_client, query):
    """A dashboard that is opened from Grafana's list has no id of a job yet."""
    parts = ("", "/nodes", "/steps", "/gpus", "/emissions")
    lists = ("efficiency", "advice", "comparisons", "silent")
    for path in (*parts, *(f"/report/{name}" for name in lists)):
        answer = proxy_client("vera").get(f"{API}/job{path}?{query}")
        assert (answer.status_code, answer.json()) == (200, []), path


def test_job_by_parameter_is_that_of_the_path(proxy_client):
    client = proxy_client("vera")
    for part in ("", "/nodes", "/steps", "/gpus"):
        by_path = client.get(f"{API}/jobs/2{part}").json()
        assert client.get(f"{API}/job{part}?jobid=2").json() == by_path
    report = client.get(f"{API}/jobs/2/report?format=json").json()
    for part in ("efficiency", "advice", "silent"):
        assert client.get(f"{API}/job/report/{part}?jobid=2").json() == report[part]
    comparisons = client.get(f"{API}/job/report/comparisons?jobid=2").json()
    assert comparisons == report["similar"]["comparisons"]


def test_csv_of_all_jobs_has_more_than_a_page(get_jobs, database_url, now):
    """The web page links it: 33,000 jobs were once 1000 rows, without a word."""
    many = [
        job_record(f"90{number}", start_time=now - 90_000 - number)
        for number in range(2 * MAX_PAGE_ROWS)
    ]
    store = Store(writer_engine(parse_url(database_url)), "c1", UsagePolicy(), clock=lambda: now)
    store.write(Batch(many, (), "", 0), "s")
    answer = get_jobs(all=True, format="csv", fields="jobid,start_time", started=True)
    assert answer.headers["content-type"].startswith("text/csv")
    rows = list(csv.DictReader(answer.text.splitlines()))
    assert {each.jobid for each in many} <= {row["jobid"] for row in rows}
    starts = [int(row["start_time"]) for row in rows]
    assert starts == sorted(starts, reverse=True)
    lines = get_jobs(all=True, format="ndjson", fields="jobid", started=True).text.splitlines()
    assert [json.loads(line)["jobid"] for line in lines] == [row["jobid"] for row in rows]


def test_all_jobs_are_a_stream_of_lines(get_jobs):
    answer = get_jobs(all=True)
    assert answer.status_code == 422
    assert answer.json()["detail"] == "all: expected format=csv or format=ndjson with it"
