"""Links from the name of a user, an account, a node or a job, with its cluster and time."""

import re

from grafana.generate.model import SUFFIX, ApiQuery, Dashboard, Json, Panel, PanelColumn, Promql
from grafana.generate.promql import folded

# The dashboard of a user, an account and so on, and its variable for the name.
_PLACES = {
    "user": (f"jobs{SUFFIX}", "user"),
    "account": (f"account-usage{SUFFIX}", "account"),
    "node": ("node", "node"),
    "instance": ("node", "node"),
    "jobid": ("job-live", "job"),
}
_NAMES = {"user": "Jobs of this user", "account": "Usage of this account", "node": "This node",
          "instance": "This node", "jobid": "This job"}  # fmt: skip


def of_column(column: PanelColumn, beside: set[str], dashboard: Dashboard) -> list[Json]:
    """Links of a table's cells; `beside`: keys of the same row."""
    if column.link:
        return [_link(f"Open {column.title}", column.link)]
    if column.key not in _PLACES or not column.title or column.hidden:
        return []
    cluster = "${__data.fields.cluster}" if "cluster" in beside else _chosen(dashboard)
    return [_to(column.key, "${__value.raw}", cluster)]


def of_lines(panel: Panel, dashboard: Dashboard) -> list[Json]:
    """Links of a panel's series, if the legend of each names one of them."""
    legends = [query.legend for query in panel.queries if isinstance(query, Promql)]
    if panel.kind != "timeseries" or not legends:
        return []
    shared = set.intersection(*(set(re.findall(r"\{\{(\w+)\}\}", each)) for each in legends))
    known = all("cluster" in _labels(query) for query in panel.queries if isinstance(query, Promql))
    cluster = "${__field.labels.cluster}" if known else _chosen(dashboard)
    return [
        _to(key, f"${{__field.labels.{key}}}", cluster)
        for key in _PLACES
        if key in shared and (dashboard.on_nodes or key != "instance")
    ]


def _labels(query: Promql) -> list[str]:
    """Of its series: those of the outermost `by`."""
    found = re.search(r"\bby \(([\w, ]+)\)", folded(query.expr))
    return found[1].split(", ") if found else []


def keys(panel: Panel) -> set[str]:
    """Keys of a table's rows."""
    queried = [column.key for query in panel.queries if isinstance(query, ApiQuery)
             for column in query.columns]  # fmt: skip
    return {*queried, *(column.key for column in panel.columns)}


def _chosen(dashboard: Dashboard) -> str:
    """The cluster that the viewer selected, if the dashboard has that variable."""
    asks = any(variable.name == "cluster" for variable in dashboard.variables)
    return "${cluster}" if asks else ""


def _to(key: str, name: str, cluster: str) -> Json:
    slug, variable = _PLACES[key]
    where = f"var-cluster={cluster}&" if cluster else ""
    url = f"/d/batchjob-{slug}?{where}var-{variable}={name}&${{__url_time_range}}"
    return _link(_NAMES[key], url)


def _link(title: str, url: str) -> Json:
    return {"title": title, "url": url, "targetBlank": False}
