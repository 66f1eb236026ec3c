"""The node's power over Redfish, read by a thread of its own."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from batchjob.runtime.background import Observed, PostponedError
from batchjob.runtime.settings import option
from batchjob.runtime.values import duration
from batchjob.secret_files import secret_file
from collectors.collector import Collector, CollectorModule
from collectors.host import Host
from collectors.metric import NO_LABELS, Metric, MetricFamily, labels
from collectors.power.bmc import BmcCollector
from collectors.power.meter import MeterReading
from collectors.power.plausible import PlausiblePower
from collectors.power.redfish.error import REASONS, RedfishError

POWER = Metric(
    "batchjob_redfish_power_watts",
    "gauge",
    "Power consumption of a chassis, reported by its management controller.",
    ("chassis",),
)
AGE = Metric(
    "batchjob_redfish_age_seconds", "gauge", "Age of the power reading of the Redfish service."
)
ERRORS = Metric(
    "batchjob_redfish_errors_total",
    "counter",
    "Failed requests to the Redfish service.",
    ("reason",),
)
METRICS = (POWER, AGE, ERRORS)

_LOGIN_PAUSE = 600.0  # refused logins may lock the account


@dataclass(frozen=True)
class RedfishOptions:
    """Which Redfish service is queried, and how to log in."""

    url: str = option(
        "",
        "URL of the Redfish service, such as https://{node}-bmc; {node} is this host's short name.",
    )
    user: str = option("", "User name for the Redfish service.")
    password_file: str = option("", "File with the password.", parse=secret_file)
    ca_file: str = option(
        "", "CA certificates (PEM) to trust for the service instead of the system's."
    )
    insecure: bool = option(
        False, "Do not verify certificates; an impostor could obtain the password."
    )
    system: str = option("", "ID of this node's computer system, if the service has several.")
    chassis: tuple[str, ...] = option(
        (), "ID of a chassis whose power is the node's; several are added up.", repeat=True
    )
    interval: float = option(30.0, "Interval between readings.", parse=duration)
    timeout: float = option(10.0, "Maximum time for a complete answer, including name resolution.",
                            parse=duration)  # fmt: skip


class Watts(Protocol):
    """A source of each chassis' power."""

    def read(self) -> Mapping[str, float]:
        """Watts by chassis, the node's first; RedfishError if there are none."""

    def close(self) -> None:
        """Close the session."""


class RedfishCollector(BmcCollector[Mapping[str, float]]):
    """Watts by chassis, from a Redfish service."""

    meter, errors, reasons = "redfish", ERRORS, REASONS

    def __init__(self, host: Host, service: Watts, options: RedfishOptions) -> None:
        super().__init__(host, service.close, options.interval, options.timeout)
        self._service = service
        self._added = bool(options.chassis)
        self._plausible: dict[str, PlausiblePower] = defaultdict(PlausiblePower)  # by chassis

    def _read(self) -> Mapping[str, float]:
        try:
            shown = self._service.read()
            for chassis, watts in shown.items():
                if not self._plausible[chassis].accepts(watts):
                    raise RedfishError("implausible", f"chassis {chassis} reports {watts:g} W")
            return shown
        except RedfishError as error:
            self._failures[error.reason] += 1
            if error.reason == "authentication":
                raise PostponedError(str(error), _LOGIN_PAUSE) from error
            raise

    def _families(self, seen: Observed[Mapping[str, float]]) -> Iterator[MetricFamily]:
        yield MetricFamily(POWER, [(labels(chassis=name), w) for name, w in seen.value.items()])
        yield MetricFamily(AGE, [(NO_LABELS, self._host.monotonic() - seen.at)])

    def _reading(self, seen: Observed[Mapping[str, float]]) -> MeterReading:
        """Chassis are added up only if the site names them: one may contain another."""
        watts = list(seen.value.values())
        series = sum(gauge.series for gauge in self._plausible.values())
        return MeterReading(seen.at, watts=sum(watts) if self._added else watts[0], series=series)


def build(host: Host, options: RedfishOptions, _built: Mapping[str, Collector]) -> Collector:
    """A collector of the service's power."""
    from collectors.power.redfish.reader import (
        service,  # imported here because HTTP and TLS take a megabyte
    )

    return RedfishCollector(host, service(options), options)


COLLECTOR = CollectorModule(RedfishOptions, METRICS, build)
