"""The table of a job's energy and emissions."""

from batchjob.quantities.quantity import Quantity, SampleGroup, job_metric

ENERGY_GROUP = SampleGroup("energy_joules", ("component", "kind"))
EMISSIONS_GROUP = SampleGroup("emissions_grams", ("provider",))

ENERGY_JOULES = Quantity(
    "energy_joules",
    job_metric(
        "energy_joules",
        "counter",
        "joules",
        "",
        "Estimate of the energy used by the job on this node: its part of the chosen meter, active"
        " by CPU time (GPUs by who held them), idle by allocation.",
        labels=ENERGY_GROUP.labels,
    ),
    group=ENERGY_GROUP,
)
EMISSIONS_GRAMS = Quantity(
    "emissions_grams",
    job_metric(
        "emissions_grams",
        "counter",
        "grams",
        "",
        "Emissions of the job's energy, each interval at the provider's factor of that time;"
        " without PUE and the making of the hardware.",
        labels=EMISSIONS_GROUP.labels,
    ),
    group=EMISSIONS_GROUP,
)
ENERGY_QUANTITIES = (ENERGY_JOULES, EMISSIONS_GRAMS)
