"""The PromQL gate: queries of the Prometheus HTTP API, answered with the caller's series.

The request to the database is rebuilt from parsed values; no header and no other parameter of the
client is passed on. Anything else of the API (rules, alerts, targets, exemplars, federate, read,
write) is not found.
"""

import itertools
import json
from collections.abc import Callable, Coroutine, Mapping
from http import HTTPStatus
from typing import Any, Literal, cast
from urllib.parse import parse_qsl

from fastapi import APIRouter, BackgroundTasks, FastAPI, Request, Response
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from pydantic import BaseModel

from batchjob import __version__
from batchjob_stats_db.database.engine import LazyConnection
from batchjob_stats_db.queries.filters import cluster_names
from batchjob_stats_server.api.params import PREFIX
from batchjob_stats_server.auth.identity import Caller, CurrentCaller, identify
from batchjob_stats_server.auth.rights import log_action
from batchjob_stats_server.http import problems
from batchjob_stats_server.promql import endpoints
from batchjob_stats_server.promql.backend import Rejected, known_metrics
from batchjob_stats_server.promql.confinement import Confinement, LeftOut
from batchjob_stats_server.promql.query_limits import (
    Malformed,
    NotYours,
    QueryLimits,
    TooLarge,
    TooMany,
    Unavailable,
    quote,
)
from batchjob_stats_server.promql.scan import label_name
from batchjob_stats_server.services import Services


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


_ERRORS: Mapping[type[Exception], tuple[int, str]] = {
    Malformed: (400, "bad_data"),
    TooLarge: (422, "execution"),
    NotYours: (403, "forbidden"),
    TooMany: (429, "unavailable"),
    Unavailable: (503, "unavailable"),
}


def install(app: FastAPI) -> None:
    for error in (*_ERRORS, Rejected):
        app.add_exception_handler(error, _refused)


async def _refused(request: Request, error: Any) -> JSONResponse:
    is_rejected = isinstance(error, Rejected)
    status, kind = (error.status, error.kind) if is_rejected else _ERRORS[type(error)]
    text, headers = str(error), {"Retry-After": "10"} if status in (429, 503) else {}
    if not request.url.path.startswith(router.prefix):  # too many other requests
        return problems.answer(status, text, headers)
    document = PrometheusError(
        errorType=kind, error=text, title=HTTPStatus(status).phrase, detail=text, message=text
    )
    return JSONResponse(document.model_dump(), status, headers, problems.MEDIA_TYPE)


_MAX_FIELDS = 100
_LIMITS = QueryLimits()
_NO_SERIES = b'"result":[]'
_HEAD_BYTES = 200  # of an answer without series: all but warnings and infos
_TAIL_BYTES = 4096  # bytes at the end of an answer that contain Prometheus' warnings and infos
_FORM = "application/x-www-form-urlencoded"


def _read_pairs(request: Request, body: bytes) -> endpoints.Form:
    """The parameters of the URL and the form together, as they were sent."""
    texts = [_decode_ascii(request.scope["query_string"])]
    if request.method == "POST":
        kind = request.headers.get("content-type", _FORM).partition(";")[0].strip().lower()
        if body and kind != _FORM:
            raise Malformed(f"content-type: expected {_FORM}")
        texts.append(_decode_ascii(body))
    try:
        return [
            pair
            for text in texts
            for pair in parse_qsl(
                text, keep_blank_values=True, errors="strict", max_num_fields=_MAX_FIELDS
            )
        ]
    except ValueError as error:
        raise Malformed(f"expected a form of at most {_MAX_FIELDS} fields in UTF-8") from error


def _decode_ascii(body: bytes) -> str:
    try:
        return body.decode("ascii")
    except UnicodeDecodeError:
        raise Malformed("expected a form, whose characters are all ASCII") from None


def _confinement_of(caller: Caller, db: LazyConnection) -> Confinement:
    is_on_all = not all(login.cluster for login in caller.access.users)
    return Confinement.of(caller.access, cluster_names(db()) if is_on_all else ())


