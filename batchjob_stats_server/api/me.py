"""What is not about jobs: the server, its health and documentation, the caller, and factors.

The OpenAPI document is completed with what FastAPI cannot derive. Its pages of Swagger UI come from
an installed package: nothing is downloaded.
"""

import logging
from functools import cache
from importlib.resources import files
from typing import Any

from fastapi import APIRouter, Depends, FastAPI, Request, Response
from fastapi.responses import HTMLResponse, PlainTextResponse
from pydantic import BaseModel

from batchjob import __version__
from batchjob_stats_db.database.engine import DatabaseError
from batchjob_stats_db.database.revision import require_current
from batchjob_stats_db.poller.health import exposition
from batchjob_stats_server.api.params import PREFIX
from batchjob_stats_server.auth.identity import CurrentCaller, Scraper
from batchjob_stats_server.http.problems import MEDIA_TYPE, Problem
from batchjob_stats_server.services import CurrentServices, Services
from collectors.emissions.providers.stats_server import factors_document

log = logging.getLogger(__name__)

router = APIRouter(prefix=PREFIX)

health = APIRouter(include_in_schema=False)
"""Health and readiness, which are open to everybody, and the server's own metrics."""

_SIMPLE_JSON = (
    "the SimpleJSON protocol of simpod-json-datasource and grafana-simple-json-datasource is not "
    "served: use the data source yesoreyeram-infinity-datasource, marcusolsson-json-datasource, or "
    "for /api/v1/prometheus Grafana's own prometheus"
)


def refuse_simple_json(request: Request) -> None:
    """Fail the connection test of data sources whose protocol is not served.

    Their test is a GET with the content type of the POSTs that would follow (GrafanaJsonDatasource
    0.6, src/DataSource.ts; simple-json-datasource, src/datasource.ts). No other data source sends a
    content type without a body.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "application/json":
        raise Problem(400, _SIMPLE_JSON)


class AccountName(BaseModel):
    """An account on a cluster."""

    cluster: str
    account: str


class Me(BaseModel):
    """The user who makes the request, with their role and rights."""

    user: str
    role: str
    via: str
    clusters: list[str]  # empty: the login is the caller's on all clusters
    coordinates: list[AccountName]
    sees_all_of: list[str]  # clusters; empty for viewers and admins of all clusters


class About(BaseModel):
    """The server, and the identity of the caller."""

    name: str
    version: str
    user: str


@router.get("", dependencies=[Depends(refuse_simple_json)])
@router.get("/", include_in_schema=False, dependencies=[Depends(refuse_simple_json)])
def about(caller: CurrentCaller) -> About:
    """Requested by Grafana's data sources when they are saved and tested."""
    return About(name="batchjob", version=__version__, user=caller.principal.user)


@router.get("/me")
def me(caller: CurrentCaller) -> Me:
    """The caller's name, role, and the accounts and clusters whose jobs they may see."""
    principal, access = caller.principal, caller.access
    return Me(
        user=principal.user,
        role=principal.role,
        via=principal.via,
        clusters=list(principal.clusters),
        coordinates=[AccountName(**each._asdict()) for each in access.accounts],
        sees_all_of=list(access.clusters),
    )


class FactorRow(BaseModel):
    """Current emissions of a kilowatt-hour, according to one provider."""

    provider: str
    zone: str
    scope: str
    grams_per_kilowatt_hour: float
    observed_at: str
    estimated: bool


@router.get("/emission-factors")
def emission_factors(caller: CurrentCaller) -> dict[str, list[FactorRow]]:
    """Current factors of the configured providers; an empty list if there are none.

    They are for exporters, so that only one place queries the providers.
    """
    return factors_document(caller.services.factors.current())


@health.api_route("/-/healthy", methods=["GET", "HEAD"])
async def healthy() -> PlainTextResponse:
    """The event loop answers, also while all threads wait for the database."""
    return PlainTextResponse("ok\n")


@health.api_route("/-/ready", methods=["GET", "HEAD"])
@health.api_route(f"{PREFIX}/ready", methods=["GET", "HEAD"], name="ready_for_data_sources")
async def ready(request: Request) -> PlainTextResponse:
    """The database and the file system of samples answer, and have what this server needs.

    Grafana's data sources request nothing outside of the address that they are given.
    """
    problem = await request.app.state.readiness.problem()
    return PlainTextResponse(f"{problem or 'ok'}\n", 503 if problem else 200)


