"""The OpenAPI document, with what FastAPI cannot know of our answers."""

from collections.abc import Iterator
from typing import Any

from fastapi import FastAPI

from batchjob_stats_server.problems import MEDIA_TYPE

_TEXT = {"schema": {"type": "string"}}
_FORMATS = {"application/x-ndjson": _TEXT, "text/csv": _TEXT}

Document = dict[str, Any]


def install(app: FastAPI) -> None:
    """Complete the document when it is made."""
    plain = app.openapi

    def complete() -> Document:
        if app.openapi_schema is None:
            document = plain()
            for method, operation in _operations(document):
                _complete(method, operation)
        assert app.openapi_schema is not None
        return app.openapi_schema

    app.openapi = complete  # type: ignore[method-assign]  # as FastAPI's documentation does


def _operations(document: Document) -> Iterator[tuple[str, Document]]:
    for path in document["paths"].values():
        yield from path.items()


def _complete(method: str, operation: Document) -> None:
    responses = operation["responses"]
    for status, response in responses.items():
        if int(status) >= 400 and "application/json" in response.get("content", {}):
            response["content"] = {MEDIA_TYPE: response["content"]["application/json"]}
    names = {each["name"] for each in operation.get("parameters", ())}
    if "format" in names:
        responses["200"]["content"].update(_FORMATS)
    if method == "get":
        responses["304"] = {"description": "The answer that `If-None-Match` names still holds"}
