"""A secret that each request must carry, and the host names accepted on loopback.

Other users of a machine can reach its loopback ports, and another site's page can let its own name
resolve to them (DNS rebinding): a browser then lets it read the answers, and only `Host` shows it.
"""

from collections.abc import Callable
from http import HTTPStatus

from batchjob.runtime.values import host_name
from batchjob_exporter.web.message import HttpRequest, HttpResponse, text_response

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})

_UNAUTHORIZED_BEARER = text_response(
    HTTPStatus.UNAUTHORIZED,
    "expected the token as Authorization: Bearer",
    ("WWW-Authenticate", "Bearer"),
)
_MISDIRECTED = text_response(HTTPStatus.MISDIRECTED_REQUEST, "unknown Host header")

RequestHandler = Callable[[HttpRequest], HttpResponse]


def require_bearer(
    handler: RequestHandler, secret: str, hosts: frozenset[str] | None = None
) -> RequestHandler:
    """The same answers for requests with the secret. `hosts`: accepted names; None: all."""
    import hmac  # loads 4 MB of OpenSSL, which most nodes do not need

    expected = secret.encode()

    def check_and_answer(request: HttpRequest) -> HttpResponse:
        if hosts is not None and host_name(request.headers.get("host", "")) not in hosts:
            return _MISDIRECTED
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        presented = token.strip().encode("latin-1")
        if scheme.lower() != "bearer" or not hmac.compare_digest(presented, expected):
            return _UNAUTHORIZED_BEARER
        return handler(request)

    return check_and_answer
