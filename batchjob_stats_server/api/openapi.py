"""Completes the OpenAPI document with what FastAPI cannot derive."""

from collections.abc import Iterator
from typing import Any

from fastapi import FastAPI

from batchjob_stats_server.api import PREFIX
from batchjob_stats_server.http.problems import MEDIA_TYPE

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
    """Complete the document when it is generated."""
    generate = app.openapi

    def complete() -> Document:
        if app.openapi_schema is None:
            document = generate()
            document.setdefault("components", {})["securitySchemes"] = _SCHEMES
            for path, operation in _operations(document):
                _complete_operation(operation)
                if path.startswith(PREFIX):
                    operation["security"] = [{name: []} for name in _SCHEMES]
        assert app.openapi_schema is not None
        return app.openapi_schema

    app.openapi = complete  # type: ignore[method-assign]  # as FastAPI's documentation does


def _operations(document: Document) -> Iterator[tuple[str, Document]]:
    for path, operations in document["paths"].items():
        for operation in operations.values():
            yield path, operation


def _complete_operation(operation: Document) -> None:
    responses = operation["responses"]
    for status, response in responses.items():
        if int(status) >= 400 and "application/json" in response.get("content", {}):
            response["content"] = {MEDIA_TYPE: response["content"]["application/json"]}
    names = {each["name"] for each in operation.get("parameters", ())}
    if "format" in names:
        responses["200"]["content"].update(_FORMATS)
