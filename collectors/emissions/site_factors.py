"""All configured factors, for the collector, the energy accounts and the server.

Each provider is queried in a thread of its own, and its last answer is kept.
"""

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from batchjob.runtime.background import PostponedError, Refresher
from batchjob.runtime.settings import SettingsError, option
from batchjob.runtime.values import duration, http_url, with_metavar
from batchjob.secret_files import SecretFileError, read_secret, secret_file
from collectors.emissions.providers.electricity_maps import ElectricityMapsOptions
from collectors.emissions.providers.provider import (
    REASONS,
    EmissionFactor,
    FactorError,
    FetchJson,
    ProviderAccess,
    ProviderEntry,
)
from collectors.emissions.providers.registry import (
    PROVIDERS,
    SERVER,
    TABLES,
    country_factor,
    longest_age,
    split_provider_zone,
)
from collectors.emissions.providers.watttime import WattTimeOptions

if TYPE_CHECKING:
    import ssl

    from batchjob.runtime.http_client import HttpReply

_LONGEST_PAUSE = 3600.0
_MAX_RETRY_SECONDS = 86400.0
_DEFAULT_RETRY_SECONDS = 3600.0  # after a refusal without Retry-After
_MAX_BYTES = 1 << 20
Clock = Callable[[], float]

SPREAD_SECONDS = 30.0  # spreads the requests of nodes that start at the same time


@with_metavar("PROVIDER:ZONE")
def provider_and_zone(value: object) -> str:
    """`owid:FR`, `rte:FR`, `electricity_maps:DK-DK1`, `uk_grid:GB`, `watttime:CAISO_NORTH`."""
    if not isinstance(value, str):
        raise ValueError(f"expected PROVIDER:ZONE, got {value!r}")
    split_provider_zone(value)
    return value


@with_metavar("PROVIDER=URL")
def provider_and_url(value: object) -> str:
    """`rte=https://mirror.example.org`."""
    name, _, url = str(value).partition("=")
    if name not in PROVIDERS or not url.startswith(("https://", "http://")):
        raise ValueError(f"expected PROVIDER=URL with one of {', '.join(PROVIDERS)}, got {value!r}")
    return f"{name}={url.rstrip('/')}"


@dataclass(frozen=True)
class EmissionsOptions(WattTimeOptions, ElectricityMapsOptions):
    """Where emission factors come from."""

    # fmt: off
    provider: tuple[str, ...] = option((),
        f"Provider and zone: {' or '.join(TABLES)} with a country (no network), "
        f"{', '.join(PROVIDERS)} with a zone.", parse=provider_and_zone, repeat=True)
    server_url: str = option("",
        "URL of a batchjob_stats_server from which to read emission factors.", parse=http_url)
    server_token_file: str = option("",
        "File with a token for that server, if it requires one.", parse=secret_file)
    url: tuple[str, ...] = option((),
        "Alternative URL of a provider, such as a mirror.", parse=provider_and_url, repeat=True)
    ca_file: str = option("",
        "CA certificates (PEM) to trust for the providers instead of the system's.")
    timeout: float = option(10.0, "Maximum time for a complete answer.", parse=duration)
    # fmt: on


@dataclass(eq=False)
class ProviderPoller:
    """A provider for one zone. `clock` gives epoch seconds."""

    name: str
    provider: ProviderEntry
    access: ProviderAccess
    fetch_json: FetchJson
    clock: Clock = time.time
    spread: float = 0.0
    errors: dict[str, int] = field(default_factory=lambda: dict.fromkeys(REASONS, 0))
    _last_factors: tuple[EmissionFactor, ...] = ()

    def __post_init__(self) -> None:
        self.refresher: Refresher[None] = Refresher(
            f"emissions {self.name}:{self.access.zone}",
            self._query,
            self.provider.interval,
            self.provider.interval,
            longest_pause=_LONGEST_PAUSE,
            first_pause=self.spread,
        )

    def current(self) -> tuple[EmissionFactor, ...]:
        """The factors valid now: an outdated one is not returned."""
        now = self.clock()
        return tuple(
            each
            for each in self._last_factors
            if now - each.observed_at <= longest_age(each.provider)
        )

    def _query(self) -> None:
        try:
            factors = self.provider.read(self.fetch_json, self.access, self.clock())
            now = self.clock()
            if all(now - each.observed_at > longest_age(each.provider) for each in factors):
                hours = (now - max(each.observed_at for each in factors)) / 3600
                raise FactorError("late", f"the newest value is {hours:.1f} hours old")
        except FactorError as error:
            self.errors[error.reason] += 1
            raise PostponedError(str(error), error.seconds) from error
        self._last_factors = factors  # atomic: readers see either the old or the new ones


