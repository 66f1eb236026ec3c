import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectors.emissions.factor import EmissionFactor
from collectors.energy.idle import IdlePower
from collectors.energy.interval import Key, NodeSnapshot, Processors, job_key
from collectors.energy.ledger import Ledger
from collectors.jobs.view import JobCpu
from collectors.power.meter import GpuEnergyReading, GpuEnergyShare, MeterReading
from tests.simulated.node import name

CPUS = 64
EPOCH = 1_700_000_000.0
A, B = name(1), name(2, "bob")


def job(who, cpu_seconds, cpus=32.0, ended_at=None, started_at=-3600.0):
    return JobCpu(who, cpu_seconds, cpus, ended_at, started_at)


def gpu(joules, at, *holdings, series=0, uuid="GPU-1"):
    return GpuEnergyReading(uuid, at, joules, series, holdings)


def look(at, *, joules=None, watts=None, busy=0.0, jobs=(), gpus=(), read_at=None, series=0):
    no_meter = joules is None and watts is None
    return NodeSnapshot(
        at,
        EPOCH + at,
        None
        if no_meter
        else MeterReading(at if read_at is None else read_at, joules, watts, series),
        Processors(busy, CPUS),
        {job_key(each.name): each for each in jobs},
        {each.uuid: each for each in gpus},
    )


def energy(accounts):
    return {
        f"{each.name.jobid} {component} {kind}": pytest.approx(joules)
        for each in accounts.jobs
        for (component, kind), joules in each.joules.items()
    }


def node(accounts):
    return {f"{c} {who}": pytest.approx(joules) for (c, who), joules in accounts.node.items()}


def test_an_interval_is_split_and_summed():
    ledger = Ledger(IdlePower(150))
    ledger.book(look(0, joules=1e6, jobs=[job(A, 1000), job(B, 50, 16)]))
    accounts = ledger.book(
        look(30, joules=1e6 + 12000, busy=750, jobs=[job(A, 1480), job(B, 290, 16)])
    )
    assert energy(accounts) == {
        "1 host active": 4800,
        "1 host idle": 2250,
        "2 host active": 2400,
        "2 host idle": 1125,
    }
    assert node(accounts) == {"host jobs": 10575, "host system": 300, "host unallocated": 1125}
    assert accounts.deviation() == pytest.approx(0, abs=1e-12)


def test_the_first_look_books_nothing_and_shows_no_job():
    accounts = Ledger(IdlePower()).book(look(0, joules=1e6, busy=1e5, jobs=[job(A, 1e6)]))
    assert accounts.jobs == ()
    assert accounts.node == {}
    assert accounts.deviation() is None


def test_a_job_born_in_the_interval_counts_from_zero_and_for_the_time_it_lived():
    ledger = Ledger(IdlePower(100))
    ledger.book(look(0, joules=0.0))
    born = job(A, 64, 64, started_at=6)
    accounts = ledger.book(look(10, joules=3000, busy=80, jobs=[born]))
    assert energy(accounts) == {"1 host active": 1600, "1 host idle": 400}
    assert node(accounts) == {"host jobs": 2000, "host system": 400, "host unallocated": 600}


def test_a_job_first_seen_that_is_older_brings_no_cpu_time_along():
    ledger = Ledger(IdlePower(100))
    ledger.book(look(0, joules=0.0))
    accounts = ledger.book(look(10, joules=3000, busy=80, jobs=[job(A, 60, 64)]))
    assert energy(accounts) == {"1 host active": 0, "1 host idle": 1000}


def test_a_job_that_ended_pays_for_the_part_it_lived_and_then_no_more():
    ledger = Ledger(IdlePower(100))
    ledger.book(look(0, joules=0.0, jobs=[job(A, 0, 64)]))
    ended = job(A, 50, 64, ended_at=5)
    first = ledger.book(look(10, joules=2000, busy=50, jobs=[ended]))
    assert energy(first) == {"1 host active": 1000, "1 host idle": 500}
    second = ledger.book(look(20, joules=4000, busy=50, jobs=[ended]))
    assert energy(second) == energy(first)
    assert ledger.book(look(30, joules=6000, busy=50)).jobs == ()


def test_a_job_within_one_interval_is_not_lost():
    ledger = Ledger(IdlePower())
    ledger.book(look(0, joules=0.0))
    short = job(A, 4, 8, started_at=2, ended_at=6)
    accounts = ledger.book(look(10, joules=1000, busy=5, jobs=[short]))
    assert energy(accounts) == {"1 host active": 800, "1 host idle": 0}


