"""Errors as problem documents (RFC 9457)."""

import logging
import math
import re
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import sqlalchemy as sa
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute, Match

from batchjob.runtime.settings import suggest_names
from batchjob_stats_db.queries.job_list import TooManyError
from batchjob_stats_db.queries.jobs import AmbiguousIdError
from batchjob_stats_db.timeseries.base import TimeSeriesError
from batchjob_stats_server.auth.rights import log_action
from batchjob_stats_server.turns import TimeSeriesBusyError

log = logging.getLogger(__name__)

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
MEDIA_TYPE = "application/problem+json"


class Problem(Exception):
    """An error as an answer; `detail` is for the caller."""

    def __init__(self, status: int, detail: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.headers = headers


class ErrorMessage(BaseModel):
    """Where the data sources JSON API and simpod-json look for what to show."""

    code: str
    message: str


class ProblemDocument(BaseModel):
    """RFC 9457, with `message` and `error.message`, which Grafana and its data sources show."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    message: str
    error: ErrorMessage


RESPONSES: dict[int | str, dict[str, Any]] = {
    status: {"model": ProblemDocument, "description": HTTPStatus(status).phrase}
    for status in (400, 401, 403, 404, 408, 413, 414, 422, 429, 503)
}
"""For the OpenAPI document: what every route may answer."""


def document(status: int, detail: str) -> ProblemDocument:
    title = HTTPStatus(status).phrase
    error = ErrorMessage(code=str(status), message=detail)
    return ProblemDocument(title=title, status=status, detail=detail, message=detail, error=error)


def answer(status: int, detail: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """A problem document as an answer."""
    return JSONResponse(document(status, detail).model_dump(), status, headers, MEDIA_TYPE)


def too_many_requests(seconds: float) -> Problem:
    """For a client that exceeds its rate."""
    after = str(math.ceil(seconds))
    return Problem(429, f"too many requests; ask again in {after} s", {"Retry-After": after})


def install(app: FastAPI) -> None:
    app.add_exception_handler(Problem, _problem)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(AmbiguousIdError, _ill_chosen)
    app.add_exception_handler(TooManyError, _ill_chosen)
    app.add_exception_handler(sa.exc.DBAPIError, _database)
    app.add_exception_handler(sa.exc.TimeoutError, _busy)
    app.add_exception_handler(TimeSeriesError, _time_series)
    app.add_exception_handler(Exception, _unexpected)


async def _problem(request: Request, error: Any) -> JSONResponse:
    caller = getattr(request.state, "caller", None)
    if caller and (error.status == HTTPStatus.FORBIDDEN or request.method not in SAFE_METHODS):
        path = request.scope["path"]
        log_action(caller.principal, f"was refused {request.method} {path!r}: {error.detail}")
    return answer(error.status, error.detail, error.headers)


async def _http(request: Request, error: Any) -> JSONResponse:
    headers = dict(error.headers or {})
    if error.status_code == 405:  # Starlette names the methods of the first route of the path only
        headers["Allow"] = ", ".join(name for name in _METHODS if _has_route(request, name))
    return answer(error.status_code, str(error.detail), headers)


_METHODS = ("DELETE", "GET", "HEAD", "PATCH", "POST", "PUT")


def _has_route(request: Request, method: str) -> bool:
    """Whether the path of a request has a method (RFC 9110, section 15.5.6)."""
    scope = {**request.scope, "method": method}
    routes: list[BaseRoute] = request.app.routes
    return any(route.matches(scope)[0] is Match.FULL for route in routes)


async def _invalid(_: Request, error: Any) -> JSONResponse:
    return answer(422, "; ".join(describe_error(each) for each in error.errors()[:5]))


async def _ill_chosen(_: Request, error: Exception) -> JSONResponse:
    return answer(422, str(error))


async def _database(_: Request, error: Any) -> JSONResponse:
    if isinstance(error, sa.exc.DataError):  # a number or text that no column can hold
        return answer(422, "a value is out of range for the database")
    log.error("the database: %s", error.orig)
    words = str(error.orig)
    # The messages of SQLite and PostgreSQL.
    if "interrupted" in words or "statement timeout" in words:
        return answer(503, "the query timed out; narrow it")
    return answer(503, "the database does not answer", {"Retry-After": "10"})


async def _busy(_: Request, _error: Any) -> JSONResponse:
    return answer(503, "all connections to the database are in use", {"Retry-After": "5"})


async def _time_series(_: Request, error: Any) -> JSONResponse:
    if isinstance(error, TimeSeriesBusyError):
        detail = "too many simultaneous queries of measurements"
        return answer(503, detail, {"Retry-After": "5"})
    # Contains addresses that callers must not see.
    log.warning("the time series database: %s", error)
    return answer(503, "the time series database does not answer", {"Retry-After": "10"})


async def _unexpected(request: Request, error: Any) -> JSONResponse:
    log.error("%s %s", request.method, request.url.path, exc_info=error)
    return answer(500, "internal server error; see the server log")


_CHOICES = re.compile(r"\^(-\?)?\(([\w.|]+)\)\$")
_MAX_QUOTED_CHARACTERS = 60  # maximum characters of a value that is quoted
_MESSAGES = {"extra_forbidden": "unknown parameter", "missing": "is required"}
"""Pydantic's error type (https://docs.pydantic.dev/latest/errors/validation_errors/) -> words."""


def describe_error(error: Mapping[str, Any]) -> str:
    """One error of pydantic's `errors()` as `NAME: expected ..., got ...`."""
    names = [part for part in error["loc"][1:] if isinstance(part, str)]  # without places in lists
    name = ".".join(names) or str(error["loc"][0])
    return f"{name}: {_MESSAGES.get(error['type']) or _describe(error)}"


def _describe(error: Mapping[str, Any]) -> str:
    value = error.get("input")
    if error["type"] == "string_pattern_mismatch":
        match = _CHOICES.fullmatch(error["ctx"]["pattern"])
        if match:
            choices = match[2].split("|")
            return f"unknown value {value!r}{suggest_names(str(value).lstrip('-'), choices)}"
        message = "expected text without control characters"
    else:
        message = str(error["msg"]).removeprefix("Value error, ")
        if " should " not in message:
            return message
        message = (
            message.replace("Input should be", "expected")
            .replace("a valid integer, unable to parse string as an integer", "a whole number")
            .replace("a valid boolean, unable to interpret input", "true or false")
            .replace("greater than or equal to", "at least")
            .replace("less than or equal to", "at most")
        )
    return f"{message}, got {_quote(value)}"


def _quote(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _MAX_QUOTED_CHARACTERS else f"{text[:_MAX_QUOTED_CHARACTERS]}…"
