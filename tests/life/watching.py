"""Moments of a job's life at a site, and what is wrong with what places show then."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple

from batchjob_stats_db.timeseries.base import TimeSeriesStore
from batchjob_stats_db.timeseries.prometheus_client import Endpoint
from batchjob_stats_db.timeseries.prometheus_store import Prometheus
from tests.batchjob_stats_db.samples.stores import sample_files
from tests.batchjob_stats_db.tsdb import prometheus
from tests.life import site as sites
from tests.life.judge import Known, faults
from tests.life.places import Place
from tests.life.site import Fault, Site
from tests.life.truth import LINGER, Run, infos, samples

BEGIN = 1_775_300_040
SETTLED = LINGER + 100  # after the end, when the poller measures


class Step(NamedTuple):
    """A moment of a life: what happens, and what is known then."""

    at: int  # seconds since BEGIN
    known: Known
    polled: bool = True
    away: bool = False  # the store of measurements
    late: bool = False  # what was lost has come
    recomputed: bool = False


def running(since: int | None, stored: int | None = None, **more: object) -> Known:
    """What is known of a job that runs; in seconds since BEGIN."""
    return Known("RUNNING", _moment(since), _moment(stored), **more)  # type: ignore[arg-type]


def completed(since: int, stored: int | None = None, **more: object) -> Known:
    """The same of one that has ended."""
    stored = since if stored is None else stored
    return Known("COMPLETED", _moment(since), _moment(stored), **more)  # type: ignore[arg-type]


def _moment(seconds: int | None) -> int | None:
    return None if seconds is None else BEGIN + seconds


def watch(site: Site, run: Run, step: Step, places: Mapping[str, Place]) -> list[str]:
    """What is wrong at a step of a life."""
    truth = run._replace(lost=("", 0)) if step.late else run
    return [
        f"{step.at} s, {name}: {fault}"
        for name, place in places.items()
        for fault in faults(name, place(site, run), truth, step.known, site.clock.now)
    ]


class Store(NamedTuple):
    """Measurements of runs at a moment."""

    url: str
    at: Callable[[Step], TimeSeriesStore]


@contextlib.contextmanager
def in_prometheus(runs: Sequence[Run], server=prometheus, fault: Fault = list) -> Iterator[Store]:
    """All samples are there from the beginning, since a query says of when it asks."""
    with contextlib.ExitStack() as stack:
        urls = {}
        for late in {False, any(run.lost[0] for run in runs)}:
            lines = fault([line for run in runs for line in samples(run, late)])
            urls[late] = stack.enter_context(server([*lines, *infos(lines)]))
        yield Store(urls[False], lambda step: Prometheus(Endpoint(urls[step.late])))


@contextlib.contextmanager
def in_files(runs: Sequence[Run]) -> Iterator[Store]:
    """Sample files, which hold what there was by then."""
    with contextlib.ExitStack() as stack:

        def at(step: Step) -> TimeSeriesStore:
            lines = [line for run in runs for line in samples(run, step.late)]
            there = [
                line for line in lines
                if float(line.rsplit(" ", 1)[1]) <= BEGIN + step.at
            ]  # fmt: skip
            return stack.enter_context(sample_files(there))

        yield Store("", at)


Setting = Callable[[Sequence[Run]], AbstractContextManager[Store]]
SETTINGS: Mapping[str, Setting] = {
    "prometheus": in_prometheus,
    "samples": in_files,
}


@contextlib.contextmanager
def live(
    folder: Path, runs: Sequence[Run], setting: Setting, at: int
) -> Iterator[tuple[Site, Store]]:  # fmt: skip
    """A site whose scheduler knows the runs."""
    with setting(runs) as store:
        first = store.at(Step(at, running(None)))
        with sites.running(folder, runs, first, store.url, BEGIN + at) as site:
            yield site, store


def move(site: Site, store: Store, step: Step) -> None:
    """Let it become the time of a step, and do what happens there."""
    site.clock.now = BEGIN + step.at
    site.measurements.store = store.at(step)
    site.measurements.away = step.away
    if step.recomputed:
        site.recompute()
    if step.polled:
        site.poll()
