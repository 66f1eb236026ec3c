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

from batchjob.quantities.gpu import JOB_GPU_PROFILE
from grafana.generate.__main__ import DASHBOARDS
from grafana.generate.model import Promql
from grafana.generate.promql import folded, labels_of
from tests.batchjob_stats_db.tsdb import SERVERS, line, prometheus, victoria_metrics
from tests.helpers.http_server import Response, serving
from tests.helpers.waiting import scaled, until

PROMETHEUS = Path(__file__).parents[2] / "prometheus"
RECORDED = re.compile(r"\bbatchjob:[\w:]+")
BEGIN = 1_775_300_040
SCRAPE, LINGER, JOBS = 30, 300, 60
HOUR = 3600


COUNTERS = {  # of jobs, that rules and panels sum over jobs, with labels of the series of each job
    "cpu_seconds_total": ({"mode": "user"}, {"mode": "system"}),
    "energy_joules_total": (
        {"component": "host", "kind": "active"},
        {"component": "host", "kind": "idle"},
        {"component": "gpu", "kind": "active"},
    ),
    **{
        each.metric.name.removeprefix("batchjob_job_"): (
            {"gpu": "0", "uuid": "GPU-0", "gpu_instance": ""},
        )
        for each in JOB_GPU_PROFILE.values()
    },
}


def short_jobs(counter):
    """The samples of jobs of 1 to 90 s, and how much of the counter they used together."""
    chance, lines, used = random.Random(1), [], 0.0
    for number in range(JOBS):
        start = BEGIN + chance.uniform(60, HOUR / 2)
        seconds = chance.uniform(1, 90)
        job = {"jobid": str(number), "instance": f"n{number % 3}"}
        first = start + chance.uniform(0, SCRAPE)
        for labels in COUNTERS[counter]:
            speed = chance.choice([0.5, 1, 4])
            used += speed * seconds
            for at in _scrapes(first, start + seconds + LINGER):
                value = speed * min(at - start, seconds)
                lines.append(line(counter, value, f"{at:.3f}", **labels, **job))
        lines += [
            line("start_time_seconds", start, f"{at:.3f}", **job)
            for at in _scrapes(first, start + seconds + LINGER)
        ]
    return lines, used


def _scrapes(first, until):
    while first <= until:
        yield first
        first += SCRAPE


def interrupted_job(counter):
    """A job of ten hours that is scraped again after a gap of an hour; it uses 1 a second."""
    start = BEGIN - 10 * HOUR
    times = [*range(BEGIN - HOUR, BEGIN - 1800, SCRAPE), *range(BEGIN + 1800, BEGIN + HOUR, SCRAPE)]
    for at in times:
        yield line(counter, at - start, at, jobid="old", **COUNTERS[counter][0])
        yield line("start_time_seconds", start, at, jobid="old")


def rules():
    """The expressions of all recording rules, in which no other rule of ours is left."""
    files = (yaml.safe_load(each.read_text()) for each in PROMETHEUS.glob("*/*.yml"))
    groups = [group for each in files for group in each.get("groups", ())]
    found = {
        each["record"]: each["expr"]
        for group in groups
        for each in group["rules"]
        if "record" in each
    }
    while any(map(RECORDED.search, found.values())):
        found = {name: _without_rules(expression, found) for name, expression in found.items()}
    return found


def _without_rules(expression, rules):
    return RECORDED.sub(lambda rule: f"({rules[rule[0]]})", expression)


def series(url, path, **form):
    request = f"{url}/api/v1/{path}?{urllib.parse.urlencode(form)}"
    with urllib.request.urlopen(request, timeout=scaled(20)) as answer:
        return json.load(answer)["data"]["result"]


def ask(url, query, at, nocache=1):
    found = series(url, "query", query=query, time=at, nocache=nocache)
    return [float(each["value"][1]) for each in found]


OVER_TIME = re.compile(r"\b(batchjob_job_\w+_total)(?:\{[^}]*\})?\[")
# Of one job each: a quotient, a judgement, and joins of a job's rule with the name of its pod.
NOT_SUMMED = {
    "batchjob:job:cpu_utilization_ratio",
    "batchjob:job:gpus_idle",
    "batchjob:pod:cpus_used",
    "batchjob:pod:power_watts",
}


def counters_over_time(expression):
    """The counters of jobs, without their prefix, of whose increase this is made."""
    for name in OVER_TIME.findall(expression):
        if "jobid" in labels_of(name):
            yield name.removeprefix("batchjob_job_")


def sums_of_rules():
    """Name, counter and expression of the rules which sum a counter of jobs."""
    for name, expression in rules().items():
        if name not in NOT_SUMMED:
            for counter in set(counters_over_time(expression)):
                yield name, counter, expression


def sums_of_panels():
    """Title, counter and expression of what panels sum over jobs: a quotient is of two sums."""
    queries = [
        (panel.title, query.expr)
        for dashboard in DASHBOARDS
        for panel in dashboard.panels
        for query in panel.queries
        if isinstance(query, Promql) and not re.search(r'jobid="|\bby \([^)]*jobid', query.expr)
    ]
    for title, expression in queries:
        for part in re.split(r" / (?=sum\()", expression):
            for counter in set(counters_over_time(part)):
                yield title, counter, folded(part).replace("$cluster", ".*")


