"""The readings of a GPU at one moment, common to all vendors."""

from collections.abc import Mapping
from typing import NamedTuple

from batchjob.runtime.background import Observed, validity_seconds
from collectors.gpu.busy import BusySample, UtilizationSample
from collectors.gpu.devices import Gpu, Unit
from collectors.gpu.metrics import ENERGY, POWER, POWER_LIMIT, GpuMetric
from collectors.power.meter import PlausiblePower

GpuValues = Mapping[GpuMetric, float]
"""Values by quantity, without the quantities that the GPU does not report."""


class GpuProcess(NamedTuple):
    """A process with a context on a GPU. `None`: not reported."""

    pid: int
    memory_bytes: float | None = None
    gpu_instance: int | None = None
    compute_instance: int | None = None
    mps: bool = False  # a client of NVIDIA's MPS
    cgroups: str = ""  # its /proc/<pid>/cgroup when it was first listed


def max_reading_age(interval: float) -> float:
    """Seconds for which a reading is valid if its GPU is read every `interval` seconds."""
    return validity_seconds(interval, timeout=1.0)


class GpuEnergy(NamedTuple):
    """A GPU's energy; counters of different `series` are unrelated."""

    joules: float
    series: int
    at: float  # monotonic seconds


class ProfileSample(NamedTuple):
    """What a GPU or one of its instances did in a stretch of time, in epoch seconds."""

    began: float
    ended: float
    gpu_instance: str  # "": the whole GPU
    values: Mapping[str, float]  # active seconds and bytes


class GpuReading(NamedTuple):
    """One GPU with its MIG instances and processes."""

    gpu: Gpu
    values: GpuValues
    instances: Mapping[str, dict[GpuMetric, float]]  # by the instance's UUID
    processes: tuple[GpuProcess, ...] | None  # None: the driver does not list them
    samples: tuple[UtilizationSample, ...] | None = None  # None: the driver takes none
    energy: GpuEnergy | None = None
    busy_samples: tuple[BusySample, ...] | None = None  # of the last minute; None: not measured
    profile: tuple[ProfileSample, ...] = ()  # of the last minute
    power: tuple[tuple[float, float], ...] = ()  # monotonic seconds, and its integral up to then

    def values_of(self, unit: Unit) -> GpuValues:
        """The values of the GPU itself or of one of its instances."""
        if unit.instance is None:
            return self.values
        return self.instances.get(unit.instance.uuid, {})

    def processes_on(self, unit: Unit) -> tuple[GpuProcess, ...] | None:
        """The processes on the unit; None if they are not known."""
        if unit.instance is None or self.processes is None:
            return self.processes
        if any(each.gpu_instance is None for each in self.processes):
            return None
        return tuple(
            each
            for each in self.processes
            if each.gpu_instance == unit.instance.gpu_instance
            and each.compute_instance in (None, unit.instance.compute_instance)
        )


class KnownGpu(NamedTuple):
    """A GPU of the node, and its current reading, if any."""

    gpu: Gpu
    last_seen: float | None  # monotonic seconds
    observed: Observed[GpuReading] | None
    meter: str = ""  # UUID of the GPU whose meter counts the energy of this one as well


class EnergyCounter:
    """Follows a GPU's energy across driver reloads, integrating power where there is no counter."""

    def __init__(self, max_gap_seconds: float) -> None:
        """Power readings more than `max_gap_seconds` apart are not interpolated."""
        self._max_gap_seconds = max_gap_seconds
        self._last: GpuEnergy | None = None
        self._watts: float | None = None  # None if the last energy came from a counter
        self._session = 0
        self._plausible = PlausiblePower()

    def drop_implausible_power(self, values: GpuValues) -> GpuValues:
        watts = values.get(POWER)
        if watts is None or self._plausible.accept(watts, values.get(POWER_LIMIT)):
            return values
        self._watts = None  # power is unknown around this time
        return {quantity: value for quantity, value in values.items() if quantity != POWER}

    def update(self, values: GpuValues, at: float, session: int) -> GpuEnergy | None:
        """The energy at `at`; None if there is neither a counter nor a power.

        `session` changes with each loading of the driver, when counters restart.
        """
        if ENERGY in values:
            energy, watts = self._from_counter(values[ENERGY], at, session), None
        elif POWER in values:
            energy, watts = self._from_power(values[POWER], at), values[POWER]
        else:
            return None
        self._last, self._watts, self._session = energy, watts, session
        return energy

    def _from_counter(self, joules: float, at: float, session: int) -> GpuEnergy:
        last = self._last
        if last is None:
            return GpuEnergy(joules, 0, at)
        continues = self._watts is None and session == self._session and joules >= last.joules
        return GpuEnergy(joules, last.series if continues else last.series + 1, at)

    def _from_power(self, watts: float, at: float) -> GpuEnergy:
        last = self._last
        if last is None:
            return GpuEnergy(0.0, 0, at)
        if self._watts is None or at - last.at > self._max_gap_seconds:
            return GpuEnergy(last.joules, last.series + 1, at)
        added = (self._watts + watts) / 2 * (at - last.at)
        return GpuEnergy(last.joules + added, last.series, at)
