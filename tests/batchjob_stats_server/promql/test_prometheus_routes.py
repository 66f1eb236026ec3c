"""PromQL gate: which queries are forwarded to the time series database, and how."""

import json

import pytest

from batchjob_stats_db.database.tokens import TokenRole
from tests.batchjob_stats_server.promql.conftest import GATE

ALICE_MATCHERS = 'cluster=~"c1|c2",user="alice"'


def test_query_is_rewritten_and_forwarded(query_gate, database, now):
    answer = query_gate("query", ("query", 'up{user="bob"}'))
    assert answer.status_code == 200
    info = "only series of user alice on c1, user alice on c2 were queried"
    assert answer.json() == {"infos": [info], **json.loads(database.answer[1])}
    assert answer.headers["content-type"] == "application/json"
    received = database.requests[0]
    assert (received.method, received.path) == ("GET", "/api/v1/query")
    assert received.form == {
        "query": [f'{{__name__="up",user="bob",{ALICE_MATCHERS}}}'],
        "time": [f"{now}.000"],
        "limit": ["10000"],
        "timeout": ["30000ms"],
    }


@pytest.mark.parametrize(
    ("query", "explained", "explained_if_empty"),
    [
        ('cpus{cluster="c1",user="alice"}', False, False),
        ('cpus{cluster="c1",jobid="7"}', False, True),
        ('cpus{cluster="c1",jobid="7"} / cpus{cluster="c1",user="alice"}', False, True),
        ('cpus{cluster="c1",jobid="7"} / on () cpus{cluster="c1"}', True, True),
        ('cpus{jobid="7"}', True, True),  # on another cluster it may be somebody else's
        ('cpus{user="alice"}', True, True),  # so may this login
        ('cpus{cluster="c1",user="bob"}', True, True),
        ("1 + 1", False, False),
    ],
)
def test_users_are_told_of_others_series_only_where_some_were_left_out(
    query_gate, database, query, explained, explained_if_empty
):
    found = b'{"status":"success","data":{"resultType":"vector","result":[%s]}}'
    for series, expected in (
        (b'{"metric":{},"value":[1,"1"]}', explained),
        (b"", explained_if_empty),
    ):
        database.answer = (200, found % series)
        assert ("infos" in query_gate("query", ("query", query)).json()) == expected


def test_infos_of_the_database_are_passed_on(query_gate, database):
    body_bytes = (
        b'{"status":"success","data":{"resultType":"vector","result":[]},"infos":["no counter"]}'
    )
    database.answer = (200, body_bytes)
    assert query_gate("query", ("query", "up")).content == body_bytes


def test_range_query_with_form_parameters(proxy_client, database):
    form = {"query": "up", "start": "1700000000", "end": "2023-11-14T22:23:20Z", "step": "1m"}
    assert proxy_client("alice").post(f"{GATE}/query_range", data=form).status_code == 200
    assert database.requests[0].path == "/api/v1/query_range"
    assert database.requests[0].form == {
        "query": [f'{{__name__="up",{ALICE_MATCHERS}}}'],
        "start": ["1700000000.000"],
        "end": ["1700000600.000"],
        "step": ["60.000"],
        "limit": ["10000"],
        "timeout": ["30000ms"],
    }


def test_query_of_viewer_is_not_confined(query_gate, database):
    answer = query_gate("query", ("query", 'up{user="bob"}'), user="vera")
    assert answer.content == database.answer[1]
    assert database.requests[0].form["query"] == ['{__name__="up",user="bob"}']
    query_gate("labels", user="vera")
    assert "match[]" not in database.requests[1].form


@pytest.mark.parametrize("role", [TokenRole.VIEWER, TokenRole.ADMIN])
def test_token_of_one_cluster_is_confined_whatever_its_role(client, token_headers, database, role):
    headers = token_headers("vera", role, cluster="c2")
    for what, pairs in (
        ("query", {"query": "up"}),
        ("query_range", {"query": "up", "start": 1, "end": 2, "step": 1}),
        ("series", {"match[]": "up"}),
        ("labels", {}),
        ("label/user/values", {}),
    ):
        assert client.get(f"{GATE}/{what}", params=pairs, headers=headers).status_code == 200
    received = [(each.form.get("query") or each.form["match[]"])[0] for each in database.requests]
    assert received == ['{__name__="up",cluster="c2"}'] * 3 + ['{cluster="c2"}'] * 2


