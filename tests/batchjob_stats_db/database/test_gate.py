"""Whatever a source says, the other records are stored, and nothing that cannot be is believed."""

import math
from typing import get_args, get_type_hints

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from batchjob.judgements import MORE_CPU
from batchjob.schedulers.accounting import Batch
from batchjob.schedulers.records import JobRecord, NodeShare, Reallocation, StepRecord
from batchjob.schedulers.states import JobState
from batchjob_stats_db.admin.check import findings
from batchjob_stats_db.database import gate, schema
from batchjob_stats_db.database.upsert import write_or_quarantine
from batchjob_stats_db.days import DAY

IMPOSSIBLE = (1e300, -1e300, 2**63, -(2**63), 2**200, math.nan, math.inf, -math.inf)
YEAR_1970, YEAR_2100 = 86_400, 4_102_444_800
MEASURED_TABLES = (schema.job_usage, schema.job_gpu, schema.job_emissions)


def numbers_of(record):
    return [
        name
        for name, hint in get_type_hints(record).items()
        if {int, float} & {hint, *get_args(hint)}
    ]


def times_of(record):
    return [name for name in numbers_of(record) if name.endswith("_time")]


def batch(*jobs):
    return Batch(jobs, (), "", 0)


def spoiled(job):
    """Records with one value each that cannot be, in every number of a record and of its parts."""
    step = StepRecord("0", JobState.COMPLETED, "COMPLETED")
    for record, make in (
        (JobRecord, lambda **bad: job("bad", **bad)),
        (StepRecord, lambda **bad: job("bad", steps=(step._replace(**bad),))),
        (NodeShare, lambda **bad: job("bad", nodes=(NodeShare("n1", **bad),))),
    ):
        times = [(name, (*IMPOSSIBLE, YEAR_1970, YEAR_2100)) for name in times_of(record)]
        others = [(name, IMPOSSIBLE) for name in numbers_of(record) if name not in dict(times)]
        for name, values in (*times, *others):
            for value in values:
                if (name, value) != ("resized_memory_byte_seconds", 2**63):  # 100 TiB for a day
                    yield name, value, make(**{name: value})


def test_no_number_of_a_record_stops_the_others(store, job, rows, engine):
    """One write of all of them, each with a job id of its own."""
    records = [
        bad._replace(jobid=f"bad{number}") for number, (_, _, bad) in enumerate(spoiled(job))
    ]
    middle = len(records) // 2
    written = batch(job("1"), *records[:middle], job("2"), *records[middle:], job("3"))
    store.write(written, "sacct")
    stored = {row["jobid"]: row for row in rows(schema.job)}
    assert {"1", "2", "3"} <= stored.keys()
    assert len(rows(schema.rollup_due)) == 1
    for table in (schema.job, schema.job_step, schema.job_node):
        for row in rows(table):
            for column in table.columns:
                value = row[column.name]
                if isinstance(value, int | float):
                    most = 1e24 if column.name == "resized_memory_byte_seconds" else 2**62
                    assert abs(value) <= most, (column.name, value)
    with engine.connect() as db:
        assert all("quarantine" in each for each in findings(db, store.clock()))


def test_every_value_that_cannot_be_is_listed_with_its_rule(store, job, rows):
    for number, (_, _, bad) in enumerate(spoiled(job)):
        store.write(batch(bad._replace(jobid=f"bad{number}")), "sacct")
        assert len(rows(schema.quarantine)) >= number + 1
    assert {row["rule"] for row in rows(schema.quarantine)} <= {"range", "time", "duration"}


@pytest.mark.parametrize("table", MEASURED_TABLES, ids=lambda table: table.name)
def test_no_measured_value_stops_the_others(store, job, engine, rows, table):
    store.write(batch(job("1"), job("2"), job("3")), "sacct")
    ids = [row["id"] for row in rows(schema.job)]
    for column in table.columns:
        if isinstance(column.type, sa.String) or column.name == "job_id":
            continue
        for value in IMPOSSIBLE:
            written = [measured_row(table, each) for each in ids]
            written[1] = measured_row(table, ids[1], **{column.name: value})
            with engine.begin() as db:
                db.execute(sa.delete(table))
                refused = write_or_quarantine(db, "c1", table, written, 100)
            assert refused <= {ids[1]}, (column.name, value)
            assert {ids[0], ids[2]} <= {row["job_id"] for row in rows(table)}
            if column.name not in ("samples", "nodes", "measured_time", "until_time"):
                assert gate.broken_rule(column.name, value)


def measured_row(table, job_id, **values):
    texts = {column.name: "x" for column in table.columns if isinstance(column.type, sa.String)}
    given = {**texts, "job_id": job_id, **values}
    return tuple(given.get(column.name, 0) for column in table.columns)


