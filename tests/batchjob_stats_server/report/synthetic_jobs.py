"""Jobs whose true needs are known, what an exporter, poller and server would know of them, and a
replay of each under another request.

A job is a series of phases on one or more nodes. In a phase a node has so many CPUs' worth of work
to do at once, perhaps in bursts that are shorter than the time between two samples, holds memory,
and keeps each of its GPUs busy and filled to some part. With fewer CPUs the work takes longer; with
less memory, or fewer GPUs than it touches, the job is killed. Needs of runs of one name vary.
Faults: some jobs fail, are cancelled or time out before their last phase, and of some only a part
was measured, or only samples of it.
"""

import dataclasses
import itertools
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from batchjob_stats_db.measure.job_usage import GAPS, PEAK_SAMPLED
from batchjob_stats_server.report.model import NodeUse, ReportInput
from tests.batchjob_stats_server.report.test_report import GPU, JOB, T
from tests.helpers.derived_rows import replace_usages

GIB = 1 << 30
SCRAPE_SECONDS = 30
NODE_CPUS, NODE_MEMORY, NODE_GPUS, GPU_MEMORY = 64, 256 * GIB, 4, 80 * GIB


class Load(NamedTuple):
    """What one node does in a phase."""

    cpus: float  # that it can use at once
    memory: float  # bytes
    burst_seconds: float = 0.0  # it does so for this long, and then
    rest_seconds: float = 0.0  # next to nothing for this long; 0: all the time
    gpus: tuple[tuple[float, float], ...] = ()  # of each: busy part of the time, bytes held


class Phase(NamedTuple):
    """A part of a job's life; `seconds` are those with all the CPUs that it can use."""

    seconds: float
    nodes: tuple[Load, ...]


@dataclasses.dataclass(frozen=True)
class Request:
    """What is requested of each node, and for how long; None: not limited."""

    cpus: int
    memory: float
    gpus: int
    seconds: float | None
    nodes: int = 1


@dataclasses.dataclass(frozen=True)
class TrueJob:
    """A job, whole, with its request; `kind` is what the generator made it for."""

    kind: str
    name: str
    phases: tuple[Phase, ...]
    request: Request

    @property
    def seconds(self) -> float:
        return sum(phase.seconds for phase in self.phases)

    def loads(self) -> Iterator[tuple[float, int, Load]]:
        """Seconds, node and load of each phase."""
        for phase in self.phases:
            for node, load in enumerate(phase.nodes):
                yield phase.seconds, node, load

    @property
    def most_cpus(self) -> float:
        return max(load.cpus for _, _, load in self.loads())

    @property
    def cpu_seconds(self) -> float:
        return sum(seconds * load.cpus * busy_part(load) for seconds, _, load in self.loads())

    @property
    def peak_memory(self) -> float:
        return max(load.memory for _, _, load in self.loads())

    def touched_gpus(self) -> int:
        """Of the node that needs most: GPUs that it keeps busy at any time, or that hold data."""
        touched: dict[int, set[int]] = {}
        for _, node, load in self.loads():
            touched.setdefault(node, set()).update(
                number for number, (busy, held) in enumerate(load.gpus) if busy or held
            )
        return max(map(len, touched.values()), default=0)


def busy_part(load: Load) -> float:
    """The part of a phase in which the node is not at rest."""
    period = load.burst_seconds + load.rest_seconds
    return load.burst_seconds / period if load.rest_seconds else 1.0


def replay(job: TrueJob, request: Request) -> str:
    """What becomes of the job with another request: "" if it ends as before, else the harm."""
    if request.nodes < job.request.nodes:
        return "too few nodes"
    if job.peak_memory > request.memory:
        return "killed: memory"
    if job.touched_gpus() > request.gpus:
        return "killed: GPUs"
    seconds = 0.0
    for phase in job.phases:
        stretches = (
            1 + busy_part(load) * (max(1.0, load.cpus / request.cpus) - 1) for load in phase.nodes
        )
        seconds += phase.seconds * max(stretches)
    if request.seconds is not None and seconds > request.seconds:
        return "killed: time"
    return "slow" if seconds > 1.25 * job.seconds else ""


