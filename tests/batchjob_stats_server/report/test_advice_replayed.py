"""Advice about jobs whose needs are known: none is false, and none would have harmed its job.

Each request that a report advises is tried by a replay of the job with it; each statement about
what a job used is compared with what it did. Plain waste is told all the same.
"""

import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import pytest

from batchjob_stats_server.report.facts import evaluate_quantities
from batchjob_stats_server.report.rules import advise
from tests.batchjob_stats_server.report.synthetic_jobs import (
    GIB,
    GPU_MEMORY,
    Observed,
    Request,
    TrueJob,
    generate_jobs,
    replay,
)
from tests.batchjob_stats_server.report.test_report import RULES

SEED = 20261127
FEW, MANY = 400, 6000  # jobs
PIECES_OF_ADVICE = 5000  # in the long form


class Piece(NamedTuple):
    """A piece of advice for a job, with its numbers."""

    observed: Observed
    rule: str
    numbers: dict[str, float]


@pytest.fixture(scope="module")
def jobs(request) -> Sequence[Observed]:
    return generate_jobs(SEED, MANY if request.config.getoption("--long") else FEW)


@pytest.fixture(scope="module")
def advice(jobs) -> list[Piece]:
    return [
        Piece(each, found.rule, dict(found.numbers))
        for each in jobs
        for found in advise(RULES, evaluate_quantities(each.inputs))[0]
    ]


def advised_request(piece: Piece) -> Request | None:
    """What the job would request if it followed this piece of advice; None: nothing else."""
    had, numbers = piece.observed.job.request, piece.numbers
    changes = {
        "low-cpu": ("cpus", "cpus_to_ask", math.ceil),
        "single-threaded": ("cpus", "cpus_to_ask", math.ceil),
        "memory-oversized": ("memory", "memory_to_ask", float),
        "time-limit-too-long": ("seconds", "time_to_ask", lambda seconds: seconds * had.nodes),
        "gpu-unused": ("gpus", "gpus_to_ask", math.ceil),
        "gpu-partly-unused": ("gpus", "gpus_to_ask", math.ceil),
    }
    if piece.rule not in changes:
        return None
    name, quantity, convert = changes[piece.rule]
    if quantity not in numbers:
        return None
    return dataclasses.replace(had, **{name: convert(numbers[quantity] / had.nodes)})


def cpus_used(job: TrueJob) -> float:
    """The mean part of its CPUs; run times are recorded in whole seconds."""
    return job.cpu_seconds / (job.seconds + 1) / (job.request.cpus * job.request.nodes)


def memory_used(job: TrueJob) -> float:
    """The nodes' peaks relative to what they had."""
    nodes = range(job.request.nodes)
    peaks = [max(load.memory for _, node, load in job.loads() if node == each) for each in nodes]
    return sum(peaks) / (len(peaks) * job.request.memory)


def fits_half_a_gpu(job: TrueJob) -> bool:
    busy = sum(seconds * load.gpus[0][0] for seconds, _, load in job.loads())
    held = max(load.gpus[0][1] for _, _, load in job.loads())
    seconds = job.seconds + busy
    limit = job.request.seconds
    return held <= GPU_MEMORY / 2 and seconds <= min(limit or math.inf, 1.25 * job.seconds + 1)


def idlest_part(job: TrueJob) -> float:
    """CPU time of the least busy node, relative to the mean."""
    by_node: Counter[int] = Counter()
    for seconds, node, load in job.loads():
        by_node[node] += seconds * load.cpus
    return min(by_node.values()) * len(by_node) / sum(by_node.values())


