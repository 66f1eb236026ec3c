"""The PromQL gate as its clients see it, and what reaches the database behind it."""

import json
import time

import pytest
from fastapi.testclient import TestClient

from batchjob.quantities.quantity import Statistic
from batchjob_stats_db.database.tokens import TokenRole
from batchjob_stats_db.timeseries.base import JobWindow, TimeSeriesError
from batchjob_stats_db.timeseries.prometheus_client import Endpoint
from batchjob_stats_db.timeseries.prometheus_store import Prometheus
from batchjob_stats_server import app
from batchjob_stats_server.promql.backend import PromqlBackend
from tests.batchjob_stats_server.serving import serving
from tests.simulated import tsdb

GATE = "/api/v1/prometheus/api/v1"
MINE = 'cluster=~"c1|c2",user="alice"'


@pytest.fixture
def database():
    with tsdb.serving() as made:
        yield made


@pytest.fixture
def services(services, database):
    made = services._replace(
        tsdb=PromqlBackend(Endpoint(database.url, token="ours", answer_bytes=1000), 2)
    )
    yield made
    made.tsdb.close()


@pytest.fixture
def ask(proxied):
    """GET as a user; parameters as pairs."""

    def get(what, *pairs, user="alice", **more):
        return proxied(user).get(f"{GATE}/{what}", params=list(pairs), **more)

    return get


def test_query_is_asked_anew(ask, database, now):
    answer = ask("query", ("query", 'up{user="bob"}'))
    assert answer.status_code == 200
    whose = "only series of user alice on c1, user alice on c2 were queried"
    assert answer.json() == {"infos": [whose], **json.loads(database.answer[1])}
    assert answer.headers["content-type"] == "application/json"
    asked = database.asked[0]
    assert (asked.method, asked.path) == ("GET", "/api/v1/query")
    assert asked.form == {
        "query": [f'{{__name__="up",user="bob",{MINE}}}'],
        "time": [f"{now}.000"],
        "limit": ["10000"],
        "timeout": ["30000ms"],
    }


def test_what_the_database_has_to_say_is_left_alone(ask, database):
    said = b'{"status":"success","data":{"resultType":"vector","result":[]},"infos":["no counter"]}'
    database.answer = (200, said)
    assert ask("query", ("query", "up")).content == said


def test_range_query_by_form(proxied, database):
    form = {"query": "up", "start": "1700000000", "end": "2023-11-14T22:23:20Z", "step": "1m"}
    assert proxied("alice").post(f"{GATE}/query_range", data=form).status_code == 200
    assert database.asked[0].path == "/api/v1/query_range"
    assert database.asked[0].form == {
        "query": [f'{{__name__="up",{MINE}}}'],
        "start": ["1700000000.000"],
        "end": ["1700000600.000"],
        "step": ["60.000"],
        "limit": ["10000"],
        "timeout": ["30000ms"],
    }


def test_a_viewer_asks_for_all(ask, database):
    answer = ask("query", ("query", 'up{user="bob"}'), user="vera")
    assert answer.content == database.answer[1]
    assert database.asked[0].form["query"] == ['{__name__="up",user="bob"}']
    ask("labels", user="vera")
    assert "match[]" not in database.asked[1].form


@pytest.mark.parametrize("role", [TokenRole.VIEWER, TokenRole.ADMIN])
def test_a_token_for_one_cluster_asks_for_that_whatever_its_role(client, token, database, role):
    headers = token("vera", role, cluster="c2")
    for what, pairs in (
        ("query", {"query": "up"}),
        ("query_range", {"query": "up", "start": 1, "end": 2, "step": 1}),
        ("series", {"match[]": "up"}),
        ("labels", {}),
        ("label/user/values", {}),
    ):
        assert client.get(f"{GATE}/{what}", params=pairs, headers=headers).status_code == 200
    asked = [(each.form.get("query") or each.form["match[]"])[0] for each in database.asked]
    assert asked == ['{__name__="up",cluster="c2"}'] * 3 + ['{cluster="c2"}'] * 2