def test_cpu_time_that_cannot_be_read_is_the_systems():
    ledger = Ledger(IdlePower())
    ledger.book(look(0, joules=0.0, jobs=[job(A, 100)]))
    ledger.book(look(10, joules=1000, busy=50, jobs=[job(A, None)]))
    accounts = ledger.book(look(20, joules=2000, busy=100, jobs=[job(A, 200)]))
    assert node(accounts)["host system"] == 2000


def test_a_count_that_fell_is_of_a_new_incarnation():
    ledger = Ledger(IdlePower())
    ledger.book(look(0, joules=0.0, jobs=[job(A, 5000)]))
    accounts = ledger.book(look(10, joules=1000, busy=100, jobs=[job(A, 40)]))
    assert energy(accounts)["1 host active"] == 400


def test_jobs_of_unknown_allocation_share_what_is_free():
    ledger = Ledger(IdlePower(100))
    jobs = [job(A, 0, 32), job(B, 0, None), job(name(3), 0, None)]
    ledger.book(look(0, joules=0.0, jobs=jobs))
    accounts = ledger.book(look(10, joules=1000, jobs=jobs))
    assert energy(accounts) | {} == {
        "1 host active": 0,
        "1 host idle": 500,
        "2 host active": 0,
        "2 host idle": 250,
        "3 host active": 0,
        "3 host idle": 250,
    }


def test_a_clock_that_is_set_changes_nothing():
    ledger = Ledger(IdlePower(100))
    jobs = [job(A, 0, 64)]
    ledger.book(look(0, joules=0.0, jobs=jobs))
    later = look(10, joules=1000, jobs=jobs)
    accounts = ledger.book(later._replace(epoch=later.epoch + 86400))
    assert energy(accounts) == {"1 host active": 0, "1 host idle": 1000}


def test_power_too_far_apart_is_time_without_data():
    ledger = Ledger(IdlePower(), max_gap_seconds=90)
    ledger.book(look(0, watts=100))
    ledger.book(look(30, watts=100))
    for at in range(40, 120, 10):
        accounts = ledger.book(look(at, watts=100, read_at=30))
        assert accounts.seconds_without_data == 0
    assert ledger.book(look(130, watts=100, read_at=30)).seconds_without_data == 100
    assert ledger.book(look(140, watts=100, read_at=30)).seconds_without_data == 110
    assert ledger.book(look(150, watts=100)).seconds_without_data == 120
    accounts = ledger.book(look(160, watts=100))
    assert accounts.seconds_without_data == 120
    assert node(accounts)["host unallocated"] == 4000


def test_a_counter_bridges_readings_that_are_missing():
    ledger = Ledger(IdlePower())
    ledger.book(look(0, joules=0.0))
    for at in range(10, 200, 10):
        ledger.book(look(at))
    accounts = ledger.book(look(200, joules=4000))
    assert node(accounts)["host unallocated"] == 4000
    assert accounts.seconds_without_data == 0


def test_a_counter_that_began_anew_is_time_without_data():
    ledger = Ledger(IdlePower())
    ledger.book(look(0, joules=5000))
    assert ledger.book(look(10, joules=100)).seconds_without_data == 10
    assert ledger.book(look(20, joules=9000, series=1)).seconds_without_data == 20
    accounts = ledger.book(look(30, joules=9500, series=1))
    assert accounts.seconds_without_data == 20
    assert node(accounts)["host unallocated"] == 500


def test_gpus_are_taken_out_of_a_meter_that_includes_them():
    ledger = Ledger(IdlePower(50), includes_gpus=True)
    held = GpuEnergyShare(A, 1.0)
    jobs = [job(A, 0, 64)]
    ledger.book(look(0, joules=0.0, jobs=jobs, gpus=[gpu(7000, 0, held)]))
    accounts = ledger.book(look(10, joules=9000, jobs=jobs, gpus=[gpu(13000, 10, held)]))
    assert energy(accounts) == {
        "1 host active": 0,
        "1 host idle": 3000,
        "1 gpu active": 6000,
        "1 gpu idle": 0,
    }
    assert sum(accounts.node.values()) == pytest.approx(9000)
    assert accounts.deviation() == pytest.approx(0, abs=1e-12)


def test_gpus_come_on_top_of_a_meter_without_them():
    ledger = Ledger(IdlePower())
    ledger.book(look(0, joules=0.0, gpus=[gpu(0, 0)]))
    accounts = ledger.book(look(10, joules=1000, gpus=[gpu(500, 10)]))
    assert node(accounts) == {
        "gpu jobs": 0,
        "gpu unallocated": 500,
        "host jobs": 0,
        "host system": 0,
        "host unallocated": 1000,
    }


