"""The ledger: host energy and emissions of jobs that start, run and end."""

import pytest

from collectors.emissions.providers.provider import EmissionFactor
from collectors.energy.ledger import IdlePower, Ledger
from tests.collectors.energy.ledger_input import A, B, job_cpu, job_joules, node_joules, snapshot
from tests.simulated.node import name


def test_interval_energy_is_split_between_jobs_and_node():
    ledger = Ledger(IdlePower(150))
    ledger.book(snapshot(0, joules=1e6, jobs=[job_cpu(A, 1000), job_cpu(B, 50, 16)]))
    accounts = ledger.book(
        snapshot(
            30, joules=1e6 + 12000, busy_seconds=750, jobs=[job_cpu(A, 1480), job_cpu(B, 290, 16)]
        )
    )
    assert job_joules(accounts) == {
        "1 host active": 4800,
        "1 host idle": 2250,
        "2 host active": 2400,
        "2 host idle": 1125,
    }
    assert node_joules(accounts) == {
        "host jobs": 10575,
        "host system": 300,
        "host unallocated": 1125,
    }
    assert accounts.deviation() == pytest.approx(0, abs=1e-12)


def test_first_snapshot_books_no_energy():
    accounts = Ledger(IdlePower()).book(
        snapshot(0, joules=1e6, busy_seconds=1e5, jobs=[job_cpu(A, 1e6)])
    )
    assert accounts.jobs == ()
    assert accounts.node == {}
    assert accounts.deviation() is None


def test_job_started_in_the_interval_pays_from_its_start():
    ledger = Ledger(IdlePower(100))
    ledger.book(snapshot(0, joules=0.0))
    started_job = job_cpu(A, 64, 64, started_at=6)
    accounts = ledger.book(snapshot(10, joules=3000, busy_seconds=80, jobs=[started_job]))
    assert job_joules(accounts) == {"1 host active": 1600, "1 host idle": 400}
    assert node_joules(accounts) == {"host jobs": 2000, "host system": 400, "host unallocated": 600}


def test_cpu_time_before_a_job_was_first_seen_is_ignored():
    ledger = Ledger(IdlePower(100))
    ledger.book(snapshot(0, joules=0.0))
    accounts = ledger.book(snapshot(10, joules=3000, busy_seconds=80, jobs=[job_cpu(A, 60, 64)]))
    assert job_joules(accounts) == {"1 host active": 0, "1 host idle": 1000}


def test_ended_job_pays_until_its_end_only():
    ledger = Ledger(IdlePower(100))
    ledger.book(snapshot(0, joules=0.0, jobs=[job_cpu(A, 0, 64)]))
    ended_job = job_cpu(A, 50, 64, ended_at=5)
    first = ledger.book(snapshot(10, joules=2000, busy_seconds=50, jobs=[ended_job]))
    assert job_joules(first) == {"1 host active": 1000, "1 host idle": 500}
    second = ledger.book(snapshot(20, joules=4000, busy_seconds=50, jobs=[ended_job]))
    assert job_joules(second) == job_joules(first)
    assert ledger.book(snapshot(30, joules=6000, busy_seconds=50)).jobs == ()


def test_job_within_one_interval_is_counted():
    ledger = Ledger(IdlePower())
    ledger.book(snapshot(0, joules=0.0))
    short_job = job_cpu(A, 4, 8, started_at=2, ended_at=6)
    accounts = ledger.book(snapshot(10, joules=1000, busy_seconds=5, jobs=[short_job]))
    assert job_joules(accounts) == {"1 host active": 800, "1 host idle": 0}


def test_unreadable_cpu_time_is_attributed_to_the_system():
    ledger = Ledger(IdlePower())
    ledger.book(snapshot(0, joules=0.0, jobs=[job_cpu(A, 100)]))
    ledger.book(snapshot(10, joules=1000, busy_seconds=50, jobs=[job_cpu(A, None)]))
    accounts = ledger.book(snapshot(20, joules=2000, busy_seconds=100, jobs=[job_cpu(A, 200)]))
    assert node_joules(accounts)["host system"] == 2000


