"""Random lives of Slurm's jobs, polled at random times: one look at the end sees the same."""

from collections.abc import Sequence
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from batchjob.schedulers.slurm.accounting import sacct
from batchjob.schedulers.slurm.accounting.slurm_rest import SlurmRest
from batchjob_stats_db.database import schema
from tests.batchjob_stats_db.poller.slurm_site import DAY, HOUR, MINUTE, Site, clear
from tests.simulated.slurm import SlurmJob, StepTimes

pytestmark = pytest.mark.parametrize("url", ["sqlite"], indirect=True)

STATUSES = st.sampled_from([0, 0, 1, 127, 128, 137, 255])
SECONDS = st.integers(1, 2 * HOUR)
END_STATES = ["COMPLETED", "TIMEOUT", "CANCELLED by 1001", "NODE_FAIL", "OUT_OF_MEMORY"]
SOURCES = [(sacct.Sacct, False), (sacct.Sacct, True), (SlurmRest, True)]
"""Each with whether it tells exit codes exactly, as sacct does since 25.11."""


class Life(NamedTuple):
    """What happens to a job; times in seconds."""

    wait: int = 30
    steps: Sequence[tuple[int, int, int]] = ((60, 1, 0),)  # length, CPU seconds, exit status
    rest: int = 1  # from the last step to the end
    state: str = "COMPLETED"
    status: int = 0
    has_extern: bool = False
    cancelled_after: int | None = None  # before it started
    suspended: tuple[int, int] | None = None  # after its start, for how long
    is_cancelled_suspended: bool = False
    resizes: Sequence[tuple[int, int]] = ()  # after the one before, and the CPUs from then on
    is_start_the_jobs: bool = False  # of a part since a resize, as up to 22.05
    requeued_after: int | None = None


LIVES = st.builds(
    Life,
    wait=SECONDS,
    steps=st.lists(st.tuples(SECONDS, st.integers(1, 900), STATUSES), max_size=5),
    rest=st.integers(1, HOUR),
    state=st.sampled_from(END_STATES),
    status=STATUSES,
    has_extern=st.booleans(),
    cancelled_after=st.none() | st.none() | st.integers(1, HOUR),
    suspended=st.none() | st.tuples(SECONDS, SECONDS),
    is_cancelled_suspended=st.booleans(),
    resizes=st.lists(st.tuples(SECONDS, st.integers(1, 64)), max_size=2),
    is_start_the_jobs=st.booleans(),
    requeued_after=st.none() | SECONDS,
)


class Action(NamedTuple):
    """What happens to the site after a pause, which ends with a poll."""

    pause: int
    kind: str = ""  # "" is nothing
    seconds: int = 0


ACTIONS = st.builds(
    Action,
    st.integers(1, 3 * HOUR),
    st.sampled_from(["", "", "", "restart", "controller", "accounting", "late", "clock"]),
    st.integers(-HOUR, 3 * HOUR),
)


def act(site, action):
    """Restart the poller, stop or start a daemon, hold accounting up, or set the poller's clock."""
    slurm = site.slurm
    match action.kind:
        case "restart":
            site.restart()
        case "controller":
            slurm.ctld_down = not slurm.ctld_down
        case "accounting":
            slurm.dbd_down = not slurm.dbd_down
        case "late":
            slurm.late = (slurm.accounted, max(slurm.late[1], site.now + abs(action.seconds)))
        case "clock":
            site.clock_offset = slurm.clients_ahead = min(action.seconds, HOUR)


def add_life(site, jobid, life):
    """Add a job; returns the records that accounting will have of it."""
    submit = site.now + 1
    start = submit + life.wait
    if life.cancelled_after is not None:
        end = submit + life.cancelled_after
        return [site.slurm.add(SlurmJob(jobid, submit, None, end, state="CANCELLED by 1001"))]
    if life.requeued_after is None:
        return add_run(site, jobid, life, submit, start)
    requeued = start + life.requeued_after
    return [
        *add_run(site, jobid, life, submit, start, requeued),
        *add_run(site, jobid, life, requeued + 2, requeued + 122),
    ]


