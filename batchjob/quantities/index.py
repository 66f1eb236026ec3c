"""All quantities, with look-ups by the names in sample files."""

from collections.abc import Mapping

from batchjob.quantities.energy import EMISSIONS_GROUP, ENERGY_GROUP, ENERGY_QUANTITIES
from batchjob.quantities.gpu import GPU_QUANTITIES, GPUS
from batchjob.quantities.job import EXECUTABLES, IO, JOB_QUANTITIES, NETWORK
from batchjob.quantities.quantity import Quantity, SampleGroup

QUANTITIES: tuple[Quantity, ...] = (*JOB_QUANTITIES, *GPU_QUANTITIES, *ENERGY_QUANTITIES)
SAMPLE_GROUPS: Mapping[str, SampleGroup] = {
    group.name: group for group in (IO, NETWORK, GPUS, ENERGY_GROUP, EMISSIONS_GROUP, EXECUTABLES)
}
BY_NAME: Mapping[str, Quantity] = {quantity.name: quantity for quantity in QUANTITIES}
BY_NAME_IN_GROUP: Mapping[tuple[str, str], Quantity] = {
    (quantity.group.name, quantity.name_in_group): quantity
    for quantity in QUANTITIES
    if quantity.group
}
"""The quantities of groups, by the group's name and their own within."""
