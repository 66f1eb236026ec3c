"""The pages of the exporter: metrics, the landing page, health."""

import json
from collections.abc import Callable, Collection, Sequence
from http import HTTPStatus

from batchjob.runtime.settings import suggest_nearest
from batchjob_exporter.exporter import Exporter
from batchjob_exporter.exposition import OPENMETRICS, TEXT, render
from batchjob_exporter.web.message import HttpRequest, HttpResponse, parse_accept, text_response

# The default scrape timeout of Prometheus. No scrape waits longer for another, whatever its header
# says: a few could otherwise occupy all workers while a collector hangs.
_MAX_TIMEOUT_SECONDS = 10.0
# Time for the answer to reach Prometheus.
_TRANSFER_SECONDS = 0.5

_TARGETS_PATH = "/targets"

# (media type, version requested by the client) -> format; None: no version requested.
_FORMATS: dict[tuple[str, str | None], str] = {
    ("application/openmetrics-text", "1.0.0"): OPENMETRICS,
    ("application/openmetrics-text", None): OPENMETRICS,
    ("text/plain", "0.0.4"): TEXT,
    ("text/plain", None): TEXT,
    ("text/*", None): TEXT,
    ("*/*", None): TEXT,
}

# The same as `html.escape`, whose module needs half a megabyte for the names of all characters.
_HTML_ESCAPES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;"})
_PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>batchjob_exporter</title></head>
<body><h1>batchjob_exporter</h1>
<p>{version}</p>
<ul>
<li><a href="{metrics}">Metrics</a></li>
<li><a href="/-/healthy">Health</a></li>
<li><a href="/-/ready">Readiness</a></li>
</ul>
<h2>Collectors</h2>
<p>{collectors}</p>
<p>Only one: <code>{metrics}?collect[]=NAME</code>; all but one:
<code>{metrics}?exclude[]=NAME</code>.</p>
</body></html>
"""


class MetricsSite:
    """Answers requests; called from several threads at once."""

    def __init__(self, exporter: Exporter, telemetry_path: str, version: str) -> None:
        self._exporter = exporter
        page = _PAGE.format(
            version=version.translate(_HTML_ESCAPES),
            metrics=telemetry_path.translate(_HTML_ESCAPES),
            collectors=", ".join(exporter.names) or "none",
        )
        self._landing = HttpResponse(
            HTTPStatus.OK, page.encode(), (("Content-Type", "text/html; charset=utf-8"),)
        )
        self._pages: dict[str, Callable[[HttpRequest], HttpResponse]] = {
            "/": lambda _: self._landing,
            "/-/healthy": lambda _: text_response(HTTPStatus.OK, "healthy"),
            "/-/ready": lambda _: self._ready(),
            telemetry_path: self._metrics,
        }
        for collector in exporter.collectors:
            if collector.node_names is not None:
                self._pages[_TARGETS_PATH] = _targets_page(collector.node_names)

    def answer(self, request: HttpRequest) -> HttpResponse:
        page = self._pages.get(request.path)
        if page is None:
            return text_response(HTTPStatus.NOT_FOUND, "no such page; metrics are linked from /")
        if request.method not in ("GET", "HEAD"):
            return text_response(
                HTTPStatus.METHOD_NOT_ALLOWED, "only GET and HEAD", ("Allow", "GET, HEAD")
            )
        return page(request)

    def _ready(self) -> HttpResponse:
        if self._exporter.ready:
            return text_response(HTTPStatus.OK, "ready")
        return text_response(HTTPStatus.SERVICE_UNAVAILABLE, "not ready")

    def _metrics(self, request: HttpRequest) -> HttpResponse:
        try:
            names = _selected_collectors(request.query, self._exporter.names)
        except ValueError as error:
            return text_response(HTTPStatus.BAD_REQUEST, str(error))
        families = self._exporter.collect(names, _seconds_left(request))
        format = negotiate(request.headers.get("accept", ""))
        body = render(families, format)
        headers = (("Content-Type", format), ("Vary", "Accept, Accept-Encoding"))
        return HttpResponse(HTTPStatus.OK, body, headers)


def _selected_collectors(
    query: tuple[tuple[str, str], ...], known: Collection[str]
) -> Collection[str] | None:
    """Names of the collectors selected by `collect[]` or `exclude[]`; None: all."""
    collect = [value for key, value in query if key == "collect[]"]
    exclude = [value for key, value in query if key == "exclude[]"]
    if collect and exclude:
        raise ValueError("collect[] and exclude[] cannot both be given")
    for name in collect + exclude:
        if name not in known:
            raise ValueError(
                f"no enabled collector is named {name!r}{suggest_nearest(name, known)}"
            )
    if exclude:
        return [name for name in known if name not in exclude]
    return collect or None


def _seconds_left(request: HttpRequest) -> float:
    """Seconds for which the scraper may wait, from the header that Prometheus sends."""
    try:
        seconds = float(request.headers.get("x-prometheus-scrape-timeout-seconds", ""))
    except ValueError:
        seconds = _MAX_TIMEOUT_SECONDS
    if not 0 < seconds <= _MAX_TIMEOUT_SECONDS:  # also rejects NaN
        seconds = _MAX_TIMEOUT_SECONDS
    return max(seconds - _TRANSFER_SECONDS, seconds / 2)


def negotiate(accept: str) -> str:
    """The format for an Accept header: highest q first, then the header's own order (RFC 9110).

    A client that accepts neither gets the text format, which every scraper reads.
    """
    best, chosen = 0.0, TEXT
    for media, parameters, weight in parse_accept(accept):
        offered = _FORMATS.get((media, parameters.get("version")))
        if offered is not None and weight > best:
            best, chosen = weight, offered
    return chosen


def _targets_page(
    names: Callable[[], Sequence[str] | None],
) -> Callable[[HttpRequest], HttpResponse]:
    """The nodes of the cluster as targets, for Prometheus' HTTP service discovery.

    `names`: the nodes that can be scraped; None while they are not known
    (https://prometheus.io/docs/prometheus/latest/http_sd/).

    If there is no answer, Prometheus keeps its targets, so an error is better than an empty list.
    """

    def page(request: HttpRequest) -> HttpResponse:
        clusters = [value for key, value in request.query if key == "cluster" and value]
        if len(clusters) != 1 or len(request.query) != 1:
            expected = f"{_TARGETS_PATH}?cluster=NAME, the cluster's name in the job database"
            return text_response(HTTPStatus.BAD_REQUEST, f"expected {expected}")
        nodes = names()
        if nodes is None:
            return text_response(
                HTTPStatus.SERVICE_UNAVAILABLE, "the scheduler has not reported its nodes yet"
            )
        groups = [
            {"targets": [node], "labels": {"cluster": clusters[0], "node": node}} for node in nodes
        ]
        body = json.dumps(groups, separators=(",", ":")).encode()
        return HttpResponse(HTTPStatus.OK, body, (("Content-Type", "application/json"),))

    return page
