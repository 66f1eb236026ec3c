"""The families of the energy collector."""

from batchjob.quantities.energy import EMISSIONS_GRAMS, ENERGY_JOULES
from collectors.energy.ledger import EnergyAccounts
from collectors.metric import Metric, MetricFamily, join, labelled_family, labels, to_metric
from collectors.power.meter import Meter

JOB_ENERGY = to_metric(ENERGY_JOULES.metric)
JOB_EMISSIONS = to_metric(EMISSIONS_GRAMS.metric)
# fmt: off
NODE_ENERGY = Metric("batchjob_node_energy_joules_total", "counter",
    "Energy of the node by consumer; jobs, system and unallocated add up to the metered energy.",
    ("component", "consumer"))
SOURCE = Metric("batchjob_node_power_source_info", "gauge",
    "Meter that the node's energy is taken from, what it covers, and whether it includes GPUs.",
    ("source", "scope", "gpus"))
IDLE = Metric("batchjob_node_idle_power_watts", "gauge",
    "Idle power used to compute idle energy, without GPUs; configured or estimated.", ("origin",))
DEVIATION = Metric("batchjob_node_energy_deviation_ratio", "gauge",
    "Fraction of the metered energy that is not attributed to any consumer; a value above 1e-6 is "
    "a fault.")
OVERDRAWN = Metric("batchjob_node_energy_overdrawn_joules_total", "counter",
    "Energy of GPUs beyond the energy of the meter over the same time: the meter may not include "
    "them.")
AGE = Metric("batchjob_meter_age_seconds", "gauge",
    "Time since the meter was last read; a value that is too old is not exposed.", ("meter",))
WITHOUT_DATA = Metric("batchjob_meter_seconds_without_data_total", "counter",
    "Time for which the energy of the selected meter is unknown and therefore attributed to no "
    "consumer; for the meter gpu, the sum over GPUs.", ("meter",))
TICK_ERRORS = Metric("batchjob_energy_tick_errors_total", "counter",
    "Failed updates of the energy attribution; the next update covers their interval.")
METRICS = (JOB_ENERGY, JOB_EMISSIONS, NODE_ENERGY, SOURCE, IDLE, DEVIATION, OVERDRAWN, AGE,
    WITHOUT_DATA, TICK_ERRORS)
# fmt: on


def families(accounts: EnergyAccounts, now: float) -> list[MetricFamily]:
    """Render the families; those without samples are left out."""
    result = [
        *_job_families(accounts),
        MetricFamily(
            NODE_ENERGY,
            [
                (labels(component=component, consumer=consumer), joules)
                for (component, consumer), joules in accounts.node.items()
            ],
        ),
        labelled_family(AGE, {name: now - at for name, at in accounts.read_at.items()}),
        MetricFamily(TICK_ERRORS, [(labels(), accounts.tick_errors)]),
        *(_meter_families(accounts, accounts.meter) if accounts.meter else ()),
    ]
    if (deviation := accounts.deviation()) is not None:
        result.append(MetricFamily(DEVIATION, [(labels(), deviation)]))
    return [family for family in result if family.samples]


def _job_families(accounts: EnergyAccounts) -> tuple[MetricFamily, MetricFamily]:
    joules = [
        (join(job.name.labels, labels(component=component, kind=kind)), number)
        for job in accounts.jobs
        for (component, kind), number in job.joules.items()
    ]
    grams = [
        (join(job.name.labels, labels(provider=provider)), number)
        for job in accounts.jobs
        for provider, number in job.grams.items()
    ]
    return MetricFamily(JOB_ENERGY, joules), MetricFamily(JOB_EMISSIONS, grams)


def _meter_families(accounts: EnergyAccounts, meter: Meter) -> list[MetricFamily]:
    gpus = "included" if accounts.includes_gpus else "apart"
    without_data = {meter.name: accounts.seconds_without_data}
    if any(component == "gpu" for component, _ in accounts.node):
        without_data["gpu"] = accounts.gpu_seconds_without_data
    source = labels(source=meter.name, scope=meter.scope, gpus=gpus)
    result = [MetricFamily(SOURCE, [(source, 1.0)]), labelled_family(WITHOUT_DATA, without_data)]
    if accounts.includes_gpus:
        result.append(MetricFamily(OVERDRAWN, [(labels(), accounts.overdrawn_joules)]))
    if accounts.idle_watts is not None:
        origin = "configured" if accounts.idle_configured else "learned"
        result.append(labelled_family(IDLE, {origin: accounts.idle_watts}))
    return result