def test_every_match_is_confined(ask, database):
    ask("series", ("match[]", "up"), ("match[]", '{user=~".+"}'), ("limit", "5"))
    assert database.asked[0].form["match[]"] == [
        f'{{__name__="up",{MINE}}}',
        f'{{user=~".+",{MINE}}}',
    ]
    assert database.asked[0].form["limit"] == ["5"]


@pytest.mark.parametrize("what", ["labels", "label/__name__/values", "label/user/values"])
def test_match_is_there_where_the_client_has_none(ask, database, what, now):
    assert ask(what, ("limit", "0")).status_code == 200
    asked = database.asked[0]
    assert asked.path == f"/api/v1/{what}"
    assert asked.form == {
        "match[]": [f"{{{MINE}}}"],
        "start": [f"{now - 86400}.000"],
        "end": [f"{now}.000"],
        "limit": ["10000"],
    }


def test_no_header_of_the_client_comes_along(ask, database):
    headers = {
        "X-Scope-OrgID": "other", "AccountID": "7", "THANOS-TENANT": "t", "Cookie": "a=b",
        "X-Prometheus-User": "bob",
    }  # fmt: skip
    assert ask("query", ("query", "up"), headers=headers).status_code == 200
    sent = {name.lower(): value for name, value in database.asked[0].headers.items()}
    assert sent["authorization"] == "Bearer ours"
    assert sent.keys() <= {
        "host", "user-agent", "accept", "accept-encoding", "connection", "authorization",
        "content-type", "content-length",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("what", "pairs", "status", "says"),
    [
        ("query", [], 400, "query: expected"),
        ("query", [("query", "up"), ("query", "up")], 400, "query: expected once"),
        ("query", [("query", "up"), ("time", "1"), ("time", "1")], 400, "time: expected once"),
        ("query", [("query", "up"), ("extra_label", "user=bob")], 400, "'extra_label'"),
        ("query", [("query", "up"), ("extra_filters[]", "{}")], 400, "'extra_filters[]'"),
        ("query", [("query", "up"), ("match[]", "up")], 400, "'match[]'"),
        ("query", [("query", "up"), ("start", "1")], 400, "'start'"),
        ("query", [("query", "up{")], 400, "not PromQL"),
        ("query", [("query", 'a{x="1" or y="2"}')], 400, "joined by `or`"),
        ("query", [("query", "a[101d]")], 422, "range"),
        ("query", [("query", "a" * 5000)], 422, "5000 characters"),
        ("query_range", [("query", "up"), ("start", "1"), ("end", "2")], 400, "step: expected"),
        (
            "query_range",
            [("query", "up"), ("start", "2"), ("end", "1"), ("step", "1")],
            400,
            "not before start",
        ),
        (
            "query_range",
            [("query", "up"), ("start", "1"), ("end", "999999999"), ("step", "1d")],
            422,
            "at most 400 days",
        ),
        (
            "query_range",
            [("query", "up"), ("start", "0"), ("end", "20000"), ("step", "1")],
            422,
            "20000 points",
        ),
        ("series", [], 400, "match[]: expected"),
        ("series", [("match[]", "sum(up)")], 400, "selector"),
        ("series", [("match[]", "up")] * 33, 422, "at most 32"),
        ("labels", [("match[]", 'a{x="1" or user="bob"}')], 400, "joined by `or`"),
        ("label/a%2Fb/values", [], 404, "Not Found"),
        ("label/a-b/values", [], 400, "'a-b'"),
        ("label/..%2f..%2fadmin/values", [], 404, "Not Found"),
    ],
)
def test_what_is_wrong_is_named_and_not_asked(ask, database, what, pairs, status, says):
    answer = ask(what, *pairs)
    assert answer.status_code == status
    document = answer.json()
    assert says in document["detail"]
    assert "\n" not in document["detail"]
    if status != 404:
        assert document["status"] == "error"
        assert document["error"] == document["detail"]
    assert not database.asked


