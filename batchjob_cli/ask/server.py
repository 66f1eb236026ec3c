"""A server that is asked by HTTP."""

import ssl
from urllib.parse import urlencode, urljoin

from batchjob.fetch import FetchError, fetch, trust
from batchjob.settings import SettingsError
from batchjob.values import http_url
from batchjob_cli.ask.asked import Answer, Parameters, next_page

_TIMEOUT_SECONDS = 60.0
_LONGEST_ANSWER = 256 << 20  # bytes


class Server:
    """Asks one server, with one token; never another address that an answer names."""

    def __init__(self, url: str, token: str, ca_file: str = "") -> None:
        try:
            self._base = f"{http_url(url)}/api/v1/"
        except ValueError as error:
            raise SettingsError(f"--server: {error}") from error
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._tls = _trust(ca_file) if ca_file else None

    def __call__(self, path: str, parameters: Parameters) -> Answer:
        """Raises SettingsError where nobody answers."""
        url = urljoin(self._base, path)
        if not url.startswith(self._base):
            raise SettingsError(f"{self._base}: names a next page elsewhere, {url}")
        if parameters:
            url = f"{url}?{urlencode(dict(parameters), doseq=True)}"
        try:
            answer = fetch(
                url, headers=self._headers, seconds=_TIMEOUT_SECONDS, limit=_LONGEST_ANSWER,
                tls=self._tls,
            )  # fmt: skip
        except FetchError as error:
            raise SettingsError(f"{self._base}: {error}") from error
        return Answer(answer.status, answer.body, next_page(answer.headers.get("link", "")))


def _trust(ca_file: str) -> ssl.SSLContext:
    try:
        return trust(ca_file)
    except OSError as error:  # an SSLError where it is no certificate
        raise SettingsError(f"--ca-file: {ca_file}: {error.strerror or error}") from error
