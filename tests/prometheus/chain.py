"""Real programs scraped before and during a fault, and their series stretched over hours.

A fault takes seconds here, and an alert waits for minutes or hours: each scrape stands for one
scrape interval. Counters go on at the rate that was seen, ages and times as they did between the
scrapes, all other values are repeated.
"""

import itertools
import re
import time
import urllib.request
from typing import NamedTuple

import yaml

from tests.e2e.exporter import parse
from tests.e2e.processes import until
from tests.prometheus import families
from tests.prometheus.replay import RULES, replay, series_of, text_of, with_ends

INTERVAL = 30
FILES = ("jobs.yml", "job_alerts.yml", "service_alerts.yml")
SCRAPES = 3
PAUSE_SECONDS = 0.2
BY_THE_CLOCK = {"batchjob_meter_seconds_without_data_total"}  # and not from scrape to scrape
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


class Target(NamedTuple):
    """What Prometheus has under scrape_configs, with the labels of prometheus.yml."""

    job: str
    address: str
    labels: dict

    def scrape(self):
        """Each series with its value; without an answer, `up` alone."""
        base = {"job": self.job, "instance": self.address} | self.labels
        try:
            with urllib.request.urlopen(f"http://{self.address}/metrics", timeout=30) as answer:
                text = answer.read().decode()
        except OSError:
            return {_key("up", base): 0.0}
        found = {_key("up", base): 1.0}
        for name, samples in parse(text, 0.0).samples.items():
            for labels, value in samples:
                own = {f"exported_{k}" if k in base else k: v for k, v in labels.items()}
                found[_key(name, base | own)] = value
        return found


def node(address, name="n001", cluster="alpha"):
    """An exporter on a compute node: `instance` is the node's name."""
    return Target("batchjob_exporter", address, {"instance": name, "cluster": cluster})


def scheduler(address):
    """The exporter with the collector `cluster`."""
    return Target("batchjob_cluster", address, {"cluster": "alpha"})


def poller(address):
    """The poller, whose own metrics name the cluster."""
    return Target("batchjob_stats_db", address, {})


def server(address):
    """The server."""
    return Target("batchjob_stats_server", address, {})


class Recording:
    """Scrapes of a healthy chain, and then of one with a fault."""

    def __init__(self):
        self.before, self.during = [], []  # (time, series → value)
        self.slack_seconds = 80 * 60  # what a threshold asks for: a job of an hour

    def healthy(self, *targets, between=None):
        """Scrape; `between` waits for what is to happen from scrape to scrape."""
        self._scrape(self.before, targets, between)

    def faulty(self, *targets, between=None):
        """The same while the fault lasts."""
        self._scrape(self.during, targets, between)

    def fires(self, alert, folder):
        """The alert must not fire before the fault, and must during it."""
        assert self.before
        assert self.during
        seconds = _lasting(alert) + self.slack_seconds
        count = seconds // INTERVAL
        firing = f'count(ALERTS{{alertname="{alert}",alertstate="firing"}}) > bool 0'
        expectations = [
            (firing, f"{seconds - INTERVAL}s", []),
            (firing, f"{2 * seconds - INTERVAL}s", [{"labels": "{}", "value": 1}]),
        ]
        chosen = list(_needed(rules()[alert]))
        path = folder / "rules.yml"
        path.write_text(yaml.safe_dump({"groups": [{"name": "tested", "rules": chosen}]}))
        names = {"up"}.union(*(families.used(rule["expr"]) for rule in chosen))
        series = [
            (series_of(dict(key)), text_of(values)) for key, values in self._series(names, count)
        ]
        replay(folder, INTERVAL, series, expectations, [path])

    def _scrape(self, phase, targets, between):
        for number in range(SCRAPES):
            if number:
                between() if between else time.sleep(PAUSE_SECONDS)
            samples = {}
            for target in targets:
                samples |= target.scrape()
            phase.append((time.time(), samples))

    def _series(self, names, count):
        keys = {key for _, samples in self.before + self.during for key in samples}
        for key in sorted(key for key in keys if dict(key)["__name__"] in names):
            yield key, with_ends(stretched(key, self.before, self.during, count))


