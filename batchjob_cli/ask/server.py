"""A server that is asked by HTTP."""

from urllib.parse import urljoin

import requests

from batchjob.settings import SettingsError
from batchjob_cli.ask.asked import Answer, Parameters

_TIMEOUT_SECONDS = 60.0


class Server:
    """Asks one server, with one token; never another address that an answer names."""

    def __init__(self, url: str, token: str, ca_file: str = "") -> None:
        if not url.startswith(("http://", "https://")):
            raise SettingsError(f"--server: expected http://HOST or https://HOST, got {url!r}")
        self._base = f"{url.rstrip('/')}/api/v1/"
        self._session = requests.Session()
        self._session.trust_env = False  # a .netrc must not take the token's place
        if token:
            self._session.headers["Authorization"] = f"Bearer {token}"
        if ca_file:
            self._session.verify = ca_file

    def __call__(self, path: str, parameters: Parameters) -> Answer:
        """Raises SettingsError where nobody answers."""
        url = urljoin(self._base, path)
        if not url.startswith(self._base):
            raise SettingsError(f"{self._base}: names a next page elsewhere, {url}")
        try:
            answer = self._session.get(
                url, params=dict(parameters), timeout=_TIMEOUT_SECONDS, allow_redirects=False
            )
        except (requests.RequestException, OSError) as error:
            raise SettingsError(f"{self._base}: {error}") from error
        following = answer.links.get("next", {}).get("url", "")
        return Answer(answer.status_code, answer.content, following)
