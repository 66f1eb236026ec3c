"""Which providers are queried, and how; none unless configured."""

from dataclasses import dataclass

from batchjob.runtime.settings import option
from batchjob.runtime.values import duration, http_url, with_metavar
from batchjob.secret_files import secret_file
from collectors.emissions.providers.electricity_maps import ElectricityMapsOptions
from collectors.emissions.providers.registry import PROVIDERS, TABLES, split_provider_zone
from collectors.emissions.providers.watttime import WattTimeOptions


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
class CommonOptions:
    """Which providers, and how all of them are queried."""

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


@dataclass(frozen=True)
class EmissionsOptions(WattTimeOptions, ElectricityMapsOptions, CommonOptions):
    """Where emission factors come from. The fields of the last class come first."""