def readiness_problem(services: Services) -> str:
    try:
        require_current(services.reader)
    except DatabaseError as error:
        # Contains the database's address, which not every caller may see.
        log.warning("not ready: %s", error)
        return "the database is not ready"
    if not services.has_samples_directory():
        log.warning("not ready: samples.directory: %s", services.samples_problem())
        return "the directory of samples is absent"
    return ""


@health.get("/metrics")
def metrics(request: Request, services: CurrentServices, _: Scraper) -> Response:
    """Metrics of the server itself; they contain no personal data."""
    accept = request.headers.get("accept", "")
    content_type, body = exposition(services.metrics.registry, accept)
    return Response(body, headers={"Content-Type": content_type})


_TEXT = {"schema": {"type": "string"}}
_FORMATS = {"application/x-ndjson": _TEXT, "text/csv": _TEXT}

# A trusted peer's headers are not listed: they are between that peer and the server.
_SCHEMES = {
    "token": {
        "type": "http",
        "scheme": "bearer",
        "description": "A token created by `batchjob_stats_server token` or by the route `tokens`.",
    },
    "certificate": {
        "type": "mutualTLS",
        "description": "A client certificate of the site, if the server requests one.",
    },
}

Document = dict[str, Any]


def install(app: FastAPI) -> None:
    generate = app.openapi

    def complete() -> Document:
        if app.openapi_schema is None:
            document = generate()
            document.setdefault("components", {})["securitySchemes"] = _SCHEMES
            for path, operations in document["paths"].items():
                for operation in operations.values():
                    _complete_operation(operation, document)
                    if path.startswith(PREFIX):
                        operation["security"] = [{name: []} for name in _SCHEMES]
        assert app.openapi_schema is not None
        return app.openapi_schema

    app.openapi = complete  # type: ignore[method-assign]  # as FastAPI's documentation does


def _complete_operation(operation: Document, document: Document) -> None:
    responses = operation["responses"]
    for status, response in responses.items():
        if int(status) >= 400 and "application/json" in response.get("content", {}):
            response["content"] = {MEDIA_TYPE: response["content"]["application/json"]}
    parameters = {each["name"]: each for each in operation.get("parameters", ())}
    if "fields" in parameters:
        items = {"type": "string", "enum": _keys_of_rows(responses["200"], document)}
        parameters["fields"] |= {
            "schema": {"type": "array", "items": items}, "style": "form", "explode": False
        }  # fmt: skip
    if "format" in parameters:
        responses["200"]["content"].update(_FORMATS)


def _keys_of_rows(response: Document, document: Document) -> list[str]:
    """The keys of the rows of an answer, which may be of several kinds."""
    schema = response["content"]["application/json"]["schema"]
    rows = [each["items"]["$ref"] for each in schema.get("anyOf", [schema])]
    models = document["components"]["schemas"]
    return list(
        dict.fromkeys(key for row in rows for key in models[row.rpartition("/")[2]]["properties"])
    )


# The pages are open to everybody, like the document: it contains no data.
docs = APIRouter(include_in_schema=False)

_FILES = {
    "docs.js": "text/javascript",
    "swagger-ui.css": "text/css",
    "swagger-ui-bundle.js": "text/javascript",
}
# Swagger UI uses style attributes and images in data URLs, but only scripts from files.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:;"
    " connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


@cache
def _read_file(name: str) -> bytes:
    own = files(__package__).joinpath(name)
    return (own if own.is_file() else files("fastapi_offline") / "static" / name).read_bytes()


@docs.get("/docs")
def docs_page() -> HTMLResponse:
    """Show the page of Swagger UI."""
    return HTMLResponse(_read_file("docs.html"), headers={"Content-Security-Policy": _POLICY})


@docs.get("/docs/{name}")
def docs_file(name: str, request: Request) -> Response:
    """Return a script or style sheet of that page."""
    if name not in _FILES:
        raise Problem(404, f"{request.url.path} is not there")
    headers = {"Cache-Control": "public, max-age=3600"}
    return Response(_read_file(name), media_type=_FILES[name], headers=headers)
