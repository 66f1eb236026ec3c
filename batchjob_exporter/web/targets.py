"""The nodes of the cluster as targets, for Prometheus' HTTP service discovery.

https://prometheus.io/docs/prometheus/latest/http_sd/
"""

import json
from collections.abc import Callable, Sequence
from http import HTTPStatus

from batchjob_exporter.web.message import HttpRequest, HttpResponse, text_response

PATH = "/targets"

NodeNames = Callable[[], Sequence[str] | None]


def targets_page(names: NodeNames) -> Callable[[HttpRequest], HttpResponse]:
    """The page. `names`: the nodes that can be scraped; None while they are not known.

    If there is no answer, Prometheus keeps its targets, so an error is better than an empty list.
    """

    def page(request: HttpRequest) -> HttpResponse:
        clusters = [value for key, value in request.query if key == "cluster" and value]
        if len(clusters) != 1 or len(request.query) != 1:
            error_message = f"expected {PATH}?cluster=NAME, the cluster's name in the job database"
            return text_response(HTTPStatus.BAD_REQUEST, error_message)
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
