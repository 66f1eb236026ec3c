"""Reads the node's power from the Redfish service that the options describe."""

import os
import ssl
from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

from batchjob.runtime.http_client import tls_context
from batchjob.runtime.settings import SettingsError
from collectors.power.redfish.collector import RedfishOptions
from collectors.power.redfish.error import RedfishError
from collectors.power.redfish.power import Get, PowerLocation, find_locations, read_watts
from collectors.power.redfish.session import RedfishLogin, RedfishSession

_FAILURES_BEFORE_NEW_SEARCH = 3


class RedfishReader:
    """Reads one Redfish service; the location of the power values is looked up once."""

    def __init__(self, session: RedfishSession, chassis: Sequence[str], system: str) -> None:
        self._session = session
        self._chassis = chassis
        self._system = system
        self._locations: tuple[PowerLocation, ...] = ()
        self._failures = 0

    def read(self) -> Mapping[str, float]:
        """Watts of all chassis; RedfishError if one is missing, as the sum would be too low."""
        try:
            watts = self._read_chassis(self._session.get)
        except RedfishError:
            self._failures += 1
            if self._failures >= _FAILURES_BEFORE_NEW_SEARCH:
                self._locations = ()
            raise
        self._failures = 0
        return watts

    def close(self) -> None:
        """Delete the session."""
        self._session.close()

    def _read_chassis(self, get: Get) -> Mapping[str, float]:
        if not self._locations:
            self._locations = find_locations(get, self._chassis, self._system)
        missing = set(self._chassis) - {location.chassis for location in self._locations}
        if missing or not self._locations:
            names = ", ".join(sorted(missing)) or "any chassis of the node"
            raise RedfishError("no_reading", f"no power reported for {names}")
        return {
            location.chassis: _require_watts(location, read_watts(get, location))
            for location in self._locations
        }


def _require_watts(location: PowerLocation, watts: float | None) -> float:
    if watts is None:
        raise RedfishError("no_reading", f"chassis {location.chassis} reports no power")
    return watts


def redfish_reader(options: RedfishOptions) -> RedfishReader:
    """Build the reader of the service; SettingsError if the options are inconsistent."""
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
    except (OSError, ssl.SSLError) as error:
        reason = error.strerror or "no certificates in it"
        raise SettingsError(f"collector.redfish.ca-file: {options.ca_file}: {reason}") from error
    login = RedfishLogin(url, options.user, options.password_file)
    return RedfishReader(
        RedfishSession(login, options.timeout, context), options.chassis, options.system
    )
