"""The dashboards as views: panels are queried as Grafana does."""

import json
from collections.abc import Callable
from typing import Any

from grafana.generate.__main__ import FOLDER
from tests.grafana import dashboard_client, stack
from tests.life.ground_truth import NODES, KnownRun
from tests.life.observed_site import ObservedSite

Figures = dict[str, Any]


def _panel_frames(
    site: ObservedSite, run: KnownRun, name: str, title: str, login: str = "", **variables: str
) -> list[list[dashboard_client.Frame]]:
    """The frames of each query of a panel."""
    dashboard = json.loads((FOLDER / f"{name}.json").read_text())
    client = dashboard_client.GrafanaClient(site.url, stack.data_source_headers)
    span = (float(run.submit - 60), float(site.now()))
    variables = {"cluster": site.cluster, **variables}
    viewer = dashboard_client.open_dashboard(
        client, dashboard, login or run.user, span, site.interval, **variables
    )
    panels = (each for each in dashboard["panels"] if each["type"] != "row")
    (panel,) = (each for each in panels if each["title"] == title)
    return [client.frames(target, viewer) for target in panel["targets"]]


def job_list_view(folder: str):
    """The list of a user's jobs."""

    def view(site: ObservedSite, run: KnownRun) -> Figures:
        ((frame,),) = _panel_frames(site, run, f"{folder}/my-jobs", "Started in this period")
        if site.now() < run.start:
            return {}
        row_index = frame["start_time"].index(run.start * 1000)
        return {
            "state": frame["state"][row_index],
            "cpu_efficiency": frame["cpu_efficiency"][row_index],
            "memory_efficiency": frame["memory_efficiency"][row_index],
        }

    return view


def job_view(folder: str):
    """A job's own dashboard."""

    def view(site: ObservedSite, run: KnownRun) -> Figures:
        title = "Efficiency"
        ((frame,),) = _panel_frames(site, run, f"{folder}/job", title, job=run.jobid)
        ratio = dict(zip(frame["what"], frame["ratio"], strict=True))
        return {
            "cpu_efficiency": ratio.get("cpu"),
            "memory_efficiency": ratio.get("memory"),
            "gpu_ratio": ratio.get("gpu"),
        }

    return view


def gpu_view(folder: str):
    """The mean of the means of a job's GPUs."""

    def view(site: ObservedSite, run: KnownRun) -> Figures:
        ((frame,),) = _panel_frames(site, run, f"{folder}/job", "GPUs", job=run.jobid)
        means = frame["utilization_ratio"]
        return {"gpu_ratio": sum(means) / len(means) if means else None}

    return view


def power_view(folder: str):
    """The integral of a job's power curve."""

    def view(site: ObservedSite, run: KnownRun) -> Figures:
        try:
            ((frame,),) = _panel_frames(site, run, f"{folder}/job", "Power", job=run.jobid)
        except dashboard_client.PanelError as error:
            if error.status != 503:  # the store is down, and the panel reports it
                raise
            return {}
        joules, ends = 0.0, {}
        for at, line, watts in sorted(zip(*map(frame.get, ("time", "line", "mean")), strict=True)):
            joules += watts * (at / 1000 - ends.get(line, run.start))
            ends[line] = at / 1000
        return {"energy_joules": joules or None}

    return view


def usage_view(folder: str):
    """The sum over all days of a user who has only this run."""

    def view(site: ObservedSite, run: KnownRun) -> Figures:
        ((frame,),) = _panel_frames(site, run, f"{folder}/my-usage", "Energy by day")
        return {
            "energy_joules": sum(frame["energy_host_joules"] + frame["energy_gpu_joules"]) or None
        }

    return view


def live_panel_view(
    figure: str, title: str, query: int = 0, dashboard: str = "prometheus/job-live"
):
    """PromQL through the server: the sum of the last values of a running job's panel."""

    def frames(site: ObservedSite, run: KnownRun) -> list[dashboard_client.Frame]:
        return _panel_frames(site, run, dashboard, title, job=run.jobid)[query]

    return _last_values_view(figure, frames)


def node_panel_view(figure: str, title: str, query: int = 0):
    """The same for the dashboards of its nodes, which have a line for each job; for operators."""

    def frames(site: ObservedSite, run: KnownRun) -> list[dashboard_client.Frame]:
        operator = site.headers["X-Grafana-User"]
        frames_by_node = (
            _panel_frames(site, run, "prometheus/node", title, operator, node=f"{node}:10910")[
                query
            ]
            for node in NODES
        )
        return [
            frame for each in frames_by_node for frame in each if frame["jobid"][-1] == run.jobid
        ]

    return _last_values_view(figure, frames)


def _last_values_view(
    figure: str, frames: Callable[[ObservedSite, KnownRun], list[dashboard_client.Frame]]
):
    def view(site: ObservedSite, run: KnownRun) -> Figures:
        if not run.start + 5 * run.interval < site.now() < run.end:
            return {}
        begin = site.now() - 2 * run.interval
        last_values = [each["Value"][-1] for each in frames(site, run) if each["Time"][-1] > begin]
        return {figure: sum(last_values) if last_values else None, "until": site.now()}

    return view
