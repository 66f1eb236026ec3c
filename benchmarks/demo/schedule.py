"""Submits the jobs of five weeks to a simulated scheduler with backfill, and runs them.

Jobs share nodes. The first job of a partition that does not fit reserves the nodes on which it will
start at the latest, by the time limits of what runs there; the others behind it may start where
they do not delay it.
"""

import heapq
import random
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from batchjob.schedulers.states import JobState
from benchmarks.demo.recipes import (
    ACCOUNT_CPU_LIMITS,
    BAD_FROM_DAY,
    BAD_NODE,
    CHAIN,
    NODES,
    OUT_OF_MEMORY,
    OUT_OF_MEMORY_DAYS,
    OUT_OF_MEMORY_RUNS,
    RECIPES,
    SLOW_NODE,
    SLOWNESS,
    USABLE,
    USER_JOB_LIMITS,
    Recipe,
)

DAY, HOUR, DAYS = 86400, 3600, 35
FIRST_ID = 8_000_001
_DELAY_SECONDS = 20  # most between a decision and the start


@dataclass
class Job:
    """A job on its way; times in seconds since the beginning."""

    recipe: Recipe
    submit: int
    seconds: int  # it will run
    state: JobState  # at its end
    memory_gib: int
    memory_factor: float
    effort: float  # factor of its CPU and GPU use
    jobid: int = 0
    array: "Job | None" = None  # the first task
    index: int | None = None
    after: "Job | None" = None  # must have completed
    next: list["Job"] = field(default_factory=list)  # submitted a while after its end
    waits_for: str = ""
    start: int | None = None
    end: int | None = None
    nodes: list[str] = field(default_factory=list)
    gpus: dict[str, list[int]] = field(default_factory=dict)

    @property
    def limit_seconds(self) -> int:
        """Its time limit."""
        return self.recipe.limit_hours * HOUR


def jobs() -> list[Job]:
    """The jobs as they have run, by submission."""
    rng = random.Random(1)
    done = _Scheduler(rng).run(list(_submissions(rng)))
    done.sort(key=lambda job: (job.submit, job.recipe.name, job.index or 0))
    for number, job in enumerate(done):
        job.jobid = FIRST_ID + number
    return done


def _new(rng: random.Random, recipe: Recipe, submit: int, memory_gib: int = 0) -> Job:
    factor = rng.uniform(0.85, 1.15) * (2.2 if rng.random() < 0.03 else 1.0)
    state = recipe.end if recipe.end and rng.random() < 0.14 else JobState.COMPLETED
    seconds = min(recipe.hours * factor, recipe.limit_hours * 0.95) * HOUR
    if state is JobState.TIMEOUT:
        seconds = recipe.limit_hours * HOUR
    elif state is not JobState.COMPLETED:
        seconds *= rng.uniform(0.1, 0.8)
    return Job(
        recipe, submit, round(seconds), state, memory_gib or recipe.memory_gib, factor,
        rng.uniform(0.9, 1.0),
    )  # fmt: skip


def _submissions(rng: random.Random) -> Iterator[Job]:
    for recipe in RECIPES:
        for day in range(recipe.from_day, DAYS):
            whole, part = divmod(recipe.jobs_per_day, 1)
            count = int(whole) + (rng.random() < part)
            for number in range(count):
                second = _second_of_day(rng) if recipe.at_once != 1 else number * DAY // count
                submit = day * DAY + second
                if recipe.tasks:
                    yield from _array(rng, recipe, submit)
                else:
                    yield _new(rng, recipe, submit)
    for day in range(DAYS):
        submit, before = day * DAY + 7 * HOUR + rng.randrange(1800), None
        for recipe in CHAIN:
            job = _new(rng, recipe, submit)
            job.after, before = before, job
            yield job
    for start in OUT_OF_MEMORY_DAYS:
        yield _out_of_memory_series(rng, round(start * DAY))


def _second_of_day(rng: random.Random) -> int:
    """More by day than by night, when people submit; programs do so around the clock."""
    if rng.random() < 0.4:
        return rng.randrange(DAY)
    return round(min(max(rng.gauss(13.5, 3.0), 0), 23.9) * HOUR)


def _array(rng: random.Random, recipe: Recipe, submit: int) -> Iterator[Job]:
    first = None
    for index in range(1, recipe.tasks + 1):
        job = _new(rng, recipe, submit)
        job.index, job.array = index, first or job
        first = first or job
        yield job


def _out_of_memory_series(rng: random.Random, submit: int) -> Job:
    first = last = _new(rng, OUT_OF_MEMORY, submit)
    for number in range(1, OUT_OF_MEMORY_RUNS + 1):
        last.state, last.seconds = JobState.OUT_OF_MEMORY, rng.randrange(600, 1500)
        memory = OUT_OF_MEMORY.memory_gib * (2 if number == OUT_OF_MEMORY_RUNS else 1)
        job = _new(rng, OUT_OF_MEMORY, rng.randrange(120, 900), memory)  # after the last
        last.next.append(job)
        last = job
    last.state, last.memory_factor = JobState.COMPLETED, 0.62
    last.seconds = round(OUT_OF_MEMORY.hours * HOUR * 1.6)
    return first


