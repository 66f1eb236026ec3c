"""A client of slurmrestd: HTTP over TCP or a UNIX socket, with a JSON Web Token if required.

Facts: slurmrestd(8), rest_auth/jwt and rest_auth/local; paths are /slurm/v0.0.NN/... (slurmctld)
and /slurmdb/v0.0.NN/... (slurmdbd).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any
from urllib.parse import urlencode

from batchjob.runtime.http_client import FetchError, HttpReply, fetch, tls_context
from batchjob.runtime.reason import reason
from batchjob.runtime.settings import option
from batchjob.runtime.subprocesses import SchedulerError
from batchjob.runtime.values import duration, service_url
from batchjob.schedulers.slurm.json_format import SlurmJsonError, raise_for_errors
from batchjob.secret_files import SecretFileError, read_secret, secret_file

Query = Mapping[str, str | Sequence[str]]

VERSIONS = tuple(f"v0.0.{number}" for number in range(46, 36, -1))  # newest first
_LAST_WITH_COMMAS = 39
"""Versions up to v0.0.39 split a list at its commas, and of a parameter that is repeated they keep
the last one (22.05 and 23.02, serializer_url_encoded.c). Later ones take repeated parameters, and
refuse commas (26.05)."""
ANSWER_LIMIT = 512 * 1024 * 1024
_MESSAGE_LENGTH = 300


class RestError(SchedulerError):
    """No answer of slurmrestd (`status` is 0), or one with an HTTP status other than 200."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


def version(value: Any) -> str:
    """A version such as v0.0.42; "" asks slurmrestd for the newest it has."""
    if value == "" or value in VERSIONS:
        return str(value)
    raise ValueError(f"expected a version such as {VERSIONS[0]}, got {value!r}")


@dataclass(frozen=True)
class RestOptions:
    # fmt: off
    url: str = option("unix:/run/slurmrestd/slurmrestd.socket",
        "slurmrestd's address: http://host:port, https://host:port or unix:/path.",
        parse=service_url)
    version: str = option("",
        "API version, such as v0.0.42; default: the latest available.", parse=version)
    user: str = option("", "User that the token belongs to.")
    token_file: str = option("",
        "File with the JSON Web Token (`scontrol token`); read for each request.",
        parse=secret_file)
    # fmt: on
    ca_file: str = option("", "CA certificates (PEM) to trust, for https.")
    timeout: float = option(120.0, "Maximum duration of a request.", parse=duration)


class Slurmrestd:
    def __init__(self, options: RestOptions) -> None:
        self._options = options
        self._version = options.version

    def get(self, daemon: str, path: str, query: Query | None = None) -> Any:
        """The JSON document at /<daemon>/<version>/<path>; daemon is "slurm" or "slurmdb".

        Lists in the query are written as the version in use reads them.
        """
        if query and int(self.version().rpartition(".")[2]) <= _LAST_WITH_COMMAS:
            query = {
                name: value if isinstance(value, str) else ",".join(value)
                for name, value in query.items()
            }
        return self._get_json(f"/{daemon}/{self.version()}/{path}", query)

    def version(self) -> str:
        """The API version in use: that of the options, or the newest one available."""
        if not self._version:
            self._version = self._find_newest_version()
        return self._version

    def _find_newest_version(self) -> str:
        for candidate in VERSIONS:
            try:
                self._get_json(f"/slurm/{candidate}/ping", None)
            except RestError as error:
                if error.status != HTTPStatus.NOT_FOUND:
                    raise
            else:
                return candidate
        raise RestError(
            f"{self._options.url}: supports none of the API versions {VERSIONS[-1]} to "
            f"{VERSIONS[0]}"
        )

    def text(self, path: str) -> str:
        """The text at a path below the URL's own path: slurmctld's metrics."""
        return self._get(path, None).body.decode("utf-8", "replace")

    def _get_json(self, path: str, query: Query | None) -> Any:
        reply = self._get(path, query)
        try:
            return reply.json()
        except FetchError as error:
            raise RestError(f"{self._options.url}{path}: {error}") from error

    def _get(self, path: str, query: Query | None) -> HttpReply:
        reply = self._fetch(f"{path}?{urlencode(query, doseq=True)}" if query else path)
        if reply.status != HTTPStatus.OK:
            where = f"{self._options.url}{path}" + (f" with {', '.join(query)}" if query else "")
            raise RestError(f"{where}: HTTP {reply.status}: {_refusal(reply)}", reply.status)
        return reply

    def _fetch(self, target: str) -> HttpReply:
        options = self._options
        scheme, _, rest = options.url.partition(":")
        try:
            return fetch(
                f"http://localhost{target}" if scheme == "unix" else f"{options.url}{target}",
                headers=self._headers(),
                seconds=options.timeout,
                limit=ANSWER_LIMIT,
                tls=tls_context(options.ca_file) if scheme == "https" else None,
                unix_socket=rest if scheme == "unix" else "",
            )
        except FetchError as error:
            raise RestError(f"{error} ({target})") from error
        except OSError as error:
            raise RestError(f"{options.ca_file}: {reason(error)}") from error

    def _headers(self) -> dict[str, str]:
        headers = {"Accept": "application/json"}
        if self._options.user:
            headers["X-SLURM-USER-NAME"] = self._options.user
        if self._options.token_file:
            headers["X-SLURM-USER-TOKEN"] = _read_token(self._options.token_file)
        return headers


def _refusal(reply: HttpReply) -> str:
    """The errors that Slurm reports, of which there may be jobs in front; else the text."""
    try:
        raise_for_errors(reply.json())
    except (FetchError, SlurmJsonError) as error:
        if isinstance(error, SlurmJsonError):
            return str(error)[:_MESSAGE_LENGTH]
    return " ".join(reply.body[:4096].decode("utf-8", "replace").split())[:_MESSAGE_LENGTH]


def _read_token(path: str) -> str:
    """The token: the file's text, or what follows SLURM_JWT= as `scontrol token` prints it."""
    try:
        token = read_secret(path).strip().removeprefix("SLURM_JWT=")
    except SecretFileError as error:
        raise RestError(str(error)) from error
    if not token or not token.isascii() or any(character.isspace() for character in token):
        raise RestError(f"{path}: expected one JSON Web Token")
    return token