def test_a_batch_of_which_many_fail_keeps_the_rest(store, job, engine, rows):
    store.write(batch(*(job(str(number)) for number in range(100))), "sacct")
    ids = [row["id"] for row in rows(schema.job)]
    written = [
        measured_row(schema.job_usage, each, memory_peak_bytes=2**70 * (each % 7 == 0))
        for each in ids
    ]
    with engine.begin() as db:
        refused = write_or_quarantine(db, "c1", schema.job_usage, written, 100)
    assert refused == {each for each in ids if each % 7 == 0}
    assert len(rows(schema.job_usage)) == 100 - len(refused)


@pytest.mark.parametrize(
    ("times", "rule"),
    [
        ({"start_time": YEAR_1970}, "time"),
        ({"start_time": 1, "end_time": 2**39}, "time"),
        ({"end_time": YEAR_2100}, "time"),
        ({"submit_time": YEAR_1970}, "time"),
        ({"submit_time": 2**33}, "time"),
        ({"start_time": gate.FIRST_TIME + 1}, "duration"),
    ],
)
def test_record_of_an_impossible_time_is_set_aside(store, job, rows, times, rule):
    counts = store.write(batch(job("1"), job("2", **times), job("3")), "sacct").counts
    assert (counts["new"], counts["quarantined"]) == (2, 1)
    assert [row["jobid"] for row in rows(schema.job)] == ["1", "3"]
    (bad,) = rows(schema.quarantine)
    assert (bad["source"], bad["rule"]) == ("sacct", rule)
    assert "'2'" in bad["raw"]
    assert len(rows(schema.rollup_due)) == 1


@pytest.mark.parametrize("name", ["expected_start_time", "eligible_time"])
def test_time_that_is_planned_may_be_years_ahead(store, job, rows, now, name):
    pending = {"start_time": None, "end_time": None, "state": JobState.PENDING, "nodes": ()}
    store.write(batch(job("1", **pending, **{name: now + 1000 * DAY})), "squeue")
    store.write(batch(job("2", **pending, **{name: YEAR_2100})), "squeue")
    assert [row[name] for row in rows(schema.job)] == [now + 1000 * DAY, None]


def test_record_in_the_future_by_a_wrong_clock_is_kept(store, job, rows, now):
    store.write(batch(job(submit_time=now + 600, start_time=now + 700, end_time=now + 800)), "s")
    assert len(rows(schema.job)) == 1


def test_the_same_refusal_is_listed_once_however_often_it_is_read(store, job, rows):
    for energy in (10**13, 2 * 10**13):
        store.write(batch(job(energy_joules=energy)), "sacct")
    assert [row["rule"] for row in rows(schema.quarantine)] == ["energy"]


@pytest.mark.parametrize(
    ("fields", "kept"),
    [
        ({"energy_joules": 1_440_000}, 1_440_000),  # 400 W
        ({"energy_joules": 54_000_000}, 54_000_000),  # 15 kW of eight GPUs
        ({"energy_joules": 4_290_000_000_000}, None),
        ({"energy_joules": 400_000_000, "allocated_nodes": 8}, 400_000_000),
        ({"energy_joules": 400_000_000, "allocated_nodes": None, "nodes": ()}, 400_000_000),
    ],
)
def test_energy_of_more_than_its_nodes_can_draw_is_left_out(store, job, rows, now, fields, kept):
    times = {"start_time": now - 3600, "end_time": now, "allocated_nodes": 1}
    store.write(batch(job(**{**times, **fields})), "sacct")
    (row,) = rows(schema.job)
    assert (row["energy_joules"], row["state"]) == (kept, "COMPLETED")


@pytest.mark.parametrize("seconds_after_its_end", [90_000, -90_000])
def test_what_a_job_held_is_not_known_if_a_change_lies_outside_its_time(
    store, job, rows, seconds_after_its_end
):
    ended = job(allocated_cpus=4, allocated_gpus=1, nodes=(NodeShare("n1", 4, gpus=1),))
    change = Reallocation(ended.end_time + seconds_after_its_end, 4, None, 1)
    sums = {"resized_cpu_seconds": 4 * 93_600.0, "resized_gpu_seconds": 93_600.0}
    store.write(batch(ended._replace(reallocations=(change,), **sums)), "jsonl")
    (row,) = rows(schema.job)
    held = ("allocated_cpus", "allocated_gpus", "resized_cpu_seconds", "resized_gpu_seconds")
    assert [row[name] for name in held] == [None, None, 0, None]
    assert (rows(schema.job_node), rows(schema.job_reallocation)) == ([], [])


def test_resized_job_may_have_held_less_or_many_terabyte_days(store, job, rows):
    resized = {"resized_cpu_seconds": -7200.0, "resized_memory_byte_seconds": 1e18}
    store.write(batch(job(**resized, allocated_cpus=4)), "pbs_log")
    (row,) = rows(schema.job)
    assert {name: row[name] for name in resized} == resized
    assert rows(schema.quarantine) == []
    store.write(batch(job("2", resized_cpu_seconds=-1e9, allocated_cpus=4)), "pbs_log")
    assert rows(schema.job)[1]["resized_cpu_seconds"] is None


