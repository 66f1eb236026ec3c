"""The watch over a job's life notices a fault, whatever it is and whichever place shows it."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

import pytest
import sqlalchemy as sa

from batchjob_stats_db.database import schema
from batchjob_stats_db.timeseries.base import TimeSeriesStore
from tests.batchjob_stats_db.samples.stores import sample_files
from tests.life import watching
from tests.life.judge import faults
from tests.life.places import BY_GPU, COURSES, LIVE, NODES, PROMETHEUS, STORED, Place
from tests.life.site import Fault, Site
from tests.life.truth import Run, samples
from tests.life.watching import BEGIN, SETTLED, Step, completed, in_prometheus, live, move, running

RUN = Run("14", "dora", BEGIN - 60, BEGIN, BEGIN + 3600)
EARLY = Step(600, running(600))
AMID = Step(1500, running(1500))
LATER = Step(3600 + SETTLED, completed(3600, final=True))
PLACES = LIVE | STORED
DIRECT = NODES | PROMETHEUS
"""Places that show running jobs alone."""
OF_ONE_TARGET = {"PromQL, memory of nodes", "PromQL, CPUs of nodes", "PromQL, written on nodes"}
"""Places whose reader has chosen a target, and sees no other."""

MEANS = {
    name
    for name in DIRECT
    if name.startswith(("PromQL, GPUs by", "PromQL, GPUs h", "PromQL, GPUs of"))
}
"""Places with a mean of GPUs, which is the same of one of two nodes, and of each GPU twice."""


def _at(line: str) -> float:
    return float(line.rsplit(" ", 1)[1]) - BEGIN


def node_missing(lines: Sequence[str]) -> list[str]:
    """A node whose samples end early, and of which nobody knows that they do.

    So early that PromQL, which looks 300 s back, finds none of them at any of the moments.
    """
    return [each for each in lines if 'instance="n002' not in each or _at(each) < 1080]


def series_doubled(lines: Sequence[str]) -> list[str]:
    """Two targets that are one exporter."""
    return [*lines, *(each.replace(":10910", ".example.org:10910") for each in lines)]


def counters_halved(lines: Sequence[str]) -> list[str]:
    """An exporter that sees one of two processes."""
    return [_halved(each) for each in lines]


def _halved(line: str) -> str:
    head, value, at = line.rsplit(" ", 2)
    return line if "end_time" in head else f"{head} {float(value) / 2:.3f} {at}"


def unchanged(lines: Sequence[str]) -> list[str]:
    """No fault."""
    return list(lines)


def files(fault: Fault) -> Callable[[Sequence[Run]], AbstractContextManager[watching.Store]]:
    """Sample files with the fault in them."""

    @contextlib.contextmanager
    def opened(runs: Sequence[Run]) -> Iterator[watching.Store]:
        with contextlib.ExitStack() as stack:

            def at(step: Step) -> TimeSeriesStore:
                lines = [line for run in runs for line in samples(run)]
                seen = [line for line in fault(lines) if _at(line) <= step.at]
                return stack.enter_context(sample_files(seen))

            yield watching.Store("", at)

    return opened


def noticed(site: Site, places: Mapping[str, Place] = PLACES, step: Step = LATER) -> set[str]:
    """Places at which something is held to be wrong."""
    return {
        name
        for name, place in places.items()
        if any(faults(name, place(site, RUN), RUN, step.known, site.clock.now))
    }


@pytest.mark.parametrize("fault", [unchanged, node_missing, series_doubled, counters_halved])
def test_faults_of_what_is_shown_without_the_database(fault: Fault, tmp_path: Path) -> None:
    with live(tmp_path, [RUN], partial(in_prometheus, fault=fault), AMID.at) as (site, store):
        move(site, store, AMID)
        found = noticed(site._replace(fault=fault), DIRECT, AMID)
    concerned = set(DIRECT) - (OF_ONE_TARGET if fault is series_doubled else set())
    concerned -= MEANS if fault in (node_missing, series_doubled) else set()
    assert found == (set() if fault is unchanged else concerned)


@pytest.mark.parametrize("fault", [unchanged, node_missing, series_doubled, counters_halved])
def test_faults_of_measurements(fault: Fault, tmp_path: Path) -> None:
    with live(tmp_path, [RUN], files(fault), EARLY.at) as (site, store):
        move(site, store, EARLY)
        move(site, store, LATER)
        found = noticed(site)
    concerned = set(PLACES) - (BY_GPU if fault is series_doubled else set())
    assert found == (set() if fault is unchanged else concerned)


def test_a_stale_row(tmp_path: Path) -> None:
    """Figures of a while ago that bear the end's time; courses and GPUs are not in the row."""
    usage = schema.job_usage
    with live(tmp_path, [RUN], files(unchanged), EARLY.at) as (site, store):
        move(site, store, EARLY)
        move(site, store, LATER._replace(at=1900))
        with site.services.reader.connect() as db:
            old = dict(db.execute(sa.select(usage)).mappings().one())
        move(site, store, LATER)
        with site.store.transaction() as db:
            db.execute(sa.update(usage).values({**old, "until_time": RUN.end}))
            db.execute(
                sa.insert(schema.rollup_due).values(cluster="c1", day=BEGIN // 86400 * 86400)
            )
        site.poll()
        found = noticed(site)
    assert found == set(PLACES) - COURSES - BY_GPU


@pytest.mark.parametrize(
    ("places", "later"), [(PLACES, LATER), (DIRECT, AMID)], ids=["ended", "running"]
)
def test_a_place_that_gives_an_old_answer(
    places: Mapping[str, Place], later: Step, tmp_path: Path
) -> None:
    with live(tmp_path, [RUN], in_prometheus, EARLY.at) as (site, store):
        move(site, store, EARLY)
        answers = {name: place(site, RUN) for name, place in places.items()}
        move(site, store, later)
    passed = [
        name
        for name, shown in answers.items()
        if not any(faults(name, shown, RUN, later.known, site.clock.now))
    ]
    assert passed == []
