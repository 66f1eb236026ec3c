"""A simulated cluster: a month of submissions, placement and ends of jobs, and the week after it.

The same seed and time produce the same jobs. A node runs one job at a time, so waits result from
the load and are not random. All is known in advance: as time passes, jobs start and end as planned.
"""

import random
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from batchjob.schedulers.records import (
    Account,
    Association,
    Associations,
    JobRecord,
    NodeShare,
    Role,
)
from batchjob.schedulers.states import JobState

CLUSTER = "batchjob-demo"
_CRASHED = 128 + 11  # exit status of a segmentation fault in a shell
DAYS, DAYS_AHEAD = 30, 7
FIRST_ID = 8_000_001
HOUR, DAY, GIB = 3600, 86400, 1 << 30
CPU_NODES = tuple(f"c{number:02}" for number in range(1, 21))
GPU_NODES = tuple(f"g{number:02}" for number in range(1, 5))


class Recipe(NamedTuple):
    """Jobs that one person submits again and again."""

    name: str
    user: str
    account: str
    jobs: int  # in a month
    nodes: int
    cpus: int  # per node, like the next two
    memory_gib: int
    gpus: int
    limit_hours: int
    hours: float  # typical run time
    cpu_busy: float  # 0..1
    memory_used: float
    gpu_busy: tuple[float, ...] = ()  # of each GPU of a node
    ends: tuple[JobState, ...] = ()  # instead of COMPLETED, for some of the jobs
    idle_node: bool = False  # the last node is nearly idle
    partition: str = "cpu"


_F, _T, _O = JobState.FAILED, JobState.TIMEOUT, JobState.OUT_OF_MEMORY
RECIPES = (
    Recipe("train-resnet", "ada", "vision", 40, 1, 32, 256, 4, 24, 9, 0.5, 0.35,
           (0.92, 0.9, 0.91, 0.93), (_T,), partition="gpu"),
    Recipe("finetune-llm", "grace", "language", 16, 2, 64, 512, 8, 48, 20, 0.4, 0.5,
           (0.95,) * 8, (JobState.NODE_FAIL,), partition="gpu"),
    Recipe("notebook", "alan", "language", 45, 1, 16, 128, 4, 8, 6, 0.04, 0.1,
           (0.35, 0.0, 0.0, 0.0), (JobState.CANCELLED,), partition="gpu"),
    Recipe("gromacs-prod", "rosalind", "chemistry", 60, 4, 64, 128, 0, 24, 15, 0.97, 0.3),
    Recipe("cp2k-relax", "linus", "chemistry", 90, 2, 64, 256, 0, 12, 4, 0.85, 0.75, ends=(_F,)),
    Recipe("assembly", "barbara", "genomics", 70, 1, 32, 256, 0, 24, 6, 0.7, 0.93, ends=(_O,)),
    Recipe("variant-calling", "barbara", "genomics", 150, 1, 16, 240, 0, 24, 1.5, 0.6, 0.08),
    Recipe("wrf-forecast", "jule", "climate", 30, 8, 64, 128, 0, 8, 5, 0.9, 0.4, ends=(_T,)),
    Recipe("ocean-model", "jule", "climate", 24, 4, 64, 128, 0, 24, 11, 0.88, 0.5, idle_node=True),
    Recipe("parameter-scan", "emmy", "physics", 160, 1, 8, 16, 0, 2, 0.4, 0.99, 0.3, ends=(_F,)),
    Recipe("postprocess", "emmy", "physics", 80, 1, 32, 64, 0, 4, 0.7, 0.05, 0.2),
)  # fmt: skip


class DemoJob(NamedTuple):
    """A record, and the parameters of its measurements."""

    record: JobRecord
    recipe: Recipe
    time_factor: float  # about 1: factor of this run's time and memory
    effort: float = 1.0  # at most 1: factor of its CPU and GPU use


def plan_jobs(begun: int, seed: int = 1) -> list[DemoJob]:
    """Jobs of the month before a time (epoch seconds) and the week after it, by submission.

    The records are in their final state.
    """
    rng = random.Random(seed)  # noqa: S311 (a demo, no secret)
    free_times = dict.fromkeys((*CPU_NODES, *GPU_NODES), 0.0)
    submits = sorted(
        (*_past_submissions(rng, begun), *_future_submissions(rng, begun)), key=lambda each: each[0]
    )
    return [
        _plan_job(rng, FIRST_ID + number, submit, recipe, free_times)
        for number, (submit, recipe) in enumerate(submits)
    ]


def jobs_at(plan: Sequence[DemoJob], now: float) -> list[DemoJob]:
    """The planned jobs submitted by `now`, in their state at that time."""
    found = [_job_at(job, now) for job in plan if job.record.submit_time <= now]
    blocked_partitions: set[str] = (
        set()
    )  # partitions whose next job is known; the others wait behind it
    for place, job in enumerate(found):
        if job.record.state is JobState.PENDING:
            reason = "Priority" if job.recipe.partition in blocked_partitions else "Resources"
            found[place] = job._replace(record=job.record._replace(reason=reason))
            blocked_partitions.add(job.recipe.partition)
    return found


def jobs(now: int, seed: int = 1) -> list[DemoJob]:
    """The month before a time, as it is then."""
    return jobs_at(plan_jobs(now, seed), now)


