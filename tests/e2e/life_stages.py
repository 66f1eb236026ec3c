"""Stages of jobs' lives on a real Slurm: how to get there, and what is wrong then."""

import time

from tests.e2e.life_site import LifeSite
from tests.e2e.watched_jobs import COMMAND, WatchedJob
from tests.helpers.waiting import until
from tests.life.discrepancies import Expectation
from tests.life.views import LIVE_VIEWS, NODE_VIEWS, PROMETHEUS_VIEWS, STORED_VIEWS

# Of what Prometheus shows of now, CPU time alone is known; see the other views for the rest.
QUERIES = ("PromQL, CPUs", "PromQL, modes")
VIEWS = {
    **LIVE_VIEWS,
    **STORED_VIEWS,
    **NODE_VIEWS,
    **{name: PROMETHEUS_VIEWS[name] for name in QUERIES},
}
# A curve is complete only where it has no gap, and its last stretch counts in so short a life.
CURVE = "API, curve"
PENDING, RUNNING = Expectation("PENDING", None), Expectation("RUNNING", None)
MEMORY_MB = 300
PATIENCE = 180  # seconds, on a machine that is busy with others


class Life:
    """Two jobs' lives, and what was seen to be wrong at their stages."""

    def __init__(self, site: LifeSite) -> None:
        self._site = site
        self._begun = time.monotonic()
        self.wrong: list[str] = []

    def submit(self, user: str, nodes: int) -> WatchedJob:
        """A job that waits to be released."""
        options = (f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1",
                   f"--mem={MEMORY_MB}M", "--hold", "--time=40")  # fmt: skip
        jobid = self._site.slurm.submit(user, f"srun {COMMAND}", *options)
        return self.watch(jobid, user, nodes)

    def watch(self, jobid: str, user: str, nodes: int) -> WatchedJob:
        """A run of a job that has not begun."""
        run = WatchedJob(self._site.slurm, jobid, user, nodes, MEMORY_MB)
        self._site.watch.jobs.append(run)
        return run

    def until_recorded(self, run: WatchedJob, state: str) -> None:
        """Wait until Slurm and the database have the run in a state."""
        until(lambda: run.update_from_slurm() == state, f"{run.jobid} {state}", PATIENCE, 0.5)
        until(lambda: self._site.state(run) == state, f"{run.jobid} {state}", PATIENCE, 0.5)

    def look(self, stage: str, run: WatchedJob, known: Expectation, *without: str) -> None:
        """Compare what every view shows with what is known."""
        print(f"{time.monotonic() - self._begun:.0f} s: {stage}")
        if not self._site.tsdb:
            without = (*without, *QUERIES)
        for name, view in VIEWS.items():
            if name not in without:
                found = self._site.view_discrepancies(name, view, run, known)
                self.wrong += [f"{stage}, {name}: {fault}" for fault in found]


def completed(run: WatchedJob, **more: bool | int | None) -> Expectation:
    return Expectation("COMPLETED", run.end, run.end)._replace(**more)
