"""Errors of the PromQL gate, in a format that clients of Prometheus understand."""

from collections.abc import Callable
from http import HTTPStatus
from typing import Any, Literal

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel

from batchjob_stats_server.http.problems import MEDIA_TYPE
from batchjob_stats_server.promql.backend import Rejected
from batchjob_stats_server.promql.query_limits import (
    Malformed,
    NotYours,
    QueryError,
    TooLarge,
    TooMany,
    Unavailable,
)


class PrometheusError(BaseModel):
    """An error in the format of Prometheus, and a problem document (RFC 9457) as well.

    RFC 9457 section 3.1 lets readers ignore a `status` that is not a number.
    """

    status: Literal["error"] = "error"
    errorType: str  # noqa: N815  the field's name in the Prometheus API
    error: str
    type: str = "about:blank"
    title: str
    detail: str
    message: str


_ERRORS: tuple[tuple[type[QueryError], int, str], ...] = (
    (Malformed, 400, "bad_data"),
    (TooLarge, 422, "execution"),
    (NotYours, 403, "forbidden"),
    (TooMany, 429, "unavailable"),
)


def install(app: FastAPI) -> None:
    for error, status, kind in _ERRORS:
        app.add_exception_handler(error, _error_handler(status, kind))
    app.add_exception_handler(Unavailable, _error_handler(503, "unavailable"))
    app.add_exception_handler(Rejected, _rejected)


def _error_handler(status: int, kind: str) -> Callable[[Request, Exception], Any]:
    async def handler(_: Request, error: Exception) -> JSONResponse:
        return _error(status, kind, str(error))

    return handler


async def _rejected(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, Rejected)
    return _error(error.status, error.kind, str(error))


def _error(status: int, kind: str, text: str) -> JSONResponse:
    document = PrometheusError(
        errorType=kind, error=text, title=HTTPStatus(status).phrase, detail=text, message=text
    )
    headers = {"Cache-Control": "no-store"} | (
        {"Retry-After": "10"} if status in (429, 503) else {}
    )
    return JSONResponse(document.model_dump(), status, headers, MEDIA_TYPE)
