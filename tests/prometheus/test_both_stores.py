"""Where Prometheus and VictoriaMetrics differ: sums over short jobs by rules do not."""

import json
import random
import re
import time
import urllib.parse
import urllib.request
from pathlib import Path

import pytest
import yaml

from tests.batchjob_stats_db.tsdb import SERVERS, line, prometheus, victoria_metrics
from tests.helpers.waiting import scaled

RULES = Path(__file__).parents[2] / "prometheus/rules/jobs.yml"
BEGIN = 1_775_300_040
SCRAPE, LINGER, JOBS = 30, 300, 60
HOUR = 3600


def short_jobs():
    """The samples of jobs of 1 to 90 s, and the CPU seconds that they used together."""
    chance, lines, used = random.Random(1), [], 0.0
    for number in range(JOBS):
        start = BEGIN + chance.uniform(60, HOUR / 2)
        seconds, cpus = chance.uniform(1, 90), chance.choice([0.5, 1, 4])
        labels = {"jobid": str(number), "instance": f"n{number % 3}"}
        first = start + chance.uniform(0, SCRAPE)
        used += cpus * seconds
        at = first
        while at <= start + seconds + LINGER:
            value = cpus * min(at - start, seconds)
            lines.append(line("cpu_seconds_total", value, f"{at:.3f}", mode="user", **labels))
            lines.append(line("start_time_seconds", start, f"{at:.3f}", **labels))
            at += SCRAPE
    return lines, used


def interrupted_job():
    """A job of ten hours that is scraped again after a gap of an hour, with 1 CPU in use."""
    start = BEGIN - 10 * HOUR
    times = [*range(BEGIN - HOUR, BEGIN - 1800, SCRAPE), *range(BEGIN + 1800, BEGIN + HOUR, SCRAPE)]
    for at in times:
        yield line("cpu_seconds_total", at - start, at, mode="user", jobid="old")
        yield line("start_time_seconds", start, at, jobid="old")


def rule(name):
    groups = yaml.safe_load(RULES.read_text())["groups"]
    (found,) = (each for group in groups for each in group["rules"] if each.get("record") == name)
    return found["expr"]


RULE = rule("batchjob:job:cpus_used")


def ask(url, query, at, nocache=1):
    form = urllib.parse.urlencode({"query": query, "time": at, "nocache": nocache})
    with urllib.request.urlopen(f"{url}/api/v1/query?{form}", timeout=scaled(20)) as answer:
        return [float(each["value"][1]) for each in json.load(answer)["data"]["result"]]


@pytest.mark.parametrize("server", SERVERS)
def test_sums_over_short_jobs_are_those_of_the_kernel(server):
    lines, used = short_jobs()
    with server([*lines, *interrupted_job()]) as url:
        of_short_jobs = re.sub(r"cpu_seconds_total(\{)?", _without_old_job, RULE)
        summed = f"sum(sum_over_time(({of_short_jobs})[{HOUR}s:15s])) * 15"
        assert ask(url, summed, BEGIN + HOUR) == [pytest.approx(used, rel=0.02)]
        highest = f"max(max_over_time(({RULE})[10m:30s]))"
        (seen,) = ask(url, highest, BEGIN + HOUR - 60)
        assert seen == pytest.approx(1, rel=0.15)


def _without_old_job(found):
    return 'cpu_seconds_total{jobid!="old"' + ("," if found[1] else "}")


@pytest.mark.parametrize(
    ("server", "of_rate", "of_increase"),
    [
        pytest.param(prometheus, (0.7, 0.85), (0.7, 0.85), id="prometheus"),
        pytest.param(victoria_metrics, (1.5, 2.0), (0.9, 1.0), id="victoria_metrics"),
    ],
)
def test_the_stores_differ_in_rates_of_young_series(server, of_rate, of_increase):
    """The part of the kernel's sum that these functions would give: docs/victoriametrics.md."""
    lines, used = short_jobs()
    with server(lines) as url:
        for function, seconds, (low, high) in (
            ("rate", 1, of_rate), ("increase", 300, of_increase)
        ):  # fmt: skip
            each = f"{function}(batchjob_job_cpu_seconds_total[5m])"
            summed = f"sum(sum_over_time(({each})[{HOUR}s:15s])) * 15 / {seconds}"
            (part,) = ask(url, summed, BEGIN + HOUR)
            assert low < part / used < high, function


def test_victoria_metrics_shows_the_last_half_minute_only_without_its_cache():
    now = time.time()
    with victoria_metrics([line("cpus", at, f"{now - at:.3f}") for at in (60, 5)]) as url:
        assert ask(url, "batchjob_job_cpus", now) == [5]
        assert ask(url, "batchjob_job_cpus", now, nocache=0) == [60]


@pytest.mark.parametrize(
    ("server", "number"),
    [
        pytest.param(prometheus, 3, id="prometheus"),
        pytest.param(victoria_metrics, 2, id="victoria_metrics"),
    ],
)
def test_only_prometheus_counts_nan_as_a_sample(server, number):
    values = ((1.0, 90), ("NaN", 60), (2.0, 30))
    with server([line("cpus", value, BEGIN - ago) for value, ago in values]) as url:
        assert ask(url, "count_over_time(batchjob_job_cpus[5m])", BEGIN) == [number]