def add_run(site, jobid, life, submit, start, requeued=None):
    """A run, in the parts between its resizes; one that is requeued or suspended has no resize."""
    end, steps, state, status = start, [], "FAILED" if life.status else life.state, life.status
    for number, (length, cpu_seconds, exit_status) in enumerate(life.steps):
        name, memory = str(number), (number + 1) << 20
        steps.append(StepTimes(end, end + length, cpu_seconds, memory, name, exit_status))
        end += length
    end += life.rest
    times, resizes = {}, life.resizes
    if requeued is not None:
        end, state, status, resizes = requeued, "REQUEUED", 0, ()
    elif life.suspended and start + life.suspended[0] < end:
        stopped, resizes = start + life.suspended[0], ()
        resumed = stopped + life.suspended[1]
        times = {"suspended": (stopped, resumed)}
        if life.is_cancelled_suspended:  # Slurm records the time of suspension as the end
            end, state, status = stopped, "CANCELLED by 1001", 0
            times |= {"left_at": resumed, "ended_at": resumed}
    steps = [step._replace(end=min(step.end, end)) for step in steps if step.start < end]
    whole = [StepTimes(start, end, 7, 1 << 24, "batch"), StepTimes(start, end, 0, 0, "extern")]
    limits, cpus = [start], [4]
    for after, held in resizes:
        if limits[-1] + after < end:
            limits.append(limits[-1] + after)
            cpus.append(held)
    added = []
    for part, (since, until) in enumerate(zip(limits, [*limits[1:], end], strict=True)):
        is_last = part == len(limits) - 1
        own = [step for step in steps if since <= step.start < until]
        first = whole if life.has_extern else whole[:1]
        job = SlurmJob(
            jobid, since if part else submit, start if life.is_start_the_jobs else since, until,
            state=state if is_last else "RESIZING", cpus=cpus[part],
            recorded_cpus=0 if is_last else cpus[part + 1],
            exit_status=status if is_last else 0,
            step_times=(*own,) if part else (*first, *own),
            original_submit=submit if part else 0, **times,
        )  # fmt: skip
        added.append(site.slurm.add(job))
    return added


JOB_COLUMNS = (
    "state", "start_time", "end_time", "elapsed_seconds", "suspended_seconds", "exit_code",
    "exit_signal", "derived_exit_code", "cancelled_by", "allocated_cpus", "cpu_seconds",
    "peak_memory_bytes", "cpu_at_least", "caveats",
)  # fmt: skip
STEP_COLUMNS = (
    "state", "start_time", "end_time", "exit_code", "cpu_seconds", "memory_bytes",
)  # fmt: skip


def recorded(rows):
    """What is stored: id, submit time, step if it is of one, and column → value."""
    jobs = rows(schema.job)
    keys = {row["id"]: (row["jobid"], row["submit_time"]) for row in jobs}
    of_jobs = {(*keys[row["id"]], name): row[name] for row in jobs for name in JOB_COLUMNS}
    return of_jobs | {
        (*keys[row["job_id"]], row["step"], name): row[name]
        for row in rows(schema.job_step)
        for name in STEP_COLUMNS
    }


def truth(jobs):
    """What is known of the jobs, in the form of `recorded`."""
    found = {}
    for job in jobs:
        key, steps = (str(job.jobid), job.submit), job.steps_since(0)
        if job.start is None:
            continue
        found[*key, "exit_code"] = job.exit_status
        found[*key, "allocated_cpus"] = job.cpus
        for name, step in steps:
            status = job.exit_status if name == "batch" else step.exit_status
            found[*key, name, "exit_code"] = status
        if steps:
            found[*key, "cpu_seconds"] = sum(step.cpu_seconds for _, step in steps)
            found[*key, "peak_memory_bytes"] = max(step.memory_bytes for _, step in steps)
    return found


def wrong_values(stored, known):
    """What is stored, and is neither unknown nor true; peaks of a part may grow to the true one."""
    return {
        key: (stored[key], value)
        for key, value in known.items()
        if stored.get(key) not in (None, value)
        and not (key[-1] == "peak_memory_bytes" and stored[key] < value)
    }


@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    lives=st.lists(LIVES, min_size=1, max_size=4),
    actions=st.lists(ACTIONS, max_size=12),
    overlap=st.integers(0, 15 * MINUTE),
    how=st.sampled_from(SOURCES),
)
def test_any_lives_are_recorded_as_one_look_at_the_end_sees_them(
    engine, monkeypatch, rows, lives, actions, overlap, how
):
    clear(engine)
    source, exact_exits = how
    site = Site(engine, monkeypatch, source, overlap=float(overlap))
    slurm = site.slurm
    slurm.exact_exits = exact_exits
    site.run_for(MINUTE)
    jobs = [job for number, life in enumerate(lives) for job in add_life(site, 10 + number, life)]
    known = truth(jobs)
    for action in actions:
        site.run_for(action.pause, step=action.pause)
        assert wrong_values(recorded(rows), known) == {}
        act(site, action)
    slurm.ctld_down = slurm.dbd_down = False
    slurm.late, site.clock_offset, slurm.clients_ahead = (0, 0), 0, 0
    ends = [
        end for job in jobs for end in (job.end, job.ended_at, *(s.end for s in job.step_times))
    ]
    site.run_for(max(0, max(ends) - site.now) + 2 * DAY, step=6 * HOUR)
    followed = recorded(rows)
    clear(engine)
    site.restart(first=20 * DAY)
    site.run_for(MINUTE)
    looked = recorded(rows)
    assert followed.keys() == looked.keys()
    assert wrong_values(looked, known) == wrong_values(followed, known) == {}
    different = {
        key: (followed[key], value, known.get(key))
        for key, value in looked.items()
        if followed[key] not in (value, known.get(key) if value is None else value)
    }
    assert different == {}