def test_the_host_waits_for_gpus_read_less_often_than_the_meter():
    ledger = Ledger(IdlePower(), includes_gpus=True)
    ledger.book(look(0, joules=0.0, gpus=[gpu(0, 0)]))
    waiting = ledger.book(look(10, joules=2000, gpus=[gpu(0, 0)]))
    assert waiting.node == {}
    accounts = ledger.book(look(20, joules=4000, gpus=[gpu(3000, 19)]))
    assert node(accounts)["host unallocated"] == 1000
    assert accounts.seconds_without_data == 0


def test_without_a_gpus_energy_the_host_part_is_not_known():
    ledger = Ledger(IdlePower(), includes_gpus=True)
    ledger.book(look(0, joules=0.0, gpus=[gpu(5000, 0)]))
    accounts = ledger.book(look(10, joules=2000, gpus=[gpu(100, 10, series=1)]))
    assert accounts.node == {}
    assert accounts.seconds_without_data == 10
    assert accounts.gpu_seconds_without_data == 10


def test_gpus_beyond_the_meter_are_counted_as_overdrawn():
    ledger = Ledger(IdlePower(), includes_gpus=True)
    ledger.book(look(0, joules=0.0, gpus=[gpu(0, 0)]))
    accounts = ledger.book(look(10, joules=1000, gpus=[gpu(1500, 10)]))
    assert accounts.overdrawn_joules == 500
    assert node(accounts)["host unallocated"] == 0


def test_a_gpu_handed_on_is_paid_by_both_for_their_time():
    ledger = Ledger(IdlePower())
    ended, born = job(A, 0, ended_at=4), job(B, 0, started_at=6)
    ledger.book(look(0, jobs=[job(A, 0)], gpus=[gpu(0, 0, GpuEnergyShare(A, 1.0))]))
    accounts = ledger.book(
        look(10, jobs=[ended, born], gpus=[gpu(1000, 10, GpuEnergyShare(B, 1.0))])
    )
    assert energy(accounts) == {
        "1 gpu active": 400,
        "1 gpu idle": 0,
        "2 gpu active": 400,
        "2 gpu idle": 0,
    }
    assert node(accounts) == {"gpu jobs": 800, "gpu unallocated": 200}


def test_instances_of_a_gpu_are_split_by_slices():
    ledger = Ledger(IdlePower())
    parts = GpuEnergyShare(A, 2 / 7), GpuEnergyShare(A, 1 / 7), GpuEnergyShare(B, 2 / 7)
    jobs = [job(A, 0), job(B, 0)]
    ledger.book(look(0, jobs=jobs, gpus=[gpu(0, 0, *parts)]))
    accounts = ledger.book(look(10, jobs=jobs, gpus=[gpu(700, 10, *parts)]))
    assert energy(accounts)["1 gpu active"] == 300
    assert energy(accounts)["2 gpu active"] == 200
    assert node(accounts)["gpu unallocated"] == 200


def test_grams_are_summed_at_the_factor_of_each_interval():
    ledger = Ledger(IdlePower())
    jobs = [job(A, 0, 64)]
    ledger.book(look(0, joules=0.0, jobs=jobs))
    ledger.book(
        look(10, joules=3600, jobs=jobs), [EmissionFactor("rte", "FR", "combustion", 50, 0)]
    )
    accounts = ledger.book(
        look(20, joules=7200, jobs=jobs), [EmissionFactor("rte", "FR", "combustion", 30, 0)]
    )
    assert accounts.jobs[0].grams == {"rte": pytest.approx(0.08)}
    accounts = ledger.book(look(30, joules=9999, jobs=jobs))
    assert accounts.jobs[0].grams == {"rte": pytest.approx(0.08)}


kinds = st.sampled_from(["counter", "power"])
moments = st.fixed_dictionaries(
    {
        "seconds": st.floats(0.5, 40),
        "watts": st.floats(0, 3000),
        "gpu_watts": st.floats(0, 700),
        "answers": st.sampled_from([True, True, True, True, False]),
        "reset": st.sampled_from([False, False, False, False, True]),
        "gpu_reset": st.sampled_from([False, False, False, False, True]),
        "busy": st.floats(0, 2 * CPUS),
        "births": st.integers(0, 2),
        "loads": st.lists(st.floats(0, 2 * CPUS), min_size=12, max_size=12),
        "deaths": st.sets(st.integers(0, 11)),
        "unreadable": st.sets(st.integers(0, 11), max_size=2),
        "fallen": st.sets(st.integers(0, 11), max_size=1),
        "holders": st.lists(st.integers(0, 11), max_size=3, unique=True),
    }
)