def test_every_match_selector_is_confined(query_gate, database):
    query_gate("series", ("match[]", "up"), ("match[]", '{user=~".+"}'), ("limit", "5"))
    assert database.requests[0].form["match[]"] == [
        f'{{__name__="up",{ALICE_MATCHERS}}}',
        f'{{user=~".+",{ALICE_MATCHERS}}}',
    ]
    assert database.requests[0].form["limit"] == ["5"]


@pytest.mark.parametrize("what", ["labels", "label/__name__/values", "label/user/values"])
def test_missing_match_selector_is_added(query_gate, database, what, now):
    assert query_gate(what, ("limit", "0")).status_code == 200
    received = database.requests[0]
    assert received.path == f"/api/v1/{what}"
    assert received.form == {
        "match[]": [f"{{{ALICE_MATCHERS}}}"],
        "start": [f"{now - 86400}.000"],
        "end": [f"{now}.000"],
        "limit": ["10000"],
    }


def test_client_headers_are_not_forwarded(query_gate, database):
    headers = {
        "X-Scope-OrgID": "other", "AccountID": "7", "THANOS-TENANT": "t", "Cookie": "a=b",
        "X-Prometheus-User": "bob",
    }  # fmt: skip
    assert query_gate("query", ("query", "up"), headers=headers).status_code == 200
    sent = {name.lower(): value for name, value in database.requests[0].headers.items()}
    assert sent["authorization"] == "Bearer ours"
    assert sent.keys() <= {
        "host", "user-agent", "accept", "accept-encoding", "connection", "authorization",
        "content-type", "content-length",
    }  # fmt: skip


def test_url_and_form_parameters_are_combined(proxy_client, database):
    url = f"{GATE}/query?query=up"
    assert proxy_client("alice").post(url, data={"query": "down"}).status_code == 400
    assert proxy_client("alice").post(url, data={"time": "5"}).status_code == 200
    assert database.requests[0].form["time"] == ["5.000"]


def test_buildinfo_is_answered_without_the_database(query_gate, database):
    assert query_gate("status/buildinfo").json()["data"]["version"] == "2.42.0"
    assert not database.requests


METADATA = {
    "batchjob_job_cpus": [{"type": "gauge", "help": "CPUs.", "unit": "", "x": "y"}] * 2,
    "batchjob_jobs": [{"type": "gauge", "help": "Jobs.", "unit": ""}],
    "secret_project_ratio": [{"type": "gauge", "help": "Theirs.", "unit": ""}],
}


def test_metadata_is_limited_to_batchjob_metrics_for_users(query_gate, database):
    database.answer = (200, json.dumps({"status": "success", "data": METADATA}).encode())
    (plain,) = METADATA["batchjob_jobs"]
    assert list(query_gate("metadata").json()["data"]) == ["batchjob_job_cpus", "batchjob_jobs"]
    assert list(query_gate("metadata", user="vera").json()["data"]) == sorted(METADATA)
    limited = query_gate("metadata", ("limit", "1"), ("limit_per_metric", "1")).json()["data"]
    assert limited == {"batchjob_job_cpus": [{"type": "gauge", "help": "CPUs.", "unit": ""}]}
    assert query_gate("metadata", ("metric", "batchjob_jobs")).json()["data"]["batchjob_jobs"] == [
        plain
    ]
    assert [received.method for received in database.requests] == ["GET"] * 4
    assert [received.form for received in database.requests] == [
        {},
        {},
        {},
        {"metric": ["batchjob_jobs"]},
    ]
    assert query_gate("metadata", ("match[]", "up")).status_code == 400


@pytest.mark.parametrize(
    "answer", [(404, b"404 page not found"), (200, b"junk"), (200, b'{"data":[]}'), (200, b"[]"),
               (200, b'{"data":{"batchjob_x":3}}')]
)  # fmt: skip
def test_invalid_metadata_response_gives_empty_metadata(query_gate, database, answer):
    database.answer = answer
    assert query_gate("metadata").json() == {"status": "success", "data": {}}


TIMES = {"start": "1700000000", "end": "1700003600.5"}


