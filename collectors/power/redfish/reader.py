"""A Redfish service as the site's options describe it."""

import os
import ssl
from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

from batchjob.runtime.http_client import trust
from batchjob.runtime.settings import SettingsError
from collectors.power.redfish.collector import RedfishOptions
from collectors.power.redfish.error import RedfishError
from collectors.power.redfish.power import Get, PowerLocation, find, read
from collectors.power.redfish.session import RedfishLogin, RedfishSession

_FAILURES_BEFORE_LOOKING_ANEW = 3


class RedfishReader:
    """One Redfish service; the location of its power is looked up once."""

    def __init__(self, session: RedfishSession, chassis: Sequence[str], system: str) -> None:
        self._session = session
        self._chassis = chassis
        self._system = system
        self._places: tuple[PowerLocation, ...] = ()
        self._failures = 0

    def read(self) -> Mapping[str, float]:
        """Watts of all chassis, or RedfishError, since a part is not the node."""
        try:
            watts = self._watts(self._session.get)
        except RedfishError:
            self._failures += 1
            if self._failures >= _FAILURES_BEFORE_LOOKING_ANEW:
                self._places = ()
            raise
        self._failures = 0
        return watts

    def close(self) -> None:
        """Delete the session."""
        self._session.close()

    def _watts(self, get: Get) -> Mapping[str, float]:
        if not self._places:
            self._places = find(get, self._chassis, self._system)
        missing = set(self._chassis) - {place.chassis for place in self._places}
        if missing or not self._places:
            names = ", ".join(sorted(missing)) or "any chassis of the node"
            raise RedfishError("no_reading", f"no power reported for {names}")
        return {place.chassis: _present(place, read(get, place)) for place in self._places}


def _present(place: PowerLocation, watts: float | None) -> float:
    if watts is None:
        raise RedfishError("no_reading", f"chassis {place.chassis} reports no power")
    return watts


def service(options: RedfishOptions) -> RedfishReader:
    """The service that the options name; SettingsError if they are inconsistent."""
    url = options.url.replace("{node}", os.uname().nodename.partition(".")[0]).rstrip("/")
    parts = urlsplit(url)
    if parts.scheme != "https" or not parts.hostname or parts.username or parts.path:
        raise SettingsError(f"collector.redfish.url: expected https://HOST[:PORT], got {url!r}")
    for name in ("user", "password_file"):
        if not getattr(options, name):
            flag = name.replace("_", "-")
            raise SettingsError(f"collector.redfish.{flag}: expected with collector.redfish.url")
    try:
        context = trust(options.ca_file, options.insecure)
    except (OSError, ssl.SSLError) as error:
        told = error.strerror or "no certificates in it"
        raise SettingsError(f"collector.redfish.ca-file: {options.ca_file}: {told}") from error
    login = RedfishLogin(url, options.user, options.password_file)
    return RedfishReader(
        RedfishSession(login, options.timeout, context), options.chassis, options.system
    )
