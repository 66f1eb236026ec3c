"""The node's power over Redfish, read by a thread of its own."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from batchjob.runtime.background import PostponedError, Refresher, lifetime
from batchjob.runtime.settings import option
from batchjob.runtime.values import duration
from batchjob.secret_files import secret_file
from collectors.collector import Collector, CollectorModule
from collectors.host import Host
from collectors.metric import NO_LABELS, Metric, MetricFamily, labels
from collectors.power.meter import Meter, MeterReading
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

_LONGEST_PAUSE = 600.0
_LOGIN_PAUSE = 600.0  # refused logins lock accounts


@dataclass(frozen=True)
class RedfishOptions:
    """Which Redfish service is asked, and as whom."""

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
    """What gives the power of each chassis."""

    def read(self) -> Mapping[str, float]:
        """Watts by chassis, the node's first; RedfishError when there are none."""

    def close(self) -> None:
        """End the session."""


class RedfishCollector:
    """The last reading of a Redfish service."""

    def __init__(self, host: Host, service: Watts, options: RedfishOptions) -> None:
        self._host = host
        self._service = service
        self._interval = options.interval
        self._added = bool(options.chassis)
        self._errors: Counter[str] = Counter()
        self._plausible: dict[str, PlausiblePower] = defaultdict(PlausiblePower)  # by chassis
        self._refresher: Refresher[Mapping[str, float]] = Refresher(
            "redfish",
            self._read,
            options.interval,
            lifetime(options.interval, options.timeout),
            host.monotonic,
            longest_pause=_LONGEST_PAUSE,
        )

    def start(self) -> None:
        """Begin to read."""
        self._refresher.start()

    def stop(self) -> None:
        """End the thread and the session."""
        self._refresher.stop()
        self._service.close()

    def meters(self) -> Sequence[Meter]:
        """The node's power, once the service has shown any."""
        if self._refresher.latest() is None:
            return ()
        return (Meter("redfish", "node", True, self._interval, self._meter),)

    def collect(self) -> list[MetricFamily]:
        """The last reading, while it is young enough, and the count of failures."""
        counts = [(labels(reason=reason), float(self._errors[reason])) for reason in REASONS]
        families = [MetricFamily(ERRORS, counts)]
        seen = self._refresher.latest()
        if seen is not None:
            shown = [(labels(chassis=name), watts) for name, watts in seen.value.items()]
            families.append(MetricFamily(POWER, shown))
            families.append(MetricFamily(AGE, [(NO_LABELS, self._host.monotonic() - seen.at)]))
        return families

    def _meter(self) -> MeterReading | None:
        """Chassis are added only where the site names them: one may contain another."""
        seen = self._refresher.latest()
        if seen is None:
            return None
        watts = list(seen.value.values())
        series = sum(gauge.series for gauge in self._plausible.values())
        return MeterReading(seen.at, watts=sum(watts) if self._added else watts[0], series=series)

    def _read(self) -> Mapping[str, float]:
        try:
            shown = self._service.read()
            for chassis, watts in shown.items():
                if not self._plausible[chassis].accepts(watts):
                    raise RedfishError("implausible", f"chassis {chassis} shows {watts:g} W")
            return shown
        except RedfishError as error:
            self._errors[error.reason] += 1
            if error.reason == "authentication":
                raise PostponedError(str(error), _LOGIN_PAUSE) from error
            raise


def build(host: Host, options: RedfishOptions, _built: Mapping[str, Collector]) -> Collector:
    """A collector of the service's power."""
    from collectors.power.redfish.reader import (
        service,  # HTTP and TLS: a megabyte nobody else needs
    )

    return RedfishCollector(host, service(options), options)


COLLECTOR = CollectorModule(RedfishOptions, METRICS, build)
