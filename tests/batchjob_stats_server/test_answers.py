"""Every answer of every route is what its model promises, over jobs of all kinds.

Rows are written without a look at their models, which are there for the OpenAPI document.
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
from batchjob_stats_server.options import LimitOptions, ServerSettings, ServerWebOptions
from batchjob_stats_server.services import build
from tests.batchjob_stats_server import example_site
from tests.batchjob_stats_server.pages.example_history import measured

ANSWERS = {
    route.path.replace("{part}", part): list[model] if part else route.response_model
    for router in app.ROUTERS
    for route in router.routes
    if "GET" in route.methods and route.response_model and "/runs" not in route.path
    for part, model in (PART_ROWS.items() if "{part}" in route.path else [("", None)])
}


@pytest.fixture(scope="module")
def services(tmp_path_factory):
    path = tmp_path_factory.mktemp("answers") / "jobs.db"
    _, root = example_site.make(path)
    web, limit = ServerWebOptions(allowed_host=("testserver",)), LimitOptions(0, 1, 0, 1)
    made = build(ServerSettings(DatabaseOptions(f"sqlite:///{path}"), web, limit=limit))
    return root, measured(made)


@pytest.fixture(scope="module")
def ask(services):
    root, made = services
    with TestClient(app.make(made), headers={"Authorization": f"Bearer {root}"}) as client:
        yield client.get


@pytest.fixture(scope="module")
def jobids(services):
    with services[1].reader.connect() as db:
        return db.scalars(sa.select(schema.job.c.jobid).limit(20)).all()


@pytest.mark.parametrize("path", ANSWERS)
def test_an_answer_fits_its_model(path, ask, jobids):
    model = ANSWERS[path]
    keys = {name for row in get_args(model) for name in getattr(row, "model_fields", ())}
    for there in {path.format(jobid=jobid, cluster="alpha", node="a001") for jobid in jobids}:
        answer = ask(there)
        assert answer.status_code == 200, answer.text
        TypeAdapter(model).validate_json(answer.content, strict=True)
        assert all(set(row) == keys for row in answer.json() if keys)


def test_a_node_has_means_and_one_that_does_not_answer_has_none(ask):
    nodes = "/api/v1/clusters/alpha/nodes"
    rows = ask(f"{nodes}/a001/metrics?metric=cpu").json()
    assert rows
    assert "max" not in rows[0]
    missing = ask(f"{nodes}/elsewhere/metrics")
    assert missing.status_code == 404
    assert missing.json()["detail"] == "no exporter of the node elsewhere of alpha is answering"


def test_parameters_that_are_lists_may_be_repeated(services):
    document = app.make(services[1]).openapi()
    lists = {
        parameter["name"]
        for path, methods in document["paths"].items()
        if "/prometheus/" not in path  # which reads its parameters itself
        for operation in methods.values()
        for parameter in operation.get("parameters", ())
        if parameter["schema"].get("type") == "array"
    }
    assert lists | {"job", "columns"} == REPEATABLE  # those two are parameters of pages
