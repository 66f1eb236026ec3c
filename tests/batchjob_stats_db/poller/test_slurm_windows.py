"""Windows of sacct and squeue queries, against a simulated Slurm with a clock of its own."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from batchjob.schedulers.slurm.accounting import sacct
from batchjob.schedulers.slurm.accounting.slurm_rest import SlurmRest
from batchjob_stats_db.database import schema
from tests.batchjob_stats_db.poller.slurm_site import DAY, HOUR, MINUTE, START_TIME, Site, clear
from tests.simulated.slurm import NEVER, SlurmJob, StepTimes

pytestmark = pytest.mark.parametrize("url", ["sqlite"], indirect=True)


@pytest.fixture
def site(engine, monkeypatch):
    return Site(engine, monkeypatch)


def rereads(site):
    """Calls that read ended jobs again: the window of a cycle extends two days past its time."""
    found = []
    for call in site.slurm.calls:
        if "--allocations" in call:
            begin, end = (
                int(call[call.index(option) + 1].removeprefix("uts"))
                for option in ("--starttime", "--endtime")
            )
            found += [call] if end - begin < 2 * DAY else []
    return found


def states(rows):
    return [row["state"] for row in rows(schema.job)]


def test_calls_of_squeue_and_sacct_in_a_cycle(site):
    site.add_jobs(300, interval=10, end=100_000)
    site.run_for(HOUR, step=10 * MINUTE)
    site.slurm.calls.clear()
    site.run_for(10 * MINUTE)
    programs = [call[0] for call in site.slurm.calls]
    assert programs.count("squeue") == 10
    assert programs.count("sacct") == 20  # a window of ended jobs, and 50 jobs by id
    site.restart(interval=10)
    site.slurm.calls.clear()
    site.run_for(10 * MINUTE, step=10)
    assert [call[0] for call in site.slurm.calls].count("squeue") == 10


def test_accounting_is_not_queried_for_pending_and_running_jobs(site):
    site.add_jobs(10, end=10_000)
    site.run_for(10 * MINUTE)  # SimulatedSlurm rejects such a query
    assert len(site.slurm.calls) > 20


def test_pending_jobs_are_recorded_before_accounting_knows_them(site, rows):
    site.add_jobs(start=HOUR, end=2 * HOUR, known_at=HOUR)
    site.run_for(5 * MINUTE)
    (row,) = rows(schema.job)
    assert (row["state"], row["reason"]) == ("PENDING", "Priority")
    assert row["sluid"] == f"s{row['submit_time']}"
    assert (row["start_time"], row["allocated_cpus"], row["requested_cpus"]) == (None, None, 4)
    assert row["submit_line"] == ""
    site.run_for(HOUR)
    (row,) = rows(schema.job)
    assert (row["state"], row["allocated_cpus"], row["node_list"]) == ("RUNNING", 4, "n1")


def test_waiting_jobs_get_their_submit_lines_from_accounting_once(site, rows):
    site.add_jobs(60, start=HOUR, end=2 * HOUR)
    site.add_jobs(60, start=10, end=2 * HOUR, steps=1)
    site.run_for(10 * MINUTE)
    assert {row["submit_line"] for row in rows(schema.job)} == {"sbatch train.sh"}
    assert sorted(set(states(rows))) == ["PENDING", "RUNNING"]
    assert len(rows(schema.job_step)) == 60
    site.slurm.calls.clear()
    site.run_for(5 * MINUTE)
    asked = [call[call.index("--jobs") + 1] for call in site.slurm.calls if "--jobs" in call]
    waiting = {row["jobid"] for row in rows(schema.job) if row["state"] == "PENDING"}
    assert not waiting & {jobid for ids in asked for jobid in ids.split(",")}


def test_elapsed_time_stops_while_a_job_is_suspended(site, rows):
    suspended = START_TIME + 10 * MINUTE, START_TIME + 30 * MINUTE
    site.add_jobs(start=10, end=10 * HOUR, suspended=suspended)
    for _ in range(2):
        site.run_for(12 * MINUTE)
        (row,) = rows(schema.job)
        assert (row["state"], row["elapsed_seconds"]) == ("SUSPENDED", 590)
    for _ in range(2):
        site.run_for(12 * MINUTE)
        (row,) = rows(schema.job)
        assert (row["state"], row["suspended_seconds"]) == ("RUNNING", 20 * MINUTE)


def test_steps_of_all_running_jobs_are_read(site, rows):
    site.add_jobs(120, start=10, end=10 * HOUR, steps=2)
    site.run_for(6 * MINUTE)
    assert len(rows(schema.job_step)) == 240
    assert {row["record_id"] for row in rows(schema.job)} == {str(n + 1) for n in range(120)}


def add_job_with_steps(site, *lengths, cpu_seconds=40):
    """A job of steps one after the other; the first has the largest memory."""
    at, steps = site.now + 30, []
    for number, length in enumerate(lengths):
        steps.append(StepTimes(at, at + length, cpu_seconds, (len(lengths) - number) << 20))
        at += length
    return site.add_jobs(end=at - site.now, step_times=tuple(steps))[0]


def totals(rows):
    """CPU seconds and peak memory of the only job."""
    (row,) = rows(schema.job)
    return row["cpu_seconds"], row["peak_memory_bytes"]


def test_totals_have_the_steps_that_ended_long_before_the_job(site, rows):
    add_job_with_steps(site, MINUTE, MINUTE, 40 * MINUTE, MINUTE)
    for _ in range(80):
        site.run_for(MINUTE)
        assert totals(rows) in ((None, None), (160.0, 4 << 20))
    assert totals(rows) == (160.0, 4 << 20)


def test_steps_are_read_once_where_a_window_lacks_them(site):
    for _ in range(5):
        add_job_with_steps(site, MINUTE, 30 * MINUTE, MINUTE)
    site.run_for(HOUR)
    ended = [job.end for jobs in site.slurm.by_id.values() for job in jobs]
    site.slurm.calls.clear()
    site.run_for(HOUR)
    assert max(ended) < site.now - HOUR
    assert not [call for call in site.slurm.calls if "--jobs" in call]


@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    lengths=st.lists(st.integers(1, 2 * HOUR), min_size=1, max_size=6),
    pauses=st.lists(st.integers(1, 3 * HOUR), min_size=1, max_size=6),
    restarts=st.sets(st.integers(0, 5)),
    overlap=st.integers(0, 15 * MINUTE),
    source=st.sampled_from([sacct.Sacct, SlurmRest]),
)
def test_any_split_of_a_life_into_windows_gives_the_totals_of_one_look(
    engine, monkeypatch, rows, lengths, pauses, restarts, overlap, source
):
    clear(engine)
    site = Site(engine, monkeypatch, source, overlap=float(overlap))
    site.run_for(MINUTE)
    job = add_job_with_steps(site, *lengths)
    for number, pause in enumerate(pauses):
        if number in restarts:
            site.restart()
        site.run_for(pause, step=pause)
    site.run_for(max(0, job.end - site.now) + 2 * MINUTE, step=2 * HOUR)
    assert totals(rows) == (40.0 * len(lengths), len(lengths) << 20)


@pytest.mark.parametrize("interval", [20, MINUTE])
def test_exit_code_is_the_one_of_the_controller(site, rows, interval):
    """Sacct prints 127:0 for 127 and 255."""
    for status in (0, 1, 127, 128, 137, 255):
        site.add_jobs(exit_status=status, steps=1, state="FAILED" if status else "COMPLETED")
    site.restart(interval=interval)
    site.run_for(10 * MINUTE, step=interval)
    assert [row["exit_code"] for row in rows(schema.job)] == [0, 1, 127, 128, 137, 255]
    assert [row["exit_code"] for row in rows(schema.job_step)] == [0, 1, 127, 128, 137, 255]
    site.run_for(2 * DAY, step=30 * MINUTE)  # the controller has forgotten them
    assert [row["exit_code"] for row in rows(schema.job)] == [0, 1, 127, 128, 137, 255]


def test_exit_code_of_a_step_stays_when_its_job_is_edited(site, rows):
    (job,) = site.add_jobs(exit_status=255, steps=1, state="FAILED")
    site.run_for(10 * MINUTE)
    job.account = "chemistry"
    site.run_for(2 * DAY, step=6 * HOUR)
    assert rows(schema.job)[0]["account"] == "chemistry"
    assert [row["exit_code"] for row in rows(schema.job_step)] == [255]


def test_one_of_two_codes_is_not_derived_from_a_window_that_lacks_the_other_step(site, rows):
    """Both print 127; DerivedExitCode is 255, the code of the step that the window lacks."""
    at = site.now + 30
    early = StepTimes(at, at + MINUTE, 1, 1 << 20, "0", 255)
    late = StepTimes(at + MINUTE, at + 20 * MINUTE, 1, 1 << 20, "1", 127)
    site.add_jobs(end=20 * MINUTE + 30, step_times=(early, late))
    site.run_for(30 * MINUTE)
    site.run_for(2 * HOUR, step=2 * HOUR)  # after a pause, windows are read with their steps
    codes = {row["step"]: row["exit_code"] for row in rows(schema.job_step)}
    assert codes == {"0": None, "1": None}


def test_answer_of_squeue_that_ends_within_a_row_keeps_no_ended_job_out(site, rows, monkeypatch):
    def cut(options, argv, variables=None):
        answer = site.slurm.run(options, argv, variables)
        return answer[:-9] if argv[0] == "squeue" else answer

    monkeypatch.setattr(sacct, "run", cut)
    site.add_jobs()
    site.add_jobs(end=HOUR)
    site.run_for(5 * MINUTE)
    assert states(rows) == ["COMPLETED"]


def test_exit_code_of_accounting_alone_is_one_of_two(site, rows):
    site.slurm.ctld_down = True
    site.add_jobs(exit_status=255, steps=1, state="FAILED")
    site.run_for(10 * MINUTE)
    for (row,) in rows(schema.job), rows(schema.job_step):
        assert (row["exit_code"], row["exit_code_or_128_more"]) == (None, 127)


def test_parts_of_a_resized_job_follow_one_another(site, rows):
    resized = site.now + 20 * MINUTE
    first, second = site.add_resized_job(resized, end=site.now + HOUR)
    site.run_for(20 * MINUTE)  # up to the first poll that sees it
    found = {row["submit_time"]: row for row in rows(schema.job)}
    assert found[first.submit]["state"] == "RESIZED"
    assert found[second.submit]["state"] == "RUNNING"
    assert found[second.submit]["start_time"] == resized
    assert found[second.submit]["sluid"] == ""  # accounting has the one of its directory
    assert rows(schema.quarantine) == []
    site.run_for(HOUR)
    parts = [
        (row["start_time"], row["end_time"], row["elapsed_seconds"]) for row in rows(schema.job)
    ]
    assert parts == [
        (first.start, resized, resized - first.start),
        (resized, second.end, second.end - resized),
    ]


def test_queue_with_a_resized_job_is_recorded_while_accounting_is_down(site, rows):
    site.add_resized_job(site.now + MINUTE, end=site.now + HOUR)
    site.slurm.dbd_down = True
    site.add_jobs(3, start=10, end=HOUR)
    site.run_for(5 * MINUTE)
    assert states(rows) == ["RUNNING"] * 3


def test_running_part_of_a_job_whose_id_was_used_before_is_the_newest(site, rows):
    """Accounting never had the end of the earlier job."""
    long_ago, now = site.now - 90 * DAY, site.now
    site.slurm.add(SlurmJob(10, long_ago, long_ago, NEVER))
    site.slurm.waiting.clear()
    first, second = (
        SlurmJob(10, now, now, now + 10 * MINUTE, state="RESIZING", steps=1),
        SlurmJob(10, now + 10 * MINUTE, now, now + HOUR, original_submit=now),
    )
    site.slurm.add(first)
    site.slurm.add(second)
    site.run_for(15 * MINUTE)
    parts = [(row["submit_time"], row["state"], row["start_time"]) for row in rows(schema.job)]
    assert parts == [(now, "RESIZED", now), (second.submit, "RUNNING", second.submit)]


def test_exit_code_of_a_resized_job_is_the_one_of_the_controller(site, rows):
    _, second = site.add_resized_job(site.now + 10 * MINUTE, end=site.now + 20 * MINUTE)
    second.state, second.exit_status = "FAILED", 255
    site.run_for(30 * MINUTE)
    codes = {row["submit_time"]: row["exit_code"] for row in rows(schema.job)}
    assert codes[second.submit] == 255


@pytest.mark.parametrize("source", [sacct.Sacct, SlurmRest])
@pytest.mark.parametrize("steps", [0, 1])
def test_start_before_a_submission_stays_where_a_clock_was_set_back(
    engine, monkeypatch, rows, source, steps
):
    site = Site(engine, monkeypatch, source)
    site.run_for(MINUTE)
    (job,) = site.add_jobs(start=-HOUR, end=200, steps=steps)
    for length, step in ((5 * MINUTE, MINUTE), (10 * MINUTE, MINUTE), (2 * DAY, 2 * HOUR)):
        site.run_for(length, step=step)
        site.restart()
        (row,) = rows(schema.job)
        assert (row["start_time"], row["elapsed_seconds"]) == (job.start, HOUR + 200)


def test_row_that_cannot_be_read_is_quarantined_once(site, rows):
    site.add_jobs(end=10 * HOUR, cpus="many")
    site.run_for(HOUR)
    assert len(rows(schema.quarantine)) == 2  # one of squeue, one of sacct


def test_poll_without_changes_writes_no_job(site, rows):
    site.add_jobs(60, start=10, end=10 * HOUR, steps=1)
    site.run_for(10 * MINUTE)
    before = rows(schema.job), rows(schema.job_step)
    metrics = site.poller.metrics.registry
    label = {"cluster": "c1", "outcome": "changed"}
    changed = metrics.get_sample_value("batchjob_stats_db_jobs_total", label)
    site.run_for(10 * MINUTE)
    assert (rows(schema.job), rows(schema.job_step)) == before
    assert metrics.get_sample_value("batchjob_stats_db_jobs_total", label) == changed


@pytest.mark.parametrize("source", [sacct.Sacct, SlurmRest])
@pytest.mark.parametrize("ahead", [-DAY, -HOUR, -590, 590, HOUR, DAY])
def test_wrong_clock_of_the_poller_loses_no_job(engine, monkeypatch, rows, source, ahead):
    site = Site(engine, monkeypatch, source)
    site.run_for(MINUTE)
    site.clock_offset = site.slurm.clients_ahead = ahead
    site.restart()
    site.add_jobs(60, interval=37, steps=1)
    site.run_for(HOUR, step=5 * MINUTE)
    assert states(rows) == ["COMPLETED"] * 60
    assert {(row["cpu_seconds"], row["peak_memory_bytes"]) for row in rows(schema.job)} == {
        (60, 1 << 20)
    }


@pytest.mark.parametrize("ahead", [HOUR, DAY])
@pytest.mark.parametrize("stopped_seconds", [0, 30 * MINUTE, 2 * HOUR])
def test_clock_that_was_ahead_for_a_while_loses_no_job(site, rows, ahead, stopped_seconds):
    site.run_for(HOUR, step=10 * MINUTE)
    site.add_jobs(100, interval=120)
    site.clock_offset = ahead
    site.run_for(10 * MINUTE)
    site.clock_offset = 0
    if stopped_seconds:  # the clock was set right while the poller was stopped
        site.now += stopped_seconds
        site.slurm.now = site.now
        site.restart()
    site.run_for(4 * HOUR, step=10 * MINUTE)
    assert states(rows) == ["COMPLETED"] * 100


def test_polls_continue_after_the_clock_is_set_back(site, rows):
    site.clock_offset = DAY
    site.restart()
    site.run_for(5 * MINUTE)
    site.clock_offset = 0
    site.add_jobs()
    site.run_for(5 * MINUTE)
    assert states(rows) == ["COMPLETED"]


def test_controller_clock_that_was_ahead_loses_no_job(site, rows):
    site.add_jobs(start=30 + DAY, end=DAY + 60, known_at=1, ended_at=60)
    site.run_for(10 * MINUTE)
    site.add_jobs(60, interval=30)
    site.run_for(2 * HOUR, step=5 * MINUTE)
    assert states(rows) == ["COMPLETED"] * 61


def test_late_record_of_a_running_job_brings_in_the_other_late_ones(site, rows):
    site.run_for(HOUR, step=10 * MINUTE)
    site.add_jobs(start=0, end=HOUR, known_at=1, ended_at=3 * HOUR)
    site.run_for(5 * MINUTE)  # it is seen running
    site.add_jobs(20, interval=60, known_at=3 * HOUR, ended_at=3 * HOUR)  # these are not
    site.slurm.ctld_down = True
    site.run_for(HOUR, step=5 * MINUTE)
    site.slurm.ctld_down = False
    site.run_for(4 * HOUR, step=5 * MINUTE)
    assert states(rows) == ["COMPLETED"] * 21


def test_job_that_ended_just_before_a_rare_poll_is_not_late(site, rows):
    site.add_jobs(20, end=HOUR, ended_at=HOUR + 5)
    site.run_for(HOUR, step=30 * MINUTE)
    assert set(states(rows)) == {"RUNNING"}
    site.slurm.calls.clear()
    site.run_for(HOUR, step=30 * MINUTE)
    assert set(states(rows)) == {"COMPLETED"}
    assert not rereads(site)


def test_nightly_reading_finds_late_and_edited_records(site, rows, monkeypatch):
    site.run_for(HOUR)
    late = site.add_jobs(30, interval=60, known_at=41 * HOUR, ended_at=41 * HOUR, steps=2)
    (edited,) = site.add_jobs(steps=1)
    site.slurm.ctld_down = True
    site.run_for(40 * HOUR, step=30 * MINUTE)
    assert states(rows) == ["COMPLETED"]
    edited.account = "chemistry"
    site.run_for(30 * HOUR, step=30 * MINUTE)
    assert states(rows) == ["COMPLETED"] * 31
    assert len(rows(schema.job_step)) == 2 * len(late) + 1
    by_account = {row["account"] for row in rows(schema.job) if row["jobid"] == str(edited.jobid)}
    assert by_account == {"chemistry"}


def test_nightly_reading_queries_steps_of_changed_jobs_only(site, rows):
    site.add_jobs(100, interval=60, steps=3)
    site.run_for(2 * DAY, step=30 * MINUTE)
    nightly_calls = rereads(site)
    assert nightly_calls
    first_call = site.slurm.calls.index(nightly_calls[0])
    assert "--jobs" not in site.slurm.calls[first_call + 1]


def test_nightly_reading_of_a_quiet_week_takes_few_calls(site):
    site.add_jobs(5)
    site.run_for(HOUR)
    site.run_for(7 * DAY, step=6 * HOUR)
    site.slurm.calls.clear()
    site.run_for(DAY, step=6 * HOUR)
    assert len(rereads(site)) < 10


def test_accounting_is_read_while_the_controller_is_down(site, rows):
    site.add_jobs(10, interval=30)
    site.slurm.ctld_down = True
    site.run_for(HOUR, step=5 * MINUTE)
    assert states(rows) == ["COMPLETED"] * 10
    assert {row["error"] for row in rows(schema.poll_state)} == {""}


def test_lower_bounds_stay_when_the_plugin_of_accounting_changes(site, rows):
    site.slurm.configuration = "JobAcctGatherType = jobacct_gather/linux\n"
    (job,) = site.add_jobs(state="TIMEOUT", steps=1)
    site.run_for(5 * MINUTE)
    for plugin, expected in (("cgroup", [2, 0]), ("linux", [2, 0])):
        site.slurm.configuration = f"JobAcctGatherType = jobacct_gather/{plugin}\n"
        site.restart()
        site.add_jobs(2 - len(rows(schema.job)), steps=1)
        job.account = plugin  # edited, so that it is read again
        site.run_for(2 * DAY, step=6 * HOUR)
        assert [row["cpu_at_least"] for row in rows(schema.job)] == expected
        assert rows(schema.job)[0]["account"] == plugin


@pytest.mark.parametrize("source", [sacct.Sacct, SlurmRest])
def test_figures_are_settled_at_night_if_the_poller_was_restarted_meanwhile(
    engine, monkeypatch, rows, source
):
    site = Site(engine, monkeypatch, source)
    site.slurm.configuration = "JobAcctGatherType = jobacct_gather/linux\n"
    site.slurm.ctld_down = True
    for state in ("CANCELLED", "COMPLETED"):  # the first one is in no window any more
        site.add_jobs(state=state, start=30, end=55, steps=1)
        site.run_for(HOUR, step=10 * MINUTE)
    site.slurm.ctld_down = False
    site.restart()
    site.run_for(5 * MINUTE)
    assert rows(schema.job)[0]["cpu_at_least"] is None
    site.run_for(2 * DAY, step=6 * HOUR)
    assert [row["cpu_at_least"] for row in rows(schema.job)] == [2, 1]


@pytest.mark.parametrize("source", [sacct.Sacct, SlurmRest])
def test_figures_read_before_the_configuration_is_known_are_settled_later(
    engine, monkeypatch, rows, source
):
    site = Site(engine, monkeypatch, source)
    site.slurm.configuration = "JobAcctGatherType = jobacct_gather/linux\n"
    site.slurm.configuration += "JobAcctGatherFrequency = 30\n"
    site.slurm.ctld_down = True
    site.add_jobs(state="CANCELLED", start=30, end=55, steps=1)
    site.run_for(5 * MINUTE)
    (row,) = rows(schema.job)
    assert (row["cpu_at_least"], row["peak_memory_bytes"]) == (None, None)
    site.slurm.ctld_down = False
    site.run_for(2 * MINUTE)
    (row,) = rows(schema.job)
    assert (row["cpu_at_least"], row["peak_memory_bytes"], row["cpu_seconds"]) == (2, None, 60)
    site.slurm.calls.clear()
    site.run_for(5 * MINUTE)
    assert not [call for call in site.slurm.calls if "--jobs" in call or "step" in call]


def test_job_unknown_to_controller_and_accounting_has_vanished(site, rows):
    (job,) = site.add_jobs(end=10 * HOUR)
    site.add_jobs(3, end=20 * HOUR)
    site.run_for(10 * MINUTE)
    site.slurm.by_id[str(job.jobid)].clear()
    del site.slurm.queued[job.key]
    site.run_for(5 * MINUTE)
    assert "VANISHED" not in states(rows)  # accounting may be late
    site.run_for(10 * MINUTE)
    assert sorted(states(rows)) == ["RUNNING"] * 3 + ["VANISHED"]


def test_runaway_job_is_marked_until_its_end_is_known(site, rows):
    (job,) = site.add_jobs(end=HOUR, ended_at=4 * HOUR)
    site.add_jobs(3, end=20 * HOUR)
    site.run_for(2 * HOUR, step=5 * MINUTE)
    assert [row["caveats"] for row in rows(schema.job)] == ["runaway", "", "", ""]
    site.run_for(3 * HOUR, step=5 * MINUTE)
    row = next(row for row in rows(schema.job) if row["jobid"] == str(job.jobid))
    assert (row["state"], row["caveats"], row["end_time"]) == ("COMPLETED", "", job.end)


def test_idle_cluster_takes_two_calls_per_cycle(site):
    site.add_jobs(2)
    site.run_for(HOUR)
    site.now += 60 * DAY
    site.slurm.now = site.now
    site.restart()
    site.run_for(MINUTE)
    site.slurm.calls.clear()
    site.run_for(10 * MINUTE)
    assert len(site.slurm.calls) == 20


def test_failed_window_is_split_into_shorter_ones(site, rows):
    site.add_jobs(100, interval=600)
    site.slurm.dbd_down = True
    site.run_for(18 * HOUR, step=HOUR)
    site.slurm.dbd_down = False
    site.slurm.calls.clear()
    site.run_for(HOUR, step=15 * MINUTE)
    assert states(rows).count("COMPLETED") == 100
    window_calls = [call for call in site.slurm.calls if "--state" in call]
    assert len(window_calls) > 3
