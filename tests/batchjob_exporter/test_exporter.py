"""Collectors are timed and isolated, and two scrapes share one pass."""

import threading
import time

import pytest

from batchjob_exporter.exporter import FAILURES, SUCCESS, Exporter
from collectors.metric import NO_LABELS, Metric, MetricFamily, labels
from tests.helpers.waiting import scaled

METRIC = Metric("batchjob_test_value", "gauge", "A value.")


class FakeCollector:
    """A collector that collects with the given function."""

    def __init__(self, collect=lambda: [MetricFamily(METRIC, [(NO_LABELS, 1.0)])]):
        self.collect = collect
        self.events = []

    def start(self):
        self.events.append("start")

    def stop(self):
        self.events.append("stop")


def sample_value(families, metric, collector):
    (family,) = (family for family in families if family.metric == metric)
    return dict(family.samples)[labels(collector=collector)]


def failing_collect():
    yield MetricFamily(METRIC, [(NO_LABELS, 1.0)])
    raise OSError("the device is gone")


def test_failing_collector_contributes_nothing_and_others_go_on(caplog):
    exporter = Exporter({"bad": FakeCollector(failing_collect), "good": FakeCollector()})
    exporter.collect()
    families = exporter.collect()
    assert [family for family in families if family.metric == METRIC] == [
        MetricFamily(METRIC, [(NO_LABELS, 1.0)])
    ]
    assert sample_value(families, SUCCESS, "bad") == 0
    assert sample_value(families, SUCCESS, "good") == 1
    assert sample_value(families, FAILURES, "bad") == 2
    assert caplog.messages == ["collector bad: OSError: the device is gone"]


def test_failure_is_logged_again_after_recovery(caplog):
    outcomes = iter([failing_collect, list, failing_collect])
    exporter = Exporter({"flaky": FakeCollector(lambda: next(outcomes)())})
    for _ in range(3):
        exporter.collect()
    assert len(caplog.messages) == 2


def test_collector_that_could_not_start_fails_at_every_scrape(caplog):
    class NoStart(FakeCollector):
        def start(self):
            raise RuntimeError("no device")

    exporter = Exporter({"unbuilt": None, "unstarted": NoStart(), "good": FakeCollector()})
    exporter.start()
    families = exporter.collect()
    assert sample_value(families, SUCCESS, "unbuilt") == 0
    assert sample_value(families, SUCCESS, "unstarted") == 0
    assert sample_value(families, SUCCESS, "good") == 1
    exporter.stop()


def test_duplicate_series_is_exposed_once(caplog):
    twice = MetricFamily(METRIC, [(NO_LABELS, 1.0), (NO_LABELS, 2.0)])
    (family, *_) = Exporter({"double": FakeCollector(lambda: [twice])}).collect()
    assert family.samples == [(NO_LABELS, 2.0)]
    assert caplog.messages == ["collector double returned a series of batchjob_test_value twice"]


def test_only_named_collectors_run():
    ran = []
    collectors = {
        name: FakeCollector(lambda name=name: ran.append(name) or []) for name in ("a", "b", "c")
    }
    Exporter(collectors).collect(["c", "a"])
    assert ran == ["a", "c"]


def test_collectors_are_stopped_in_reverse_order():
    order = []

    class Named(FakeCollector):
        def stop(self):
            order.append(self)

    first, second = Named(), Named()
    exporter = Exporter({"first": first, "second": second})
    exporter.start()
    assert exporter.ready
    exporter.stop()
    assert order == [second, first]
    assert not exporter.ready


def test_own_families_are_in_every_scrape():
    own = MetricFamily(METRIC, [(NO_LABELS, 5.0)])
    assert own in Exporter({}, lambda: [own]).collect([])


class BlockingCollector(FakeCollector):
    """Counts its passes; each waits until it is let go."""

    def __init__(self):
        super().__init__(self._collect)
        self.passes = 0
        self.entered = threading.Semaphore(0)
        self.go = threading.Semaphore(0)

    def _collect(self):
        self.passes += 1
        number = float(self.passes)
        self.entered.release()
        assert self.go.acquire(timeout=scaled(10))
        return [MetricFamily(METRIC, [(NO_LABELS, number)])]


def start_scrape(exporter, results, **more):
    def run():
        families = exporter.collect(**more)
        results.append([f.samples[0][1] for f in families if f.metric == METRIC])

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def test_waiting_scrapes_share_the_next_pass():
    slow = BlockingCollector()
    exporter = Exporter({"slow": slow})
    results = []
    first = start_scrape(exporter, results)
    assert slow.entered.acquire(timeout=scaled(10))
    waiting = [start_scrape(exporter, results) for _ in range(5)]
    time.sleep(0.05)  # all five have asked
    slow.go.release(2)
    for thread in (first, *waiting):
        thread.join(scaled(10))
    assert slow.passes == 2
    assert sorted(results) == [[1.0]] + [[2.0]] * 5


def test_scrape_waits_for_hung_collector_until_its_deadline_only(caplog):
    slow = BlockingCollector()
    exporter = Exporter({"slow": slow, "good": FakeCollector()})
    results = []
    hung = start_scrape(exporter, results)
    assert slow.entered.acquire(timeout=scaled(10))
    families = exporter.collect(seconds=0.05)
    assert sample_value(families, SUCCESS, "slow") == 0
    assert sample_value(families, SUCCESS, "good") == 1
    slow.go.release()
    hung.join(scaled(10))
    assert caplog.messages == ["collector slow is still busy with an earlier scrape"]


def test_hung_collector_is_not_waited_for_again(caplog):
    slow = BlockingCollector()
    exporter = Exporter({"slow": slow})
    hung = start_scrape(exporter, [])
    assert slow.entered.acquire(timeout=scaled(10))
    exporter.collect(seconds=0.2)
    begin = time.monotonic()
    exporter.collect(seconds=600)
    assert time.monotonic() - begin < scaled(60)
    slow.go.release()
    hung.join(scaled(10))


@pytest.mark.parametrize("seconds", [0.0, -1.0])
def test_scrape_without_time_left_still_collects(seconds):
    assert (
        sample_value(Exporter({"good": FakeCollector()}).collect(seconds=seconds), SUCCESS, "good")
        == 1
    )
