"""A life of a job, watched: at every stage each place shows what is true and known."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.life.judge import Known
from tests.life.places import (
    ALL_RUNS,
    BY_GPU,
    COURSES,
    LATEST_RUN,
    LIVE,
    NODES,
    PROMETHEUS,
    STORED,
    Place,
)
from tests.life.truth import Run
from tests.life.watching import (
    BEGIN,
    SETTINGS,
    SETTLED,
    Step,
    completed,
    live,
    move,
    running,
    watch,
)

WHOLE = Run("11", "alice", BEGIN - 60, BEGIN, BEGIN + 3900, suspended=(BEGIN + 2000, BEGIN + 2300))
HALF = Run("12", "bob", BEGIN - 60, BEGIN, BEGIN + 3600, lost=("n002", BEGIN + 2400))
GAP = Run("15", "erin", BEGIN - 60, BEGIN, BEGIN + 3600, silent=(BEGIN + 600, BEGIN + 1500))
FIRST = Run("13", "carol", BEGIN - 60, BEGIN, BEGIN + 900, lingers=100)
AGAIN = Run("13", "carol", BEGIN + 901, BEGIN + 1000, BEGIN + 2800)


LIVES: dict[str, tuple[Run, Sequence[Step]]] = {
    "from queue to archive": (
        WHOLE,
        (
            Step(-30, Known("PENDING", None)),
            Step(5, running(None)),
            Step(600, running(600)),
            Step(1230, running(1230, 1230)),
            Step(1740, running(1740, 1230)),
            Step(1900, running(1230, 1230), away=True),
            Step(1960, running(1960, 1230)),
            Step(2100, Known("SUSPENDED", BEGIN + 2100, BEGIN + 1230)),
            Step(2250, Known("SUSPENDED", BEGIN + 2250, BEGIN + 1230), polled=False),
            Step(2500, running(2500, 2500)),
            Step(3300, running(3300, 2500)),
            Step(3905, completed(3900, 2500)),
            Step(3930, completed(2500), away=True),
            Step(3900 + SETTLED, completed(2500), away=True),
            Step(4400, completed(3900, final=True)),
            Step(4500, completed(3900), polled=False, recomputed=True),
            Step(4560, completed(3900, final=True)),
        ),
    ),
    "accounted": (
        WHOLE._replace(accounted=True),
        (
            Step(600, running(600)),
            Step(2500, running(2500, 2500)),
            Step(3930, completed(2500), away=True),
            Step(3960, completed(3900, 2500)),
            Step(3900 + SETTLED, completed(3900, final=True)),
        ),
    ),
    "nobody polls": (
        WHOLE,
        (
            Step(600, running(600)),
            Step(3300, running(3300, 3300)),
            Step(4260, running(3300, 3300, ends=False), polled=False),
            Step(5400, completed(3900, final=True)),
        ),
    ),
    "its end is told late": (
        WHOLE._replace(suspended=(0, 0), told_late=150),
        (
            Step(600, running(600)),
            Step(2500, running(2500, 2500)),
            Step(4000, running(3900, 3900, ends=False)),
            Step(4060, completed(3900, 3900)),
            Step(3900 + SETTLED, completed(3900, final=True)),
        ),
    ),
    "half of it late": (
        HALF,
        (
            Step(2280, running(2280)),
            Step(3500, running(3500, 3500, coverage=(1 + 2400 / 3500) / 2)),
            Step(3580, running(3500, 3500, coverage=(1 + 2400 / 3500) / 2)),
            Step(3600 + SETTLED, completed(3600, coverage=(1 + 2400 / 3600) / 2)),
            Step(3600 + SETTLED + 1900, completed(3600, final=True), late=True),
        ),
    ),
    "no samples for a while": (
        GAP,
        (
            Step(300, running(300)),
            Step(1200, running(600)),
            Step(1700, running(1700, 1700)),
            Step(2500, running(2500, 1700)),
            Step(3600 + SETTLED, completed(3600, final=True)),
        ),
    ),
    "requeued: the first run": (
        FIRST,
        (Step(600, running(600)), Step(1300, completed(900, final=True))),
    ),
    "requeued: the second run": (
        AGAIN,
        (
            Step(950, Known("PENDING", None)),
            Step(1300, running(1300)),
            Step(2800 + SETTLED, completed(2800, final=True)),
        ),
    ),
}


def places_of(run: Run, setting: str) -> dict[str, Place]:
    """Those that there are, and that tell the runs of an id apart."""
    # What did not come to the store is at the exporters all the same.
    direct = {} if run.lost[0] else NODES | (PROMETHEUS if setting == "prometheus" else {})
    left_out = (LATEST_RUN if run is FIRST else frozenset()) | (
        ALL_RUNS if run in (FIRST, AGAIN) else frozenset()
    )
    if run.lost[0]:
        left_out |= BY_GPU
    if run.silent[0]:  # curves have a gap then
        left_out |= {*COURSES, *PROMETHEUS}
    return {name: place for name, place in (LIVE | STORED | direct).items() if name not in left_out}


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("life", LIVES)
def test_every_place_shows_the_truth(life: str, setting: str, tmp_path: Path) -> None:
    run, steps = LIVES[life]
    runs = [FIRST, AGAIN] if run in (FIRST, AGAIN) else [run]
    wrong = []
    with live(tmp_path, runs, SETTINGS[setting], steps[0].at) as (site, store):
        for step in steps:
            move(site, store, step)
            wrong += watch(site, run, step, places_of(run, setting))
    assert not wrong, "\n".join(wrong)