def _job_at(job: DemoJob, now: float) -> DemoJob:
    last, recipe = job.record, job.recipe
    assert last.start_time is not None
    assert last.end_time is not None
    if last.end_time <= now:
        return job
    began = last.start_time <= now
    state = JobState.RUNNING if began else JobState.PENDING
    start = int(last.start_time) if began else None
    names = last.node_list.split(",") if began else ()
    return job._replace(
        record=_build_record(int(last.jobid), last.submit_time, recipe, state, start, None, names)
    )


def demo_associations() -> Associations:
    """Accounts and their members."""
    members = {(recipe.account, recipe.user) for recipe in RECIPES}
    accounts = sorted({account for account, _ in members})
    return Associations(
        tuple(Association(CLUSTER, *member, Role.MEMBER) for member in sorted(members)),
        (),
        (Account(CLUSTER, "root"), *(Account(CLUSTER, account, "root") for account in accounts)),
    )


def _past_submissions(rng: random.Random, now: int) -> Iterator[tuple[int, Recipe]]:
    """Submit times, more by day than by night; the last day is partial."""
    for recipe in RECIPES:
        for _ in range(recipe.jobs):
            day = now - DAY * rng.randrange(DAYS)
            yield round(day - abs(rng.gauss(0.25, 0.2)) * DAY), recipe
    for recipe in RECIPES:  # so that some jobs are always running and waiting
        yield now - rng.randrange(600, round(recipe.hours * HOUR * 0.7) + 900), recipe


def _future_submissions(rng: random.Random, begun: int) -> Iterator[tuple[int, Recipe]]:
    for recipe in RECIPES:
        for _ in range(round(recipe.jobs * DAYS_AHEAD / DAYS)):
            yield begun + rng.randrange(1, DAYS_AHEAD * DAY), recipe


def _plan_job(
    rng: random.Random, number: int, submit: int, recipe: Recipe, free_times: dict[str, float]
) -> DemoJob:
    pool = GPU_NODES if recipe.gpus else CPU_NODES
    names = sorted(sorted(pool, key=lambda name: (free_times[name], name))[: recipe.nodes])
    time_factor = rng.uniform(0.85, 1.15) * (2.2 if rng.random() < 0.03 else 1.0)
    effort = rng.uniform(0.9, 1.0)
    state = recipe.ends[0] if recipe.ends and rng.random() < 0.14 else JobState.COMPLETED
    seconds = min(recipe.hours * time_factor, recipe.limit_hours * 0.95) * HOUR
    if state is JobState.TIMEOUT:
        seconds = recipe.limit_hours * HOUR
    elif state is not JobState.COMPLETED:
        seconds *= rng.uniform(0.1, 0.8)
    start = max(submit + rng.randrange(2, 40), *(round(free_times[name]) for name in names))
    end = start + round(seconds)
    free_times.update(dict.fromkeys(names, float(end)))
    record = _build_record(number, submit, recipe, state, start, end, names)
    return DemoJob(record, recipe, time_factor, effort)


def _build_record(
    number: int, submit: int, recipe: Recipe, state: JobState, start: int | None, end: int | None,
    names: Sequence[str],
) -> JobRecord:  # fmt: skip
    memory = recipe.memory_gib * GIB
    gpus = recipe.gpus * recipe.nodes or None
    held = start is not None
    signal = 9 if state is JobState.OUT_OF_MEMORY else None
    return JobRecord(
        cluster=CLUSTER, jobid=str(number), submit_time=submit, state=state,
        state_word=state.value, source="sacct", user=recipe.user,
        uid=5000 + [each.user for each in RECIPES].index(recipe.user), account=recipe.account,
        partition=recipe.partition, qos="normal", name=recipe.name, start_time=start, end_time=end,
        elapsed_seconds=end - start if end and start else None, eligible_time=submit,
        time_limit_seconds=round(recipe.limit_hours * HOUR),
        exit_code=None if end is None else _CRASHED if state is JobState.FAILED else 0,
        exit_signal=signal, priority=None if held else 1200,
        requested_cpus=recipe.cpus * recipe.nodes, requested_gpus=gpus,
        requested_memory_bytes=memory * recipe.nodes, requested_nodes=recipe.nodes,
        allocated_cpus=recipe.cpus * recipe.nodes if held else None,
        allocated_memory_bytes=memory * recipe.nodes if held else None,
        allocated_gpus=gpus if held else None, allocated_nodes=recipe.nodes if held else None,
        node_list=",".join(names),
        submit_line=_submit_line(recipe),
        work_dir=f"/home/{recipe.user}/{recipe.name}",
        stdout_path=f"/home/{recipe.user}/{recipe.name}/slurm-{number}.out",
        nodes=tuple(
            NodeShare(name, recipe.cpus, memory, recipe.gpus or None) for name in names
        ),
    )  # fmt: skip


def _submit_line(recipe: Recipe) -> str:
    gpus = f" --gpus-per-node={recipe.gpus}" if recipe.gpus else ""
    return (
        f"sbatch --partition={recipe.partition} --nodes={recipe.nodes} "
        f"--ntasks-per-node={recipe.cpus} --mem={recipe.memory_gib}G{gpus} "
        f"--time={recipe.limit_hours}:00:00 {recipe.name}.sh"
    )
