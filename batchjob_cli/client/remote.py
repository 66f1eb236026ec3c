"""A server, queried over HTTP."""

import contextlib
import json
import math
import ssl
from collections.abc import Iterator
from email.message import Message
from http import HTTPStatus
from itertools import islice
from typing import Any
from urllib.parse import quote, urlencode, urljoin, urlsplit

from batchjob.runtime.http_client import FetchError, HttpReply, HttpStream, fetch, tls_context
from batchjob.runtime.reason import reason
from batchjob.runtime.settings import SettingsError
from batchjob.runtime.values import http_url
from batchjob.secret_files import SecretFileError, check_private_key
from batchjob_cli.client.answer import foreign_answer_error, parse_document, require_success
from batchjob_cli.client.connect import Parameters
from batchjob_cli.client.problems import UnreachableError

_TIMEOUT_SECONDS = 60.0
_MAX_ANSWER_BYTES = 256 << 20  # bytes
_MAX_PROBLEM_PIECES = 4
_REDIRECTS = (301, 302, 303, 307, 308)


class Server:
    """Queries one server with one token; never another address, even if an answer names one."""

    def __init__(
        self, url: str, token: str, ca_file: str = "", cert: str = "", key: str = "",
        seconds: float = _TIMEOUT_SECONDS,
    ) -> None:  # fmt: skip
        try:
            self._base = f"{http_url(url)}/api/v1/"
            if "@" in urlsplit(url).netloc:
                raise ValueError("expected no user and password; --token-file names a token")
        except ValueError as error:
            raise SettingsError(f"--server: {error}") from error
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._timeout_seconds = seconds
        self._tls = _tls_context(ca_file, cert, key) if ca_file or cert else None

    def __call__(self, path: str, parameters: Parameters) -> HttpReply:
        """Raises UnreachableError if nothing answers."""
        return self.request("GET", path, parameters)

    def request(
        self, method: str, path: str, parameters: Parameters, body: Any = None,
        seconds: float | None = None,
    ) -> HttpReply:  # fmt: skip
        """Send any request, with a JSON body. Raises UnreachableError if nothing answers."""
        headers = self._headers
        if body is not None:
            headers = {**headers, "Content-Type": "application/json"}
        try:
            answer = fetch(
                self._url(path, parameters), method=method, headers=headers,
                body=None if body is None else json.dumps(body).encode(),
                seconds=seconds or self._timeout_seconds, limit=_MAX_ANSWER_BYTES, tls=self._tls,
            )  # fmt: skip
        except FetchError as error:
            raise UnreachableError(f"{self._base}: {error}") from error
        self._require_own_server(answer.status, answer.headers, parameters)
        return answer

    def find_run_id(self, text: str) -> str | None:
        """The id of a run by its name or id prefix; None if there is no such run.

        Raises NotFoundError, which lists them, if there are several.
        """
        answer = self.request("GET", f"runs/{quote(text, safe='')}", {})
        if answer.status == HTTPStatus.MULTIPLE_CHOICES:
            require_success(answer)
        return str(parse_document(answer, "id")["id"]) if answer.status == 200 else None

    def stream(self, path: str, parameters: Parameters) -> Iterator[bytes]:
        """An answer as it arrives, until it ends. Raises SettingsError.

        With `follow`, nothing arrives while the job writes nothing.
        """
        silence = math.inf if parameters.get("follow") else self._timeout_seconds
        try:
            url = self._url(path, parameters)
            answer = HttpStream(url, self._headers, self._timeout_seconds, self._tls)
            with contextlib.closing(answer):
                self._require_own_server(answer.status, answer.headers, parameters)
                if answer.status != 200:
                    pieces = islice(answer.pieces(self._timeout_seconds), _MAX_PROBLEM_PIECES)
                    require_success(HttpReply(answer.status, answer.headers, b"".join(pieces)))
                yield from answer.pieces(silence)
        except FetchError as error:
            raise UnreachableError(f"{self._base}: {error}") from error

    def _require_own_server(self, status: int, headers: Message, parameters: Parameters) -> None:
        """Raise UnreachableError for the answer of a proxy or another program."""
        if status in _REDIRECTS:
            raise foreign_answer_error(
                f"a redirect to {headers.get('location', '')} at {self._base}"
            )
        web_page = headers.get_content_type() == "text/html" and parameters.get("format") != "html"
        if status == HTTPStatus.OK and web_page:
            raise foreign_answer_error(f"a web page at {self._base}")

    def _url(self, path: str, parameters: Parameters) -> str:
        url = urljoin(self._base, path)
        if not url.startswith(self._base):
            raise SettingsError(f"{self._base}: names a next page elsewhere, {url}")
        given = {name: value for name, value in parameters.items() if value is not None}
        return f"{url}?{urlencode(given, doseq=True)}" if given else url


def _tls_context(ca_file: str, cert: str, key: str) -> ssl.SSLContext:
    try:
        context = tls_context(ca_file)
    except OSError as error:  # an SSLError if it is not a certificate
        raise SettingsError(f"--ca-file: {ca_file}: {reason(error)}") from error
    if cert:
        try:
            check_private_key(key or cert)
            context.load_cert_chain(cert, key or None)
        except SecretFileError as error:
            raise SettingsError(f"{'--key' if key else '--cert'}: {error}") from error
        except OSError as error:
            raise SettingsError(f"--cert: {cert}: {reason(error)}") from error
    return context
