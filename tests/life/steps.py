"""Steps of a job's life at a site, and the discrepancies of views at each step."""

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
from tests.life import simulated_site
from tests.life.discrepancies import Expectation, discrepancies
from tests.life.ground_truth import LINGER_SECONDS, ScriptedRun, info_samples, samples
from tests.life.simulated_site import Fault, SimulatedSite
from tests.life.views import View

BEGIN = 1_775_300_040
SETTLE_SECONDS = LINGER_SECONDS + 100  # after the end, when the poller measures


class Step(NamedTuple):
    """A time in the life of a job: what happens, and what views are expected to know."""

    at: int  # seconds since BEGIN
    expected: Expectation
    poll: bool = True
    store_down: bool = False
    late_samples_arrived: bool = False  # those that were lost at first
    recompute: bool = False


def running(
    known_until: int | None, stored_until: int | None = None, **fields: object
) -> Expectation:
    """What is known about a running job; times in seconds since BEGIN.

    By default, what views show is what is stored: the poller measures at each poll.
    """
    stored_until = known_until if stored_until is None else stored_until
    times = (_epoch_seconds(known_until), _epoch_seconds(stored_until))
    return Expectation("RUNNING", *times, **fields)  # type: ignore[arg-type]


def completed(known_until: int, stored_until: int | None = None, **fields: object) -> Expectation:
    """The same for a completed job."""
    stored_until = known_until if stored_until is None else stored_until
    times = (_epoch_seconds(known_until), _epoch_seconds(stored_until))
    return Expectation("COMPLETED", *times, **fields)  # type: ignore[arg-type]


def _epoch_seconds(seconds: int | None) -> int | None:
    return None if seconds is None else BEGIN + seconds


def step_discrepancies(
    site: SimulatedSite, run: ScriptedRun, step: Step, views: Mapping[str, View]
) -> list[str]:
    """All discrepancies at a step."""
    complete_run = run._replace(lost_samples=("", 0)) if step.late_samples_arrived else run
    return [
        f"{step.at} s, {name}: {discrepancy}"
        for name, view in views.items()
        for discrepancy in discrepancies(
            name, view(site, run), complete_run, step.expected, site.clock.now
        )
    ]


class StoreSteps(NamedTuple):
    """A store of the samples of runs, for each step."""

    url: str
    at: Callable[[Step], TimeSeriesStore]


@contextlib.contextmanager
def samples_in_prometheus(
    runs: Sequence[ScriptedRun], server=prometheus, fault: Fault = list
) -> Iterator[StoreSteps]:
    """Prometheus with all samples from the beginning, since queries are for a given time."""
    with contextlib.ExitStack() as stack:
        urls = {}
        for late in {False, any(run.lost_samples[0] for run in runs)}:
            lines = fault([line for run in runs for line in samples(run, late)])
            urls[late] = stack.enter_context(server([*lines, *info_samples(lines)]))
        yield StoreSteps(
            urls[False], lambda step: Prometheus(Endpoint(urls[step.late_samples_arrived]))
        )


@contextlib.contextmanager
def samples_in_files(runs: Sequence[ScriptedRun]) -> Iterator[StoreSteps]:
    """Sample files with the samples until the step."""
    with contextlib.ExitStack() as stack:

        def at(step: Step) -> TimeSeriesStore:
            lines = [line for run in runs for line in samples(run, step.late_samples_arrived)]
            lines_so_far = [
                line for line in lines
                if float(line.rsplit(" ", 1)[1]) <= BEGIN + step.at
            ]  # fmt: skip
            return stack.enter_context(sample_files(lines_so_far))

        yield StoreSteps("", at)


StoreSetup = Callable[[Sequence[ScriptedRun]], AbstractContextManager[StoreSteps]]
STORE_SETUPS: Mapping[str, StoreSetup] = {
    "prometheus": samples_in_prometheus,
    "samples": samples_in_files,
}


@contextlib.contextmanager
def site_with_store(
    folder: Path, runs: Sequence[ScriptedRun], setup: StoreSetup, at: int
) -> Iterator[tuple[SimulatedSite, StoreSteps]]:  # fmt: skip
    """A site whose scheduler knows the runs, and its store."""
    with setup(runs) as store:
        first = store.at(Step(at, running(None)))
        with simulated_site.running_site(folder, runs, first, store.url, BEGIN + at) as site:
            yield site, store


def go_to_step(site: SimulatedSite, store: StoreSteps, step: Step) -> None:
    """Set the clock to the time of a step, and do what happens then."""
    site.clock.now = BEGIN + step.at
    site.measurements.store = store.at(step)
    site.measurements.is_down = step.store_down
    if step.recompute:
        site.recompute()
    if step.poll:
        site.poll()
