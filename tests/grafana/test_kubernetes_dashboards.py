"""The dashboards of what stands beside batchjob in Kubernetes ask for what is scraped and kept."""

import contextlib
import itertools
import json
import re
from pathlib import Path

import pytest

from grafana.generate.__main__ import FOLDER
from tests.deploy.test_victoriametrics import kept, scrape_jobs
from tests.e2e import victoriametrics
from tests.e2e.processes import until
from tests.e2e.targets import exposed, static

SCRAPED = Path(__file__).parents[1] / "fixtures/scraped"
DASHBOARDS = {
    path.stem: json.loads(path.read_text()) for path in sorted((FOLDER / "kubernetes").glob("*"))
}
OPERATORS_OWN = ("victoria-metrics", "vmagent")  # which it scrapes by itself, and keeps all of
OURS = {"batchjob_jobs", "up"}


def questions(name):
    """Title of the panel, and expression."""
    for panel in DASHBOARDS[name]["panels"]:
        for target in panel["targets"]:
            yield panel["title"], target["expr"]
    for variable in DASHBOARDS[name]["templating"]["list"]:
        if "definition" in variable:
            yield variable["name"], variable["definition"]


def metrics_of(expr):
    return set(re.findall(r"\b(\w+)\{", expr)) | set(re.findall(r"label_values\((\w+)", expr))


def names_of(job):
    text = (SCRAPED / f"{job}.prom").read_text()
    return set(re.findall(r"^(\w+)", text, re.MULTILINE))


def test_every_part_has_a_dashboard():
    assert set(DASHBOARDS) == {
        "workers", "kubelet", "kubernetes", "host", "victoriametrics", "grafana",
    }  # fmt: skip


@pytest.mark.parametrize("name", DASHBOARDS)
def test_every_metric_is_scraped_and_kept(name):
    shown = {job: names_of(job) for job in OPERATORS_OWN}
    for job, config in scrape_jobs().items():
        shown[job] = {each for each in names_of(job) if kept(config, each)}
    known = OURS | {metric for metrics in shown.values() for metric in metrics}
    for title, expr in questions(name):
        assert metrics_of(expr), title
        assert metrics_of(expr) <= known, title


CHOSEN = {"$cluster": "alpha", "$namespace": "a", "$node": "n1", "$__rate_interval": "10s"}


def chosen(expr):
    for variable, value in CHOSEN.items():
        expr = expr.replace(variable, value)
    return expr


def growing(job):
    """What a target says; its counters grow by one with each scrape."""
    text, scrapes = (SCRAPED / f"{job}.prom").read_text(), itertools.count(1)
    return lambda: text.replace("@", str(next(scrapes)))


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """A store into which an agent writes what the scrape jobs keep, for some seconds now."""
    if why_not := victoriametrics.missing():
        pytest.skip(why_not)
    folder = tmp_path_factory.mktemp("kubernetes")
    jobs = [*scrape_jobs().values(), *({"job_name": name} for name in OPERATORS_OWN)]
    with contextlib.ExitStack() as stack:
        made = stack.enter_context(victoriametrics.store(folder / "store"))
        targets = [
            static(job, stack.enter_context(exposed(growing(job["job_name"]))), cluster="alpha")
            for job in jobs
        ]
        ours = stack.enter_context(exposed(lambda: 'batchjob_jobs{manager="slurm"} 7\n'))
        targets.append(static({"job_name": "batchjob_exporter"}, ours, cluster="alpha"))
        stack.enter_context(victoriametrics.scraping(folder / "agent", made, targets))
        seen = "count(count_over_time(up[1m]) > 4)"
        until(lambda: value(made, seen) == len(targets), "each target scraped five times")
        yield made


def value(store, promql):
    found = store.query(promql)
    return float(found[0]["value"][1]) if found else None


@pytest.mark.e2e
@pytest.mark.parametrize("name", DASHBOARDS)
def test_every_question_has_an_answer(store, name):
    empty = [
        title
        for title, expr in questions(name)
        if not expr.startswith("label_values") and not store.query(chosen(expr))
    ]
    assert empty == []


@pytest.mark.e2e
@pytest.mark.parametrize("name", DASHBOARDS)
def test_every_variable_has_a_value(store, name):
    for variable, expr in questions(name):
        if found := re.fullmatch(r"label_values\((.+), (\w+)\)", expr):
            series = store.series(chosen(found[1]))
            assert {each[found[2]] for each in series} == {CHOSEN[f"${variable}"]}
