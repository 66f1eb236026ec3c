"""The dashboards as places: their queries, asked and answered as Grafana does."""

import json
from collections.abc import Callable
from typing import Any

from grafana.generate.__main__ import FOLDER
from tests.grafana import asking, stack
from tests.life.looked import Looked
from tests.life.truth import NODES, Subject

Shown = dict[str, Any]


def _frames(
    site: Looked, run: Subject, name: str, title: str, login: str = "", **given: str
) -> list[list[asking.Frame]]:
    """What each query of a panel is answered."""
    dashboard = json.loads((FOLDER / f"{name}.json").read_text())
    grafana = asking.Grafana(site.url, stack.headers)
    span = (float(run.submit - 60), float(site.now()))
    given = {"cluster": site.cluster, **given}
    viewer = asking.look(grafana, dashboard, login or run.user, span, site.interval, **given)
    panels = (each for each in dashboard["panels"] if each["type"] != "row")
    (panel,) = (each for each in panels if each["title"] == title)
    return [grafana.frames(target, viewer) for target in panel["targets"]]


def jobs_of(folder: str):
    """The list of a user's jobs."""

    def shown(site: Looked, run: Subject) -> Shown:
        ((frame,),) = _frames(site, run, f"{folder}/my-jobs", "Started in this period")
        if site.now() < run.start:
            return {}
        number = frame["start_time"].index(run.start * 1000)
        return {
            "state": frame["state"][number],
            "cpu_efficiency": frame["cpu_efficiency"][number],
            "memory_efficiency": frame["memory_efficiency"][number],
        }

    return shown


def job_of(folder: str):
    """A job's own dashboard."""

    def shown(site: Looked, run: Subject) -> Shown:
        title = "Efficiency"
        ((frame,),) = _frames(site, run, f"{folder}/job", title, job=run.jobid)
        ratio = dict(zip(frame["what"], frame["ratio"], strict=True))
        return {
            "cpu_efficiency": ratio.get("cpu"),
            "memory_efficiency": ratio.get("memory"),
            "gpu_ratio": ratio.get("gpu"),
        }

    return shown


def gpus_of(folder: str):
    """The means of a job's GPUs."""

    def shown(site: Looked, run: Subject) -> Shown:
        ((frame,),) = _frames(site, run, f"{folder}/job", "GPUs", job=run.jobid)
        means = frame["utilization_ratio"]
        return {"gpu_ratio": sum(means) / len(means) if means else None}

    return shown


def power_of(folder: str):
    """What a job's curve of power adds up to."""

    def shown(site: Looked, run: Subject) -> Shown:
        try:
            ((frame,),) = _frames(site, run, f"{folder}/job", "Power", job=run.jobid)
        except asking.Refused as error:
            if error.status != 503:  # the store is away, and the panel says so
                raise
            return {}
        joules, ends = 0.0, {}
        for at, line, watts in sorted(zip(*map(frame.get, ("time", "line", "mean")), strict=True)):
            joules += watts * (at / 1000 - ends.get(line, run.start))
            ends[line] = at / 1000
        return {"energy_joules": joules or None}

    return shown


def usage_of(folder: str):
    """The days' sums of a user who has only this run."""

    def shown(site: Looked, run: Subject) -> Shown:
        ((frame,),) = _frames(site, run, f"{folder}/my-usage", "Energy by day")
        return {
            "energy_joules": sum(frame["energy_host_joules"] + frame["energy_gpu_joules"]) or None
        }

    return shown


def live(figure: str, title: str, query: int = 0, dashboard: str = "prometheus/job-live"):
    """PromQL through the gate: the last values of a running job's panel, of all its lines."""

    def frames(site: Looked, run: Subject) -> list[asking.Frame]:
        return _frames(site, run, dashboard, title, job=run.jobid)[query]

    return _last_values(figure, frames)


def on_nodes(figure: str, title: str, query: int = 0):
    """The same of its nodes' dashboards, which have a line for each job; for operators."""

    def frames(site: Looked, run: Subject) -> list[asking.Frame]:
        operator = site.headers["X-Grafana-User"]
        found = (
            _frames(site, run, "prometheus/node", title, operator, node=f"{node}:10910")[query]
            for node in NODES
        )
        return [frame for each in found for frame in each if frame["jobid"][-1] == run.jobid]

    return _last_values(figure, frames)


def _last_values(figure: str, frames: Callable[[Looked, Subject], list[asking.Frame]]):
    def shown(site: Looked, run: Subject) -> Shown:
        if not run.start + 5 * run.interval < site.now() < run.end:
            return {}
        begin = site.now() - 2 * run.interval
        last = [each["Value"][-1] for each in frames(site, run) if each["Time"][-1] > begin]
        return {figure: sum(last) if last else None, "until": site.now()}

    return shown
