"""At every step in the life of a job, each view shows the true usage, as far as it is known."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.life.discrepancies import Expectation
from tests.life.ground_truth import ScriptedRun
from tests.life.steps import (
    BEGIN,
    SETTLE_SECONDS,
    STORE_SETUPS,
    Step,
    completed,
    go_to_step,
    running,
    site_with_store,
    step_discrepancies,
)
from tests.life.views import (
    ALL_RUNS_VIEWS,
    CURVE_VIEWS,
    LATEST_RUN_VIEWS,
    LIVE_VIEWS,
    NODE_VIEWS,
    PER_GPU_VIEWS,
    PROMETHEUS_VIEWS,
    STORED_VIEWS,
    View,
)

SUSPENDED_RUN = ScriptedRun(
    "11", "alice", BEGIN - 60, BEGIN, BEGIN + 3900, suspended=(BEGIN + 2000, BEGIN + 2300)
)
LATE_SAMPLES_RUN = ScriptedRun(
    "12", "bob", BEGIN - 60, BEGIN, BEGIN + 3600, lost_samples=("n002", BEGIN + 2400)
)
SAMPLE_GAP_RUN = ScriptedRun(
    "15", "erin", BEGIN - 60, BEGIN, BEGIN + 3600, sample_gap=(BEGIN + 600, BEGIN + 1500)
)
FIRST_RUN = ScriptedRun("13", "carol", BEGIN - 60, BEGIN, BEGIN + 900, linger_seconds=100)
SECOND_RUN = ScriptedRun("13", "carol", BEGIN + 901, BEGIN + 1000, BEGIN + 2800)


LIVES: dict[str, tuple[ScriptedRun, Sequence[Step]]] = {
    "from queue to archive": (
        SUSPENDED_RUN,
        (
            Step(-30, Expectation("PENDING", None)),
            Step(5, running(None)),
            Step(600, running(600)),
            Step(1230, running(1230)),
            Step(1740, running(1740)),
            Step(1900, running(1740), store_down=True),
            Step(1960, running(1960)),
            Step(2100, Expectation("SUSPENDED", BEGIN + 2100, BEGIN + 2100)),
            Step(2250, Expectation("SUSPENDED", BEGIN + 2100, BEGIN + 2100), poll=False),
            Step(2500, running(2500)),
            Step(3300, running(3300)),
            Step(3905, completed(3900)),
            Step(3930, completed(3900), store_down=True),
            Step(3900 + SETTLE_SECONDS, completed(3900), store_down=True),
            Step(4400, completed(3900, final=True)),
            Step(4500, completed(3900), poll=False, recompute=True),
            Step(4560, completed(3900, final=True)),
        ),
    ),
    "with accounting": (
        SUSPENDED_RUN._replace(has_accounting=True),
        (
            Step(600, running(600)),
            Step(2500, running(2500)),
            Step(3930, completed(2500), store_down=True),
            Step(3960, completed(3900)),
            Step(3900 + SETTLE_SECONDS, completed(3900, final=True)),
        ),
    ),
    "poller stopped": (
        SUSPENDED_RUN,
        (
            Step(600, running(600)),
            Step(3300, running(3300)),
            Step(4260, running(3300, end_known=False), poll=False),
            Step(5400, completed(3900, final=True)),
        ),
    ),
    "end reported late": (
        SUSPENDED_RUN._replace(suspended=(0, 0), end_delay_seconds=150),
        (
            Step(600, running(600)),
            Step(2500, running(2500)),
            Step(4000, running(3900, end_known=False)),
            Step(4060, completed(3900)),
            Step(3900 + SETTLE_SECONDS, completed(3900, final=True)),
        ),
    ),
    "samples of one node late": (
        LATE_SAMPLES_RUN,
        (
            Step(2280, running(2280)),
            Step(3500, running(3500, coverage=(1 + 2400 / 3500) / 2)),
            Step(3580, running(3580, coverage=(1 + 2400 / 3580) / 2)),
            Step(3600 + SETTLE_SECONDS, completed(3600, coverage=(1 + 2400 / 3600) / 2)),
            Step(
                3600 + SETTLE_SECONDS + 1900, completed(3600, final=True), late_samples_arrived=True
            ),
        ),
    ),
    "gap in samples": (
        SAMPLE_GAP_RUN,
        (
            Step(300, running(300)),
            Step(1200, running(600)),
            Step(1700, running(1700)),
            Step(2500, running(2500)),
            Step(3600 + SETTLE_SECONDS, completed(3600, final=True)),
        ),
    ),
    "requeued: the first run": (
        FIRST_RUN,
        (Step(600, running(600)), Step(1300, completed(900, final=True))),
    ),
    "requeued: the second run": (
        SECOND_RUN,
        (
            Step(950, Expectation("PENDING", None)),
            Step(1300, running(1300)),
            Step(2800 + SETTLE_SECONDS, completed(2800, final=True)),
        ),
    ),
}


def applicable_views(run: ScriptedRun, setup: str) -> dict[str, View]:
    """The views that exist with this store and distinguish the runs of an id."""
    # Samples that the store lacks are at the exporters all the same.
    direct_views = (
        {}
        if run.lost_samples[0]
        else NODE_VIEWS | (PROMETHEUS_VIEWS if setup == "prometheus" else {})
    )
    excluded = (LATEST_RUN_VIEWS if run is FIRST_RUN else frozenset()) | (
        ALL_RUNS_VIEWS if run in (FIRST_RUN, SECOND_RUN) else frozenset()
    )
    if run.lost_samples[0]:
        excluded |= PER_GPU_VIEWS
    if run.sample_gap[0]:  # curves have a gap then
        excluded |= {*CURVE_VIEWS, *PROMETHEUS_VIEWS}
    return {
        name: view
        for name, view in (LIVE_VIEWS | STORED_VIEWS | direct_views).items()
        if name not in excluded
    }


@pytest.mark.parametrize("setup", STORE_SETUPS)
@pytest.mark.parametrize("life", LIVES)
def test_every_view_shows_true_figures(life: str, setup: str, tmp_path: Path) -> None:
    run, steps = LIVES[life]
    runs = [FIRST_RUN, SECOND_RUN] if run in (FIRST_RUN, SECOND_RUN) else [run]
    discrepancies = []
    with site_with_store(tmp_path, runs, STORE_SETUPS[setup], steps[0].at) as (site, store):
        for step in steps:
            go_to_step(site, store, step)
            discrepancies += step_discrepancies(site, run, step, applicable_views(run, setup))
    assert not discrepancies, "\n".join(discrepancies)
