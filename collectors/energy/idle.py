"""The idle power of a node or GPU: configured, or measured while nothing runs."""

import fnmatch
import logging
import socket

import yaml

from batchjob.runtime.settings import SettingsError
from collectors.host import Host
from collectors.sysfs import read_text

log = logging.getLogger(__name__)

_WINDOW_SECONDS = 60.0
# Hardware ages and is replaced: a minimum measured once must not apply forever.
_RISE_PER_DAY = 0.01
_DAY_SECONDS = 86400.0


LearnedIdlePower = tuple[float, float]
"""The watts of the lowest mean of an idle minute, and its time in epoch seconds."""


class IdlePower:
    """The idle power; 0 until an idle minute was measured: all energy is split by CPU time.

    Busy minutes are not used: the lowest power of a node that is never idle is not its idle power.
    """

    def __init__(
        self, configured: float | None = None, learned: LearnedIdlePower | None = None
    ) -> None:
        self.configured = configured
        self.learned = learned
        self._joules = 0.0
        self._seconds = 0.0

    def watts(self, epoch: float) -> float | None:
        """The current idle power; None while it is not known."""
        if self.configured is not None:
            return self.configured
        if self.learned is None:
            return None
        watts, learned_at = self.learned
        days = max(0.0, epoch - learned_at) / _DAY_SECONDS
        return watts * (1 + _RISE_PER_DAY * days)

    def joules(self, seconds: float, epoch: float) -> float:
        """Idle energy over a number of seconds."""
        return (self.watts(epoch) or 0.0) * seconds

    def observe(self, joules: float, seconds: float, epoch: float, is_idle: bool) -> None:
        """Record an interval; `is_idle`: almost nothing ran."""
        if not is_idle:
            self._joules = self._seconds = 0.0
            return
        self._joules += joules
        self._seconds += seconds
        if self._seconds < _WINDOW_SECONDS:
            return
        mean = self._joules / self._seconds
        self._joules = self._seconds = 0.0
        current = None if self.learned is None else IdlePower(learned=self.learned).watts(epoch)
        if current is None or mean <= current:
            self.learned = mean, epoch


def node_names(host: Host, node_type: str) -> tuple[str, ...]:
    """The names by which a row of the idle file may match: type, host name, product name."""
    nodename = socket.gethostname()
    product = read_text(f"{host.sysfs}/class/dmi/id/product_name")
    return tuple(filter(None, (node_type, nodename, nodename.partition(".")[0], product)))


def read_idle_file(path: str, names: tuple[str, ...]) -> float | None:
    """Watts of the first row whose pattern (`gpu*`, `PowerEdge R650`) matches one of the names.

    Raises SettingsError for a file that is not a table of watts.
    """
    for pattern, watts in _read_table(path).items():
        if any(fnmatch.fnmatchcase(name, pattern) for name in names):
            return watts
    log.warning("%s has no row for %s; idle power is estimated", path, ", ".join(names))
    return None


def _read_table(path: str) -> dict[str, float]:
    try:
        with open(path, encoding="utf-8") as file:
            table = yaml.safe_load(file)
    except OSError as error:
        raise SettingsError(f"{path}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path}: not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(table, dict):
        raise SettingsError(f"{path}: expected a mapping of node types to watts")
    for pattern, watts in table.items():
        is_number = isinstance(watts, int | float) and not isinstance(watts, bool)
        if not isinstance(pattern, str) or not is_number or not 0 <= watts < float("inf"):
            raise SettingsError(f"{path}: {pattern}: expected at least 0 watts, got {watts!r}")
    return {pattern: float(watts) for pattern, watts in table.items()}
