"""Writing records: inserts, updates, quarantine, deletions and the watermark."""

from collections import Counter

import pytest
import sqlalchemy as sa

from batchjob.schedulers.accounting import Batch, DeletedRecord
from batchjob.schedulers.reallocation import not_known
from batchjob.schedulers.records import (
    JobRecord,
    NodeShare,
    QuarantinedRow,
    Reallocation,
    StepRecord,
    merge_by_key,
)
from batchjob.schedulers.states import JobState
from batchjob_stats_db.database import schema
from batchjob_stats_db.database.record_rows import UsagePolicy
from batchjob_stats_db.database.store import Store
from batchjob_stats_db.days import DAY, days_of


def batch(*jobs, watermark="w1", **more):
    return Batch(tuple(jobs), more.pop("quarantined", ()), watermark, 0, **more)


def test_columns_match_the_record_fields():
    names = {"user": "username", "group": "groupname"}
    parts = ("nodes", "steps", "reallocations")
    fields = [names.get(name, name) for name in JobRecord._fields if name not in parts]
    columns = [column.name for column in schema.job.columns]
    assert columns == ["id", *fields, "update_time", "caveats", "usage_due_time"]
    assert [c.name for c in schema.job_step.columns] == ["job_id", *StepRecord._fields]
    assert [c.name for c in schema.job_node.columns][1:6] == list(NodeShare._fields)
    changes = [c.name for c in schema.job_reallocation.columns]
    assert changes == ["job_id", *Reallocation._fields]


def test_job_written_twice_is_stored_once(store, job, rows):
    assert store.write(batch(job()), "sacct").counts == Counter(new=1)
    assert store.write(batch(job()), "sacct").counts == Counter(unchanged=1)
    (row,) = rows(schema.job)
    assert (row["jobid"], row["username"], row["state"]) == ("1", "alice", "COMPLETED")
    assert [node["node"] for node in rows(schema.job_node)] == ["n001"]
    assert [cluster["name"] for cluster in rows(schema.cluster)] == ["c1"]


def test_late_correction_updates_the_row_and_marks_its_days(store, job, rows, engine, now):
    store.write(batch(job(start_time=now - 10 * DAY, end_time=now - 9 * DAY)), "sacct")
    with engine.begin() as db:
        db.execute(sa.delete(schema.rollup_due))
    later = job(start_time=now - 10 * DAY, end_time=now - 8 * DAY)
    assert store.write(batch(later), "sacct").counts == Counter(changed=1)
    assert rows(schema.job)[0]["end_time"] == now - 8 * DAY
    days = {row["day"] for row in rows(schema.rollup_due)}
    assert days == set(days_of(now - 10 * DAY, now - 8 * DAY))


def test_empty_fields_do_not_overwrite(store, job, rows):
    store.write(batch(job(name="train", work_dir="/home/alice")), "sacct")
    store.write(batch(job(name="", work_dir="", exit_code=None, nodes=(), reason="x")), "sacct")
    (row,) = rows(schema.job)
    assert (row["name"], row["work_dir"], row["exit_code"]) == ("train", "/home/alice", 0)
    assert row["reason"] == "x"
    assert len(rows(schema.job_node)) == 1


@pytest.mark.parametrize(
    ("queued", "accounted", "stored"),
    [
        ("x" * 300, "x" * 255, "x" * 300),
        ("a" + "\u00e9" * 200, "a" + "\u00e9" * 127, "a" + "\u00e9" * 200),
        ("\u20ac" * 90, "\u20ac" * 84, "\u20ac" * 90),
        ('we|ird "name"', "we|ird `name`", 'we|ird "name"'),
        ('"' * 280, "`" * 255, '"' * 280),
        ("training", "train", "train"),  # renamed
        ("x" * 300, "y" * 255, "y" * 255),
        ("", "`a`", "`a`"),
    ],
)
def test_name_that_accounting_abridged_does_not_replace_the_whole_one(
    store, job, rows, queued, accounted, stored
):
    store.write(batch(job(name=queued, state=JobState.RUNNING, end_time=None)), "sacct")
    for _ in range(2):
        store.write(batch(job(name=accounted)), "sacct")
        assert rows(schema.job)[0]["name"] == stored
    assert store.write(batch(job(name=accounted)), "sacct").counts == Counter(unchanged=1)


