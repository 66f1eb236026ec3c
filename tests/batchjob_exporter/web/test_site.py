"""Pages, and which collectors a scrape runs."""

import json
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from batchjob_exporter.exporter import Exporter
from batchjob_exporter.exposition import OPENMETRICS, TEXT
from batchjob_exporter.web.message import HttpRequest, parse_request
from batchjob_exporter.web.site import MetricsSite, negotiate
from collectors.collector import Collector
from collectors.metric import NO_LABELS, Metric, MetricFamily


class OneGaugeCollector(Collector):
    """A collector with one gauge."""

    def __init__(self, name):
        self.metric = Metric(f"batchjob_{name}", "gauge", "A value.")

    def start(self):
        pass

    def stop(self):
        pass

    def collect(self):
        return [MetricFamily(self.metric, [(NO_LABELS, 1.0)])]


@pytest.fixture
def exporter():
    return Exporter({name: OneGaugeCollector(name) for name in ("node", "jobs", "rapl")})


@pytest.fixture
def get(exporter):
    site = MetricsSite(exporter, "/metrics", "batchjob_exporter <1>")

    def send_request(target, method="GET", **headers):
        lines = [f"{method} {target} HTTP/1.1", "Host: n"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        return site.answer(parse_request("\r\n".join(lines).encode()))

    return send_request


def collector_names(response):
    lines = response.body.decode().splitlines()
    return [line.split()[0].removeprefix("batchjob_") for line in lines if line[-4:] == " 1.0"
            and "{" not in line]  # fmt: skip


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("", ["node", "jobs", "rapl"]),
        ("?collect[]=jobs", ["jobs"]),
        ("?collect%5B%5D=rapl&collect[]=node", ["node", "rapl"]),
        ("?exclude[]=jobs", ["node", "rapl"]),
        ("?other=x", ["node", "jobs", "rapl"]),
    ],
)
def test_collect_and_exclude_select_collectors(get, query, names):
    response = get(f"/metrics{query}")
    assert response.status == 200
    assert collector_names(response) == names


@pytest.mark.parametrize(
    ("query", "complaint"),
    [
        ("?collect[]=jobs&exclude[]=node", "cannot both be given"),
        ("?collect[]=job", "no enabled collector is named 'job'; did you mean jobs?"),
        ("?exclude[]=", "no enabled collector is named ''"),
    ],
)
def test_invalid_collector_selection_gets_400(get, query, complaint):
    response = get(f"/metrics{query}")
    assert response.status == 400
    assert complaint in response.body.decode()


def test_accept_header_selects_format(get):
    assert dict(get("/metrics").headers)["Content-Type"].startswith("text/plain; version=0.0.4")
    response = get("/metrics", accept="application/openmetrics-text; version=1.0.0")
    assert dict(response.headers)["Content-Type"].startswith("application/openmetrics-text; v")
    assert list(text_string_to_metric_families(response.body.decode()))


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("10", 9.5),
        ("0.4", 0.2),
        ("", 9.5),
        ("x", 9.5),
        ("nan", 9.5),
        ("-1", 9.5),
        ("1e9", 9.5),
        ("3600", 9.5),
    ],
)  # fmt: skip
def test_scrape_timeout_header_sets_deadline(get, exporter, monkeypatch, header, seconds):
    given = []
    monkeypatch.setattr(exporter, "collect", lambda names, seconds: given.append(seconds) or [])
    get("/metrics", X_Prometheus_Scrape_Timeout_Seconds=header)
    assert given == [pytest.approx(seconds)]


def test_landing_page(get):
    page = get("/").body.decode()
    assert 'href="/metrics"' in page
    assert "node, jobs, rapl" in page
    assert "&lt;1&gt;" in page


def test_health_and_readiness(get, exporter):
    assert get("/-/healthy").status == 200
    assert get("/-/ready").status == 503
    exporter.start()
    assert get("/-/ready").status == 200


def test_unknown_path_gets_404(get):
    assert get("/metric").status == 404
    assert get("/metrics/").status == 404


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_other_methods_get_405(get, method):
    response = get("/metrics", method)
    assert response.status == 405
    assert ("Allow", "GET, HEAD") in response.headers


def test_metrics_can_be_served_at_root():
    site = MetricsSite(Exporter({"node": OneGaugeCollector("node")}), "/", "1")
    assert b"batchjob_node 1.0" in site.answer(parse_request(b"GET / HTTP/1.0")).body


PROMETHEUS_3 = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
    "application/openmetrics-text;version=0.0.1;q=0.5,"
    "text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,text/plain;version=0.0.4;q=0.3,"
    "*/*;q=0.2"
)


@pytest.mark.parametrize(
    ("accept", "format"),
    [
        ("", TEXT),
        ("*/*", TEXT),
        (PROMETHEUS_3, OPENMETRICS),
        ("application/openmetrics-text", OPENMETRICS),
        ("application/openmetrics-text;version=0.0.1", TEXT),
        ("application/openmetrics-text;q=0.2, text/plain;q=0.9", TEXT),
        ("text/plain;q=0.2, application/openmetrics-text; version=1.0.0; q=0.9", OPENMETRICS),
        ("text/plain;version=0.0.4, application/openmetrics-text", TEXT),
        ("application/openmetrics-text;q=0", TEXT),
        ("application/openmetrics-text;q=nonsense", TEXT),
        ("application/vnd.google.protobuf;q=0.9, application/openmetrics-text;q=.5", OPENMETRICS),
        ("text/html, application/xhtml+xml", TEXT),
    ],
)
def test_negotiation(accept, format):
    assert negotiate(accept) is format


@given(st.text(string.printable))
def test_any_accept_header_gets_a_format(accept):
    assert negotiate(accept) in (TEXT, OPENMETRICS)


class NodeListCollector(Collector):
    """A collector that knows two nodes, or none yet."""

    def __init__(self, names):
        self._names = names

    def start(self):
        pass

    def stop(self):
        pass

    def collect(self):
        return []

    def node_names(self):
        return self._names


def targets_response(names, query):
    site = MetricsSite(Exporter({"cluster": NodeListCollector(names)}), "/metrics", "1")
    return site.answer(HttpRequest("GET", "/targets", query, {}, True))


def test_cluster_nodes_are_targets():
    answer = targets_response(["n1", "n2"], (("cluster", "alpha"),))
    assert answer.status == 200
    assert dict(answer.headers)["Content-Type"] == "application/json"
    assert json.loads(answer.body) == [
        {"targets": ["n1"], "labels": {"cluster": "alpha", "node": "n1"}},
        {"targets": ["n2"], "labels": {"cluster": "alpha", "node": "n2"}},
    ]


def test_targets_without_node_list_get_503():
    assert targets_response(None, (("cluster", "alpha"),)).status == 503


@pytest.mark.parametrize("query", [(), (("cluster", ""),), (("clutser", "a"),)])
def test_targets_require_cluster_name(query):
    answer = targets_response(["n1"], query)
    assert answer.status == 400
    assert b"/targets?cluster=NAME" in answer.body


def test_targets_without_cluster_collector_get_404():
    site = MetricsSite(Exporter({"node": OneGaugeCollector("node")}), "/metrics", "1")
    assert site.answer(HttpRequest("GET", "/targets", (), {}, True)).status == 404
