"""The PromQL gate: queries of the Prometheus HTTP API, answered with the caller's series.

The request to the database is rebuilt from parsed values; no header and no other parameter of the
client is passed on. Anything else of the API (rules, alerts, targets, exemplars, federate, read,
write) is not found.
"""

import itertools
import json
from collections.abc import Callable, Coroutine, Hashable, Iterable, Mapping
from http import HTTPStatus
from typing import Any, NamedTuple, cast
from urllib.parse import parse_qsl

import sqlalchemy as sa
from fastapi import APIRouter, BackgroundTasks, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute

from batchjob import __version__
from batchjob_stats_db.database import schema
from batchjob_stats_db.database.access import Access
from batchjob_stats_db.database.engine import LazyConnection
from batchjob_stats_server.api import PREFIX
from batchjob_stats_server.api.prometheus_errors import PrometheusError
from batchjob_stats_server.auth import audit
from batchjob_stats_server.auth.identity import Asker, Asking, Caller, identified
from batchjob_stats_server.promql.backend import Rejected
from batchjob_stats_server.promql.confinement import Confinement
from batchjob_stats_server.promql.metadata import known_metrics
from batchjob_stats_server.promql.params import PrometheusParams, described, read
from batchjob_stats_server.promql.query_limits import (
    LONGEST_QUERY,
    Malformed,
    QueryLimits,
    QueryWindow,
    TooLarge,
    Unavailable,
    days,
    points,
    shown,
)
from batchjob_stats_server.promql.rewrite import confine, confine_selector
from batchjob_stats_server.promql.selector import label_name
from batchjob_stats_server.services import Services

_DEFAULT_WINDOW_SECONDS = 86400.0
_MOST_FIELDS = 100
_LAST_KEYS = 4096  # bytes at the end of an answer that contain Prometheus' warnings and infos
_FORM = "application/x-www-form-urlencoded"

Form = list[tuple[str, str]]


class Question(NamedTuple):
    """A caller's query, with everything that decides what is queried instead."""

    asked: PrometheusParams
    own: Confinement
    now: float
    limits: QueryLimits


class PrometheusEndpoint(NamedTuple):
    """One of the API's endpoints: its parameters, and the form to send."""

    parameters: frozenset[str]
    form: Callable[[Question], Form]
    required: frozenset[str] = frozenset()

    def described(self, form: bool = False) -> dict[str, Any]:
        """For the OpenAPI document."""
        return described(self.parameters, self.required, form)


def _query(question: Question) -> Form:
    asked = question.asked
    at = asked.values.get("time", question.now)
    text = confine(_required(asked, "query"), question.own, QueryWindow(at, at), question.limits)
    return [("query", text), ("time", _seconds(at))]


def _query_range(question: Question) -> Form:
    asked, limits = question.asked, question.limits
    window = QueryWindow(*(_required(asked, name) for name in ("start", "end", "step")))
    _check(window, limits)
    points(window, limits)
    text = confine(_required(asked, "query"), question.own, window, limits)
    form = [("query", text), *_times(window), ("step", _seconds(window.step))]
    # Without nocache, VictoriaMetrics adjusts start and end to its cache.
    return [*form, ("nocache", "1")] if question.own.has_times() else form


def _series(question: Question) -> Form:
    if not question.asked.match:
        raise Malformed("match[]: expected at least one")
    return _labels(question)


def _labels(question: Question) -> Form:
    asked, own, limits = question.asked, question.own, question.limits
    window = asked.window(question.now, _DEFAULT_WINDOW_SECONDS)
    _check(window, limits)
    if len(asked.match) > limits.selectors or sum(map(len, asked.match)) > LONGEST_QUERY:
        raise TooLarge(
            f"match[]: at most {limits.selectors}, and {LONGEST_QUERY} characters in all"
        )
    given = [made for each in asked.match for made in confine_selector(each, own, window, limits)]
    return [*(("match[]", each) for each in given or own.selectors(window)), *_times(window)]


_FIND = frozenset({"match[]", "start", "end", "limit"})
_ASK = frozenset({"query", "timeout", "limit"})

QUERY = PrometheusEndpoint(_ASK | {"time"}, _query, frozenset({"query"}))
QUERY_RANGE = PrometheusEndpoint(
    _ASK | {"start", "end", "step"}, _query_range, frozenset({"query", "start", "end", "step"})
)
SERIES = PrometheusEndpoint(_FIND, _series, frozenset({"match[]"}))
LABELS = PrometheusEndpoint(_FIND, _labels)


