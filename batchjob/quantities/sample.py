"""A job's numbers at one moment, and all quantities by the names in sample files."""

from collections.abc import Mapping
from typing import NamedTuple

from batchjob.quantities.energy import EMISSIONS_GROUP, ENERGY_GROUP, ENERGY_QUANTITIES
from batchjob.quantities.gpu import GPU_NAMES, GPU_QUANTITIES, GPUS
from batchjob.quantities.job import END_TIME, FILE_SYSTEMS, IO, JOB_QUANTITIES, NETWORK
from batchjob.quantities.quantity import Quantity, SampleGroup

QUANTITIES: tuple[Quantity, ...] = (*JOB_QUANTITIES, *GPU_QUANTITIES, *ENERGY_QUANTITIES)
SAMPLE_GROUPS: Mapping[str, SampleGroup] = {
    group.name: group
    for group in (IO, NETWORK, FILE_SYSTEMS, GPUS, GPU_NAMES, ENERGY_GROUP, EMISSIONS_GROUP)
}
BY_NAME: Mapping[str, Quantity] = {quantity.name: quantity for quantity in QUANTITIES}
BY_NAME_IN_GROUP: Mapping[tuple[str, str], Quantity] = {
    (quantity.group.name, quantity.name_in_group): quantity
    for quantity in QUANTITIES
    if quantity.group
}
"""The quantities of groups, by the group's name and their own within."""


class SampleHeader(NamedTuple):
    """Identifies the job of a sample file; each line repeats it."""

    manager: str
    jobid: str
    user: str
    node: str
    interval_seconds: float  # usual time between two samples


class SampleKey(NamedTuple):
    quantity: str
    of: tuple[str, ...] = ()  # the device, GPU, provider ... of the number; () for the whole job


class JobSample(NamedTuple):
    """A job on one node at one moment. Numbers that were not read are absent, never zero.

    A counter is a total since the job began.
    """

    at: float  # epoch seconds
    values: Mapping[SampleKey, float]

    def get(self, name: str, *of: str) -> float | None:
        return self.values.get(SampleKey(name, of))

    def sum(self, quantity: Quantity) -> float | None:
        """The sum over devices, GPUs and so on; None if there are none."""
        found = [value for name, value in self.values.items() if name.quantity == quantity.name]
        return sum(found) if found else None


END = SampleKey(END_TIME.name)

Values = dict[SampleKey, float]


class SampledJob(NamedTuple):
    manager: str
    jobid: str
    user: str


class JobSamples(NamedTuple):
    """A job's numbers at one moment."""

    job: SampledJob
    values: Values
    ended: bool
