"""The worked example of docs/energy.md has the figures that the ledger computes."""

from pathlib import Path

from collectors.emissions.providers.provider import EmissionFactor
from collectors.energy.ledger import IdlePower, Ledger
from collectors.energy.split import NodeSnapshot
from collectors.jobs.view import JobCpu
from collectors.power.meter import GpuEnergyReading, GpuEnergyShare, MeterReading
from tests.simulated.node import name

PAGE = (Path(__file__).parents[3] / "docs/energy.md").read_text()
EPOCH = 1_700_000_000.0
A, B, C = name("A"), name("B"), name("C")


def snapshot(at, joules, busy_seconds, gpu_joules, *jobs):
    gpu_shares = (GpuEnergyShare(A, 1.0),)
    return NodeSnapshot(
        at,
        EPOCH + at,
        MeterReading(at, joules),
        busy_seconds,
        64,
        {job.name: job for job in jobs},
        {"GPU-0": GpuEnergyReading("GPU-0", at, gpu_joules, 0, gpu_shares)},
    )


def example_accounts():
    """One interval of 30 s: A and B run through it, C lives for 12 s of it."""
    ledger = Ledger(IdlePower(150), includes_gpus=True)
    ledger.gpu_idle["GPU-0"] = IdlePower(50)
    started_at = -3600.0
    ledger.book(
        snapshot(0, 0, 0, 0, JobCpu(A, 0, 32, None, started_at), JobCpu(B, 0, 16, None, started_at))
    )
    return ledger.book(
        snapshot(
            30,
            19500,
            750,
            7500,
            JobCpu(A, 480, 32, None, started_at),
            JobCpu(B, 180, 16, None, started_at),
            JobCpu(C, 60, 8, 16, 4),
        ),
        [EmissionFactor("country", "FR", "lifecycle", 44.0, 0.0)],
    )


def table_rows(accounts):
    columns = ("host", "active"), ("host", "idle"), ("gpu", "active"), ("gpu", "idle")
    node = accounts.node
    rows = {
        f"job {job.name.jobid}": [job.joules.get(column, 0.0) for column in columns]
        for job in accounts.jobs
    }
    rows["system"] = [node["host", "system"], 0.0, 0.0, 0.0]
    rows["unallocated"] = [0.0, node["host", "unallocated"], 0.0, node["gpu", "unallocated"]]
    rows["**node**"] = [sum(column) for column in zip(*rows.values(), strict=True)]
    return [
        f"| {title} | " + " | ".join(f"{joules:.0f}" for joules in [*parts, sum(parts)]) + " |"
        for title, parts in rows.items()
    ]


def test_table_of_the_worked_example():
    for row in table_rows(example_accounts()):
        assert row in PAGE


def test_grams_of_the_worked_example():
    (grams,) = [job.grams["country"] for job in example_accounts().jobs if job.name == A]
    assert f"{grams:.3f} g" in PAGE


def test_figures_of_the_reporting_example():
    """A day of job A: site energy, use-phase emissions and its share of the embodied emissions."""
    (joules,) = [sum(job.joules.values()) for job in example_accounts().jobs if job.name == A]
    watts = joules / 30
    assert f"{watts:.0f} W" in PAGE
    kilowatt_hours = watts * 24 / 1000
    site_kilowatt_hours = kilowatt_hours * 1.25
    assert f"{kilowatt_hours:.2f} kWh" in PAGE
    assert f"{site_kilowatt_hours:.2f} kWh" in PAGE
    assert f"{site_kilowatt_hours * 44:.0f} g" in PAGE
    embodied_grams = 1_500_000 * (24 / (5 * 365 * 24)) * (32 / 64)
    assert f"{embodied_grams:.0f} g" in PAGE