def _required(asked: PrometheusParams, name: str) -> Any:
    if name not in asked.values:
        raise Malformed(f"{name}: expected")
    return asked.values[name]


def _check(window: QueryWindow, limits: QueryLimits) -> None:
    if window.end < window.start:
        raise Malformed("end: expected a time not before start")
    if window.end - window.start > limits.window_seconds:
        raise TooLarge(f"start, end: at most {days(limits.window_seconds)} apart")


def _times(window: QueryWindow) -> Form:
    return [("start", _seconds(window.start)), ("end", _seconds(window.end))]


def _seconds(value: float) -> str:
    return f"{value:.3f}"


def _pairs(request: Request, body: bytes) -> Form:
    """The parameters of the URL and the form together, as they were sent."""
    texts = [_decoded(request.scope["query_string"])]
    if request.method == "POST":
        kind = request.headers.get("content-type", _FORM).partition(";")[0].strip().lower()
        if body and kind != _FORM:
            raise Malformed(f"content-type: expected {_FORM}")
        texts.append(_decoded(body))
    try:
        return [
            pair
            for text in texts
            for pair in parse_qsl(
                text, keep_blank_values=True, errors="strict", max_num_fields=_MOST_FIELDS
            )
        ]
    except ValueError as error:
        raise Malformed(f"expected a form of at most {_MOST_FIELDS} fields in UTF-8") from error


def _decoded(body: bytes) -> str:
    try:
        return body.decode("ascii")
    except UnicodeDecodeError:
        raise Malformed("expected a form, whose characters are all ASCII") from None


class Querier(NamedTuple):
    """The caller, and the series that they may read."""

    asker: Asker
    own: Confinement

    def who(self) -> Hashable:
        """Whose request it is, for the queue."""
        return self.asker.identity.who()


class GateRequest(NamedTuple):
    """A request whose sender and parameters have not been checked yet."""

    services: Services
    request: Request
    later: BackgroundTasks
    body: bytes

    def querier(self) -> Querier:
        """Who asks; in a thread. Raises Problem."""
        return self.services.threads.short(self._identified)

    def _identified(self) -> Querier:
        with LazyConnection(self.services.reader) as db:
            asker = identified(self.request, self.services, self.later, db)
            return Querier(asker, Confinement.of(asker.access, _clusters(asker.access, db)))

    def asked(self, names: frozenset[str]) -> PrometheusParams:
        """The parameters; raises Malformed."""
        return read(_pairs(self.request, self.body), names)


async def _received(request: Request) -> GateRequest:
    services: Services = request.app.state.services
    return GateRequest(services, request, BackgroundTasks(), await request.body())


_CLUSTERS = sa.select(schema.cluster.c.name)


def _clusters(access: Access, db: LazyConnection) -> Iterable[str]:
    """Names of all clusters, if the caller has a login on each."""
    return [] if all(login.cluster for login in access.users) else db().scalars(_CLUSTERS)


class QueryRoute(APIRoute):
    """A route whose function takes the request itself, and the parts of its path.

    Dashboards send many queries, each of them short, and FastAPI's dependencies would take a
    tenth of the time of one.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The function, called with nothing else."""

        async def handle(request: Request) -> Response:
            return cast(Response, await self.endpoint(request, **request.path_params))

        return handle


def _note(querier: Querier, asked: PrometheusParams, path: str) -> None:
    """Write to the audit log if series of other users may be in the answer."""
    identity = querier.asker.identity
    if querier.own.is_everybodys() or identity.on_behalf:
        texts = [asked.values["query"]] if "query" in asked.values else list(asked.match)
        about = f" for {shown(' '.join(texts))}" if texts else ""
        audit.did(identity, f"asked PromQL {path}{about}")


