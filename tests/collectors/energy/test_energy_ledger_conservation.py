"""The ledger: no energy is lost or invented on a node of random jobs, meters and counters."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectors.energy.ledger import IdlePower, Ledger
from collectors.jobs.view import JobCpu
from collectors.power.meter import GpuEnergyShare
from tests.collectors.energy.ledger_input import CPUS, gpu_reading, snapshot
from tests.simulated.node import name

meter_kinds = st.sampled_from(["counter", "power"])
random_intervals = st.fixed_dictionaries(
    {
        "seconds": st.floats(0.5, 40),
        "watts": st.floats(0, 3000),
        "gpu_watts": st.floats(0, 700),
        "meter_answers": st.sampled_from([True, True, True, True, False]),
        "meter_reset": st.sampled_from([False, False, False, False, True]),
        "gpu_reset": st.sampled_from([False, False, False, False, True]),
        "busy_cpus": st.floats(0, 2 * CPUS),
        "started_jobs": st.integers(0, 2),
        "job_cpus": st.lists(st.floats(0, 2 * CPUS), min_size=12, max_size=12),
        "ended_jobs": st.sets(st.integers(0, 11)),
        "unreadable_jobs": st.sets(st.integers(0, 11), max_size=2),
        "reset_jobs": st.sets(st.integers(0, 11), max_size=1),
        "gpu_holders": st.lists(st.integers(0, 11), max_size=3, unique=True),
    }
)


class RandomNode:
    """A node whose jobs, meters and counters follow randomly drawn intervals."""

    def __init__(self, kind, idle_watts, includes_gpus):
        self.kind = kind
        self.ledger = Ledger(IdlePower(idle_watts), includes_gpus, max_gap_seconds=30)
        self.now = self.joules = self.gpu_joules = self.busy_seconds = 0.0
        self.series = self.gpu_series = 0
        self.jobs = {}

    def advance(self, interval):
        """Let the interval pass, and return the snapshot at its end."""
        seconds = interval["seconds"]
        start, self.now = self.now, self.now + seconds
        self.joules = 0.0 if interval["meter_reset"] else self.joules + interval["watts"] * seconds
        self.gpu_series += interval["gpu_reset"]
        self.gpu_joules += interval["gpu_watts"] * seconds
        self.busy_seconds += interval["busy_cpus"] * seconds
        for _ in range(interval["started_jobs"]):
            number = len(self.jobs)
            self.jobs[number] = JobCpu(
                name(number), 0.0, number % 5 * 8.0 or None, None, start + seconds / 3
            )
        for number, cpus in enumerate(interval["job_cpus"]):
            self.run_job(number, cpus * seconds, interval)
        return self.snapshot(interval)

    def run_job(self, number, cpu_seconds, interval):
        job = self.jobs.get(number)
        if job is None or job.ended_at is not None:
            return
        total_cpu_seconds = (
            0.0 if number in interval["reset_jobs"] else (job.cpu_seconds or 0.0) + cpu_seconds
        )
        ended_at = self.now - interval["seconds"] / 4 if number in interval["ended_jobs"] else None
        self.jobs[number] = job._replace(cpu_seconds=total_cpu_seconds, ended_at=ended_at)

    def snapshot(self, interval):
        jobs = [
            job._replace(cpu_seconds=None) if number in interval["unreadable_jobs"] else job
            for number, job in self.jobs.items()
        ]
        gpu_holders = [self.jobs[n] for n in interval["gpu_holders"] if n in self.jobs]
        shares = [GpuEnergyShare(job.name, 1 / len(gpu_holders)) for job in gpu_holders]
        meter = {"joules": self.joules} if self.kind == "counter" else {"watts": interval["watts"]}
        reading = gpu_reading(self.gpu_joules, self.now, *shares, series=self.gpu_series)
        return snapshot(
            self.now,
            **(meter if interval["meter_answers"] else {}),
            busy_seconds=self.busy_seconds,
            jobs=jobs,
            gpus=[reading],
        )


@settings(max_examples=200)
@given(
    meter_kinds,
    st.none() | st.floats(0, 1000),
    st.booleans(),
    st.lists(random_intervals, min_size=2, max_size=25),
)
def test_energy_is_conserved_on_a_random_node(kind, idle_watts, includes_gpus, intervals):
    node = RandomNode(kind, idle_watts, includes_gpus)
    entry_joules, published, forgotten_joules = {}, {}, 0.0
    for interval in intervals:
        accounts = node.ledger.book(node.advance(interval))
        assert (accounts.deviation() or 0.0) < 1e-6

        previous_entries = entry_joules
        entry_joules = {
            key: math.fsum(entry.joules.values()) for key, entry in node.ledger.jobs.items()
        }
        forgotten_joules += sum(
            joules for key, joules in previous_entries.items() if key not in entry_joules
        )
        joules_of_jobs = sum(
            joules for (_, consumer), joules in accounts.node.items() if consumer == "jobs"
        )
        assert math.fsum(entry_joules.values()) + forgotten_joules == pytest.approx(
            joules_of_jobs, rel=1e-6, abs=1e-6
        )

        previous = published
        published = {
            (job.name, component_and_kind): joules
            for job in accounts.jobs
            for component_and_kind, joules in job.joules.items()
        }
        assert all(joules >= previous.get(key, 0.0) for key, joules in published.items())
    assert accounts.seconds_without_data >= 0