def test_total_of_a_run_is_never_lowered(store, job, rows):
    """An answer that lacks steps has smaller totals; what else it says counts."""
    store.write(batch(job(cpu_seconds=1.912, peak_memory_bytes=126 << 20)), "sacct")
    store.write(batch(job(cpu_seconds=0.076, peak_memory_bytes=5 << 20, qos="long")), "sacct")
    (row,) = rows(schema.job)
    assert (row["cpu_seconds"], row["peak_memory_bytes"]) == (1.912, 126 << 20)
    assert row["qos"] == "long"
    store.write(batch(job(cpu_seconds=2.0, peak_memory_bytes=126 << 20)), "sacct")
    assert rows(schema.job)[0]["cpu_seconds"] == 2.0


def test_requeued_run_is_a_separate_row(store, job, rows, now):
    first = job(state=JobState.REQUEUED, submit_time=now - 9000)
    store.write(batch(first, job(submit_time=now - 8000), job(submit_time=now - 8000, run=2)), "s")
    assert [row["submit_time"] for row in rows(schema.job)] == [now - 9000, now - 8000, now - 8000]


def test_nodes_are_replaced_with_the_job(store, job, rows):
    store.write(batch(job(nodes=(NodeShare("n1"), NodeShare("n2")), node_list="n[1-2]")), "s")
    store.write(batch(job(nodes=(NodeShare("n3"),), node_list="n3")), "s")
    assert [node["node"] for node in rows(schema.job_node)] == ["n3"]


def test_nodes_that_a_running_job_gave_back_stay_with_it(store, job, rows, now):
    running = job(
        state=JobState.RUNNING, end_time=None, elapsed_seconds=None, allocated_cpus=12,
        allocated_nodes=3, nodes=tuple(NodeShare(name, 4) for name in ("n1", "n2", "n3")),
    )  # fmt: skip
    store.write(batch(running), "s")
    for count, until in ((2, now - 600), (1, now - 300)):
        nodes = tuple(NodeShare(f"n{number + 1}", 4) for number in range(count))
        change = running._replace(
            nodes=nodes, allocated_cpus=4 * count, allocated_nodes=None,
            reallocations=(Reallocation(until, 4),),
        )  # fmt: skip
        store.write(batch(change), "s")
    ended = running._replace(state=JobState.COMPLETED, end_time=now - 10, nodes=())
    store.write(batch(ended._replace(allocated_cpus=None)), "s")
    until_by_node = {row["node"]: row["until_time"] for row in rows(schema.job_node)}
    assert until_by_node == {"n1": None, "n2": now - 300, "n3": now - 600}
    changes = [(row["until_time"], row["cpus"]) for row in rows(schema.job_reallocation)]
    assert changes == [(now - 600, 4), (now - 300, 4)]


def test_end_that_says_nothing_of_the_allocation_withdraws_a_later_change(store, job, rows, now):
    """A history that is imported years later: the change was possible when it was written."""
    began = now - 10 * DAY
    running = job(state=JobState.RUNNING, start_time=began, end_time=None, allocated_cpus=4)
    change = Reallocation(began + 90_000, 4)
    store.write(
        batch(running._replace(reallocations=(change,), resized_cpu_seconds=360_000.0)), "s"
    )
    ended = job(start_time=began, end_time=began + 900, allocated_cpus=None, nodes=())
    store.write(batch(ended), "s")
    (row,) = rows(schema.job)
    assert (row["allocated_cpus"], row["resized_cpu_seconds"]) == (None, 0)
    assert rows(schema.job_reallocation) == []


def test_end_withdraws_a_change_that_is_dated_after_it(store, job, rows, now):
    """Its clock was 90,000 s ahead when the change was logged."""
    running = job(state=JobState.RUNNING, start_time=now - 900, end_time=None)
    change = running._replace(
        allocated_cpus=4, allocated_nodes=None, nodes=(NodeShare("n1", 4),),
        resized_cpu_seconds=360_000.0, reallocations=(Reallocation(now - 60, 4),),
    )  # fmt: skip
    store.write(batch(change), "pbs_log")
    store.write(
        batch(not_known(job(start_time=now - 900, end_time=now, elapsed_seconds=900))), "pbs_log"
    )
    (row,) = rows(schema.job)
    assert (row["state"], row["elapsed_seconds"]) == ("COMPLETED", 900)
    assert (row["allocated_cpus"], row["resized_cpu_seconds"]) == (None, 0)
    assert (rows(schema.job_node), rows(schema.job_reallocation)) == ([], [])


