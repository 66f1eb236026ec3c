"""Energy lost to RAPL's wraps: raw counters under `increase()` against corrected totals.

    python -m benchmarks.rapl

Simulated sockets run at a steady power; a Prometheus scrapes every 60 s for a day. The raw way
shows `energy_uj` as it is, so that Prometheus takes each wrap for a restart of the counter and
loses what was counted between the last scrape and the wrap. The other column is
`collectors.power.rapl`.
"""

import tempfile
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from collectors.host import Host
from collectors.power.rapl import ENERGY, Rapl, RaplOptions
from tests.simulated.powercap import AMD_RANGE_UJ, INTEL_RANGE_UJ, Powercap, Zone

SCRAPE_SECONDS = 60
DAY_SECONDS = 86400


class Socket(NamedTuple):
    """A processor under load."""

    name: str
    vendor: str
    watts: float
    range_uj: int


SOCKETS = (
    Socket("AMD, 400 W", "AuthenticAMD", 400, AMD_RANGE_UJ),
    Socket("AMD, 250 W", "AuthenticAMD", 250, AMD_RANGE_UJ),
    Socket("Intel, 400 W", "GenuineIntel", 400, INTEL_RANGE_UJ),
    Socket("Intel, 250 W", "GenuineIntel", 250, INTEL_RANGE_UJ),
)


class Loss(NamedTuple):
    """Parts of the energy used that a day's `increase()` does not have."""

    raw: float
    corrected: float


def increase(samples: list[float]) -> float:
    """What Prometheus makes of a counter: a fall is a restart from 0."""
    return sum(
        later - earlier if later >= earlier else later for earlier, later in pairwise(samples)
    )


def measure(socket: Socket, seconds: int = DAY_SECONDS) -> Loss:
    """Run one socket for so long, in a time of its own."""
    with tempfile.TemporaryDirectory() as directory:
        tree = Powercap(directory, socket.vendor)
        zone = tree.zone("intel-rapl:0", "package-0", socket.range_uj)
        raw, corrected = zip(*_scrapes(tree, zone, socket.watts, seconds), strict=True)
    used = socket.watts * seconds
    return Loss(1 - increase(list(raw)) / used, 1 - increase(list(corrected)) / used)


def _scrapes(
    tree: Powercap, zone: Zone, watts: float, seconds: int
) -> Iterator[tuple[float, float]]:
    now = 0.0
    host = Host(sysfs=str(tree.sysfs), procfs=str(tree.procfs), monotonic=lambda: now)
    rapl = Rapl(host, RaplOptions())
    rapl.read_totals()
    interval = rapl.interval()
    looks_per_scrape = round(SCRAPE_SECONDS / interval)
    for scrape in range(seconds // SCRAPE_SECONDS + 1):
        for _ in range(looks_per_scrape if scrape else 0):
            now += interval
            zone.run(watts * interval)
            rapl.read_totals()
        (joules,) = (
            value
            for family in rapl.collect()
            if family.metric is ENERGY
            for _, value in family.samples
        )
        yield zone.raw_uj / 1e6, joules


def main() -> None:
    """Print the table."""
    print(f"Energy lost over a day, scraped every {SCRAPE_SECONDS} s")
    print(f"{'socket':<14}{'raw counter':>14}{'batchjob':>14}")
    for socket in SOCKETS:
        loss = measure(socket)
        print(f"{socket.name:<14}{loss.raw:>13.3%}{loss.corrected:>14.5%}")


if __name__ == "__main__":
    main()
