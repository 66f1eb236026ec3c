"""Daily sums: runs split over days, corrections, vanished jobs, measured and accounted."""

import json
import lzma
import random
from pathlib import Path

import pytest
import sqlalchemy as sa

from batchjob.schedulers.accounting import Batch
from batchjob.schedulers.records import Reallocation
from batchjob.schedulers.slurm.accounting.slurm_rest_records import parse_jobs
from batchjob.schedulers.states import JobState
from batchjob_stats_db.database import schema
from batchjob_stats_db.database.record_rows import UsagePolicy
from batchjob_stats_db.database.store import Store
from batchjob_stats_db.days import DAY
from batchjob_stats_db.measure.rollup import due_days, mark_days, mark_running, roll_up
from batchjob_stats_db.queries.efficiency import ENERGY_MISSING, statement_column, with_figures
from batchjob_stats_db.queries.job_list import COLUMN_NAMES

REPOSITORY = Path(__file__).parents[3]
D0 = 20540 * DAY  # a midnight
GIB = 1 << 30

FIGURES = sa.select(*map(statement_column, COLUMN_NAMES)).select_from(with_figures())


@pytest.fixture
def roll_up_due(engine):
    """Rolls up the due days and returns the sums by day and user."""

    def roll(now=D0 + 40 * DAY):
        with engine.begin() as db:
            for day in due_days(db, "c1", 1000):
                roll_up(db, "c1", day, now)
        with engine.connect() as db:
            found = db.execute(sa.select(schema.daily_usage).order_by("day")).mappings().all()
        return {((row["day"] - D0) // DAY, row["username"]): row for row in found}

    return roll


def usage_row(job_id, **values):
    given = {"job_id": job_id, "source": "x", "measured_time": 0, "until_time": 2**40, "samples": 9}
    return {**given, "dropped_series": 0, "nodes": 1, "coverage": 1.0, **values}


def test_run_is_split_over_its_days(store, job, engine, roll_up_due):
    run = job(start_time=D0 + DAY // 2, end_time=D0 + 2 * DAY + DAY // 4, submit_time=D0)
    store.write(Batch((run,), (), "", 0), "s")
    with engine.begin() as db:
        db.execute(
            sa.insert(schema.job_usage).values(
                usage_row(
                    1,
                    user_cpu_seconds=700.0,
                    system_cpu_seconds=0.0,
                    energy_host_active_joules=70.0,
                    memory_average_bytes=2.0,
                )
            )
        )
        db.execute(sa.insert(schema.job_emissions).values(job_id=1, provider="rte", grams=7.0))
    days = roll_up_due()
    assert [day for day, _ in days] == [0, 1, 2]
    assert [row["wall_seconds"] for row in days.values()] == [DAY / 2, DAY, DAY / 4]
    assert [row["cpu_seconds"] for row in days.values()] == pytest.approx([200, 400, 100])
    assert sum(row["energy_host_joules"] for row in days.values()) == pytest.approx(70)
    assert [row["jobs_started"] for row in days.values()] == [1, 0, 0]
    assert [row["jobs_ended"] for row in days.values()] == [0, 0, 1]
    assert days[0, "alice"]["wait_seconds"] == DAY / 2
    assert days[1, "alice"]["cpu_allocated_seconds"] == 4 * DAY
    assert days[1, "alice"]["memory_byte_seconds"] == 2 * DAY
    with engine.connect() as db:
        grams = db.execute(sa.select(schema.daily_emissions.c.grams)).scalars().all()
    assert sum(grams) == pytest.approx(7)


def test_rollup_is_idempotent(store, job, engine, roll_up_due):
    store.write(Batch((job(start_time=D0, end_time=D0 + 90_000, submit_time=D0),), (), "", 0), "s")
    first_sums = roll_up_due()
    with engine.begin() as db:
        roll_up(db, "c1", D0, D0 + 9 * DAY)
        assert due_days(db, "c1", 10) == []
    assert roll_up_due() == first_sums


def test_late_correction_leaves_no_stale_sums(store, job, roll_up_due):
    run = job(start_time=D0, end_time=D0 + 3 * DAY, submit_time=D0, user="alice")
    store.write(Batch((run,), (), "", 0), "s")
    assert len(roll_up_due()) == 4
    store.write(Batch((run._replace(end_time=D0 + 10, user="bob"),), (), "", 0), "s")
    assert list(roll_up_due()) == [(0, "bob")]


def test_long_and_running_jobs(store, job, engine, roll_up_due):
    long = job("1", start_time=D0, end_time=D0 + 30 * DAY, submit_time=D0, user="long")
    running = job(
        "2", start_time=D0, end_time=None, submit_time=D0, user="running", state=JobState.RUNNING
    )
    store.clock = lambda: D0 + 31 * DAY
    store.write(Batch((long, running), (), "", 0), "s")
    with engine.begin() as db:
        for day in (D0 + 20 * DAY, D0 + 25 * DAY):
            roll_up(db, "c1", day, D0 + 25 * DAY + 100)
    with engine.connect() as db:
        wall_seconds = {
            ((row.day - D0) // DAY, row.username): row.wall_seconds
            for row in db.execute(sa.select(schema.daily_usage))
        }
    assert wall_seconds[20, "long"] == wall_seconds[20, "running"] == DAY
    assert wall_seconds[25, "running"] == 100


def test_days_since_the_last_rollup_are_due_for_running_jobs(store, job, engine):
    running = job(start_time=D0, end_time=None, submit_time=D0, state=JobState.RUNNING)
    store.clock = lambda: D0 + 100
    store.write(Batch((running,), (), "", 0), "s")
    with engine.begin() as db:
        for day in due_days(db, "c1", 10):
            roll_up(db, "c1", day, D0 + 100)
        mark_running(db, "c1", D0 + 2 * DAY + 5)
        assert due_days(db, "c1", 10) == [D0 + 2 * DAY, D0 + DAY, D0]


def test_vanished_job_counts_until_it_was_missed(store, job, engine, roll_up_due):
    running = job(start_time=D0, end_time=None, submit_time=D0, state=JobState.RUNNING)
    store.clock = lambda: D0 + 100
    store.write(Batch((running,), (), "", 0), "s")
    store.write(Batch((), (), "", 0, vanished=("1",)), "s")
    assert {key: row["wall_seconds"] for key, row in roll_up_due().items()} == {(0, "alice"): 100}


def test_vanished_job_counts_until_its_last_measurement(store, job, engine, roll_up_due):
    running = job(start_time=D0, end_time=None, submit_time=D0, state=JobState.RUNNING)
    store.clock = lambda: D0 + 100
    store.write(Batch((running,), (), "", 0), "s")
    with engine.begin() as db:
        db.execute(sa.insert(schema.job_usage).values(usage_row(1, until_time=D0 + 60)))
    store.write(Batch((), (), "", 0, vanished=("1",)), "s")
    assert {key: row["wall_seconds"] for key, row in roll_up_due().items()} == {(0, "alice"): 60}


def test_run_of_zero_length_counts_as_a_job(store, job, roll_up_due):
    run = job(start_time=D0 + DAY, end_time=D0 + DAY, submit_time=D0, state=JobState.FAILED)
    store.write(Batch((run,), (), "", 0), "s")
    (row,) = roll_up_due().values()
    assert (row["jobs_started"], row["jobs_failed"], row["wall_seconds"]) == (1, 1, 0)


def test_job_of_a_future_day_is_counted_once_that_day_begins(store, job, engine, roll_up_due):
    """The scheduler's clock is ahead and has passed midnight."""
    run = job(start_time=D0 + 5, end_time=D0 + 65, submit_time=D0)
    store.write(Batch((run,), (), "", 0), "s")
    earlier = job("2", start_time=D0 - 90, end_time=D0 - 30, submit_time=D0 - DAY)
    store.write(Batch((earlier,), (), "", 0), "s")
    assert list(roll_up_due(now=D0 - 20)) == [(-1, "alice")]
    assert [row["wall_seconds"] for row in roll_up_due(now=D0 + 100).values()] == [60, 60]


def test_idle_cluster_has_no_due_days(store, job, engine, roll_up_due):
    run = job(start_time=D0, end_time=D0 + 60, submit_time=D0)
    store.write(Batch((run,), (), "", 0), "s")
    roll_up_due(now=D0 + 100)
    with engine.begin() as db:
        mark_running(db, "c1", D0 + 60 * DAY)
        assert due_days(db, "c1", 1000) == []


def test_due_days_include_the_newest_and_the_oldest(engine):
    with engine.begin() as db:
        mark_days(db, "c1", range(D0, D0 + 200 * DAY, DAY))
        days = due_days(db, "c1", 50)
    assert len(days) == 50
    assert days[0] == D0 + 199 * DAY
    assert D0 in days


def test_sums_of_future_days_are_removed(store, job, engine, rows):
    """They were written while a clock was ahead."""
    running = job(start_time=D0, end_time=None, submit_time=D0, state=JobState.RUNNING)
    store.clock = lambda: D0 + 100
    store.write(Batch((running,), (), "", 0), "s")
    for now in (D0 + 2 * DAY + 50, D0 + 3600):
        with engine.begin() as db:
            mark_running(db, "c1", now)
            for day in due_days(db, "c1", 100, now):
                roll_up(db, "c1", day, now)
    assert [(row["day"], row["wall_seconds"]) for row in rows(schema.daily_usage)] == [(D0, 3600)]
    assert [row["wall_seconds"] for row in rows(schema.USAGE.monthly_by_user)] == [3600]


def write_usage_at(engine, run, moment, rate):
    """Write the usage of a run up to a moment; it uses `rate` CPUs, bytes, watts and grams/s."""
    until = moment if run.end_time is None else min(run.end_time, moment)
    seconds = until - run.start_time
    row = usage_row(
        1, until_time=until, user_cpu_seconds=rate * seconds, system_cpu_seconds=0.0,
        memory_average_bytes=rate, gpus=2, gpu_utilization_ratio=0.5,
        gpu_busy_seconds=seconds, gpu_observed_seconds=2 * seconds,
        energy_host_active_joules=rate * seconds,
    )  # fmt: skip
    with engine.begin() as db:
        for table in (schema.job_usage, schema.job_emissions):
            db.execute(sa.delete(table))
        db.execute(sa.insert(schema.job_usage).values(row))
        grams = {"job_id": 1, "provider": "rte", "grams": rate * seconds}
        db.execute(sa.insert(schema.job_emissions).values(grams))
    return until


@pytest.mark.parametrize("seed", range(3))
def test_sums_cover_the_time_up_to_the_last_measurement(seed, store, job, engine, roll_up_due):
    rng = random.Random(seed)
    start = D0 + rng.randrange(DAY)
    end = start + rng.randrange(2 * DAY, 4 * DAY)
    rate = rng.uniform(0.1, 4)
    running = job(
        start_time=start, end_time=None, submit_time=D0, state=JobState.RUNNING, allocated_gpus=2
    )
    ended = running._replace(end_time=end, state=JobState.COMPLETED)
    store.write(Batch((running,), (), "", 0), "s")
    for number in range(3):
        if number == 1:
            store.write(Batch((ended,), (), "", 0), "s")
        run = ended if number else running
        moment = rng.randrange(start + 600, end)
        if number == 2:
            moment = end
        until = write_usage_at(engine, run, moment, rate)
        with engine.begin() as db:
            mark_days(db, "c1", [D0 + n * DAY for n in range(6)])
        days = roll_up_due(now=end)
        for (day, _), row in days.items():
            begin = max(start, D0 + day * DAY)
            measured_seconds = max(0, min(until, D0 + (day + 1) * DAY) - begin)
            assert row["cpu_seconds"] == pytest.approx(rate * measured_seconds, rel=0.01)
            assert row["measured_cpu_allocated_seconds"] == 4 * measured_seconds
            gpu_seconds = row["measured_gpu_allocated_seconds"], row["gpu_seconds"]
            assert gpu_seconds == pytest.approx((2 * measured_seconds, measured_seconds))
            assert row["memory_byte_seconds"] == pytest.approx(rate * measured_seconds, rel=0.01)
            assert row["energy_host_joules"] == pytest.approx(rate * measured_seconds, rel=0.01)
        assert sum(row["wall_seconds"] for row in days.values()) == end - start


@pytest.mark.parametrize(
    ("measured", "gpu_seconds", "byte_seconds"),
    [
        ({"nodes": 2, "gpus": 4}, (4 * 3600, 2 * 3600), (16 * GIB * 3600, 8 * GIB * 3600)),
        ({"nodes": 1, "gpus": 2}, (2 * 3600, 3600), (8 * GIB * 3600, 8 * GIB * 3600)),
        ({"nodes": 2, "gpus": 4, "memory_average_bytes": None}, (4 * 3600, 2 * 3600), (0, 0)),
    ],
    ids=["all of two nodes", "one of two nodes", "memory of one of two nodes"],
)
def test_gpu_and_memory_sums_count_only_measured_resources(
    measured, gpu_seconds, byte_seconds, store, job, engine, roll_up_due
):
    run = job(
        start_time=D0, end_time=D0 + 3600, submit_time=D0, allocated_gpus=4, allocated_nodes=2,
        allocated_memory_bytes=16 * GIB,
    )  # fmt: skip
    store.write(Batch((run,), (), "", 0), "s")
    given = {
        "gpu_utilization_ratio": 0.5, "memory_average_bytes": 8 * GIB,
        "gpu_busy_seconds": measured["gpus"] * 1800.0,
        "gpu_observed_seconds": measured["gpus"] * 3600.0, **measured,
    }  # fmt: skip
    with engine.begin() as db:
        db.execute(sa.insert(schema.job_usage).values(usage_row(1, **given)))
    (row,) = roll_up_due().values()
    assert (row["measured_gpu_allocated_seconds"], row["gpu_seconds"]) == gpu_seconds
    memory_sums = row["measured_memory_allocated_byte_seconds"], row["memory_byte_seconds"]
    assert memory_sums == byte_seconds


def test_accounting_replaces_measurements_that_end_early(store, job, engine, roll_up_due):
    run = job(start_time=D0, end_time=D0 + 7200, submit_time=D0, cpu_seconds=7200.0)
    store.write(Batch((run,), (), "", 0), "s")
    write_usage_at(engine, run, D0 + 600, 3.0)
    (row,) = roll_up_due().values()
    assert row["cpu_seconds"] == 7200  # and not the 1800 of the first ten minutes
    assert row["measured_cpu_allocated_seconds"] == 4 * 7200
    assert row["energy_host_joules"] == 1800  # which accounting does not know
    assert row["measured_memory_allocated_byte_seconds"] == 600 * (8 << 30)


def test_energy_of_a_node_that_jobs_share_is_in_no_sum(store, job, roll_up_due):
    hour = {"start_time": D0, "end_time": D0 + 3600, "submit_time": D0, "elapsed_seconds": 3600}
    jobs = [job(number, **hour)._replace(energy_joules=9000) for number in "12"]
    store.write(Batch(tuple(jobs), (), "", 0), "s")
    (row,) = roll_up_due().values()
    assert row["energy_host_joules"] + row["energy_gpu_joules"] == 0
    assert row["measured_energy_cpu_allocated_seconds"] == 0


def test_sums_from_accounting_alone(store, job, roll_up_due):
    run = job(start_time=D0, end_time=D0 + 7200, submit_time=D0, cpu_seconds=7200.0)
    store.write(Batch((run,), (), "", 0), "s")
    (row,) = roll_up_due().values()
    assert (row["cpu_seconds"], row["measured_cpu_allocated_seconds"]) == (7200, 4 * 7200)
    assert row["measured_memory_allocated_byte_seconds"] == 0


def test_sums_of_resized_jobs_are_those_of_their_parts(engine, roll_up_due):
    """Slurm 26.05: 2 nodes, then 1; or half of the memory. A window may list them without steps."""
    recording = REPOSITORY / "tests/fixtures/accounting/slurm-26.05.3.jobs.json.xz"
    listed = json.loads(lzma.decompress(recording.read_bytes()))["jobs"]
    listed = [each for each in listed if each["job_id"] in (35, 126, 129, 133)]
    now = max(each["time"]["end"] for each in listed) + 3600
    store = Store(engine, "c1", UsagePolicy(), lambda: now)
    for jobs in (listed, [each | {"steps": []} for each in listed]):
        parsed = parse_jobs("slurm_rest", "c1", {"errors": [], "jobs": jobs})
        store.write(Batch(tuple(each.job for each in parsed), (), "", 0), "s")
    rows = roll_up_due(now).values()
    cpu_seconds = 13 * 2 + 63 + 8 * 2 + 45 + 27 + 14 + 9 + 236
    mb_seconds = 13 * 100 + 63 * 50 + 8 * 40 + 45 * 20 + 27 * 500 + 14 * 200 + 9 * 200 + 236 * 100
    assert sum(row["cpu_allocated_seconds"] for row in rows) == cpu_seconds
    assert sum(row["memory_allocated_byte_seconds"] for row in rows) == mb_seconds << 20


def write_energy(engine, job_id, joules, **usage):
    """Measure the energy and emissions of a job."""
    row = usage_row(job_id, energy_host_active_joules=joules, **usage)
    with engine.begin() as db:
        db.execute(sa.insert(schema.job_usage).values(row))
        grams = {"job_id": job_id, "provider": "rte", "grams": joules / 10}
        db.execute(sa.insert(schema.job_emissions).values(grams))


def test_energy_that_rows_call_unknown_is_in_no_sum(store, job, engine, roll_up_due):
    hour = {"start_time": D0, "end_time": D0 + 3600, "submit_time": D0, "elapsed_seconds": 3600}
    jobs = [job(str(number), **hour, allocated_nodes=2) for number in range(1, 6)]
    jobs[3] = jobs[3]._replace(energy_joules=500)
    store.write(Batch(tuple(jobs), (), "", 0), "s")
    write_energy(engine, 1, 70.0, nodes=2)
    write_energy(engine, 2, 30.0, nodes=2, caveats=ENERGY_MISSING)
    write_energy(engine, 3, 30.0, nodes=1)
    write_energy(engine, 4, 30.0, nodes=2, coverage=0.5)  # accounting has that of the nodes
    (row,) = roll_up_due().values()
    with engine.connect() as db:
        rows = db.execute(FIGURES.order_by(schema.job.c.jobid)).mappings().all()
        emissions = db.execute(sa.select(schema.daily_emissions)).mappings().one()
    assert [each["energy_used_joules"] for each in rows] == [70, None, None, 500, None]
    assert [each["energy_basis"] for each in rows] == ["measured", None, None, "accounting", None]
    assert row["energy_host_joules"] + row["energy_gpu_joules"] == 70 + 30
    assert row["measured_energy_cpu_allocated_seconds"] == 1.5 * 4 * 3600
    assert row["cpu_allocated_seconds"] == 5 * 4 * 3600
    assert emissions["grams"] == pytest.approx(7 + 3)  # as rows, without those of some nodes only
    assert emissions["measured_energy_cpu_allocated_seconds"] == 1.5 * 4 * 3600


def test_run_time_of_sums_is_that_of_rows(store, job, engine, roll_up_due):
    run = job(
        start_time=D0, end_time=D0 + 3600, submit_time=D0, elapsed_seconds=1200,
        suspended_seconds=2400,
    )  # fmt: skip
    store.write(Batch((run,), (), "", 0), "s")
    (row,) = roll_up_due().values()
    assert row["wall_seconds"] == pytest.approx(1200)


def test_days_of_a_job_that_gave_back_nodes_have_what_it_held_then(store, job, roll_up_due):
    """Sixteen CPUs until an hour after midnight, then four for two days."""
    changed, end = D0 + DAY + 3600, D0 + 3 * DAY
    run = job(
        start_time=D0 + DAY - 3600, end_time=end, elapsed_seconds=2 * DAY + 3600, submit_time=D0,
        allocated_cpus=4, resized_cpu_seconds=12 * 7200.0, allocated_memory_bytes=GIB,
        resized_memory_byte_seconds=3 * 7200.0 * GIB, allocated_gpus=1, peak_memory_bytes=2 * GIB,
        resized_gpu_seconds=-7200.0, reallocations=(Reallocation(changed, 12, 3 * GIB, -1),),
        cpu_seconds=1.0,
    )  # fmt: skip
    store.write(Batch((run,), (), "", 0), "s")
    hours = {"cpu": (16, 16 + 4 * 23, 4 * 24), "gpu": (0, 23, 24), "memory": (4, 4 + 23, 24)}
    days = list(roll_up_due().values())[:3]
    for what, unit in (("cpu", 1), ("gpu", 1), ("memory", GIB)):
        name = f"{what}_allocated_{'byte_' * (unit == GIB)}seconds"
        assert [row[name] / 3600 / unit for row in days] == pytest.approx(hours[what])
    with store.engine.connect() as db:
        (found,) = db.execute(FIGURES).mappings().all()
    # The peak may be of the time with four times the memory.
    assert found["memory_efficiency"] == 0.5
    assert found["cpu_available_seconds"] == 3600 * sum(hours["cpu"])


def test_running_job_has_what_it_held_up_to_its_measurement(store, job, engine, now):
    """Sixteen CPUs for an hour, then four; measured after half an hour, and after one and a half"""
    run = job(
        state=JobState.RUNNING, start_time=now - 7200, end_time=None, elapsed_seconds=None,
        allocated_cpus=4, resized_cpu_seconds=12 * 3600.0,
        reallocations=(Reallocation(now - 3600, 12),),
    )  # fmt: skip
    store.write(Batch((run,), (), "", 0), "s")
    for measured, cpu_seconds in ((1800, 16 * 1800), (5400, 16 * 3600 + 4 * 1800)):
        with engine.begin() as db:
            db.execute(sa.delete(schema.job_usage))
            row = usage_row(1, until_time=now - 7200 + measured, user_cpu_seconds=10.0)
            db.execute(sa.insert(schema.job_usage).values(row))
            (found,) = db.execute(FIGURES).mappings().all()
        assert found["cpu_available_seconds"] == cpu_seconds


def test_coverage_of_a_part_is_of_all_that_the_job_held(store, job, engine):
    """Sixteen CPUs for an hour, all busy, then four for eight hours, which nobody measured."""
    run = job(
        start_time=D0, end_time=D0 + 9 * 3600, elapsed_seconds=9 * 3600, submit_time=D0,
        allocated_cpus=4, resized_cpu_seconds=12 * 3600.0,
        reallocations=(Reallocation(D0 + 3600, 12),),
    )  # fmt: skip
    store.write(Batch((run,), (), "", 0), "s")
    row = usage_row(1, until_time=D0 + 3600, user_cpu_seconds=16 * 3600.0)
    with engine.begin() as db:
        db.execute(sa.delete(schema.job_usage))
        db.execute(sa.insert(schema.job_usage).values(row))
        (found,) = db.execute(FIGURES).mappings().all()
    assert found["usage_coverage"] == pytest.approx(16 / 48)
    assert found["cpu_available_seconds"] == pytest.approx(16 * 3600)
    assert found["cpu_efficiency"] == pytest.approx(1.0)


def test_job_that_gave_back_nodes_is_charged_what_it_held(store, job, roll_up_due):
    """Sixteen CPUs for an hour, then four for eight: 48 core-hours, all of them used."""
    run = job(
        start_time=D0, end_time=D0 + 9 * 3600, elapsed_seconds=9 * 3600, submit_time=D0,
        allocated_cpus=4, resized_cpu_seconds=12 * 3600.0, cpu_seconds=48 * 3600.0,
        allocated_gpus=1, resized_gpu_seconds=3 * 3600.0,
        allocated_memory_bytes=GIB, resized_memory_byte_seconds=3 * 3600.0 * GIB,
    )  # fmt: skip
    store.write(Batch((run,), (), "", 0), "s")
    (row,) = roll_up_due().values()
    assert row["cpu_allocated_seconds"] == 48 * 3600
    assert row["measured_cpu_allocated_seconds"] == row["cpu_seconds"] == 48 * 3600
    assert row["gpu_allocated_seconds"] == 12 * 3600
    assert row["memory_allocated_byte_seconds"] == 12 * 3600 * GIB
    with store.engine.connect() as db:
        figures = db.execute(FIGURES).mappings()
        (found,) = figures.all()
    assert (found["cpu_available_seconds"], found["cpu_efficiency"]) == (48 * 3600, 1.0)