@pytest.mark.parametrize("is_known", [True, False])
def test_end_that_is_read_again_alone_keeps_what_the_changes_said(store, job, rows, now, is_known):
    """By another source, or from a log that begins later."""
    end = job(start_time=now - 900, end_time=now, elapsed_seconds=900, allocated_cpus=8)
    nodes = NodeShare("n1", 4), NodeShare("n2", 4, until_time=now - 300)
    whole = end._replace(
        allocated_cpus=4, nodes=nodes, resized_cpu_seconds=2400.0,
        reallocations=(Reallocation(now - 300, 4),),
    )  # fmt: skip
    store.write(batch(whole if is_known else not_known(end)), "pbs_log")
    before = [rows(table) for table in (schema.job, schema.job_node, schema.job_reallocation)]
    for each in (end, not_known(end)):
        store.write(batch(each), "pbs_log")
        assert [rows(t) for t in (schema.job, schema.job_node, schema.job_reallocation)] == before
    store.write(batch(whole), "pbs_log")
    assert [row["allocated_cpus"] for row in rows(schema.job)] == [4]
    assert [node["until_time"] for node in rows(schema.job_node)] == [None, now - 300]


def test_steps_of_a_running_job_are_updated(store, job, rows):
    first = StepRecord("batch", JobState.RUNNING, "RUNNING")
    second = StepRecord("0", JobState.COMPLETED, "COMPLETED", cpus=4)
    running = job(state=JobState.RUNNING, end_time=None, steps=(first,))
    store.write(batch(running), "s")
    store.write(batch(running._replace(steps=(first, second))), "s")
    assert [(row["step"], row["cpus"]) for row in rows(schema.job_step)] == [
        ("0", 4),
        ("batch", None),
    ]


def test_steps_of_an_ended_job_are_updated_and_keep_what_a_later_reading_lacks(
    store, job, rows, now
):
    """slurmctld has a step's exit code for a while, and `extern` may end after its job."""
    batch_step = StepRecord("batch", JobState.FAILED, "FAILED", exit_code=255)
    extern = StepRecord("extern", JobState.RUNNING, "RUNNING")
    ended = job(steps=(batch_step, extern))
    store.write(batch(ended), "s")
    later = batch_step._replace(exit_code=None, exit_code_or_128_more=127)
    extern = StepRecord("extern", JobState.COMPLETED, "COMPLETED", end_time=now)
    for each in (ended, ended._replace(account="edited")):
        store.write(batch(each._replace(steps=(later, extern))), "s")
        assert [
            (row["state"], row["end_time"], row["exit_code"], row["exit_code_or_128_more"])
            for row in rows(schema.job_step)
        ] == [("FAILED", None, 255, 127), ("COMPLETED", now, None, None)]


def test_unfinished_lists_the_last_run_of_each_job(store, job, now):
    live = {"state": JobState.RUNNING, "end_time": None}
    store.write(batch(job("1", **live), job("1", run=2, **live), job("2")), "s")
    (found,) = store.unfinished().items()
    assert (found[0], found[1][:3]) == ("1", (now - 7200, 2, now - 7000))


def test_vanished_and_runaway_jobs(store, job, rows):
    live = {"state": JobState.RUNNING, "end_time": None}
    store.write(batch(job("1", **live), job("2", **live), job("3")), "s")
    store.write(batch(vanished=("1", "3"), runaway=("2",)), "s")
    states = [(row["state"], row["caveats"]) for row in rows(schema.job)]
    assert states == [("VANISHED", ""), ("RUNNING", "runaway"), ("COMPLETED", "")]
    assert set(store.unfinished()) == {"2"}
    store.write(batch(job("1"), job("2")), "s")  # the scheduler reports their end after all
    assert [row["state"] for row in rows(schema.job)] == ["COMPLETED"] * 3
    assert [row["caveats"] for row in rows(schema.job)] == ["", "", ""]


def test_watermark_and_rows_are_written_in_one_transaction(store, job, rows, engine):
    assert store.watermark("sacct") == ""
    store.write(batch(job(), watermark="17"), "sacct")
    assert store.watermark("sacct") == "17"

    def interrupt_at_watermark(db, cursor, statement, *_):
        if statement.startswith(("INSERT INTO poll_state", "UPDATE poll_state")):
            raise KeyboardInterrupt

    sa.event.listen(engine, "before_cursor_execute", interrupt_at_watermark)
    with pytest.raises(KeyboardInterrupt):
        Store(engine, "c1").write(batch(job("2"), watermark="18"), "sacct")
    sa.event.remove(engine, "before_cursor_execute", interrupt_at_watermark)
    assert store.watermark("sacct") == "17"
    assert len(rows(schema.job)) == 1


def test_error_is_stored_beside_the_watermark(store, job, rows):
    store.write(batch(job(), watermark="17"), "sacct")
    store.record_failure("sacct", "sacct: no answer within 60 s")
    (state,) = rows(schema.poll_state)
    assert (state["watermark"], state["error"]) == ("17", "sacct: no answer within 60 s")