class Day:
    """A node whose jobs, meters and counters do whatever the moments say."""

    def __init__(self, kind, idle_watts, includes_gpus):
        self.kind = kind
        self.ledger = Ledger(IdlePower(idle_watts), includes_gpus, max_gap_seconds=30)
        self.now = self.joules = self.gpu_joules = self.busy = 0.0
        self.series = self.gpu_series = 0
        self.jobs = {}

    def live(self, moment):
        seconds = moment["seconds"]
        start, self.now = self.now, self.now + seconds
        self.joules = 0.0 if moment["reset"] else self.joules + moment["watts"] * seconds
        self.gpu_series += moment["gpu_reset"]
        self.gpu_joules += moment["gpu_watts"] * seconds
        self.busy += moment["busy"] * seconds
        for _ in range(moment["births"]):
            number = len(self.jobs)
            self.jobs[number] = JobCpu(
                name(number), 0.0, number % 5 * 8.0 or None, None, start + seconds / 3
            )
        for number, load in enumerate(moment["loads"]):
            self.run(number, load * seconds, moment)
        return self.look(moment)

    def run(self, number, cpu_seconds, moment):
        job = self.jobs.get(number)
        if job is None or job.ended_at is not None:
            return
        used = 0.0 if number in moment["fallen"] else (job.cpu_seconds or 0.0) + cpu_seconds
        ended = self.now - moment["seconds"] / 4 if number in moment["deaths"] else None
        self.jobs[number] = job._replace(cpu_seconds=used, ended_at=ended)

    def look(self, moment):
        known = [
            job._replace(cpu_seconds=None) if number in moment["unreadable"] else job
            for number, job in self.jobs.items()
        ]
        held = [self.jobs[n] for n in moment["holders"] if n in self.jobs]
        holdings = [GpuEnergyShare(job.name, 1 / len(held)) for job in held]
        meter = {"joules": self.joules} if self.kind == "counter" else {"watts": moment["watts"]}
        reading = gpu(self.gpu_joules, self.now, *holdings, series=self.gpu_series)
        return look(
            self.now,
            **(meter if moment["answers"] else {}),
            busy=self.busy,
            jobs=known,
            gpus=[reading],
        )


@settings(max_examples=200)
@given(
    kinds,
    st.none() | st.floats(0, 1000),
    st.booleans(),
    st.lists(moments, min_size=2, max_size=25),
)
def test_energy_is_conserved_whatever_happens(kind, idle_watts, includes_gpus, happens):
    day = Day(kind, idle_watts, includes_gpus)
    books, shown, forgotten = {}, {}, 0.0
    for moment in happens:
        accounts = day.ledger.book(day.live(moment))
        assert (accounts.deviation() or 0.0) < 1e-6

        pages = {key: math.fsum(page.joules.values()) for key, page in day.ledger.jobs.items()}
        forgotten += sum(joules for key, joules in books.items() if key not in pages)
        books = pages
        to_jobs = sum(joules for (_, who), joules in accounts.node.items() if who == "jobs")
        assert math.fsum(books.values()) + forgotten == pytest.approx(to_jobs, rel=1e-6, abs=1e-6)

        before = shown
        shown = {
            (job_key(each.name), what): joules
            for each in accounts.jobs
            for what, joules in each.joules.items()
        }
        assert all(joules >= before.get(key, 0.0) for key, joules in shown.items())
    assert accounts.seconds_without_data >= 0


def test_jobs_not_listed_any_more_are_forgotten_in_time():
    ledger = Ledger(IdlePower())
    ledger.book(look(0, joules=0.0, jobs=[job(A, 0)]))
    ledger.book(look(10, joules=10, jobs=[job(A, 5)]))
    ledger.book(look(20, joules=20))
    assert Key("slurm", "1", "alice") in ledger.jobs
    for at in range(30, 200, 10):
        ledger.book(look(at, joules=at))
    assert ledger.jobs == {}


def test_what_jobs_have_ahead_of_the_node_is_not_taken_from_them_in_the_next_interval():
    """/proc/stat is read some time before or after the cgroups: the node's 8 % stay 8 %."""
    ledger = Ledger(IdlePower())
    for second in range(1001):
        late = (0.0, 0.9, 0.1, 0.7)[second % 4]  # seconds from reading the node to reading jobs
        busy, used = 10.0 * second, 9.2 * (second + late)
        accounts = ledger.book(
            look(second, joules=500.0 * second, busy=busy, jobs=[job(A, used, 64)])
        )
    assert accounts.deviation() == pytest.approx(0, abs=1e-9)
    system = accounts.node["host", "system"] / sum(accounts.node.values())
    assert system == pytest.approx(0.08, abs=0.005)
