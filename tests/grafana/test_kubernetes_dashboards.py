"""The dashboards of other programs in Kubernetes query metrics that are scraped and kept."""

import contextlib
import itertools
import json
import re
from pathlib import Path

import pytest

from grafana.generate.__main__ import FOLDER
from tests.deploy.test_victoriametrics import keeps_metric, scrape_jobs
from tests.e2e import victoriametrics
from tests.e2e.targets import serve_metrics, static_scrape_job
from tests.helpers.waiting import until

SCRAPED = Path(__file__).parents[1] / "fixtures/scraped"
DASHBOARDS = {
    path.stem: json.loads(path.read_text()) for path in sorted((FOLDER / "kubernetes").glob("*"))
}
# The operator scrapes these by itself, with all metrics.
OPERATOR_JOBS = ("victoria-metrics", "vmagent")
BATCHJOB_METRICS = {"batchjob_jobs", "up"}


def panel_queries(name):
    """Pairs of a panel's or variable's title and an expression."""
    for panel in DASHBOARDS[name]["panels"]:
        for target in panel["targets"]:
            yield panel["title"], target["expr"]
    for variable in DASHBOARDS[name]["templating"]["list"]:
        if "definition" in variable:
            yield variable["name"], variable["definition"]


def metric_names(expr):
    return set(re.findall(r"\b(\w+)\{", expr)) | set(re.findall(r"label_values\((\w+)", expr))


def exposed_metric_names(job):
    text = (SCRAPED / f"{job}.prom").read_text()
    return set(re.findall(r"^(\w+)", text, re.MULTILINE))


def test_every_component_has_a_dashboard():
    assert set(DASHBOARDS) == {
        "workers", "kubelet", "kubernetes", "host", "victoriametrics", "grafana",
    }  # fmt: skip


@pytest.mark.parametrize("name", DASHBOARDS)
def test_every_metric_is_scraped_and_kept(name):
    available_by_job = {job: exposed_metric_names(job) for job in OPERATOR_JOBS}
    for job, config in scrape_jobs().items():
        available_by_job[job] = {
            each for each in exposed_metric_names(job) if keeps_metric(config, each)
        }
    available = BATCHJOB_METRICS | {
        metric for metrics in available_by_job.values() for metric in metrics
    }
    for title, expr in panel_queries(name):
        assert metric_names(expr), title
        assert metric_names(expr) <= available, title


VARIABLE_VALUES = {"$cluster": "alpha", "$namespace": "a", "$node": "n1", "$__rate_interval": "10s"}


def with_variable_values(expr):
    for variable, value in VARIABLE_VALUES.items():
        expr = expr.replace(variable, value)
    return expr


def exposition_with_growing_counters(job):
    """A function that returns a target's exposition; its counters grow by one at each call."""
    text, scrapes = (SCRAPED / f"{job}.prom").read_text(), itertools.count(1)
    return lambda: text.replace("@", str(next(scrapes)))


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """A store into which an agent has written the metrics of the scrape jobs for some seconds."""
    if why_not := victoriametrics.missing():
        pytest.skip(why_not)
    folder = tmp_path_factory.mktemp("kubernetes")
    jobs = [*scrape_jobs().values(), *({"job_name": name} for name in OPERATOR_JOBS)]
    with contextlib.ExitStack() as stack:
        store = stack.enter_context(victoriametrics.store(folder / "store"))
        targets = [
            static_scrape_job(
                job,
                stack.enter_context(
                    serve_metrics(exposition_with_growing_counters(job["job_name"]))
                ),
                cluster="alpha",
            )
            for job in jobs
        ]
        batchjob_address = stack.enter_context(
            serve_metrics(lambda: 'batchjob_jobs{manager="slurm"} 7\n')
        )
        targets.append(
            static_scrape_job({"job_name": "batchjob_exporter"}, batchjob_address, cluster="alpha")
        )
        stack.enter_context(victoriametrics.scraping_agent(folder / "agent", store, targets))
        scraped_five_times = "count(count_over_time(up[1m]) > 4)"
        until(
            lambda: value(store, scraped_five_times) == len(targets),
            "each target scraped five times",
        )
        yield store


def value(store, promql):
    found = store.query(promql)
    return float(found[0]["value"][1]) if found else None


@pytest.mark.e2e
@pytest.mark.parametrize("name", DASHBOARDS)
def test_every_query_returns_data(store, name):
    empty = [
        title
        for title, expr in panel_queries(name)
        if not expr.startswith("label_values") and not store.query(with_variable_values(expr))
    ]
    assert empty == []


@pytest.mark.e2e
@pytest.mark.parametrize("name", DASHBOARDS)
def test_every_variable_has_a_value(store, name):
    for variable, expr in panel_queries(name):
        if found := re.fullmatch(r"label_values\((.+), (\w+)\)", expr):
            series = store.series(with_variable_values(found[1]))
            assert {each[found[2]] for each in series} == {VARIABLE_VALUES[f"${variable}"]}
