"""Runs the collectors in order, each one timed and isolated, in one pass at a time."""

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

from batchjob.runtime.log import LogOnce
from collectors.collector import Collector
from collectors.metric import Labels, Metric, MetricFamily, labels

log = logging.getLogger(__name__)

# fmt: off
DURATION = Metric("batchjob_scrape_collector_duration_seconds", "gauge",
    "Duration of the collector's last run.", ("collector",))
SUCCESS = Metric("batchjob_scrape_collector_success", "gauge",
    "1 if the collector's last run succeeded; 0 if it failed or was not finished in time.",
    ("collector",))
FAILURES = Metric("batchjob_scrape_collector_failures_total", "counter",
    "Failed runs of the collector since the exporter started.", ("collector",))
# fmt: on
METRICS = (DURATION, SUCCESS, FAILURES)


class Pass(NamedTuple):
    """The result of one run of a collector; no families if it failed."""

    families: list[MetricFamily]
    seconds: float
    succeeded: bool


class CollectorRunner:
    """One collector and its last pass, which is shared by the scrapes that waited for it."""

    def __init__(self, name: str, collector: Collector | None, once: LogOnce) -> None:
        self.name = name
        self.labels = labels(collector=name)
        self.failures = 0
        self.collector = collector  # None: it could not be created
        self._once = once
        self._running = threading.Lock()
        self._passes_started = 0
        self._pass_started_at = 0.0  # monotonic time at which the last pass started
        self._last_pass = Pass([], 0.0, succeeded=False)

    def start(self) -> None:
        """Start the collector's threads; if that fails, the collector fails at every scrape."""
        try:
            if self.collector is not None:
                self.collector.start()
        except Exception:  # no exception of a collector may affect the others
            log.exception("collector %s cannot start", self.name)
            self.collector = None

    def stop(self) -> None:
        try:
            if self.collector is not None:
                self.collector.stop()
        except Exception:  # the others must still be stopped
            log.exception("collector %s did not stop cleanly", self.name)

    def collect(self, seconds: float) -> Pass:
        """A pass that began after this call, waiting at most `seconds` for the one before.

        Scrapes that wait meanwhile share one pass, so that two servers cost no more than one.
        """
        needed_pass = self._passes_started + 1
        if self._running.locked() and time.monotonic() - self._pass_started_at > seconds:
            seconds = 0.0  # the pass hangs; waiting again would only block this thread too
        if not self._running.acquire(timeout=max(seconds, 0.0)):
            self._once.warning(
                f"{self.name} busy", "collector %s is still busy with an earlier scrape", self.name
            )
            return Pass([], seconds, succeeded=False)
        try:
            if self._passes_started < needed_pass:
                self._passes_started += 1
                self._pass_started_at = time.monotonic()
                self._last_pass = self._run_collector()
            return self._last_pass
        finally:
            self._running.release()

    def _run_collector(self) -> Pass:
        started = time.perf_counter()
        families: list[MetricFamily] = []
        succeeded = False
        if self.collector is not None:
            try:
                families = [self._without_duplicates(family) for family in self.collector.collect()]
                succeeded = True
                if not self._last_pass.succeeded:
                    self._once.forget(self.name)
            except Exception as error:  # no exception of a collector may affect the others
                self._once.warning(
                    self.name, "collector %s: %s: %s", self.name, type(error).__name__, error
                )
                log.debug("collector %s", self.name, exc_info=True)
        self.failures += not succeeded
        return Pass(families, time.perf_counter() - started, succeeded)

    def _without_duplicates(self, family: MetricFamily) -> MetricFamily:
        """The family without duplicate series, for which Prometheus would drop the whole scrape."""
        distinct: dict[Labels, float] = dict(family.samples)
        if len(distinct) == len(family.samples):
            return family
        name = family.metric.name
        self._once.warning(name, "collector %s returned a series of %s twice", self.name, name)
        return family._replace(samples=list(distinct.items()))


class Exporter:
    """The collectors of one exporter, in the order of the table."""

    def __init__(
        self,
        collectors: Mapping[str, Collector | None],
        self_families: Callable[[], list[MetricFamily]] = list,
    ) -> None:
        """`self_families` returns the exporter's metrics about itself, part of every scrape."""
        once = LogOnce(log)
        self._runners = {
            name: CollectorRunner(name, collector, once) for name, collector in collectors.items()
        }
        self._self_families = self_families
        self.ready = False

    @property
    def names(self) -> Collection[str]:
        """Names of the collectors, as `collect[]` and `exclude[]` accept them."""
        return self._runners.keys()

    @property
    def collectors(self) -> list[Collector]:
        """The collectors that could be built, for users of readings instead of families."""
        return [each.collector for each in self._runners.values() if each.collector is not None]

    def start(self) -> None:
        for runner in self._runners.values():
            runner.start()
        self.ready = True

    def wait(self, seconds: float) -> None:
        """Return when all collectors have first values, after `seconds` at the latest."""
        deadline = time.monotonic() + seconds
        for collector in self.collectors:
            collector.wait(deadline - time.monotonic())

    def stop(self) -> None:
        """Stop all collectors in reverse order: one may use those before it."""
        self.ready = False
        for runner in reversed(self._runners.values()):
            runner.stop()

    def collect(
        self, names: Collection[str] | None = None, seconds: float = 10.0
    ) -> list[MetricFamily]:
        """The current families of the named collectors (None: of all).

        `seconds`: how long the scraper waits; a collector that is occupied for longer is left out.
        """
        deadline = time.monotonic() + seconds
        families: list[MetricFamily] = []
        passes: list[tuple[CollectorRunner, Pass]] = []
        for name, runner in self._runners.items():
            if names is None or name in names:
                result = runner.collect(deadline - time.monotonic())
                passes.append((runner, result))
                families += result.families
        return families + _scrape_families(passes) + self._self_families()


def _scrape_families(passes: list[tuple[CollectorRunner, Pass]]) -> list[MetricFamily]:
    return [
        MetricFamily(DURATION, [(runner.labels, result.seconds) for runner, result in passes]),
        MetricFamily(
            SUCCESS, [(runner.labels, float(result.succeeded)) for runner, result in passes]
        ),
        MetricFamily(FAILURES, [(runner.labels, float(runner.failures)) for runner, _ in passes]),
    ]