class _Free:
    """What is free on the nodes."""

    def __init__(self) -> None:
        self.cpus = {node: NODES[node]["cpus"] for node in USABLE}
        self.memory = {node: NODES[node]["memory_gib"] for node in USABLE}
        self.gpus = {node: set(range(NODES[node]["gpus"])) for node in USABLE}

    def fits(self, node: str, job: Job, cpus: int = 0, memory: int = 0, gpus: int = 0) -> bool:
        """Whether a node has room for the job, with this much more."""
        recipe = job.recipe
        return (
            (node[0] == "g") == (recipe.partition == "gpu")
            and self.cpus[node] + cpus >= recipe.cpus
            and self.memory[node] + memory >= job.memory_gib
            and len(self.gpus[node]) + gpus >= recipe.gpus
        )

    def take(self, job: Job) -> None:
        for node in job.nodes:
            self.cpus[node] -= job.recipe.cpus
            self.memory[node] -= job.memory_gib
            job.gpus[node] = sorted(self.gpus[node])[: job.recipe.gpus]
            self.gpus[node] -= set(job.gpus[node])

    def give_back(self, job: Job) -> None:
        for node in job.nodes:
            self.cpus[node] += job.recipe.cpus
            self.memory[node] += job.memory_gib
            self.gpus[node] |= set(job.gpus[node])


class _Scheduler:
    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._free = _Free()
        self._queue: list[Job] = []
        self._running: list[Job] = []
        self._done: list[Job] = []

    def run(self, submissions: list[Job]) -> list[Job]:
        """All of the jobs, and those submitted after others, once they have ended."""
        events = [(job.submit, number, job, True) for number, job in enumerate(submissions)]
        heapq.heapify(events)
        number = len(events)
        while events:
            now, _, job, submitted = heapq.heappop(events)
            if submitted:
                self._queue.append(job)
            else:
                self._running.remove(job)
                self._free.give_back(job)
                self._done.append(job)
                for later in job.next:
                    later.submit += now
                    number += 1
                    heapq.heappush(events, (later.submit, number, later, True))
            if events and events[0][0] == now:
                continue
            for started in self._schedule(now):
                number += 1
                heapq.heappush(events, (started.end, number, started, False))
        return self._done

    def _schedule(self, now: int) -> Iterator[Job]:
        reserved: dict[str, tuple[int, set[str]]] = {}  # partition → latest start, nodes
        for job in list(self._queue):
            reason = self._blocked(job, now)
            if reason == "cancelled":
                self._queue.remove(job)
                job.state, job.end = JobState.CANCELLED, now
                job.waits_for = "DependencyNeverSatisfied"
                self._done.append(job)
                continue
            job.waits_for = reason or job.waits_for
            if reason:
                continue
            nodes = self._nodes_for(job, now, reserved.get(job.recipe.partition))
            if nodes:
                self._queue.remove(job)
                self._start(job, now, nodes)
                yield job
            elif job.recipe.partition not in reserved:
                reserved[job.recipe.partition] = self._reserve(job, now)

    def _blocked(self, job: Job, now: int) -> str:
        """Why a job may not start wherever there is room; "" if it may."""
        recipe = job.recipe
        if job.after is not None and (job.after.end is None or job.after.end > now):
            return "Dependency"
        if job.after is not None and job.after.state is not JobState.COMPLETED:
            return "cancelled"
        same = [each for each in self._running if each.array is not None]
        if job.array and sum(each.array is job.array for each in same) >= recipe.at_once:
            return "JobArrayTaskLimit"
        mine = sum(
            (each.recipe.user, each.recipe.qos) == (recipe.user, recipe.qos)
            for each in self._running
        )
        if mine >= USER_JOB_LIMITS.get((recipe.user, recipe.qos), 1 << 30):
            return "QOSMaxJobsPerUserLimit"
        used: dict[str, int] = defaultdict(int)
        for each in self._running:
            used[each.recipe.account] += each.recipe.cpus * each.recipe.nodes
        asked = used[recipe.account] + recipe.cpus * recipe.nodes
        if asked > ACCOUNT_CPU_LIMITS.get(recipe.account, 1 << 30):
            return "AssocGrpCpuLimit"
        return ""

    def _nodes_for(self, job: Job, now: int, reservation: tuple[int, set[str]] | None) -> list[str]:
        latest, kept = reservation or (0, set())
        in_time = now + job.limit_seconds + _DELAY_SECONDS <= latest
        nodes = [
            node
            for node in sorted(USABLE, key=lambda each: (self._free.cpus[each], each))
            if self._free.fits(node, job) and (in_time or node not in kept)
        ]
        return sorted(nodes[: job.recipe.nodes]) if len(nodes) >= job.recipe.nodes else []

    def _reserve(self, job: Job, now: int) -> tuple[int, set[str]]:
        """When and where a job will start at the latest."""
        more: dict[str, list[int]] = {node: [0, 0, 0] for node in USABLE}
        for running in sorted(
            self._running, key=lambda each: (each.start or 0) + each.limit_seconds
        ):
            for node in running.nodes:
                sums = more[node]
                sums[0] += running.recipe.cpus
                sums[1] += running.memory_gib
                sums[2] += running.recipe.gpus
            nodes = [node for node in USABLE if self._free.fits(node, job, *more[node])]
            if len(nodes) >= job.recipe.nodes:
                ends = (running.start or 0) + running.limit_seconds
                return max(ends, now), set(nodes[: job.recipe.nodes])
        return now, set()

    def _start(self, job: Job, now: int, nodes: list[str]) -> None:
        job.nodes, job.start = nodes, now + self._rng.randrange(2, _DELAY_SECONDS)
        is_bad = BAD_NODE in nodes and now >= BAD_FROM_DAY * DAY
        if SLOW_NODE in nodes and now >= BAD_FROM_DAY * DAY:
            longer = min(job.seconds * SLOWNESS, job.limit_seconds * 0.95)
            job.seconds = max(job.seconds, round(longer))
        if is_bad and job.state is JobState.COMPLETED and self._rng.random() < 0.5:
            job.state, job.seconds = JobState.FAILED, self._rng.randrange(20, 900)
        job.end = job.start + job.seconds
        self._free.take(job)
        self._running.append(job)