def test_parameters_of_url_and_form_count_together(proxied, database):
    url = f"{GATE}/query?query=up"
    assert proxied("alice").post(url, data={"query": "down"}).status_code == 400
    assert proxied("alice").post(url, data={"time": "5"}).status_code == 200
    assert database.asked[0].form["time"] == ["5.000"]


@pytest.mark.parametrize(
    "body",
    [
        {"json": {"query": "up"}},
        {"files": {"query": ("q", b"up")}},
        {"content": b"query=\xff\xfe", "headers": {"content-type": "text/plain"}},
        {"content": b"query=\xff"},
        {"content": b"query=%ff"},
        {"content": b"&".join(b"a=%d" % i for i in range(200))},
    ],
)
def test_a_body_that_is_no_form(proxied, database, body):
    assert proxied("alice").post(f"{GATE}/query", **body).status_code == 400
    assert not database.asked


@pytest.mark.parametrize(
    "what",
    ["rules", "alerts", "targets", "query_exemplars", "federate", "read", "write", "status/config",
     "admin/tsdb/delete_series", "status/flags", "format_query", "export"],
)  # fmt: skip
def test_the_rest_of_the_api_is_not_there(proxied, database, what):
    assert proxied("root").get(f"{GATE}/{what}").status_code == 404
    assert proxied("root").post(f"{GATE}/{what}").status_code == 404
    assert not database.asked


def test_what_grafana_wants_to_know_is_answered_here(ask, database):
    assert ask("status/buildinfo").json()["data"]["version"] == "2.42.0"
    assert not database.asked


METADATA = {
    "batchjob_job_cpus": [{"type": "gauge", "help": "CPUs.", "unit": "", "x": "y"}] * 2,
    "batchjob_jobs": [{"type": "gauge", "help": "Jobs.", "unit": ""}],
    "secret_project_ratio": [{"type": "gauge", "help": "Theirs.", "unit": ""}],
}


def test_metadata_are_those_of_our_own_metrics(ask, database):
    database.answer = (200, json.dumps({"status": "success", "data": METADATA}).encode())
    (plain,) = METADATA["batchjob_jobs"]
    assert list(ask("metadata").json()["data"]) == ["batchjob_job_cpus", "batchjob_jobs"]
    assert list(ask("metadata", user="vera").json()["data"]) == sorted(METADATA)
    limited = ask("metadata", ("limit", "1"), ("limit_per_metric", "1")).json()["data"]
    assert limited == {"batchjob_job_cpus": [{"type": "gauge", "help": "CPUs.", "unit": ""}]}
    assert ask("metadata", ("metric", "batchjob_jobs")).json()["data"]["batchjob_jobs"] == [plain]
    assert [asked.method for asked in database.asked] == ["GET"] * 4
    assert [asked.form for asked in database.asked] == [{}, {}, {}, {"metric": ["batchjob_jobs"]}]
    assert ask("metadata", ("match[]", "up")).status_code == 400


@pytest.mark.parametrize(
    "answer", [(404, b"404 page not found"), (200, b"junk"), (200, b'{"data":[]}'), (200, b"[]"),
               (200, b'{"data":{"batchjob_x":3}}')]
)  # fmt: skip
def test_a_database_without_metadata(ask, database, answer):
    database.answer = answer
    assert ask("metadata").json() == {"status": "success", "data": {}}


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
def test_all_that_grafana_s_data_source_asks(proxied, method, what, form, status):
    """Its rules and exemplars stay off where these are not found."""
    parameters = {"params" if method == "GET" else "data": form}
    headers = {"X-Datasource-Uid": "x", "X-Dashboard-Uid": "y", "X-Grafana-Org-Id": "1"}
    answer = proxied("alice").request(method, f"{GATE}/{what}", headers=headers, **parameters)
    assert answer.status_code == status
    if status == 200:
        assert answer.json()["status"] == "success"


