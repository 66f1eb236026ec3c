"""A secret that each request must carry, and the host names accepted on loopback.

Other users of a machine can reach its loopback ports, and another site's page can let its own name
resolve to them (DNS rebinding): a browser then lets it read the answers, and only `Host` shows it.
"""

from collections.abc import Callable
from http import HTTPStatus

from batchjob.runtime.values import host_name
from batchjob_exporter.web.message import HttpRequest, HttpResponse, text

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})

_UNKNOWN = text(
    HTTPStatus.UNAUTHORIZED, "expected the token as Authorization: Bearer",
    ("WWW-Authenticate", "Bearer"),
)  # fmt: skip
_MISDIRECTED = text(HTTPStatus.MISDIRECTED_REQUEST, "unknown Host header")

Answer = Callable[[HttpRequest], HttpResponse]


def bearer_only(answer: Answer, secret: str, hosts: frozenset[str] | None = None) -> Answer:
    """The same answers for requests with the secret. `hosts`: accepted names; None: all."""
    import hmac  # loads 4 MB of OpenSSL, which most nodes do not need

    expected = secret.encode()

    def checked(request: HttpRequest) -> HttpResponse:
        if hosts is not None and host_name(request.headers.get("host", "")) not in hosts:
            return _MISDIRECTED
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        borne = given.strip().encode("latin-1")
        if scheme.lower() != "bearer" or not hmac.compare_digest(borne, expected):
            return _UNKNOWN
        return answer(request)

    return checked
