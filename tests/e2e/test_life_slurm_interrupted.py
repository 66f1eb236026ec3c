"""What happens to some jobs only: suspended, requeued, measured late. In the long form alone."""

import time
from collections.abc import Iterator

import pytest

from tests.e2e import life_site, prometheus, slurm, victoriametrics
from tests.e2e.life_measurements import Source
from tests.e2e.life_site import LifeSite
from tests.e2e.life_stages import CURVE, PATIENCE, RUNNING, Life, completed
from tests.e2e.watched_jobs import WatchedJob
from tests.helpers.waiting import until
from tests.life.discrepancies import Expectation
from tests.life.views import ALL_RUNS_VIEWS, LATEST_RUN_VIEWS

pytestmark = pytest.mark.e2e

SUSPENDED = Expectation("SUSPENDED", None)
REQUEUED = "REQUEUED"


@pytest.fixture(scope="module", params=[Source.AGENT, Source.SAMPLES])
def site(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, long_form: bool
) -> Iterator[LifeSite]:
    if not long_form:
        pytest.skip("only with --long")
    if why_not := slurm.missing(cgroup=1) or prometheus.missing() or victoriametrics.missing():
        pytest.skip(why_not)
    with life_site.running(tmp_path_factory.mktemp("life"), request.param) as made:
        yield made


def start(site: LifeSite, life: Life, user: str) -> WatchedJob:
    """A job on one node that runs and was measured once."""
    run = life.submit(user, 1)
    life.until_recorded(run, "PENDING")
    site.slurm.command("scontrol", "release", run.jobid)
    life.until_recorded(run, "RUNNING")
    until(lambda: site.stored(run), "the first measurement", PATIENCE, 1)
    return run


def end(site: LifeSite, life: Life, run: WatchedJob) -> None:
    """Have it end, and wait until it was measured for the last time."""
    run.set_flag("finish")
    life.until_recorded(run, "COMPLETED")
    until(lambda: site.is_final(run), "the last measurement", PATIENCE, 1)


def test_suspended_job(site: LifeSite) -> None:
    life = Life(site)
    run = start(site, life, "carol")
    site.slurm.command("scontrol", "suspend", run.jobid)
    life.until_recorded(run, "SUSPENDED")
    life.look("suspended", run, SUSPENDED, CURVE)
    site.slurm.command("scontrol", "resume", run.jobid)
    life.until_recorded(run, "RUNNING")
    life.look("resumed", run, RUNNING, CURVE)
    end(site, life, run)
    life.look("measured", run, completed(run, final=True), CURVE)
    assert not life.wrong, "\n".join(life.wrong)


def test_requeued_job(site: LifeSite) -> None:
    life = Life(site)
    first = start(site, life, "dave")
    site.slurm.command("scontrol", "requeuehold", first.jobid)
    until(lambda: site.state(first) == REQUEUED, "the end of the first run", PATIENCE, 0.5)
    first.end = site.ended(first)
    site.watch.wait_for_readings()
    site.watch.jobs.remove(first)
    again = life.watch(first.jobid, "dave", 1)
    life.until_recorded(again, "PENDING")
    life.look("requeued", first, completed(first, final=None)._replace(state=REQUEUED),
              *LATEST_RUN_VIEWS, *ALL_RUNS_VIEWS)  # fmt: skip
    site.slurm.command("scontrol", "release", first.jobid)
    life.until_recorded(again, "RUNNING")
    life.look("runs again", again, RUNNING, CURVE, *ALL_RUNS_VIEWS)
    until(lambda: site.is_final(first), "the last measurement", PATIENCE, 1)
    life.look("the first run measured", first,
              completed(first, final=True)._replace(state=REQUEUED),
              *LATEST_RUN_VIEWS, *ALL_RUNS_VIEWS)  # fmt: skip
    end(site, life, again)
    life.look("measured", again, completed(again, final=True), *ALL_RUNS_VIEWS)
    assert not life.wrong, "\n".join(life.wrong)


def test_late_samples(site: LifeSite) -> None:
    if not site.gate:
        pytest.skip("nothing comes late into files of the node")
    life = Life(site)
    run = start(site, life, "alice")
    site.gate.off()
    closed = time.time()
    until(lambda: time.time() > closed + 4 * site.interval, "some scrapes", PATIENCE, 1)
    run.set_flag("finish")
    life.until_recorded(run, "COMPLETED")
    ended = completed(run, known_until=site.stored(run), final=None)
    life.look("ended, its samples on their way", run, ended, CURVE, *ALL_RUNS_VIEWS)
    until(lambda: (site.stored(run) or 0) >= run.end, "a measurement", PATIENCE, 1)
    life.look("measured without its end", run, completed(run), CURVE)
    site.gate.on()
    until(lambda: site.measurements.is_ended(run), "the last sample", PATIENCE, 1)
    site.poller.off()
    site.recompute()
    site.poller.on()
    life.look("measured with its end", run, completed(run, final=True))
    assert not life.wrong, "\n".join(life.wrong)