def test_reset_cpu_counter_counts_from_zero():
    ledger = Ledger(IdlePower())
    ledger.book(snapshot(0, joules=0.0, jobs=[job_cpu(A, 5000)]))
    accounts = ledger.book(snapshot(10, joules=1000, busy_seconds=100, jobs=[job_cpu(A, 40)]))
    assert job_joules(accounts)["1 host active"] == 400


def test_jobs_without_known_cpus_share_the_unallocated_cpus():
    ledger = Ledger(IdlePower(100))
    jobs = [job_cpu(A, 0, 32), job_cpu(B, 0, None), job_cpu(name(3), 0, None)]
    ledger.book(snapshot(0, joules=0.0, jobs=jobs))
    accounts = ledger.book(snapshot(10, joules=1000, jobs=jobs))
    assert job_joules(accounts) == {
        "1 host active": 0,
        "1 host idle": 500,
        "2 host active": 0,
        "2 host idle": 250,
        "3 host active": 0,
        "3 host idle": 250,
    }


def test_wall_clock_change_has_no_effect():
    ledger = Ledger(IdlePower(100))
    jobs = [job_cpu(A, 0, 64)]
    ledger.book(snapshot(0, joules=0.0, jobs=jobs))
    later = snapshot(10, joules=1000, jobs=jobs)
    accounts = ledger.book(later._replace(epoch=later.epoch + 86400))
    assert job_joules(accounts) == {"1 host active": 0, "1 host idle": 1000}


def test_emissions_use_the_factor_of_each_interval():
    ledger = Ledger(IdlePower())
    jobs = [job_cpu(A, 0, 64)]
    ledger.book(snapshot(0, joules=0.0, jobs=jobs))
    ledger.book(
        snapshot(10, joules=3600, jobs=jobs), [EmissionFactor("rte", "FR", "combustion", 50, 0)]
    )
    accounts = ledger.book(
        snapshot(20, joules=7200, jobs=jobs), [EmissionFactor("rte", "FR", "combustion", 30, 0)]
    )
    assert accounts.jobs[0].grams == {"rte": pytest.approx(0.08)}
    accounts = ledger.book(snapshot(30, joules=9999, jobs=jobs))
    assert accounts.jobs[0].grams == {"rte": pytest.approx(0.08)}


def test_unlisted_jobs_are_forgotten_after_the_retention_time():
    ledger = Ledger(IdlePower())
    ledger.book(snapshot(0, joules=0.0, jobs=[job_cpu(A, 0)]))
    ledger.book(snapshot(10, joules=10, jobs=[job_cpu(A, 5)]))
    ledger.book(snapshot(20, joules=20))
    assert A in ledger.jobs
    for at in range(30, 200, 10):
        ledger.book(snapshot(at, joules=at))
    assert ledger.jobs == {}


def test_job_cpu_time_ahead_of_the_node_is_carried_to_the_next_interval():
    """/proc/stat and the cgroups are read at different times: the system's 8 % stay 8 %."""
    ledger = Ledger(IdlePower())
    for second in range(1001):
        delay_seconds = (0.0, 0.9, 0.1, 0.7)[
            second % 4
        ]  # seconds from reading the node to reading jobs
        busy_seconds, cpu_seconds_used = 10.0 * second, 9.2 * (second + delay_seconds)
        accounts = ledger.book(
            snapshot(
                second,
                joules=500.0 * second,
                busy_seconds=busy_seconds,
                jobs=[job_cpu(A, cpu_seconds_used, 64)],
            )
        )
    assert accounts.deviation() == pytest.approx(0, abs=1e-9)
    system = accounts.node["host", "system"] / sum(accounts.node.values())
    assert system == pytest.approx(0.08, abs=0.005)
