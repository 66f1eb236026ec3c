"""All configured factors, for the collector, the energy accounts and the server."""

import random
import time
from collections.abc import Callable, Sequence
from typing import Self

from batchjob.runtime.settings import SettingsError
from batchjob.secret_files import SecretFileError, read_secret
from collectors.emissions.options import EmissionsOptions
from collectors.emissions.provider_poller import Clock, ProviderPoller, json_fetcher
from collectors.emissions.providers.provider import (
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
    split_provider_zone,
)

SPREAD_SECONDS = 30.0  # spreads the requests of nodes that start at the same time


class SiteFactors:
    """The factors of a site: constants, and those of providers.

    A provider has one zone. If both the server and this machine have a value of the same provider,
    this machine's is used.
    """

    def __init__(
        self,
        constants: Sequence[EmissionFactor],
        pollers: Sequence[ProviderPoller],
        clock: Clock = time.time,
    ) -> None:
        self.pollers = pollers
        self.clock = clock
        self._constants = constants

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
        queried = [
            (name, PROVIDERS[name], _provider_access(name, zone, options, section))
            for name, zone in pairs
            if name in PROVIDERS
        ]
        if options.server_url:
            secret = _secret_reader(options.server_token_file) if options.server_token_file else str
            queried.append(
                ("server", SERVER, ProviderAccess(options.server_url, "", secret=secret))
            )
        return cls(constants, _create_pollers(queried, options, section, clock), clock)

    def start(self) -> None:
        for poller in self.pollers:
            poller.start()

    def stop(self) -> None:
        for poller in self.pollers:
            poller.stop()

    def current(self) -> Sequence[EmissionFactor]:
        """The factors valid now, one per provider; never waits."""
        factors: dict[str, EmissionFactor] = {}
        for poller in self.pollers:
            for each in poller.current():
                factors.setdefault(each.provider, each)
        for each in self._constants:
            factors[each.provider] = each
        return tuple(factors.values())


def _create_pollers(
    queried: Sequence[tuple[str, ProviderEntry, ProviderAccess]],
    options: EmissionsOptions,
    section: str,
    clock: Clock,
) -> list[ProviderPoller]:
    if not queried:
        return []
    fetch_json = _create_fetcher(options, section)
    spread = random.uniform(0, SPREAD_SECONDS)  # noqa: S311 (not a secret)
    return [ProviderPoller(*each, fetch_json, clock, spread) for each in queried]


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
    for field in filter(None, (entry.user_option, entry.credential_option)):
        if not getattr(options, field):
            raise SettingsError(f"{section}.{field.replace('_', '-')}: expected with {name}")
    user = getattr(options, entry.user_option) if entry.user_option else ""
    path = getattr(options, entry.credential_option) if entry.credential_option else ""
    secret = _secret_reader(path) if path else str
    return ProviderAccess(addresses.get(name, entry.url), zone, user, secret)


def _secret_reader(path: str) -> Callable[[], str]:
    """Read the file for each query, so that a renewed secret is used at once."""

    def read() -> str:
        try:
            return read_secret(path).strip()
        except SecretFileError as error:
            raise FactorError("authentication", str(error)) from error

    return read
