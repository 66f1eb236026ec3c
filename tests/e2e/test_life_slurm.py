"""A life of a job on a real Slurm, watched: every view shows the truth at each stage.

Exporters, Prometheus or the nodes' sample files, poller and server are real, and so is what the
jobs use.
"""

import time
from collections.abc import Iterator

import pytest

from tests.e2e import life_site, prometheus, slurm
from tests.e2e.life_measurements import InPrometheus, Source
from tests.e2e.life_site import LifeSite
from tests.e2e.life_stages import CURVE, PATIENCE, PENDING, RUNNING, VIEWS, Life, completed
from tests.e2e.watched_jobs import WatchedJob
from tests.helpers.waiting import until
from tests.life.discrepancies import discrepancies
from tests.life.views import ALL_RUNS_VIEWS, PROMETHEUS_VIEWS

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module", params=[Source.PROMETHEUS, Source.SAMPLES])
def site(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, long_form: bool
) -> Iterator[LifeSite]:
    if not long_form:
        pytest.skip("only with --long: minutes of waiting for what tests/life simulates")
    if why_not := slurm.missing(cgroup=1) or prometheus.missing():
        pytest.skip(why_not)
    with life_site.running(tmp_path_factory.mktemp("life"), request.param) as made:
        yield made


def without_prometheus(site: LifeSite, life: Life, ended: WatchedJob, runs: WatchedJob) -> None:
    """Prometheus is away for a while."""
    assert site.tsdb
    site.tsdb.off()
    life.look("TSDB away", runs, RUNNING._replace(known_until=site.stored(runs)), *PROMETHEUS_VIEWS)
    known = completed(ended, known_until=site.stored(ended), final=None)
    life.look("ended, TSDB away", ended, known, *PROMETHEUS_VIEWS, *ALL_RUNS_VIEWS)
    away = time.time()
    site.tsdb.on()
    assert isinstance(site.measurements, InPrometheus)
    scraped, exporters = site.measurements.is_scraped, len(site.exporters)
    until(lambda: scraped(away, exporters), "scrapes", PATIENCE, 1)
    life.look("TSDB back", runs, RUNNING, CURVE, *PROMETHEUS_VIEWS)


def test_two_jobs_from_submission_to_archive(site: LifeSite) -> None:
    life = Life(site)
    one, two = life.submit("alice", 1), life.submit("bob", 2)
    life.until_recorded(one, "PENDING")
    life.look("pending", one, PENDING)
    for run in (one, two):
        site.slurm.command("scontrol", "release", run.jobid)
    for run in (one, two):
        life.until_recorded(run, "RUNNING")
    life.look("begun", two, RUNNING, CURVE)
    for run in (one, two):
        run.set_flag("less_cpu")
        until(lambda run=run: site.stored(run), "the first measurement", PATIENCE, 1)
    old = {
        name: VIEWS[name](site, two)["cpu_efficiency"] for name in ("API, report", "page, compare")
    }
    site.poller.off()
    life.look("poller away", two, RUNNING, CURVE, *ALL_RUNS_VIEWS)
    site.poller.on()
    one.set_flag("finish")
    life.until_recorded(one, "COMPLETED")
    life.look("just ended", one, completed(one, final=None), *ALL_RUNS_VIEWS)
    until(lambda: site.measurements.is_ended(one), "the last sample", PATIENCE, 1)
    if site.tsdb:
        without_prometheus(site, life, one, two)
    two.set_flag("finish")
    life.until_recorded(two, "COMPLETED")
    life.look("just ended on two nodes", two, completed(two, final=None), CURVE, *ALL_RUNS_VIEWS)
    for run in (one, two):
        until(lambda run=run: site.is_final(run), "the last measurement", PATIENCE, 1)
    life.look("measured", one, completed(one, final=True))
    life.look("measured on two nodes", two, completed(two, final=True), CURVE)
    site.poller.off()
    site.recompute()
    life.look("measured again", two, completed(two, final=True), CURVE)
    assert not life.wrong, "\n".join(life.wrong)
    for name, efficiency in old.items():
        shown = {"cpu_efficiency": efficiency}
        assert list(
            discrepancies(name, shown, two, completed(two, final=True), int(time.time()))
        ), name
