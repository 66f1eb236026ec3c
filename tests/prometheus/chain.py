"""Scrapes of real programs before and during a fault, and their series stretched over hours.

A fault takes seconds here, and an alert waits for minutes or hours: each scrape stands for one
scrape interval. Counters continue at their rate, ages and times as between the scrapes; all other
values are repeated.
"""

import itertools
import re
import time
import urllib.request
from typing import NamedTuple

import yaml

from tests.e2e.exporter import parse
from tests.helpers.waiting import scaled, until
from tests.prometheus import families
from tests.prometheus.replay import (
    RULES,
    replay,
    series_notation,
    values_notation,
    with_stale_markers,
)

INTERVAL = 30
FILES = ("jobs.yml", "job_alerts.yml", "service_alerts.yml")
SCRAPES = 3
PAUSE_SECONDS = 0.2
GROWING_WITH_TIME = {  # not by the number of scrapes
    "batchjob_meter_seconds_without_data_total",
    "batchjob_job_free_gpu_busy_seconds_total",
    "batchjob_job_free_gpu_observed_seconds_total",
}
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


class Target(NamedTuple):
    """A target of scrape_configs, with the labels of prometheus.yml."""

    job: str
    address: str
    labels: dict

    def scrape(self):
        """Scrape the value of each series; only `up` if there is no answer."""
        base = {"job": self.job, "instance": self.address} | self.labels
        try:
            with urllib.request.urlopen(
                f"http://{self.address}/metrics", timeout=scaled(30)
            ) as answer:
                text = answer.read().decode()
        except OSError:
            return {_key("up", base): 0.0}
        series = {_key("up", base): 1.0}
        for name, samples in parse(text, 0.0).samples.items():
            for labels, value in samples:
                series_labels = {f"exported_{k}" if k in base else k: v for k, v in labels.items()}
                series[_key(name, base | series_labels)] = value
        return series


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
    """The target of the server."""
    return Target("batchjob_stats_server", address, {})


class Recording:
    """Scrapes of a healthy chain, and then of one with a fault."""

    def __init__(self):
        self.before, self.during = [], []  # (time, series → value)
        self.slack_seconds = 80 * 60  # for thresholds such as a job of an hour

    def healthy(self, *targets, between=None):
        """Scrape the healthy targets; `between` is called between two scrapes."""
        self._scrape(self.before, targets, between)

    def faulty(self, *targets, between=None):
        """Scrape while the fault lasts."""
        self._scrape(self.during, targets, between)

    def assert_fires(self, alert, folder, jobid=""):
        """Assert that the alert does not fire before the fault, and does during it.

        With `jobid`: for that job alone.
        """
        assert self.before
        assert self.during
        seconds = _required_seconds(alert) + self.slack_seconds
        count = seconds // INTERVAL
        alerts = f'ALERTS{{alertname="{alert}",alertstate="firing"}}'
        of_job = f'count({alerts[:-1]},jobid="{jobid}"}})'
        firing = f"count({alerts}) {f'== bool {of_job}' if jobid else '> bool 0'}"
        expectations = [
            (firing, f"{seconds - INTERVAL}s", []),
            (firing, f"{2 * seconds - INTERVAL}s", [{"labels": "{}", "value": 1}]),
        ]
        required = list(_required_rules(alert_rules()[alert]))
        path = folder / "rules.yml"
        path.write_text(yaml.safe_dump({"groups": [{"name": "tested", "rules": required}]}))
        names = {"up"}.union(*(families.names_in(rule["expr"]) for rule in required))
        series = [
            (series_notation(dict(key)), values_notation(values))
            for key, values in self._series(names, count)
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
            yield key, with_stale_markers(stretch_series(key, self.before, self.during, count))


def stretch_series(key, before, during, count):
    """A series stretched to `count` values for each phase; None where it is not exposed."""
    name = dict(key)["__name__"]
    first = [(at, samples.get(key)) for at, samples in before]
    later = [(at, samples.get(key)) for at, samples in during]
    if name.endswith("_total"):
        grows_with_time = name in GROWING_WITH_TIME
        values = _extend_counter(first, count, 0.0, grows_with_time)
        last = first[-1][1]
        reset = last is None or later[0][1] is None or later[0][1] < last
        return values + _extend_counter(
            later, count, 0.0 if reset else values[-1] - last, grows_with_time
        )
    if name.endswith(("_timestamp_seconds", "_time_seconds")):
        values = _extend_times(first, count, first[0][0])
        unchanged = first[-1][1] is not None and later[0][1] == first[-1][1]
        origin = first[-1][1] - values[-1] if unchanged else later[0][0] - count * INTERVAL
        return values + _extend_times(later, count, origin)
    extend = _extend_age if name.endswith("_age_seconds") else _repeat_values
    return extend(first, count) + extend(later, count)


def _repeat_values(phase, count):
    values = itertools.cycle(value for _, value in phase)
    return list(itertools.islice(values, count))


def _extend_age(phase, count):
    """Ages of data that is not read any more grow with time."""
    (begin, first), (end, last) = phase[0], phase[-1]
    if first is None or last is None or last - first < 0.9 * (end - begin):
        return _repeat_values(phase, count)
    return [first + number * INTERVAL for number in range(count)]


def _extend_counter(phase, count, shift, grows_with_time):
    known = [value for _, value in phase if value is not None]
    step = (known[-1] - known[0]) / (len(known) - 1) if len(known) > 1 else 0.0
    if grows_with_time and known:
        step = (known[-1] - known[0]) / (phase[-1][0] - phase[0][0]) * INTERVAL
    values = [None if value is None else value + shift for _, value in phase]
    if values[-1] is None:
        return values + [None] * (count - len(values))
    more = range(1, count - len(values) + 1)
    return values + [values[-1] + step * number for number in more]


def _extend_times(phase, count, origin):
    """Times; 0 is none, and a time that changes stays as recent as it was."""
    (_, first), (_, last) = phase[0], phase[-1]
    if first is None or last is None or 0 in (first, last):
        return [None if last is None else float(last and last - origin)] * count
    step = INTERVAL if last > first else 0
    return [first - origin + step * number for number in range(count)]


def _key(name, labels):
    return tuple(sorted({"__name__": name, **labels}.items()))


def alert_rules():
    """The rule of each alert."""
    return {rule["alert"]: rule for rule in _rules() if "alert" in rule}


def _rules():
    for name in FILES:
        for group in yaml.safe_load((RULES / name).read_text())["groups"]:
            yield from group["rules"]


def _required_rules(rule):
    """The recording rules that a rule depends on, and the rule itself."""
    recorded = {each["record"]: each for each in _rules() if "record" in each}
    for name in sorted(families.names_in(rule["expr"]) & recorded.keys()):
        yield from _required_rules(recorded[name])
    yield rule


def _required_seconds(alert):
    """The seconds of the longest window of an alert and of its `for`."""
    rule = alert_rules()[alert]
    windows = [_duration_seconds(each) for each in re.findall(r"\[(\w+)\]", rule["expr"])]
    return _duration_seconds(rule["for"]) + max(windows, default=0)


def _duration_seconds(text):
    return int(text[:-1]) * _UNITS[text[-1]]


def counter_rise(target, name, **labels):
    """A function that waits until a counter of a target has risen, for `between` of a phase."""

    def total():
        return sum(
            value for key, value in target.scrape().items()
            if {("__name__", name), *labels.items()} <= set(key)
        )  # fmt: skip

    def wait():
        before = total()
        until(lambda: total() > before, f"{name} rises", 60, 0.2)

    return wait