def test_parameters_are_in_the_api_s_description(client):
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


@pytest.mark.parametrize("what", ["query", "labels", "status/buildinfo", "metadata"])
def test_nobody_gets_nothing(client, database, what):
    assert client.get(f"{GATE}/{what}", params={"query": "1"}).status_code == 401
    assert not database.asked


def test_a_query_the_database_refuses(ask, database):
    database.answer = (
        422,
        b'{"status":"error","errorType":"execution","error":"found duplicate series","data":{}}',
    )
    answer = ask("query", ("query", "up"))
    assert answer.status_code == 422
    assert answer.json()["errorType"] == "execution"
    assert answer.json()["error"] == "found duplicate series"
    assert "data" not in answer.json()


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ((401, b"secret words"), "answers 401"),
        ((302, b""), "answers 302"),
        ((500, b"goroutine 1"), "answers 500"),
        ((200, b"x" * 2000), "more than 1000 bytes"),
    ],
)
def test_a_database_that_does_not_answer_the_question(ask, database, answer, says):
    database.answer = answer
    told = ask("query", ("query", "up"))
    assert told.status_code == 503
    assert says in told.json()["detail"]
    assert told.headers["retry-after"] == "10"


def test_a_database_that_is_gone(services, database, proxied):
    gone = services._replace(tsdb=PromqlBackend(Endpoint("http://127.0.0.1:9"), 1))
    with TestClient(
        app.make(gone), client=("192.0.2.10", 1), headers=proxied("alice").headers
    ) as at:
        told = at.get(f"{GATE}/query", params={"query": "up"})
        assert told.status_code == 503
        assert told.json()["detail"] == "the time series database does not answer"
        assert at.get("/api/v1/me").status_code == 200


def test_without_a_database(services, proxied):
    bare = TestClient(
        app.make(services._replace(tsdb=None)),
        client=("192.0.2.10", 1),
        headers=proxied("alice").headers,
    )
    assert "configured" in bare.get(f"{GATE}/query?query=up").json()["detail"]


def test_a_database_that_drips_is_not_waited_for(ask, services, database):
    """Each piece comes in time; all of them together never would."""
    database.answer = (200, b"x" * 900)
    database.pause_seconds = 0.1
    begun = time.monotonic()
    told = ask("query", ("query", "up"), ("timeout", "1ms"))
    assert (told.status_code, time.monotonic() - begun < 20) == (503, True)
    assert "took too long" in told.json()["detail"]


def test_calls_are_counted_by_how_they_ended(ask, database, services):
    ask("query", ("query", "up"))
    database.answer = (422, b"{}")
    ask("label/user/values")
    database.answer = (500, b"")
    ask("query", ("query", "up"))
    count = services.metrics.registry.get_sample_value
    name = "batchjob_stats_server_tsdb_request_duration_seconds_count"
    assert [
        count(name, {"question": question, "result": result})
        for question, result in (
            ("query", "answered"), ("label", "rejected"), ("query", "failed"), ("label", "failed"),
        )
    ] == [1, 1, 1, None]  # fmt: skip


def test_a_poller_is_refused_and_asks_the_database_itself(services, token, database, now):
    everything = token("vera", TokenRole.VIEWER)["Authorization"].removeprefix("Bearer ")
    wanted = {Statistic.TOTAL: ["batchjob_job_cpu_seconds_total"]}
    span = JobWindow("c1", "1", now - 600, now)
    with serving(services) as port:
        gate = Endpoint(f"http://127.0.0.1:{port}/api/v1/prometheus", token=everything)
        with pytest.raises(TimeSeriesError, match="status 400: parameter 'nocache' is not known"):
            Prometheus(gate).measure(wanted, [span])
    assert database.asked == []