def json_fetcher(timeout: float, tls: "ssl.SSLContext") -> FetchJson:
    """A function that queries over HTTP, with the environment's proxy, and follows no redirects."""

    from batchjob.runtime.http_client import FetchError, fetch  # not needed by tables

    def fetch_json(url: str, headers: Sequence[tuple[str, str]] = ()) -> Any:
        all_headers = {"Accept": "application/json", **dict(headers)}
        try:
            answer = fetch(
                url, headers=all_headers, seconds=timeout, limit=_MAX_BYTES, tls=tls, proxies=True
            )
            _check(answer, url.partition("?")[0])
            return answer.json()
        except FetchError as error:
            raise FactorError(error.reason, str(error)) from error

    return fetch_json


def _check(answer: "HttpReply", url: str) -> None:
    if answer.status == 200:
        return
    message = f"{url}: status {answer.status}"
    if answer.status in (401, 403):
        raise FactorError("authentication", message, _DEFAULT_RETRY_SECONDS)
    retry_seconds = parse_retry_after(answer.headers.get("Retry-After", ""), time.time())
    if answer.status == 429:
        raise FactorError("rate_limited", message, retry_seconds or _DEFAULT_RETRY_SECONDS)
    raise FactorError("status", message, retry_seconds)


def parse_retry_after(text: str, now: float) -> float:
    """Seconds to wait according to Retry-After (RFC 9110, 10.2.3): a number, or a date."""
    from email.utils import parsedate_to_datetime  # it loads much that tables do not need

    if text.isascii() and text.isdigit():
        return min(float(text), _MAX_RETRY_SECONDS)
    try:
        at = parsedate_to_datetime(text).timestamp()
    except ValueError:
        return 0.0
    return min(max(0.0, at - now), _MAX_RETRY_SECONDS)


@dataclass(eq=False)
class SiteFactors:
    """The factors of a site: constants, and those of providers.

    A provider has one zone. If both the server and this machine have a value of the same provider,
    this machine's is used.
    """

    constants: Sequence[EmissionFactor]
    pollers: Sequence[ProviderPoller]
    clock: Clock = time.time

    @classmethod
    def of_site(
        cls,
        options: EmissionsOptions,
        section: str = "collector.emissions",
        clock: Clock = time.time,
    ) -> Self:
        """The factors that the options name; SettingsError if they contradict each other."""
        pairs = [split_provider_zone(text) for text in options.provider]
        names = [name for name, _ in pairs]
        for name in names:
            if names.count(name) > 1:
                raise SettingsError(f"{section}.provider: expected one zone for {name}")
        if not pairs and not options.server_url:
            raise SettingsError(f"{section}.provider: expected PROVIDER:ZONE, such as owid:FR")
        constants = [country_factor(name, zone) for name, zone in pairs if name in TABLES]
        queried = {
            name: _provider_access(name, zone, options, section)
            for name, zone in pairs
            if name in PROVIDERS
        }
        if options.server_url:
            secret = _secret_reader(options.server_token_file)
            queried["server"] = ProviderAccess(options.server_url, "", secret=secret)
        if not queried:
            return cls(constants, [], clock)
        fetch_json = _create_fetcher(options, section)
        spread = random.uniform(0, SPREAD_SECONDS)  # noqa: S311 (not a secret)
        pollers = [
            ProviderPoller(name, PROVIDERS.get(name, SERVER), access, fetch_json, clock, spread)
            for name, access in queried.items()
        ]
        return cls(constants, pollers, clock)

    def start(self) -> None:
        for poller in self.pollers:
            poller.refresher.start()

    def stop(self) -> None:
        for poller in self.pollers:
            poller.refresher.stop()

    def current(self) -> Sequence[EmissionFactor]:
        """The factors valid now, one per provider; never waits."""
        factors: dict[str, EmissionFactor] = {}
        for poller in self.pollers:
            for each in poller.current():
                factors.setdefault(each.provider, each)
        for each in self.constants:
            factors[each.provider] = each
        return tuple(factors.values())


def _create_fetcher(options: EmissionsOptions, section: str) -> FetchJson:
    from batchjob.runtime.http_client import tls_context  # HTTP and TLS, which tables do not need

    try:
        return json_fetcher(options.timeout, tls_context(options.ca_file))
    except OSError as error:  # including ssl.SSLError
        reason = error.strerror or "no certificates in it"
        raise SettingsError(f"{section}.ca-file: {options.ca_file}: {reason}") from error


def _provider_access(
    name: str, zone: str, options: EmissionsOptions, section: str
) -> ProviderAccess:
    addresses = {provider: url for provider, _, url in (x.partition("=") for x in options.url)}
    entry = PROVIDERS[name]
    for needed in filter(None, (entry.user_option, entry.credential_option)):
        if not getattr(options, needed):
            raise SettingsError(f"{section}.{needed.replace('_', '-')}: expected with {name}")
    user = getattr(options, entry.user_option) if entry.user_option else ""
    path = getattr(options, entry.credential_option) if entry.credential_option else ""
    return ProviderAccess(addresses.get(name, entry.url), zone, user, _secret_reader(path))


def _secret_reader(path: str) -> Callable[[], str]:
    """Read the file, if there is one, for each query: a renewed secret is used at once."""

    def read() -> str:
        try:
            return read_secret(path).strip() if path else ""
        except SecretFileError as error:
            raise FactorError("authentication", str(error)) from error

    return read