class Observed(NamedTuple):
    """A job, what became of it, and what a report is made of."""

    job: TrueJob
    seen: TrueJob  # up to where it ended
    inputs: ReportInput
    is_whole: bool  # completed, and measured in full
    earlier: Sequence[TrueJob]


# The kinds of jobs: those made to waste nothing, to waste plainly, and to look wasteful.


def _steady(rng: random.Random, load: Load, nodes: int = 1) -> tuple[Phase, ...]:
    return (Phase(rng.uniform(900, 40_000), (load,) * nodes),)


def _memory(rng: random.Random, part_low: float, part_high: float, limit: float) -> float:
    return limit * rng.uniform(part_low, part_high)


def _well_used(rng: random.Random, request: Request) -> tuple[Phase, ...]:
    gpus = tuple((rng.uniform(0.6, 1), GPU_MEMORY * 0.7) for _ in range(request.gpus))
    load = Load(request.cpus * rng.uniform(0.7, 1), _memory(rng, 0.55, 0.95, request.memory))
    return _steady(rng, load._replace(gpus=gpus), request.nodes)


def _plain_waste(rng: random.Random, request: Request) -> tuple[Phase, ...]:
    busy = rng.randint(0, request.gpus // 2)
    gpus = tuple(
        (rng.uniform(0.6, 1), GPU_MEMORY * 0.5) if number < busy else (0.0, 0.0)
        for number in range(request.gpus)
    )
    used = max(1, request.cpus * rng.uniform(0.05, 0.48))
    load = Load(min(used, request.cpus), _memory(rng, 0.03, 0.45, request.memory), gpus=gpus)
    return _steady(rng, load, request.nodes)


def _serial_and_parallel(rng: random.Random, request: Request) -> tuple[Phase, ...]:
    """Prepares with one CPU, computes with all, and perhaps writes with one."""
    total, part = rng.uniform(1200, 40_000), rng.uniform(0.05, 0.6)
    least, most = _memory(rng, 0.02, 0.3, request.memory), _memory(rng, 0.2, 0.95, request.memory)
    gpus = tuple((rng.uniform(0.2, 1), GPU_MEMORY * 0.6) for _ in range(request.gpus))
    lengths = [(1 - part) * total * rng.uniform(0.5, 1), part * total]
    phases = [
        Phase(lengths[0], (Load(1, least, gpus=((0.0, 0.0),) * request.gpus),) * request.nodes),
        Phase(lengths[1], (Load(request.cpus, most, gpus=gpus),) * request.nodes),
    ]
    if rng.random() < 0.5:
        phases.append(phases[0]._replace(seconds=total * rng.uniform(0.01, 0.3)))
    return tuple(phases)


def _bursts(rng: random.Random, request: Request) -> tuple[Phase, ...]:
    """Works on all CPUs for a moment, then waits or writes."""
    burst, rest = rng.choice([(2, 58), (5, 25), (0.2, 0.8), (20, 20), (3, 7), (60, 240)])
    memory = _memory(rng, 0.1, 0.9, request.memory)
    gpus = tuple((burst / (burst + rest), GPU_MEMORY * 0.3) for _ in range(request.gpus))
    return _steady(rng, Load(request.cpus, memory, burst, rest, gpus), request.nodes)


def _memory_spike(rng: random.Random, request: Request) -> tuple[Phase, ...]:
    """Holds little, and for some seconds much."""
    used = request.cpus * rng.uniform(0.2, 1)
    long = Load(used, _memory(rng, 0.02, 0.2, request.memory), gpus=((0.9, GIB),) * request.gpus)
    spike = long._replace(memory=_memory(rng, 0.5, 0.99, request.memory))
    phases = [Phase(rng.uniform(900, 30_000), (long,) * request.nodes)]
    phases.insert(rng.randint(0, 1), Phase(rng.uniform(1, 40), (spike,) * request.nodes))
    return tuple(phases)


def _one_node_works(rng: random.Random, request: Request) -> tuple[Phase, ...]:
    """The first node gathers what the others compute, or works alone."""
    other = rng.choice([0.02, 0.3, 0.6]) * request.cpus
    memory = _memory(rng, 0.2, 0.9, request.memory)
    first = Load(request.cpus * rng.uniform(0.3, 1), memory, gpus=((0.8, GIB),) * request.gpus)
    rest = Load(other, memory * rng.uniform(0.1, 1), gpus=((0.8, GIB),) * request.gpus)
    return (Phase(rng.uniform(900, 30_000), (first, *[rest] * (request.nodes - 1))),)


def _almost_idle(rng: random.Random, request: Request) -> tuple[Phase, ...]:
    """Waits for a licence or a file; some work a little, or after a long wait."""
    used = rng.choice([0.01, 0.05, 0.3, 0.49, 0.1 * request.cpus])
    load = Load(min(used, request.cpus), _memory(rng, 0.01, 0.5, request.memory))
    load = load._replace(gpus=((0.0, 0.0),) * request.gpus)
    phases = _steady(rng, load, request.nodes)
    if rng.random() < 0.4:
        work = load._replace(cpus=request.cpus, gpus=((0.9, GPU_MEMORY / 2),) * request.gpus)
        phases += (Phase(phases[0].seconds * rng.uniform(0.01, 0.1), (work,) * request.nodes),)
    return phases


def _model_in_others_memory(rng: random.Random, request: Request) -> tuple[Phase, ...]:
    """A model over several GPUs, of which one computes, or all in turn."""
    held = rng.uniform(0.3, 0.9) * GPU_MEMORY
    gpus = tuple((0.8 if number == 0 else 0.0, held) for number in range(request.gpus))
    load = Load(request.cpus * 0.3, _memory(rng, 0.3, 0.9, request.memory), gpus=gpus)
    return _steady(rng, load, request.nodes)


def _rare_gpu(rng: random.Random, request: Request) -> tuple[Phase, ...]:
    """Uses its GPUs for a short part of a long life, or for seconds of each minute."""
    load = Load(request.cpus * rng.uniform(0.3, 1), _memory(rng, 0.3, 0.9, request.memory))
    cold = load._replace(gpus=((0.0, 0.0),) * request.gpus)
    phases = [Phase(rng.uniform(2e4, 3e5), (cold,) * request.nodes)]
    held = rng.uniform(0.05, 0.6) * GPU_MEMORY
    gpus = tuple((0.9, held) for _ in range(request.gpus))
    hot = load._replace(gpus=gpus)
    phases.append(Phase(rng.uniform(30, 2500), (hot,) * request.nodes))
    if rng.random() < 0.4:
        minutely = load._replace(gpus=tuple((2 / 60, held) for _ in gpus))
        phases = [Phase(rng.uniform(900, 3e4), (minutely,) * request.nodes)]
    return tuple(phases)


def _small_gpu(rng: random.Random, request: Request) -> tuple[Phase, ...]:
    """Keeps one GPU busy for a part of the time, or fills it for a second."""
    busy, held = rng.uniform(0.02, 0.35), rng.uniform(0.02, 0.3) * GPU_MEMORY
    load = Load(request.cpus, _memory(rng, 0.3, 0.9, request.memory), gpus=((busy, held),))
    phases = list(_steady(rng, load._replace(gpus=load.gpus * request.gpus), request.nodes))
    if rng.random() < 0.3:
        full = load._replace(gpus=((busy, 0.8 * GPU_MEMORY),) * request.gpus)
        phases.append(Phase(1.0, (full,) * request.nodes))
    return tuple(phases)


KINDS = {
    "well used": _well_used,
    "plain waste": _plain_waste,
    "serial and parallel": _serial_and_parallel,
    "bursts": _bursts,
    "memory spike": _memory_spike,
    "one node works": _one_node_works,
    "almost idle": _almost_idle,
    "model in others' memory": _model_in_others_memory,
    "rare GPU": _rare_gpu,
    "small GPU": _small_gpu,
}
_GPUS_OF_KIND = {
    "model in others' memory": (2, 4), "rare GPU": (1, 2, 4), "small GPU": (1,),
    "one node works": (0,), "plain waste": (0, 0, 0, 2, 4),
}  # fmt: skip


def generate_jobs(seed: int, count: int) -> list[Observed]:
    """Runs of names, each with its earlier ones."""
    rng = random.Random(seed)
    drafts = [_draft(rng, f"name-{number}") for number in range(count)]
    all_rows = [{**row, "id": number} for number, row in enumerate(_rows_of(drafts))]
    usages = {
        row["id"]: {key.removeprefix("usage_"): row[key] for key in row if "usage_" in key}
        for row in all_rows
    }
    rows = iter(replace_usages(all_rows, usages))
    return [
        Observed(
            draft.runs[-1],
            draft.seen,
            ReportInput(
                next(rows), T + 10_000_000, alike="name", short_jobs=0,
                similar=list(itertools.islice(rows, len(draft.rows) - 1)), **draft.measured,
            ),
            draft.is_whole,
            draft.runs[:-1],
        )
        for draft in drafts
    ]  # fmt: skip


class _Draft(NamedTuple):
    runs: Sequence[TrueJob]  # the last one is the job; the others completed before it
    seen: TrueJob
    rows: Sequence[Mapping[str, Any]]  # the job's own, then of earlier ones, latest first
    measured: Mapping[str, Any]
    is_whole: bool


def _rows_of(drafts: Sequence[_Draft]) -> Iterator[Mapping[str, Any]]:
    return (row for draft in drafts for row in draft.rows)


def _draft(rng: random.Random, name: str) -> _Draft:
    kind = rng.choice(list(KINDS))
    gpus = rng.choice(_GPUS_OF_KIND.get(kind, (0, 0, 0, 1, 4)))
    nodes = rng.choice((2, 3, 8)) if kind == "one node works" else rng.choice((1, 1, 1, 1, 2, 4))
    cpus = rng.choice((1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 48, 64))
    memory = GIB * rng.choice((2, 4, 8, 16, 32, 64, 128, 256))
    request = Request(cpus, float(memory), gpus, None, nodes)
    first = KINDS[kind](rng, request)
    longest = sum(phase.seconds for phase in first)
    limit = longest * rng.choice((1.05, 1.2, 1.5, 2, 3, 6, 20))
    request = dataclasses.replace(request, seconds=math.ceil(limit / 60) * 60)
    spread = rng.choice((0, 0.1, 0.2, 0.4))
    runs = [
        TrueJob(kind, name, _varied(rng, first, spread, request), request)
        for _ in range(rng.choice((1, 1, 2, 4, 8)))
    ]
    runs = [run for run in runs[:-1] if not replay(run, request)] + runs[-1:]
    return _observe(rng, runs)


def _varied(
    rng: random.Random, phases: Sequence[Phase], spread: float, request: Request
) -> tuple[Phase, ...]:
    """The same program with another input, within the request."""
    by_memory, by_time = (1 + rng.uniform(-spread, spread) for _ in "mt")
    limit = 0.999 * (request.seconds or math.inf) / sum(phase.seconds for phase in phases)
    return tuple(
        Phase(
            phase.seconds * min(by_time, limit),
            tuple(
                load._replace(memory=min(load.memory * by_memory, request.memory))
                for load in phase.nodes
            ),
        )
        for phase in phases
    )


# What is known of a job.


def _observe(rng: random.Random, runs: Sequence[TrueJob]) -> _Draft:
    job = runs[-1]
    states = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")
    state = rng.choices(states, (85, 6, 4, 3, 2))[0]
    seen = job if state == "COMPLETED" else _cut(job, rng.uniform(0.05, 0.95))
    fault = rng.choices(
        ("", "unmeasured", "part", "gaps", "sampled", "accounting"), (80, 4, 6, 4, 3, 3)
    )[0]
    coverage = rng.uniform(0.2, 0.99) if fault == "part" else 1.0
    gpus = _gpu_rows(rng, seen, coverage)
    row = _row(seen, state, coverage, gpus)
    row["usage_caveats"] = {"gaps": GAPS, "sampled": PEAK_SAMPLED}.get(fault, "")
    if fault == "sampled":
        lower = rng.uniform(0.3, 1)
        for key in ("usage_memory_peak_bytes", "usage_memory_peak_node_bytes"):
            row[key] = int(row[key] * lower)
    row["usage_threads_peak"] = _threads(rng, seen)
    measured = _measured(seen, coverage, gpus)
    if rng.random() < 0.95:  # else the time series database has forgotten the job
        measured["cpu_peaks"] = highest_rates(seen, rng.uniform(0, SCRAPE_SECONDS - 1))
    if fault in ("unmeasured", "accounting"):
        known = {name: value for name, value in row.items() if not name.startswith("usage_")}
        row = {**known, **{name: None for name in row if name.startswith("usage_")}}
        measured = {}
    if fault == "accounting":
        row["cpu_seconds"] = seen.cpu_seconds * (1 if state == "COMPLETED" else rng.random())
        row["peak_memory_bytes"] = int(seen.peak_memory * rng.uniform(0.1, 1))
    earlier = [_row(run, "COMPLETED", 1.0, _gpu_rows(rng, run, 1.0)) for run in reversed(runs[:-1])]
    return _Draft(runs, seen, [row, *earlier], measured, state == "COMPLETED" and not fault)


def _threads(rng: random.Random, job: TrueJob) -> int:
    """The most threads in a sample: a pool that waits, or only those that worked at the time."""
    seen = 0
    for seconds, _, load in job.loads():
        samples = seconds / SCRAPE_SECONDS * busy_part(load)
        if rng.random() < samples:
            seen = max(seen, math.ceil(load.cpus))
    pool = rng.choice((0, 0, 0, job.request.cpus))
    return max(seen, pool) * job.request.nodes + 1


def _cut(job: TrueJob, part: float) -> TrueJob:
    """The job up to a part of its time."""
    left, phases = part * job.seconds, []
    for phase in job.phases:
        phases.append(phase._replace(seconds=min(phase.seconds, left)))
        left -= phase.seconds
        if left <= 0:
            break
    return dataclasses.replace(job, phases=tuple(phases))


def _row(
    job: TrueJob, state: str, coverage: float, gpus: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    request, elapsed = job.request, max(1, round(job.seconds))
    peaks = [
        max(load.memory for _, node, load in job.loads() if node == number)
        for number in range(request.nodes)
    ]
    ratios = [row["utilization_ratio"] for row in gpus]
    return {
        **JOB, "name": job.name, "state": state, "state_word": state,
        "end_time": T + elapsed, "elapsed_seconds": elapsed,
        "time_limit_seconds": elapsed if state == "TIMEOUT" else request.seconds,
        "allocated_cpus": request.cpus * request.nodes, "allocated_nodes": request.nodes,
        "allocated_memory_bytes": int(request.memory) * request.nodes,
        "allocated_gpus": request.gpus * request.nodes,
        "submit_line": "sbatch job.sh", "usage_nodes": request.nodes, "usage_coverage": coverage,
        "usage_until_time": T + elapsed, "usage_user_cpu_seconds": job.cpu_seconds * coverage,
        "usage_system_cpu_seconds": 0.0, "usage_memory_peak_bytes": int(sum(peaks)),
        "usage_memory_peak_node_bytes": int(max(peaks)), "usage_gpus": len(gpus) or None,
        "usage_gpu_utilization_ratio": sum(ratios) / len(ratios) if ratios else None,
        "usage_gpu_memory_peak_bytes": max((g["memory_peak_bytes"] for g in gpus), default=None),
    }  # fmt: skip


def _gpu_rows(rng: random.Random, job: TrueJob, coverage: float) -> list[dict[str, Any]]:
    """By counters of busy time and followed memory, or by samples of a gauge, as some drivers."""
    is_counted = rng.random() < 0.8
    rows = []
    for node, number in itertools.product(range(job.request.nodes), range(job.request.gpus)):
        uses = [
            (seconds, *load.gpus[number])
            for seconds, of_node, load in job.loads()
            if of_node == node and load.gpus
        ]
        busy = sum(seconds * part for seconds, part, _ in uses) / max(1.0, job.seconds)
        held = max((held for _, _, held in uses), default=0.0)
        if not is_counted:  # each sample is the mean of ten seconds; a short phase may be missed
            kept = [use for use in uses if use[0] > SCRAPE_SECONDS or rng.random() < use[0] / 30]
            held = max((held for *_, held in kept), default=0.0)
            busy *= rng.choice([1.0, 1.0, rng.uniform(0, 2)]) if busy < 0.9 else 1.0
        rows.append(
            {
                **GPU, "node": f"n{node}", "gpu": str(number), "uuid": f"GPU-{node}-{number}",
                "utilization_ratio": min(1.0, busy), "memory_peak_bytes": int(held),
                "observed_seconds": job.seconds * coverage,
                "shared_seconds": 0.0 if is_counted else None,
                "mps_seconds": 0.0 if is_counted else None,
            }
        )  # fmt: skip
    return rows


def _measured(job: TrueJob, coverage: float, gpus: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What a report asks of the time series."""
    nodes = [
        NodeUse(f"n{number}", _node_cpu_seconds(job, number) * coverage, 0)
        for number in range(job.request.nodes)
    ]
    return {
        "gpus": gpus, "nodes": nodes if len(nodes) > 1 else (),
        "gpu_memory": {each["uuid"]: float(GPU_MEMORY) for each in gpus},
    }  # fmt: skip


def _node_cpu_seconds(job: TrueJob, number: int) -> float:
    return sum(
        seconds * load.cpus * busy_part(load)
        for seconds, node, load in job.loads()
        if node == number
    )


def highest_rates(job: TrueJob, offset: float) -> dict[str, float]:
    """The highest mean between two samples of each node, as the curves of a report have it."""
    return {
        f"n{number}": max(_rates(job, number, offset), default=0.0)
        for number in range(job.request.nodes)
    }


def _rates(job: TrueJob, number: int, offset: float) -> Iterator[float]:
    """The mean over each thirty seconds: of the whole, while a phase lasts."""
    left, mean, begin = SCRAPE_SECONDS - offset, 0.0, 0.0
    for phase in job.phases:
        load, at, span = phase.nodes[number], 0.0, phase.seconds
        while at < span:
            step = min(left, span - at)
            mean += _work(load, at, at + step)
            at, left = at + step, left - step
            if left <= 1e-9:
                yield mean / (SCRAPE_SECONDS if begin else SCRAPE_SECONDS - offset)
                mean, left, begin = 0.0, float(SCRAPE_SECONDS), 1.0
                if not load.rest_seconds and span - at > 2 * SCRAPE_SECONDS:
                    yield load.cpus  # all whole intervals of a steady phase are alike
                    at += math.floor((span - at) / SCRAPE_SECONDS) * SCRAPE_SECONDS
                elif span - at > 100 * SCRAPE_SECONDS:  # and those of bursts repeat themselves
                    period = (load.burst_seconds + load.rest_seconds) * SCRAPE_SECONDS
                    at += max(0, math.floor((span - at) / period) - 2) * period
    if mean and SCRAPE_SECONDS - left > 1:
        yield mean / (SCRAPE_SECONDS - left)


def _work(load: Load, begin: float, end: float) -> float:
    """CPU seconds of a node between two moments of a phase."""
    if not load.rest_seconds:
        return load.cpus * (end - begin)
    period = load.burst_seconds + load.rest_seconds

    def until(at: float) -> float:
        whole, within = divmod(at, period)
        return load.cpus * (whole * load.burst_seconds + min(within, load.burst_seconds))

    return until(end) - until(begin)
