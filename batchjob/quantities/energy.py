"""The table of a job's energy and emissions."""

from batchjob.quantities.quantity import Quantity, SampleGroup, job_metric

ENERGY_GROUP = SampleGroup("energy_joules", ("component", "kind"))
EMISSIONS_GROUP = SampleGroup("emissions_grams", ("provider",))

# fmt: off
ENERGY_JOULES = Quantity("energy_joules", job_metric("energy_joules", "counter", "joules", "",
    "Estimated energy used by the job on this node: its share of the selected meter. Active energy "
    "is shared by CPU time (GPUs: by allocation), idle energy by allocation.",
    labels=ENERGY_GROUP.labels), group=ENERGY_GROUP)
EMISSIONS_GRAMS = Quantity("emissions_grams", job_metric("emissions_grams", "counter", "grams", "",
    "Emissions of the job's energy, with the provider's emission factor of each interval; PUE and "
    "the manufacture of the hardware are not included.", labels=EMISSIONS_GROUP.labels),
    group=EMISSIONS_GROUP)
# fmt: on
ENERGY_QUANTITIES = (ENERGY_JOULES, EMISSIONS_GRAMS)