def test_error_of_any_text_is_stored(store, rows):
    store.record_failure("jsonl", "/a\udcff.jsonl\0: Is a directory")
    assert [row["error"] for row in rows(schema.poll_state)] == ["/a?.jsonl\ufffd: Is a directory"]


def test_quarantined_row_is_stored_once(store, rows):
    bad = QuarantinedRow("sacct", "a time of 'soon'", "1|soon|\0\udc80")
    store.write(batch(quarantined=(bad,)), "sacct")
    store.write(batch(quarantined=(bad,)), "sacct")
    (row,) = rows(schema.quarantine)
    assert row["reason"] == "a time of 'soon'"


def test_row_of_a_job_whose_bad_value_changes_is_stored_once(store, rows):
    for value in ("INVALID1", "INVALID2", "it's 3"):
        reason = f"EligibleTime: expected a whole number, got {value!r}"
        bad = QuarantinedRow("sacct", reason, f"7|{value}", jobid="7")
        store.write(batch(quarantined=(bad,)), "sacct")
    other = QuarantinedRow("sacct", "EndTime: expected a whole number, got ''", "7|", jobid="7")
    store.write(batch(quarantined=(other,)), "sacct")
    assert len(rows(schema.quarantine)) == 2


def test_row_the_database_rejects_is_quarantined_alone(store, job, rows):
    without_group = job("2", group=None)
    with_invalid_text = job("3", name="nul\0 and \udc80")
    written = store.write(batch(job("1"), without_group, with_invalid_text), "sacct")
    assert written.counts["quarantined"] == 1
    assert [row["jobid"] for row in rows(schema.job)] == ["1", "3"]
    assert "\udc80" not in rows(schema.job)[1]["name"]
    assert len(rows(schema.job_node)) == 2
    (bad,) = rows(schema.quarantine)
    assert "'2'" in bad["raw"]


RUN_ID = "0f8fad5b-d9cb-469f-a165-70867728950e"


def test_run_of_another_user_is_not_overwritten(store, job, rows):
    """Even if its file is gone and another user gives its id to a run of their own."""
    run = job(RUN_ID, source="runs", uid=1001, user="alice")
    store.write(batch(run, job("1")), "runs")
    forged = run._replace(uid=1002, user="mallory", name="mine", end_time=None)
    written = store.write(batch(forged, forged._replace(submit_time=run.submit_time + 1)), "runs")
    assert list(written.counts.values()) == [0, 0, 0, 2]
    alices, other = sorted(rows(schema.job), key=lambda row: row["jobid"] != RUN_ID)
    assert (alices["username"], alices["name"], other["jobid"]) == ("alice", "train", "1")
    assert all("uid 1002 wrote a run of uid 1001" in bad["reason"]
               for bad in rows(schema.quarantine))  # fmt: skip
    # Scheduler ids are reused, and accounting may learn the user of a job late.
    store.write(
        batch(job("1", uid=1002), job("1", uid=1003, submit_time=run.submit_time - 9)), "sacct"
    )
    assert [row["uid"] for row in rows(schema.job) if row["jobid"] == "1"] == [1002, 1003]


def test_job_on_a_hundred_thousand_nodes(store, job, engine):
    shares = tuple(NodeShare(f"n{number:06}") for number in range(100_000))
    store.write(batch(job(nodes=shares, node_list="n[000000-099999]")), "sacct")
    with engine.connect() as db:
        counted = db.execute(sa.select(sa.func.count()).select_from(schema.job_node)).scalar()
    assert counted == 100_000


def test_clusters_are_kept_apart(store, engine, job, rows, now):
    other = Store(engine, "c2", clock=lambda: now)
    store.write(batch(job()), "sacct")
    other.write(batch(job(cluster="c2")), "sacct")
    store.write(batch(job()), "sacct")
    assert [row["cluster"] for row in rows(schema.job)] == ["c1", "c2"]


def test_time_at_which_a_job_is_due_for_measurement():
    policy = UsagePolicy(settle_seconds=400, refresh_seconds=3600, horizon_seconds=DAY)
    assert policy.due_time(None, None, 1000) is None  # pending
    assert policy.due_time(1000, None, 1500) == 1500 + 3600
    assert policy.due_time(1000, 2000, 2100) == 2400
    assert policy.due_time(1000, 2000, 2000 + 2 * DAY) is None  # too old to be in the TSDB
    without_tsdb = UsagePolicy(horizon_seconds=0)
    assert (
        without_tsdb.due_time(1000, None, 1500) is without_tsdb.due_time(1000, 1400, 1500) is None
    )


