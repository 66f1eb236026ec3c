"""The node's power over Redfish, read by a thread of its own."""

import os
from collections import defaultdict
from dataclasses import dataclass
from urllib.parse import urlsplit

from batchjob.runtime.settings import SettingsError, option
from batchjob.runtime.values import duration
from batchjob.secret_files import secret_file
from collectors.collector import CollectorModule
from collectors.host import Host
from collectors.metric import Metric, labelled_family
from collectors.power.meter import BmcCollector, BmcError, BmcReading, PlausiblePower
from collectors.power.redfish.power import REASONS, RedfishReader

# fmt: off
POWER = Metric("batchjob_redfish_power_watts", "gauge",
    "Power consumption of a chassis, reported by its management controller.", ("chassis",))
AGE = Metric("batchjob_redfish_age_seconds", "gauge",
    "Age of the power reading of the Redfish service.")
ERRORS = Metric("batchjob_redfish_errors_total", "counter",
    "Failed requests to the Redfish service.", ("reason",))
# fmt: on
METRICS = (POWER, AGE, ERRORS)

_PAUSE_SECONDS = {"authentication": 600.0}  # refused logins may lock the account


@dataclass(frozen=True)
class RedfishOptions:
    # fmt: off
    url: str = option("",
        "URL of the Redfish service, such as https://{node}-bmc; {node} is this host's short name.")
    user: str = option("", "User name for the Redfish service.")
    password_file: str = option("", "File with the password.", parse=secret_file)
    ca_file: str = option("",
        "CA certificates (PEM) to trust for the service instead of the system's.")
    insecure: bool = option(False,
        "Do not verify certificates; an impostor could obtain the password.")
    system: str = option("", "ID of this node's computer system, if the service has several.")
    chassis: tuple[str, ...] = option((),
        "ID of a chassis whose power is the node's; several are added up.", repeat=True)
    interval: float = option(30.0, "Interval between readings.", parse=duration)
    timeout: float = option(10.0,
        "Maximum time for a complete answer, including name resolution.", parse=duration)
    # fmt: on


class RedfishCollector(BmcCollector):
    meter_name, age_metric, error_metric, error_reasons = "redfish", AGE, ERRORS, REASONS
    pause_seconds = _PAUSE_SECONDS

    def __init__(self, host: Host, options: RedfishOptions) -> None:
        self._reader = redfish_reader(options)
        super().__init__(host, self._reader.close, options.interval, options.timeout)
        self._sums_chassis = bool(options.chassis)
        self._plausible: dict[str, PlausiblePower] = defaultdict(PlausiblePower)  # by chassis

    def read_bmc(self) -> BmcReading:
        """Chassis are added up only if the site names them: one may contain another."""
        watts_by_chassis = self._reader.read()
        for chassis, read in watts_by_chassis.items():
            if not self._plausible[chassis].accept(read):
                raise BmcError("implausible", f"chassis {chassis} reports {read:g} W")
        watts = list(watts_by_chassis.values())
        return BmcReading(
            sum(watts) if self._sums_chassis else watts[0],
            sum(gauge.series for gauge in self._plausible.values()),
            [labelled_family(POWER, watts_by_chassis)],
        )


def redfish_reader(options: RedfishOptions) -> RedfishReader:
    """Build the reader of the service; SettingsError if the options are inconsistent."""
    from batchjob.runtime.http_client import tls_context  # HTTP and TLS take a megabyte
    from collectors.power.redfish.session import RedfishSession

    url = options.url.replace("{node}", os.uname().nodename.partition(".")[0]).rstrip("/")
    parts = urlsplit(url)
    if parts.scheme != "https" or not parts.hostname or parts.username or parts.path:
        raise SettingsError(f"collector.redfish.url: expected https://HOST[:PORT], got {url!r}")
    for name in ("user", "password_file"):
        if not getattr(options, name):
            flag = name.replace("_", "-")
            raise SettingsError(f"collector.redfish.{flag}: expected with collector.redfish.url")
    try:
        context = tls_context(options.ca_file, options.insecure)
    except OSError as error:  # including ssl.SSLError
        reason = error.strerror or "no certificates in it"
        raise SettingsError(f"collector.redfish.ca-file: {options.ca_file}: {reason}") from error
    session = RedfishSession(url, options.user, options.password_file, options.timeout, context)
    return RedfishReader(session.get, session.close, options.chassis, options.system)


COLLECTOR = CollectorModule(
    RedfishOptions, METRICS, lambda host, options, _: RedfishCollector(host, options)
)