def without_cpu(job, **fields):
    zero = {"cpu_seconds": 0.0, "user_cpu_seconds": 0.0, "system_cpu_seconds": 0.0}
    return job(**{**zero, "elapsed_seconds": 3600, **fields})


COUNTED = StepRecord(
    "batch", JobState.COMPLETED, "COMPLETED", elapsed_seconds=3600, cpu_seconds=0.0, memory_bytes=1
)


@pytest.mark.parametrize(
    ("fields", "cpu_seconds"),
    [
        ({"peak_memory_bytes": 1 << 30}, None),
        ({"steps": (COUNTED,)}, None),
        ({"steps": (COUNTED._replace(memory_bytes=None, read_bytes=1),)}, None),
        ({"peak_memory_bytes": 1 << 30, "elapsed_seconds": 30}, 0.0),
        ({"peak_memory_bytes": 1 << 30, "system_cpu_seconds": 0.1}, 0.0),
        ({}, 0.0),  # nothing else was counted: it may not have run
    ],
)
def test_cpu_time_that_was_lost_is_not_known(store, job, rows, fields, cpu_seconds):
    store.write(batch(without_cpu(job, **fields)), "sacct")
    assert rows(schema.job)[0]["cpu_seconds"] == cpu_seconds
    assert [step["cpu_seconds"] for step in rows(schema.job_step)] in ([], [None])


@pytest.mark.parametrize(("step", "kept"), [("0", None), ("extern", 600.0)])
def test_sum_without_a_steps_cpu_time_is_not_the_jobs(store, job, rows, step, kept):
    counted = COUNTED._replace(cpu_seconds=600.0)
    steps = (counted, COUNTED._replace(step=step))
    store.write(batch(job(cpu_seconds=600.0, elapsed_seconds=3600, steps=steps)), "sacct")
    assert rows(schema.job)[0]["cpu_seconds"] == kept
    assert {row["cpu_seconds"] for row in rows(schema.job_step)} == {600.0, None}


@pytest.mark.parametrize(
    ("cpu_seconds", "caveats"), [(7200.0, ""), (7300.0, ""), (147_587.0, MORE_CPU)]
)
def test_cpu_time_beyond_the_allocation_is_kept_with_a_caveat(
    store, job, rows, now, cpu_seconds, caveats
):
    fields = {"start_time": now - 3600, "end_time": now, "allocated_cpus": 2}
    store.write(batch(job(cpu_seconds=cpu_seconds, **fields)), "sacct")
    (row,) = rows(schema.job)
    assert (row["cpu_seconds"], row["caveats"]) == (cpu_seconds, caveats)
    assert rows(schema.quarantine) == []


@pytest.mark.parametrize("name", ["user", "account", "partition", "array_jobid"])
def test_name_too_long_for_an_index_is_cut_off(store, job, rows, name):
    column = {"user": "username"}.get(name, name)
    incompressible = "".join(chr(0x4E00 + number) for number in range(9000))
    store.write(batch(job("1"), job("2", **{name: incompressible})), "sacct")
    assert len(rows(schema.job)[1][column]) == 255
    assert [row["rule"] for row in rows(schema.quarantine)] == ["text"]


def test_rows_of_a_job_are_bounded(store, job, rows):
    shares = tuple(NodeShare(f"n{number}") for number in range(gate.MAX_PARTS + 1))
    store.write(batch(job("1", nodes=shares), job("2")), "sacct")
    assert [row["jobid"] for row in rows(schema.job)] == ["2"]
    assert [row["rule"] for row in rows(schema.quarantine)] == ["parts"]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.dictionaries(st.sampled_from(numbers_of(JobRecord)), st.floats() | st.integers()))
def test_what_is_admitted_is_within_every_limit(job, now, values):
    admitted, _, _ = gate.admit([job(**values)], now)
    for record in admitted:
        for name in numbers_of(JobRecord):
            value = getattr(record, name)
            if value is None:
                continue
            if name.endswith("_time"):
                assert gate.FIRST_TIME <= value <= now + 3660 * DAY
            else:
                assert not gate.broken_rule(name, value), name
        assert gate.admit([record], now) == ([record], [], 0)


def test_record_costs_one_row_for_each_rule(job):
    nodes = tuple(NodeShare(f"n{number}", cpus=2**60, gpus=-1) for number in range(5000))
    _, (row,), _ = gate.admit([job(nodes=nodes)], 1_800_000_000)
    assert (row.rule, row.reason) == ("range", f"node n0: cpus is {2**60}, and 9999 more")
