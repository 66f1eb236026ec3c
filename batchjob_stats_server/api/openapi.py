"""The OpenAPI document, completed with what FastAPI cannot derive, and its pages of Swagger UI.

These come from an installed package: nothing is downloaded.
"""

from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from typing import Any

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.responses import HTMLResponse

from batchjob_stats_server.api.params import PREFIX
from batchjob_stats_server.http.problems import MEDIA_TYPE, Problem

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
            for path, operation in _operations(document):
                _complete_operation(operation, document)
                if path.startswith(PREFIX):
                    operation["security"] = [{name: []} for name in _SCHEMES]
        assert app.openapi_schema is not None
        return app.openapi_schema

    app.openapi = complete  # type: ignore[method-assign]  # as FastAPI's documentation does


def _operations(document: Document) -> Iterator[tuple[str, Document]]:
    for path, operations in document["paths"].items():
        for operation in operations.values():
            yield path, operation


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
router = APIRouter(include_in_schema=False)

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


@router.get("/docs")
def docs() -> HTMLResponse:
    """Show the page of Swagger UI."""
    return HTMLResponse(_read_file("docs.html"), headers={"Content-Security-Policy": _POLICY})


@router.get("/docs/{name}")
def docs_file(name: str, request: Request) -> Response:
    """Return a script or style sheet of that page."""
    if name not in _FILES:
        raise Problem(404, f"{request.url.path} is not there")
    headers = {"Cache-Control": "public, max-age=3600"}
    return Response(_read_file(name), media_type=_FILES[name], headers=headers)
