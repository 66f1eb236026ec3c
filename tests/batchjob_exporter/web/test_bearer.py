"""Metrics for whoever bears the secret, asked under a name of this machine."""

from http import HTTPStatus

import pytest

from batchjob_exporter.web.bearer import LOOPBACK, require_bearer
from batchjob_exporter.web.message import HttpRequest, text_response

GUARDED = require_bearer(lambda _: text_response(HTTPStatus.OK, "numbers"), "bj_secret", LOOPBACK)


def asked(**headers: str) -> HTTPStatus:
    return GUARDED(
        HttpRequest("GET", "/metrics", (), {"host": "localhost:1"} | headers, True)
    ).status


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:10910", "[::1]:10910", "LOCALHOST"])
def test_the_secret_opens(host):
    assert asked(authorization="Bearer bj_secret", host=host) == HTTPStatus.OK
    assert asked(authorization="bearer  bj_secret", host=host) == HTTPStatus.OK


@pytest.mark.parametrize(
    "given",
    ["", "Bearer", "Bearer bj_secre", "Bearer bj_secret2", "Basic bj_secret", "Bearer \xff"],
)
def test_nothing_else_does(given):
    assert asked(authorization=given) == HTTPStatus.UNAUTHORIZED


@pytest.mark.parametrize("host", ["", "evil.example", "localhost.evil.example", "[", "127.0.0.2"])
def test_other_names_are_refused(host):
    told = asked(authorization="Bearer bj_secret", host=host)
    assert told == HTTPStatus.MISDIRECTED_REQUEST


def test_without_names_any_will_do():
    guarded = require_bearer(lambda _: text_response(HTTPStatus.OK, "numbers"), "bj_secret")
    request = HttpRequest("GET", "/", (), {"host": "x", "authorization": "Bearer bj_secret"}, True)
    assert guarded(request).status == HTTPStatus.OK