class QueryRoute(APIRoute):
    """A route whose function takes the request itself, and the parts of its path.

    Dashboards send many queries, each of them short, and FastAPI's dependencies would take a
    tenth of the time of one.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:

        async def handle(request: Request) -> Response:
            return cast(Response, await self.endpoint(request, **request.path_params))

        return handle


async def _answer(request: Request, path: str, kind: endpoints.PrometheusEndpoint) -> Response:
    services: Services = request.app.state.services
    body, background_tasks = await request.body(), BackgroundTasks()
    # The caller is identified first: strangers must not learn about the configuration.
    caller, confinement = await identify(request, background_tasks, _confinement_of)
    tsdb, options, principal = services.tsdb, services.settings.gate, caller.principal
    if tsdb is None:
        raise Unavailable("no time series database is configured")
    params = endpoints.parse_params(_read_pairs(request, body), kind.parameters)
    form, left_out = kind.form(params, confinement, services.clock(), _LIMITS)
    covers_all_users = confinement.logins is None or confinement.whole_clusters
    if covers_all_users or principal.token_creator:
        texts = [params["query"]] if "query" in params else params["match[]"]
        about = f" for {quote(' '.join(texts))}" if texts else ""
        log_action(principal, f"asked PromQL {path}{about}")
    # To Prometheus, 0 means no limit.
    series = min(params.get("limit") or options.series, options.series)
    timeout = min(params.get("timeout", options.timeout), options.timeout)
    form.append(("limit", str(series)))
    if "timeout" in kind.parameters:
        form.append(("timeout", f"{max(1, round(timeout * 1000))}ms"))
    with services.metrics.time_tsdb_query(path.partition("/")[0]):
        answer = await tsdb.ask(principal.person_key(), path, form, timeout)
    is_empty = _NO_SERIES in answer[:_HEAD_BYTES]
    explained = left_out > (LeftOut.NOTHING if is_empty else LeftOut.OTHERS_JOB)
    return Response(
        _with_infos(answer, confinement.describe()) if explained else answer,
        media_type="application/json",
        background=background_tasks,
    )


def _with_infos(answer: bytes, message: str) -> bytes:
    """The answer with the API's `infos`, which explain to the caller why a panel may be empty.

    They are inserted before the first key, because parsing a long answer again costs too much. An
    answer that already ends with `infos` of the database is left as it is.
    """
    if not message or b'"infos":' in answer[-_TAIL_BYTES:] or not answer.startswith(b'{"status"'):
        return answer
    return b'{"infos":' + json.dumps([message]).encode() + b"," + answer[1:]


router = APIRouter(
    prefix=f"{PREFIX}/prometheus/api/v1",
    tags=["prometheus"],
    default_response_class=JSONResponse,
    responses={
        status: {"model": PrometheusError, "description": HTTPStatus(status).phrase}
        for status in (400, 403, 422, 429, 503)
    },
    route_class=QueryRoute,
)


_ENDPOINTS = (
    ("query", endpoints.QUERY, "An expression at one time; `query`, `time`, `timeout`, `limit`."),
    ("query_range", endpoints.QUERY_RANGE,
     "An expression over time; `query`, `start`, `end`, `step`, `timeout`, `limit`."),
    ("series", endpoints.SERIES, "Label sets of series; `match[]`, `start`, `end`, `limit`."),
    ("labels", endpoints.LABELS, "Names of labels; `match[]`, `start`, `end`, `limit`."),
)  # fmt: skip


def _answers(name: str, kind: endpoints.PrometheusEndpoint) -> Callable[..., Any]:
    async def answer(request: Request) -> Response:
        return await _answer(request, name, kind)

    return answer


for _name, _kind, _about in _ENDPOINTS:
    for _method, _is_form in (("GET", False), ("POST", True)):
        router.add_api_route(
            f"/{_name}", _answers(_name, _kind), methods=[_method], description=_about,
            name=f"{_name}_form" if _is_form else _name, openapi_extra=_kind.openapi(_is_form),
        )  # fmt: skip


@router.get("/label/{name}/values", openapi_extra=endpoints.LABELS.openapi())
async def label_values(request: Request, name: str) -> Response:
    """Values of a label; `match[]`, `start`, `end`, `limit`."""
    return await _answer(request, f"label/{label_name(name)}/values", endpoints.LABELS)


def buildinfo(_: CurrentCaller) -> dict[str, Any]:
    """The supported version of PromQL, which Grafana requests."""
    return _success({"version": "2.42.0", "revision": f"batchjob {__version__}"})


_METADATA = frozenset({"metric", "limit", "limit_per_metric"})


async def metadata(caller: CurrentCaller, request: Request) -> dict[str, Any]:
    """Type, help and unit of batchjob's metrics; for viewers and admins, of all metrics."""
    services: Services = request.app.state.services
    params = endpoints.parse_params(_read_pairs(request, await request.body()), _METADATA)
    if (tsdb := services.tsdb) is None:
        return _success({})
    form = [("metric", params["metric"])] if "metric" in params else []

    user, timeout = caller.principal.person_key(), services.settings.gate.timeout
    try:
        with services.metrics.time_tsdb_query("metadata"):
            answer = await tsdb.ask(user, "metadata", form, timeout)
    except (Rejected, Unavailable):  # not all databases have metadata, and nothing depends on it
        return _success({})
    metrics = known_metrics(answer, caller.access.everything, params.get("limit_per_metric"))
    return _success(dict(itertools.islice(metrics, params.get("limit"))))


def _success(data: Mapping[str, Any]) -> dict[str, Any]:
    return {"status": "success", "data": data}


router.add_api_route("/status/buildinfo", buildinfo, route_class_override=APIRoute)
router.add_api_route(
    "/metadata", metadata, route_class_override=APIRoute,
    openapi_extra=endpoints.openapi_parameters(_METADATA, frozenset(), form=False),
)  # fmt: skip