def test_deleted_record_is_removed_with_its_dependent_rows(store, job, rows, engine, now):
    fields = {"start_time": now - 2 * DAY, "end_time": now - 2 * DAY + 60, "source": "runs"}
    for uid in (1, 2):
        store.write(batch(job(jobid=f"r{uid}", uid=uid, **fields)), "runs")
    store.write(batch(job(jobid="s", uid=1)), "sacct")
    with engine.begin() as db:
        db.execute(sa.delete(schema.rollup_due))
    deletions = [DeletedRecord("runs", jobid, 1) for jobid in ("r1", "r2", "s", "unknown")]
    store.write(batch(deleted=deletions), "runs")
    assert {row["jobid"] for row in rows(schema.job)} == {"r2", "s"}
    assert len(rows(schema.job_node)) == 2
    assert [row["day"] for row in rows(schema.rollup_due)] == list(
        days_of(now - 2 * DAY, now - 2 * DAY + 60)
    )
    store.write(batch(deleted=[DeletedRecord("runs", "r2", None)]), "runs")
    assert {row["jobid"] for row in rows(schema.job)} == {"s"}


def test_record_of_a_running_job_does_not_replace_its_end(store, job, rows):
    store.write(batch(job(name="")), "pbs_log")
    late_running_record = job(
        state=JobState.RUNNING, end_time=None, name="train", work_dir="/home/alice"
    )
    store.write(batch(late_running_record), "pbs_log")
    (row,) = rows(schema.job)
    assert (row["state"], row["end_time"]) == ("COMPLETED", job().end_time)
    # The record of its end lacked these.
    assert (row["name"], row["work_dir"]) == ("train", "/home/alice")
    running = job("2", state=JobState.RUNNING, end_time=None)
    store.write(batch(*merge_by_key([job("2"), running])), "pbs_log")
    assert [row["state"] for row in rows(schema.job)] == ["COMPLETED", "COMPLETED"]


def test_growing_values_of_a_running_job_are_not_stored(store, job, rows):
    running = job(state=JobState.RUNNING, end_time=None, cpu_seconds=10.0, peak_memory_bytes=5)
    assert store.write(batch(running), "qstat").counts == Counter(new=1)
    later = running._replace(elapsed_seconds=9999, cpu_seconds=99.0, peak_memory_bytes=50)
    assert store.write(batch(later), "qstat").counts == Counter(unchanged=1)
    (row,) = rows(schema.job)
    assert (row["elapsed_seconds"], row["cpu_seconds"], row["peak_memory_bytes"]) == (None,) * 3


def test_job_that_ended_before_its_start_has_a_caveat(store, job, rows, now):
    store.write(batch(job(start_time=now - 10, end_time=now - 100)), "pbs_log")
    assert rows(schema.job)[0]["caveats"] == "times"
    store.write(batch(job(start_time=now - 200, end_time=now - 100)), "pbs_log")
    assert rows(schema.job)[0]["caveats"] == ""


def test_reason_of_waiting_is_gone_once_the_job_has_started(store, job, rows, now):
    waiting = job(
        state=JobState.PENDING, start_time=None, end_time=None, exit_code=None, reason="Priority"
    )
    store.write(batch(waiting), "sacct")
    assert rows(schema.job)[0]["reason"] == "Priority"
    store.write(batch(job(reason="")), "sacct")
    assert rows(schema.job)[0]["reason"] == ""
    store.write(batch(waiting), "sacct")  # late, for example from another source
    assert rows(schema.job)[0]["reason"] == ""


def test_withdrawn_request_and_refused_start_are_removed_from_the_row(store, job, rows):
    live = {"end_time": None, "elapsed_seconds": None}
    run = job("1", state=JobState.RUNNING, requested_memory_bytes=4096, **live)
    store.write(batch(run), "s")
    waiting = job(
        "1", state=JobState.PENDING, start_time=None, requested_memory_bytes=0, allocated_cpus=None,
        nodes=(), reason="its start failed and is tried again", **live,
    )  # fmt: skip
    store.write(batch(waiting), "s")
    (row,) = rows(schema.job)
    assert (row["state"], row["start_time"], row["allocated_cpus"]) == ("PENDING", None, None)
    assert row["requested_memory_bytes"] is None
    assert rows(schema.job_node) == []
    store.write(batch(run._replace(start_time=run.start_time + 60)), "s")
    (row,) = rows(schema.job)
    assert (row["state"], row["reason"]) == ("RUNNING", "")
