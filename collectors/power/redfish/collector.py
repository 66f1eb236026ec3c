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

_LOGIN_PAUSE_SECONDS = 600.0  # refused logins may lock the account


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


class ChassisPowerReader(Protocol):
    """Reads the power of each chassis."""

    def read(self) -> Mapping[str, float]:
        """Watts by chassis, the node's first; RedfishError if there are none."""

    def close(self) -> None:
        """Close the session."""


class RedfishCollector(BmcCollector[Mapping[str, float]]):
    """Watts by chassis, from a Redfish service."""

    meter_name, error_metric, error_reasons = "redfish", ERRORS, REASONS

    def __init__(self, host: Host, reader: ChassisPowerReader, options: RedfishOptions) -> None:
        super().__init__(host, reader.close, options.interval, options.timeout)
        self._reader = reader
        self._sums_chassis = bool(options.chassis)
        self._plausible: dict[str, PlausiblePower] = defaultdict(PlausiblePower)  # by chassis

    def _read(self) -> Mapping[str, float]:
        try:
            watts_by_chassis = self._reader.read()
            for chassis, watts in watts_by_chassis.items():
                if not self._plausible[chassis].accept(watts):
                    raise RedfishError("implausible", f"chassis {chassis} reports {watts:g} W")
            return watts_by_chassis
        except RedfishError as error:
            self._failure_counts[error.reason] += 1
            if error.reason == "authentication":
                raise PostponedError(str(error), _LOGIN_PAUSE_SECONDS) from error
            raise

    def _families(self, observed: Observed[Mapping[str, float]]) -> Iterator[MetricFamily]:
        yield MetricFamily(POWER, [(labels(chassis=name), w) for name, w in observed.value.items()])
        yield MetricFamily(AGE, [(NO_LABELS, self._host.monotonic() - observed.at)])

    def _meter_reading(self, observed: Observed[Mapping[str, float]]) -> MeterReading:
        """Chassis are added up only if the site names them: one may contain another."""
        watts = list(observed.value.values())
        series = sum(gauge.series for gauge in self._plausible.values())
        return MeterReading(
            observed.at, watts=sum(watts) if self._sums_chassis else watts[0], series=series
        )


def build(host: Host, options: RedfishOptions, _built: Mapping[str, Collector]) -> Collector:
    """Build the collector."""
    from collectors.power.redfish.reader import (
        redfish_reader,  # imported here because HTTP and TLS take a megabyte
    )

    return RedfishCollector(host, redfish_reader(options), options)


COLLECTOR = CollectorModule(RedfishOptions, METRICS, build)
