"""The web configuration in force: TLS and authentication.

The file and those it names are checked for changes at each connection; a change that cannot be used
is logged, and the previous configuration stays in force.
"""

import logging
import socket
import threading
from collections.abc import Callable
from http import HTTPStatus

from batchjob.runtime.settings import SettingsError
from batchjob.runtime.values import host_name
from batchjob.secret_files import file_stamp
from batchjob_exporter.web.config import WebConfig, read, warn_unsupported
from batchjob_exporter.web.connection import Stream
from batchjob_exporter.web.message import HttpRequest, HttpResponse, text_response

log = logging.getLogger(__name__)

_UNAUTHORIZED = text_response(
    HTTPStatus.UNAUTHORIZED,
    "authentication required",
    ("WWW-Authenticate", 'Basic realm="batchjob_exporter", charset="UTF-8"'),
)

_UNAUTHORIZED_BEARER = text_response(
    HTTPStatus.UNAUTHORIZED,
    "expected the token as Authorization: Bearer",
    ("WWW-Authenticate", "Bearer"),
)
_MISDIRECTED = text_response(HTTPStatus.MISDIRECTED_REQUEST, "unknown Host header")

RequestHandler = Callable[[HttpRequest], HttpResponse]

_FileSignatures = tuple[tuple[int, int, int] | None, ...]


class WebAccess:
    """TLS and authentication, between a client's socket and the site."""

    def __init__(self, path: str, handler: RequestHandler | None = None) -> None:
        """`path`: the file, or empty. Raises SettingsError if the file cannot be used."""
        self._path = path
        self._handler = handler
        self._lock = threading.Lock()
        self._signatures: _FileSignatures = ()
        self._loaded = WebConfig()
        if path:
            self._loaded = self._load()
            self._signatures = self._read_signatures()
            warn_unsupported(self._loaded)

    @property
    def requires_authentication(self) -> bool:
        loaded = self._loaded
        requires_certificate = loaded.tls.client_auth_type.startswith("Require")
        return loaded.passwords is not None or (loaded.context is not None and requires_certificate)

    def wrap(self, client: socket.socket) -> Stream:
        loaded = self._load_if_changed()
        if loaded.context is None:
            return Stream(client)
        from batchjob_exporter.web.tls import TlsStream

        return TlsStream(client, loaded.context, loaded.tls.client_allowed_sans)

    def needs_verification(self, request: HttpRequest) -> bool:
        """Whether the request's password has yet to be checked, which takes 50 ms or more."""
        passwords = self._load_if_changed().passwords
        return passwords is not None and passwords.cached_result(_authorization(request)) is None

    def verify(self, request: HttpRequest) -> bool:
        """Check the password; `answer` uses the result. For one thread at a time."""
        passwords = self._load_if_changed().passwords
        return passwords is None or passwords.check(_authorization(request))

    def answer(self, request: HttpRequest) -> HttpResponse:
        passwords = self._load_if_changed().passwords
        if passwords is not None and not passwords.cached_result(_authorization(request)):
            return _UNAUTHORIZED
        assert self._handler is not None  # without a site, the file is only checked
        return self._handler(request)

    def reload(self) -> None:
        with self._lock:
            self._signatures = ()
        self._load_if_changed()

    def _load_if_changed(self) -> WebConfig:
        if not self._path:
            return self._loaded
        with self._lock:
            signatures = self._read_signatures()
            if signatures != self._signatures:
                # Also for an invalid file, so that it is reported only once.
                self._signatures = signatures
                try:
                    self._loaded = self._load()
                except SettingsError as error:
                    log.error("web configuration not reloaded: %s", error)
                else:
                    self._signatures = self._read_signatures()  # the new file may name other files
                    log.info("web configuration reloaded")
                    warn_unsupported(self._loaded)
            return self._loaded

    def _read_signatures(self) -> _FileSignatures:
        """A signature of the files, which changes when one of them is written."""
        return tuple(map(file_stamp, (self._path, *self._loaded.tls.files)))

    def _load(self) -> WebConfig:
        old = self._loaded
        config = read(self._path)
        if old.context is not None and not config.tls.wanted:
            raise SettingsError(f"{self._path}: TLS can be switched off only by a restart")
        if old.passwords is not None and not config.users:
            raise SettingsError(f"{self._path}: log-in can be switched off only by a restart")
        context = passwords = None
        if config.tls.wanted:
            from batchjob_exporter.web.tls import tls_context

            context = tls_context(config.tls)
        if config.users:
            passwords = old.passwords
            if passwords is None or config.users != old.users:
                from batchjob_exporter.web.passwords import Passwords

                passwords = Passwords(config.users)
        return config._replace(context=context, passwords=passwords)


def _authorization(request: HttpRequest) -> str:
    return request.headers.get("authorization", "")


def require_bearer(
    handler: RequestHandler, secret: str, hosts: frozenset[str] | None = None
) -> RequestHandler:
    """The same answers for requests with the secret. `hosts`: accepted names; None: all.

    Other users of a machine can reach its loopback ports, and another site's page can let its own
    name resolve to them (DNS rebinding): a browser then lets it read the answers, and only `Host`
    shows it.
    """
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
