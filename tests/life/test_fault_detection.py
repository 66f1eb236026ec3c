"""The comparison with the true usage notices faults in any view."""

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
from tests.life import steps
from tests.life.discrepancies import discrepancies
from tests.life.ground_truth import ScriptedRun, samples
from tests.life.simulated_site import Fault, SimulatedSite
from tests.life.steps import (
    BEGIN,
    SETTLE_SECONDS,
    Step,
    completed,
    go_to_step,
    running,
    samples_in_prometheus,
    site_with_store,
)
from tests.life.views import (
    CURVE_VIEWS,
    LIVE_VIEWS,
    NODE_VIEWS,
    PER_GPU_VIEWS,
    PROMETHEUS_VIEWS,
    STORED_VIEWS,
    View,
)

RUN = ScriptedRun("14", "dora", BEGIN - 60, BEGIN, BEGIN + 3600)
EARLY = Step(600, running(600))
MIDDLE = Step(1500, running(1500))
AFTER_END = Step(3600 + SETTLE_SECONDS, completed(3600, final=True))
DATABASE_VIEWS = LIVE_VIEWS | STORED_VIEWS
DIRECT_VIEWS = NODE_VIEWS | PROMETHEUS_VIEWS
"""Views that show only running jobs."""
SINGLE_TARGET_VIEWS = {
    "PromQL, memory of nodes",
    "PromQL, CPUs of nodes",
    "PromQL, written on nodes",
}
"""Views of one target that the viewer has chosen."""

GPU_MEAN_VIEWS = {
    name
    for name in DIRECT_VIEWS
    if name.startswith(("PromQL, GPUs by", "PromQL, GPUs h", "PromQL, GPUs of"))
}
"""Views with a mean of GPUs, which is the same for one of two nodes, and for duplicate GPUs."""


def _seconds_since_begin(line: str) -> float:
    return float(line.rsplit(" ", 1)[1]) - BEGIN


def node_missing(lines: Sequence[str]) -> list[str]:
    """The samples of a node end early.

    They end more than PromQL's lookback of 300 s before the queries.
    """
    return [
        each for each in lines if 'instance="n002' not in each or _seconds_since_begin(each) < 1080
    ]


def series_doubled(lines: Sequence[str]) -> list[str]:
    """Two targets for one exporter."""
    return [*lines, *(each.replace(":10910", ".example.org:10910") for each in lines)]


def counters_halved(lines: Sequence[str]) -> list[str]:
    """An exporter that counts one of two processes."""
    return [_halved(each) for each in lines]


def _halved(line: str) -> str:
    head, value, at = line.rsplit(" ", 2)
    return line if "end_time" in head else f"{head} {float(value) / 2:.3f} {at}"


def unchanged(lines: Sequence[str]) -> list[str]:
    """No fault."""
    return list(lines)


def sample_files_with(
    fault: Fault,
) -> Callable[[Sequence[ScriptedRun]], AbstractContextManager[steps.StoreSteps]]:
    """Sample files with the fault in them."""

    @contextlib.contextmanager
    def open_files(runs: Sequence[ScriptedRun]) -> Iterator[steps.StoreSteps]:
        with contextlib.ExitStack() as stack:

            def at(step: Step) -> TimeSeriesStore:
                lines = [line for run in runs for line in samples(run)]
                lines_so_far = [
                    line for line in fault(lines) if _seconds_since_begin(line) <= step.at
                ]
                return stack.enter_context(sample_files(lines_so_far))

            yield steps.StoreSteps("", at)

    return open_files


def views_with_discrepancies(
    site: SimulatedSite, views: Mapping[str, View] = DATABASE_VIEWS, step: Step = AFTER_END
) -> set[str]:
    """Views in which a discrepancy is found."""
    return {
        name
        for name, view in views.items()
        if any(discrepancies(name, view(site, RUN), RUN, step.expected, site.clock.now))
    }


@pytest.mark.parametrize("fault", [unchanged, node_missing, series_doubled, counters_halved])
def test_faulty_samples_are_noticed_in_direct_views(fault: Fault, tmp_path: Path) -> None:
    with site_with_store(
        tmp_path, [RUN], partial(samples_in_prometheus, fault=fault), MIDDLE.at
    ) as (site, store):
        go_to_step(site, store, MIDDLE)
        noticing_views = views_with_discrepancies(site._replace(fault=fault), DIRECT_VIEWS, MIDDLE)
    expected = set(DIRECT_VIEWS) - (SINGLE_TARGET_VIEWS if fault is series_doubled else set())
    expected -= GPU_MEAN_VIEWS if fault in (node_missing, series_doubled) else set()
    assert noticing_views == (set() if fault is unchanged else expected)


@pytest.mark.parametrize("fault", [unchanged, node_missing, series_doubled, counters_halved])
def test_faulty_samples_are_noticed_in_database_views(fault: Fault, tmp_path: Path) -> None:
    with site_with_store(tmp_path, [RUN], sample_files_with(fault), EARLY.at) as (site, store):
        go_to_step(site, store, EARLY)
        go_to_step(site, store, AFTER_END)
        noticing_views = views_with_discrepancies(site)
    expected = set(DATABASE_VIEWS) - (PER_GPU_VIEWS if fault is series_doubled else set())
    assert noticing_views == (set() if fault is unchanged else expected)


def test_stale_usage_row_is_noticed(tmp_path: Path) -> None:
    """Old figures with the time of the end; curves and GPUs are not in the row."""
    usage = schema.job_usage
    with site_with_store(tmp_path, [RUN], sample_files_with(unchanged), EARLY.at) as (site, store):
        go_to_step(site, store, EARLY)
        go_to_step(site, store, AFTER_END._replace(at=1900))
        with site.services.reader.connect() as db:
            old_row = dict(db.execute(sa.select(usage)).mappings().one())
        go_to_step(site, store, AFTER_END)
        with site.store.transaction() as db:
            db.execute(sa.update(usage).values({**old_row, "until_time": RUN.end}))
            db.execute(
                sa.insert(schema.rollup_due).values(cluster="c1", day=BEGIN // 86400 * 86400)
            )
        site.poll()
        noticing_views = views_with_discrepancies(site)
    assert noticing_views == set(DATABASE_VIEWS) - CURVE_VIEWS - PER_GPU_VIEWS


@pytest.mark.parametrize(
    ("views", "later_step"),
    [(DATABASE_VIEWS, AFTER_END), (DIRECT_VIEWS, MIDDLE)],
    ids=["ended", "running"],
)
def test_outdated_answers_are_noticed(
    views: Mapping[str, View], later_step: Step, tmp_path: Path
) -> None:
    with site_with_store(tmp_path, [RUN], samples_in_prometheus, EARLY.at) as (site, store):
        go_to_step(site, store, EARLY)
        answers = {name: view(site, RUN) for name, view in views.items()}
        go_to_step(site, store, later_step)
    passed = [
        name
        for name, figures in answers.items()
        if not any(discrepancies(name, figures, RUN, later_step.expected, site.clock.now))
    ]
    assert passed == []
