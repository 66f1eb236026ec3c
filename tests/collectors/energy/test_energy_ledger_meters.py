"""The ledger: meters with gaps and restarts, and GPUs inside and outside the meter."""

import pytest

from collectors.energy.ledger import IdlePower, Ledger
from collectors.power.meter import GpuEnergyShare
from tests.collectors.energy.ledger_input import (
    A,
    B,
    gpu_reading,
    job_cpu,
    job_joules,
    node_joules,
    snapshot,
)


def test_gap_between_power_readings_is_time_without_data():
    ledger = Ledger(IdlePower(), max_gap_seconds=90)
    ledger.book(snapshot(0, watts=100))
    ledger.book(snapshot(30, watts=100))
    for at in range(40, 120, 10):
        accounts = ledger.book(snapshot(at, watts=100, read_at=30))
        assert accounts.seconds_without_data == 0
    assert ledger.book(snapshot(130, watts=100, read_at=30)).seconds_without_data == 100
    assert ledger.book(snapshot(140, watts=100, read_at=30)).seconds_without_data == 110
    assert ledger.book(snapshot(150, watts=100)).seconds_without_data == 120
    accounts = ledger.book(snapshot(160, watts=100))
    assert accounts.seconds_without_data == 120
    assert node_joules(accounts)["host unallocated"] == 4000


def test_counter_energy_covers_missing_readings():
    ledger = Ledger(IdlePower())
    ledger.book(snapshot(0, joules=0.0))
    for at in range(10, 200, 10):
        ledger.book(snapshot(at))
    accounts = ledger.book(snapshot(200, joules=4000))
    assert node_joules(accounts)["host unallocated"] == 4000
    assert accounts.seconds_without_data == 0


def test_counter_restart_is_time_without_data():
    ledger = Ledger(IdlePower())
    ledger.book(snapshot(0, joules=5000))
    assert ledger.book(snapshot(10, joules=100)).seconds_without_data == 10
    assert ledger.book(snapshot(20, joules=9000, series=1)).seconds_without_data == 20
    accounts = ledger.book(snapshot(30, joules=9500, series=1))
    assert accounts.seconds_without_data == 20
    assert node_joules(accounts)["host unallocated"] == 500


def test_gpu_energy_is_subtracted_from_a_meter_that_includes_it():
    ledger = Ledger(IdlePower(50), includes_gpus=True)
    share = GpuEnergyShare(A, 1.0)
    jobs = [job_cpu(A, 0, 64)]
    ledger.book(snapshot(0, joules=0.0, jobs=jobs, gpus=[gpu_reading(7000, 0, share)]))
    accounts = ledger.book(
        snapshot(10, joules=9000, jobs=jobs, gpus=[gpu_reading(13000, 10, share)])
    )
    assert job_joules(accounts) == {
        "1 host active": 0,
        "1 host idle": 3000,
        "1 gpu active": 6000,
        "1 gpu idle": 0,
    }
    assert sum(accounts.node.values()) == pytest.approx(9000)
    assert accounts.deviation() == pytest.approx(0, abs=1e-12)


def test_gpu_energy_is_added_to_a_meter_without_gpus():
    ledger = Ledger(IdlePower())
    ledger.book(snapshot(0, joules=0.0, gpus=[gpu_reading(0, 0)]))
    accounts = ledger.book(snapshot(10, joules=1000, gpus=[gpu_reading(500, 10)]))
    assert node_joules(accounts) == {
        "gpu jobs": 0,
        "gpu unallocated": 500,
        "host jobs": 0,
        "host system": 0,
        "host unallocated": 1000,
    }


def test_host_energy_is_booked_when_the_gpu_reading_arrives():
    ledger = Ledger(IdlePower(), includes_gpus=True)
    ledger.book(snapshot(0, joules=0.0, gpus=[gpu_reading(0, 0)]))
    before_gpu_reading = ledger.book(snapshot(10, joules=2000, gpus=[gpu_reading(0, 0)]))
    assert before_gpu_reading.node == {}
    accounts = ledger.book(snapshot(20, joules=4000, gpus=[gpu_reading(3000, 19)]))
    assert node_joules(accounts)["host unallocated"] == 1000
    assert accounts.seconds_without_data == 0


def test_gpu_counter_restart_leaves_the_host_energy_unknown():
    ledger = Ledger(IdlePower(), includes_gpus=True)
    ledger.book(snapshot(0, joules=0.0, gpus=[gpu_reading(5000, 0)]))
    accounts = ledger.book(snapshot(10, joules=2000, gpus=[gpu_reading(100, 10, series=1)]))
    assert accounts.node == {}
    assert accounts.seconds_without_data == 10
    assert accounts.gpu_seconds_without_data == 10


def test_gpu_energy_beyond_the_meter_is_counted_as_overdrawn():
    ledger = Ledger(IdlePower(), includes_gpus=True)
    ledger.book(snapshot(0, joules=0.0, gpus=[gpu_reading(0, 0)]))
    accounts = ledger.book(snapshot(10, joules=1000, gpus=[gpu_reading(1500, 10)]))
    assert accounts.overdrawn_joules == 500
    assert node_joules(accounts)["host unallocated"] == 0


def test_gpu_passed_to_another_job_is_paid_by_both():
    ledger = Ledger(IdlePower())
    ended_job, started_job = job_cpu(A, 0, ended_at=4), job_cpu(B, 0, started_at=6)
    ledger.book(snapshot(0, jobs=[job_cpu(A, 0)], gpus=[gpu_reading(0, 0, GpuEnergyShare(A, 1.0))]))
    accounts = ledger.book(
        snapshot(
            10, jobs=[ended_job, started_job], gpus=[gpu_reading(1000, 10, GpuEnergyShare(B, 1.0))]
        )
    )
    assert job_joules(accounts) == {
        "1 gpu active": 400,
        "1 gpu idle": 0,
        "2 gpu active": 400,
        "2 gpu idle": 0,
    }
    assert node_joules(accounts) == {"gpu jobs": 800, "gpu unallocated": 200}


def test_gpu_instances_are_split_by_slices():
    ledger = Ledger(IdlePower())
    instance_shares = GpuEnergyShare(A, 2 / 7), GpuEnergyShare(A, 1 / 7), GpuEnergyShare(B, 2 / 7)
    jobs = [job_cpu(A, 0), job_cpu(B, 0)]
    ledger.book(snapshot(0, jobs=jobs, gpus=[gpu_reading(0, 0, *instance_shares)]))
    accounts = ledger.book(snapshot(10, jobs=jobs, gpus=[gpu_reading(700, 10, *instance_shares)]))
    assert job_joules(accounts)["1 gpu active"] == 300
    assert job_joules(accounts)["2 gpu active"] == 200
    assert node_joules(accounts)["gpu unallocated"] == 200
