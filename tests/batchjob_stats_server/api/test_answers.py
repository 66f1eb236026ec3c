"""The answers of every route match its response model, over jobs of all kinds.

The server does not validate rows by their models, which only describe them in OpenAPI.
"""

from typing import get_args

import pytest
import sqlalchemy as sa
from fastapi.testclient import TestClient
from pydantic import TypeAdapter

from batchjob_stats_db.database import schema
from batchjob_stats_db.poller.options import DatabaseOptions
from batchjob_stats_server import app
from batchjob_stats_server.api.jobs import PART_ROWS
from batchjob_stats_server.api.params import REPEATABLE
from batchjob_stats_server.api.report import REPORT_ROWS
from batchjob_stats_server.options import LimitOptions, ServerSettings, ServerWebOptions
from batchjob_stats_server.services import build
from tests.batchjob_stats_server import example_site
from tests.batchjob_stats_server.pages.example_history import with_example_history


def parts_of(path):
    return REPORT_ROWS if "/report/" in path else PART_ROWS


RESPONSE_MODELS = {
    route.path.replace("{part}", part): list[model] if part else route.response_model
    for router in app.ROUTERS
    for route in router.routes
    if "GET" in route.methods and route.response_model and "/runs" not in route.path
    for part, model in (parts_of(route.path).items() if "{part}" in route.path else [("", None)])
}


@pytest.fixture(scope="module")
def services(tmp_path_factory):
    path = tmp_path_factory.mktemp("answers") / "jobs.db"
    _, admin_token = example_site.make(path)
    web, limit = (
        ServerWebOptions(allowed_host=("testserver",)),
        LimitOptions(user_rate=0, peer_rate=0),
    )
    services = build(ServerSettings(DatabaseOptions(f"sqlite:///{path}"), web, limit=limit))
    return admin_token, with_example_history(services)


@pytest.fixture(scope="module")
def get(services):
    admin_token, services = services
    with TestClient(
        app.make(services), headers={"Authorization": f"Bearer {admin_token}"}
    ) as client:
        yield client.get


@pytest.fixture(scope="module")
def jobids(services):
    with services[1].reader.connect() as db:
        return db.scalars(sa.select(schema.job.c.jobid).limit(20)).all()


@pytest.mark.parametrize("path", RESPONSE_MODELS)
def test_answer_matches_response_model(path, get, jobids):
    model = RESPONSE_MODELS[path]
    keys = {name for row in get_args(model) for name in getattr(row, "model_fields", ())}
    if path.startswith("/api/v1/job/") or path == "/api/v1/job":
        path += "?jobid={jobid}"
    for url in {path.format(jobid=jobid, cluster="alpha", node="a001") for jobid in jobids}:
        answer = get(url)
        assert answer.status_code == 200, answer.text
        TypeAdapter(model).validate_json(answer.content, strict=True)
        assert all(set(row) == keys for row in answer.json() if keys)


def test_node_metrics_have_means_only_and_unknown_node_is_404(get):
    nodes = "/api/v1/clusters/alpha/nodes"
    rows = get(f"{nodes}/a001/metrics?metric=cpu").json()
    assert rows
    assert "max" not in rows[0]
    unknown = get(f"{nodes}/elsewhere/metrics")
    assert unknown.status_code == 404
    assert unknown.json()["detail"] == "no exporter of the node elsewhere of alpha is answering"


def test_list_parameters_are_repeatable(services):
    document = app.make(services[1]).openapi()
    lists = {
        parameter["name"]
        for path, methods in document["paths"].items()
        if "/prometheus/" not in path  # which reads its parameters itself
        for operation in methods.values()
        for parameter in operation.get("parameters", ())
        if parameter["schema"].get("type") == "array" and parameter.get("explode", True)
    }
    assert lists | {"job", "columns"} == REPEATABLE  # those two are parameters of pages