@pytest.mark.parametrize(
    ("method", "what", "form", "status"),
    [
        # Save and test, and the start of a dashboard.
        ("POST", "query", {"query": "1+1", "time": "1700000000.123"}, 200),
        ("GET", "status/buildinfo", {}, 200),
        ("GET", "metadata", {"limit": "40000"}, 200),
        ("GET", "rules", {}, 404),
        ("GET", "query_exemplars", {"query": "test", **TIMES}, 404),
        # Panels and annotations.
        ("POST", "query_range", {"query": "rate(up[1m0s])", "step": "15", **TIMES}, 200),
        ("POST", "query_range", {"query": "up", "step": "0.5", "start": "1", "end": "9"}, 200),
        ("GET", "query_range", {"query": "up", "step": "15", **TIMES}, 200),
        ("POST", "query", {"query": "up", "time": "1700000000", "timeout": "60s"}, 200),
        ("POST", "query_exemplars", {"query": "up", **TIMES}, 404),
        # Variables and the query builder.
        ("GET", "labels", TIMES, 200),
        ("POST", "labels", {"match[]": "up", "limit": "40000", **TIMES}, 200),
        ("GET", "label/__name__/values", {"match[]": '{jobid!=""}', "limit": "9", **TIMES}, 200),
        ("GET", "label/jobid/values", TIMES, 200),
        ("POST", "series", {"match[]": ["up", "{__name__=~\".+\"}"], **TIMES}, 200),
        ("GET", "series", {"match[]": "up", "limit": "40000", **TIMES}, 200),
    ],
)  # fmt: skip
def test_requests_of_grafana_data_source(proxy_client, method, what, form, status):
    """Its rules and exemplars stay off where these are not found."""
    parameters = {"params" if method == "GET" else "data": form}
    headers = {"X-Datasource-Uid": "x", "X-Dashboard-Uid": "y", "X-Grafana-Org-Id": "1"}
    answer = proxy_client("alice").request(method, f"{GATE}/{what}", headers=headers, **parameters)
    assert answer.status_code == status
    if status == 200:
        assert answer.json()["status"] == "success"


def test_openapi_document_has_the_parameters(client):
    paths = client.get("/api/v1/openapi.json").json()["paths"]
    query = paths[f"{GATE}/query_range"]
    named = {each["name"]: each["required"] for each in query["get"]["parameters"]}
    assert named == {
        "query": True, "start": True, "end": True, "step": True, "timeout": False, "limit": False,
    }  # fmt: skip
    form = query["post"]["requestBody"]["content"]["application/x-www-form-urlencoded"]["schema"]
    assert set(form["properties"]) == set(named)
    values = paths[f"{GATE}/label/{{name}}/values"]["get"]["parameters"]
    assert {each["name"] for each in values} == {"name", "match[]", "start", "end", "limit"}
    (match,) = (each for each in values if each["name"] == "match[]")
    assert match["schema"]["type"] == "array"


def unknown_function(name):
    return f'invalid parameter "query": 1:1: parse error: unknown function with name "{name}"'


def database_with(names):
    """Answers of a database that has only these functions for double exponential smoothing."""

    def answer(request):
        query = request.form["query"][0]
        for name in ("holt_winters", "double_exponential_smoothing"):
            if query.startswith(f"{name}(") and name not in names:
                error = {
                    "status": "error",
                    "errorType": "bad_data",
                    "error": unknown_function(name),
                }
                return 400, json.dumps(error).encode()
        return 200, b'{"status":"success","data":[]}'

    return answer


@pytest.mark.parametrize("written", ["holt_winters", "double_exponential_smoothing"])
@pytest.mark.parametrize("known", ["holt_winters", "double_exponential_smoothing"])
def test_smoothing_function_has_the_name_that_the_database_knows(
    query_gate, database, written, known
):
    database.answer = database_with({known})
    query = f'{written}(a{{x="{written}(1)"}}[5m], 0.5, 0.1)'
    for _ in range(2):
        assert query_gate("query", ("query", query)).status_code == 200
    asked = [request.form["query"][0] for request in database.requests]
    assert asked[-1].startswith(f'{known}({{__name__="a",x="{written}(1)",')
    assert len(asked) == (2 if known == "holt_winters" else 3)  # the name is remembered


def test_database_without_smoothing_function_is_named_as_the_cause(query_gate, database):
    database.answer = database_with(set())
    answer = query_gate("query", ("query", "holt_winters(a[5m], 0.5, 0.1)"))
    assert answer.status_code == 400
    assert answer.json()["error"] == (
        "the time series database has neither holt_winters nor double_exponential_smoothing"
    )


def test_disabled_smoothing_function_is_named_by_the_database(query_gate, database):
    """Prometheus 3 without --enable-feature=promql-experimental-functions."""

    def answer(request):
        if "holt_winters(" in request.form["query"][0]:
            return database_with(set())(request)
        error = 'function "double_exponential_smoothing" is not enabled'
        return 400, json.dumps(
            {"status": "error", "errorType": "bad_data", "error": error}
        ).encode()

    database.answer = answer
    answer = query_gate("query", ("query", "holt_winters(a[5m], 0.5, 0.1)"))
    assert "is not enabled" in answer.json()["error"]