def stretched(key, before, during, count):
    """`count` values of a series for each phase; None where it is not exposed."""
    name = dict(key)["__name__"]
    first = [(at, samples.get(key)) for at, samples in before]
    then = [(at, samples.get(key)) for at, samples in during]
    if name.endswith("_total"):
        clock = name in BY_THE_CLOCK
        values = _counted(first, count, 0.0, clock)
        last = first[-1][1]
        reset = last is None or then[0][1] is None or then[0][1] < last
        return values + _counted(then, count, 0.0 if reset else values[-1] - last, clock)
    if name.endswith(("_timestamp_seconds", "_time_seconds")):
        values = _moved(first, count, first[0][0])
        same = first[-1][1] is not None and then[0][1] == first[-1][1]
        origin = first[-1][1] - values[-1] if same else then[0][0] - count * INTERVAL
        return values + _moved(then, count, origin)
    lasting = _aged if name.endswith("_age_seconds") else _cycled
    return lasting(first, count) + lasting(then, count)


def _cycled(phase, count):
    values = itertools.cycle(value for _, value in phase)
    return list(itertools.islice(values, count))


def _aged(phase, count):
    """The age of what is read no more grows with time."""
    (begin, first), (end, last) = phase[0], phase[-1]
    if first is None or last is None or last - first < 0.9 * (end - begin):
        return _cycled(phase, count)
    return [first + number * INTERVAL for number in range(count)]


def _counted(phase, count, shift, by_the_clock):
    known = [value for _, value in phase if value is not None]
    step = (known[-1] - known[0]) / (len(known) - 1) if len(known) > 1 else 0.0
    if by_the_clock:
        step = (known[-1] - known[0]) / (phase[-1][0] - phase[0][0]) * INTERVAL
    values = [None if value is None else value + shift for _, value in phase]
    if values[-1] is None:
        return values + [None] * (count - len(values))
    more = range(1, count - len(values) + 1)
    return values + [values[-1] + step * number for number in more]


def _moved(phase, count, origin):
    """Times: 0 is none; one that changes is always as recent as it was."""
    (_, first), (_, last) = phase[0], phase[-1]
    if first is None or last is None or 0 in (first, last):
        return [None if last is None else float(last and last - origin)] * count
    step = INTERVAL if last > first else 0
    return [first - origin + step * number for number in range(count)]


def _key(name, labels):
    return tuple(sorted({"__name__": name, **labels}.items()))


def rules():
    """Alert → its rule."""
    return {rule["alert"]: rule for rule in _rules() if "alert" in rule}


def _rules():
    for name in FILES:
        for group in yaml.safe_load((RULES / name).read_text())["groups"]:
            yield from group["rules"]


def _needed(rule):
    """The recording rules that it takes series from, and itself."""
    recorded = {each["record"]: each for each in _rules() if "record" in each}
    for name in sorted(families.used(rule["expr"]) & recorded.keys()):
        yield from _needed(recorded[name])
    yield rule


def _lasting(alert):
    """Seconds of its windows and of what it waits for."""
    rule = rules()[alert]
    windows = [_seconds(each) for each in re.findall(r"\[(\w+)\]", rule["expr"])]
    return _seconds(rule["for"]) + max(windows, default=0)


def _seconds(text):
    return int(text[:-1]) * _UNITS[text[-1]]


def rising(target, name, **labels):
    """Waits until a counter of a target has risen: `between` of a phase."""

    def total():
        return sum(
            value for key, value in target.scrape().items()
            if {("__name__", name), *labels.items()} <= set(key)
        )  # fmt: skip

    def wait():
        before = total()
        until(lambda: total() > before, f"{name} rises", 60, 0.2)

    return wait