async def _answer(request: Request, path: str, kind: PrometheusEndpoint) -> Response:
    received = await _received(request)
    services = received.services
    tsdb, options = services.tsdb, services.settings.gate
    if tsdb is None:
        # Identified all the same: a stranger learns nothing of the configuration.
        await run_in_threadpool(received.querier)
        raise Unavailable("no time series database is configured")

    def work(querier: Querier) -> bytes:
        asked = received.asked(kind.parameters)
        form = kind.form(Question(asked, querier.own, services.clock(), options.limits()))
        _note(querier, asked, path)
        # To Prometheus, 0 means no limit.
        series = min(asked.values.get("limit") or options.series, options.series)
        timeout = min(asked.values.get("timeout", options.timeout), options.timeout)
        extra = [("limit", str(series))]
        if "timeout" in kind.parameters:
            extra.append(("timeout", f"{max(1, round(timeout * 1000))}ms"))
        with services.metrics.tsdb(path.partition("/")[0]):
            return _with_infos(tsdb.ask(path, form + extra, timeout), querier.own.told())

    answer = await tsdb.turns.run_as(received.querier, Querier.who, work)
    return Response(
        answer, headers={"Cache-Control": "no-store"}, media_type="application/json",
        background=received.later,
    )  # fmt: skip


def _with_infos(answer: bytes, told: str) -> bytes:
    """The answer with the API's `infos`, which explain to the caller why a panel may be empty.

    They are inserted before the first key, because parsing a long answer again costs too much. An
    answer that already ends with `infos` of the database is left as it is.
    """
    if not told or b'"infos":' in answer[-_LAST_KEYS:] or not answer.startswith(b'{"status"'):
        return answer
    return b'{"infos":' + json.dumps([told]).encode() + b"," + answer[1:]


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


@router.get("/query", openapi_extra=QUERY.described())
@router.post("/query", name="query_form", openapi_extra=QUERY.described(True))
async def query(request: Request) -> Response:
    """An expression at one time; `query`, `time`, `timeout`, `limit`."""
    return await _answer(request, "query", QUERY)


@router.get("/query_range", openapi_extra=QUERY_RANGE.described())
@router.post("/query_range", name="query_range_form", openapi_extra=QUERY_RANGE.described(True))
async def query_range(request: Request) -> Response:
    """An expression over time; `query`, `start`, `end`, `step`, `timeout`, `limit`."""
    return await _answer(request, "query_range", QUERY_RANGE)


@router.get("/series", openapi_extra=SERIES.described())
@router.post("/series", name="series_form", openapi_extra=SERIES.described(True))
async def series(request: Request) -> Response:
    """Label sets of series; `match[]`, `start`, `end`, `limit`."""
    return await _answer(request, "series", SERIES)


@router.get("/labels", openapi_extra=LABELS.described())
@router.post("/labels", name="labels_form", openapi_extra=LABELS.described(True))
async def labels(request: Request) -> Response:
    """Names of labels; `match[]`, `start`, `end`, `limit`."""
    return await _answer(request, "labels", LABELS)


@router.get("/label/{name}/values", openapi_extra=LABELS.described())
async def label_values(request: Request, name: str) -> Response:
    """Values of a label; `match[]`, `start`, `end`, `limit`."""
    return await _answer(request, f"label/{label_name(name)}/values", LABELS)


def buildinfo(_: Caller) -> dict[str, Any]:
    """The version of PromQL that is understood, which Grafana asks for."""
    return _success({"version": "2.42.0", "revision": f"batchjob {__version__}"})


_METADATA = frozenset({"metric", "limit", "limit_per_metric"})


async def metadata(asker: Asking, request: Request) -> dict[str, Any]:
    """Type, help and unit of our own metrics; for viewers and admins of all there are."""
    services: Services = request.app.state.services
    params = read(_pairs(request, await request.body()), _METADATA).values
    if (tsdb := services.tsdb) is None:
        return _success({})
    form = [("metric", params["metric"])] if "metric" in params else []

    def work() -> bytes:
        with services.metrics.tsdb("metadata"):
            return tsdb.ask("metadata", form, services.settings.gate.timeout)

    try:
        answer = await tsdb.turns.run(asker.identity.who(), work)
    except (Rejected, Unavailable):  # not all databases have metadata, and nothing depends on it
        return _success({})
    found = known_metrics(answer, asker.access.everything, params.get("limit_per_metric"))
    return _success(dict(itertools.islice(found, params.get("limit"))))


def _success(data: Mapping[str, Any]) -> dict[str, Any]:
    return {"status": "success", "data": data}


router.add_api_route("/status/buildinfo", buildinfo, route_class_override=APIRoute)
router.add_api_route(
    "/metadata", metadata, route_class_override=APIRoute,
    openapi_extra=described(_METADATA, frozenset(), form=False),
)  # fmt: skip
