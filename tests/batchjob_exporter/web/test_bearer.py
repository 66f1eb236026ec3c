"""The bearer secret and the Host header, which are checked before metrics are served."""

from http import HTTPStatus

import pytest

from batchjob.runtime.values import LOOPBACK
from batchjob_exporter.web.auth import require_bearer
from batchjob_exporter.web.message import HttpRequest, text_response

GUARDED = require_bearer(lambda _: text_response(HTTPStatus.OK, "numbers"), "bj_secret", LOOPBACK)


def response_status(**headers: str) -> HTTPStatus:
    return GUARDED(
        HttpRequest("GET", "/metrics", (), {"host": "localhost:1"} | headers, True)
    ).status


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:10910", "[::1]:10910", "LOCALHOST"])
def test_bearer_secret_is_accepted(host):
    assert response_status(authorization="Bearer bj_secret", host=host) == HTTPStatus.OK
    assert response_status(authorization="bearer  bj_secret", host=host) == HTTPStatus.OK


@pytest.mark.parametrize(
    "authorization",
    ["", "Bearer", "Bearer bj_secre", "Bearer bj_secret2", "Basic bj_secret", "Bearer \xff"],
)
def test_any_other_authorization_is_rejected(authorization):
    assert response_status(authorization=authorization) == HTTPStatus.UNAUTHORIZED


@pytest.mark.parametrize("host", ["", "evil.example", "localhost.evil.example", "[", "127.0.0.2"])
def test_unknown_host_is_rejected(host):
    status = response_status(authorization="Bearer bj_secret", host=host)
    assert status == HTTPStatus.MISDIRECTED_REQUEST


def test_any_host_is_accepted_without_names():
    guarded = require_bearer(lambda _: text_response(HTTPStatus.OK, "numbers"), "bj_secret")
    request = HttpRequest("GET", "/", (), {"host": "x", "authorization": "Bearer bj_secret"}, True)
    assert guarded(request).status == HTTPStatus.OK