# What a piece of advice says about a job, as far as that ran.
STATEMENTS: dict[str, Callable[[TrueJob], bool]] = {
    "low-cpu": lambda job: cpus_used(job) < 0.5,
    "single-threaded": lambda job: job.most_cpus <= 1.06,
    "cpu-idle": lambda job: cpus_used(job) < 0.1,
    "memory-oversized": lambda job: memory_used(job) < 0.5,
    "memory-near-limit": lambda job: memory_used(job) > 0.9,
    "gpu-unused": lambda job: job.touched_gpus() == 0,
    "gpu-partly-unused": lambda job: 0 < job.touched_gpus() < job.request.gpus,
    "gpu-low": lambda job: job.touched_gpus() > 0,
    "gpu-small-enough": fits_half_a_gpu,
    "unbalanced-nodes": lambda job: idlest_part(job) < 0.5,
    "time-limit-too-long": lambda job: job.seconds < 0.25 * (job.request.seconds or 0),
}
# Other advice says what the scheduler or the poller said.
REPEATED = {"not-measured", "time-limit-reached", "many-short-jobs", "failed-soon"}


def test_every_piece_of_advice_is_judged(advice):
    assert {piece.rule for piece in advice} <= STATEMENTS.keys() | REPEATED


def test_no_advice_is_false(advice):
    found = [
        (piece.rule, piece.observed.job.kind, piece.numbers)
        for piece in advice
        if piece.rule in STATEMENTS and not STATEMENTS[piece.rule](piece.observed.seen)
    ]
    assert not found, f"{len(found)} of {len(advice)}, such as {found[:3]}"


def test_no_advice_would_have_harmed_its_job(advice):
    found = [
        (harm, piece.rule, piece.observed.job.kind, piece.numbers)
        for piece in advice
        if (request := advised_request(piece)) and (harm := replay(piece.observed.job, request))
    ]
    assert not found, f"{len(found)} of {len(advice)}, such as {found[:3]}"


def test_advice_of_a_report_harms_no_job_that_follows_all_of_it(advice):
    together: dict[int, list[Piece]] = {}
    for piece in advice:
        together.setdefault(id(piece.observed), []).append(piece)
    found = []
    for pieces in together.values():
        had = request = pieces[0].observed.job.request
        for advised in filter(None, map(advised_request, pieces)):
            changed = {
                field.name: value
                for field in dataclasses.fields(Request)
                if (value := getattr(advised, field.name)) != getattr(had, field.name)
            }
            request = dataclasses.replace(request, **changed)
        if harm := replay(pieces[0].observed.job, request):
            found.append((harm, [(piece.rule, piece.numbers) for piece in pieces]))
    assert not found, f"{len(found)} of {len(together)}, such as {found[:3]}"


def plain_wastes(jobs: Sequence[Observed]) -> Iterator[tuple[str, Observed, set[str]]]:
    """What jobs without phases wasted more than half of, and the rules that would tell it."""
    for each in jobs:
        job, had = each.job, each.job.request
        if each.job.kind != "plain waste" or not each.is_whole:
            continue
        if not had.gpus and job.most_cpus < 0.5 * had.cpus:
            yield "CPUs", each, {"low-cpu", "single-threaded", "cpu-idle"}
        if job.peak_memory < 0.5 * had.memory and had.memory >= 2 * GIB:
            yield "memory", each, {"memory-oversized"}
        if had.gpus:
            yield "GPUs", each, {"gpu-unused", "gpu-partly-unused"}


@pytest.mark.parametrize("what", ["CPUs", "memory", "GPUs"])
def test_plain_waste_is_told(what, jobs, advice):
    rules: dict[int, set[str]] = {}
    for piece in advice:
        number_or_words = advised_request(piece) or piece.rule == "cpu-idle"
        if number_or_words:
            rules.setdefault(id(piece.observed), set()).add(piece.rule)
    wasteful = [
        bool(rules.get(id(each), set()) & wanted)
        for kind, each, wanted in plain_wastes(jobs)
        if kind == what
    ]
    assert len(wasteful) >= 10
    assert sum(wasteful) >= 0.7 * len(wasteful), f"{sum(wasteful)} of {len(wasteful)}"


def test_long_form_judges_enough_advice(long_form, advice):
    assert len(advice) >= (PIECES_OF_ADVICE if long_form else 300)