SUMS = [
    pytest.param(counter, expression, id=f"{name}, {counter}")
    for name, counter, expression in dict.fromkeys((*sums_of_rules(), *sums_of_panels()))
]


def test_rules_and_panels_that_sum_over_jobs_are_found():
    names = [each.id.partition(",")[0] for each in SUMS]
    assert sorted(names) == sorted(
        [
            "batchjob:job:cpus_used",
            "batchjob:cluster:cpus_used",
            "batchjob:job:power_watts",
            "Jobs' power by user",
            *("How well held GPUs are used",) * 5,
        ]
    )


@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize(("counter", "expression"), SUMS)
def test_sums_over_short_jobs_are_those_of_the_kernel(server, counter, expression):
    lines, used = short_jobs(counter)
    with server([*lines, *interrupted_job(counter)]) as url:
        of_short_jobs = re.sub(rf"{counter}(\{{)?", _without_old_job, expression)
        summed = f"sum(sum_over_time(({of_short_jobs})[{HOUR}s:15s])) * 15"
        assert ask(url, summed, BEGIN + HOUR) == [pytest.approx(used, rel=0.02)]
        highest = f"max(max_over_time(({expression})[10m:30s]))"
        (seen,) = ask(url, highest, BEGIN + HOUR - 60)
        assert seen == pytest.approx(1, rel=0.15)


def _without_old_job(found):
    return found[0].rstrip("{") + '{jobid!="old"' + ("," if found[1] else "}")


@pytest.mark.parametrize(
    ("server", "of_rate", "of_increase"),
    [
        pytest.param(prometheus, (0.7, 0.85), (0.7, 0.85), id="prometheus"),
        pytest.param(victoria_metrics, (1.5, 2.0), (0.9, 1.0), id="victoria_metrics"),
    ],
)
def test_the_stores_differ_in_rates_of_young_series(server, of_rate, of_increase):
    """The part of the kernel's sum that these functions would give: docs/victoriametrics.md."""
    lines, used = short_jobs("cpu_seconds_total")
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


@pytest.mark.parametrize(
    ("server", "first_as_asked"),
    [
        pytest.param(prometheus, True, id="prometheus"),
        pytest.param(victoria_metrics, False, id="victoria_metrics"),
    ],
)
def test_start_of_a_long_range_is_as_asked_without_the_cache(server, first_as_asked):
    start, step = BEGIN + 7, 60
    times = range(BEGIN - 60, BEGIN + 3 * HOUR, SCRAPE)
    given = {"query": "batchjob_job_cpus", "start": start, "end": start + 2 * HOUR, "step": step}
    with server([line("cpus", 1, at) for at in times]) as url:
        for nocache, as_asked in ((1, True), (0, first_as_asked)):
            (found,) = series(url, "query_range", nocache=nocache, **given)
            assert (found["values"][0][0] == start) == as_asked
            assert found["values"][1][0] - found["values"][0][0] == step


PAGE = "".join(f'batchjob_job_cpus{{jobid="{number}"}} 4\n' for number in range(8))
HALF = PAGE[: len(PAGE) // 2]
PAGES = {
    "whole": Response(PAGE.encode()),
    "shorter than its length": Response(
        HALF.encode(), headers=(("Content-Length", str(len(PAGE))),), length=False
    ),
    "cut after a line, without a length": Response(HALF.encode(), length=False),
    "cut in a line, without a length": Response(HALF[:-10].encode(), length=False),
    "with a damaged line": Response(PAGE.replace('"3"} 4', '"3"} four').encode()),
}
SCRAPED = {  # whether it is "up", and the number of jobs that are seen
    prometheus: ((1, 8), (0, 0), (1, 4), (0, 0), (0, 0)),
    victoria_metrics: ((1, 8), (0, 0), (1, 4), (1, 3), (1, 7)),
}


@pytest.mark.parametrize("server", SERVERS)
def test_pages_of_which_a_half_arrives(server, tmp_path):
    """The exporter states the length of its page, so that a half is never taken for the whole."""
    content_type = ("Content-Type", "text/plain; version=0.0.4")
    pages = {f"/{number}": page for number, page in enumerate(PAGES.values())}

    def answer(request):
        page = pages[request.path]
        return page._replace(headers=(content_type, *page.headers))

    with serving(answer) as target:
        job = {"static_configs": [{"targets": [target.url.removeprefix("http://")]}]}
        jobs = [
            {"job_name": name, "metrics_path": path, **job}
            for name, path in zip(PAGES, pages, strict=True)
        ]
        config = json.dumps({"global": {"scrape_interval": "1s"}, "scrape_configs": jobs})
        (tmp_path / "scrape.yml").write_text(config)
        flags = [f"-promscrape.config={tmp_path}/scrape.yml"]
        options = {"config": config} if server is prometheus else {}
        with server([line("cpus", 0, BEGIN)], *([] if options else flags), **options) as url:
            until(lambda: len(ask(url, "up", time.time())) == len(PAGES))

            def seen(name):
                now = time.time()
                (up,) = ask(url, f'last_over_time(up{{job="{name}"}}[1m])', now)
                return up, len(
                    ask(url, f'last_over_time(batchjob_job_cpus{{job="{name}"}}[1m])', now)
                )

            found = tuple(map(seen, PAGES))
    assert found == SCRAPED[server]
