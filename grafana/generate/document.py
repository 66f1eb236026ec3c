"""A dashboard's JSON: its variables, its links, and the position of its panels."""

from collections.abc import Iterator

from grafana.generate.model import ApiQuery, Dashboard, Json, Variable
from grafana.generate.panels import panel
from grafana.generate.plugins import PROMETHEUS, Plugin, promql_variable

SCHEMA = 41  # of Grafana 11.6; newer versions read and migrate it
_WIDTH = 24
TAG = "batchjob"


def document(dashboard: Dashboard, plugin: Plugin) -> Json:
    """The complete dashboard; `plugin` reads the API."""
    asks_api = dashboard.asks_api()
    return {
        "uid": uid(dashboard.slug, plugin.suffix if asks_api else ""),
        "title": dashboard.title,
        "description": dashboard.about,
        "tags": [TAG, *([plugin.folder] if asks_api else [])],
        "schemaVersion": SCHEMA,
        "editable": True,
        "graphTooltip": 1,  # one crosshair in all panels
        "timezone": "browser",
        "refresh": dashboard.refresh,
        "time": {"from": dashboard.since, "to": dashboard.until},
        "links": [_others(), *(_link(title, url) for title, url in dashboard.links)],
        "templating": {"list": [*_sources(dashboard, plugin), *_variables(dashboard, plugin)]},
        "annotations": {"list": []},
        "panels": list(_placed(dashboard, plugin)),
    }


def uid(slug: str, suffix: str) -> str:
    """A stable id, so that links and bookmarks remain valid."""
    return f"batchjob-{slug}{suffix}"


def _others() -> Json:
    return {
        "type": "dashboards",
        "title": "batchjob",
        "tags": [TAG],
        "asDropdown": True,
        "keepTime": True,
        "includeVars": True,
        "icon": "",
        "tooltip": "",
        "targetBlank": False,
        "url": "",
    }


def _link(title: str, url: str) -> Json:
    return {"type": "link", "title": title, "url": url, "icon": "external link", "tags": [],
            "tooltip": "", "asDropdown": False, "keepTime": False, "includeVars": False,
            "targetBlank": False}  # fmt: skip


def _placed(dashboard: Dashboard, plugin: Plugin) -> Iterator[Json]:
    x = y = tallest = 0
    for number, each in enumerate(dashboard.panels, start=1):
        width, height = (_WIDTH, 1) if each.kind == "row" else (each.width, each.height)
        if x + width > _WIDTH:
            x, y, tallest = 0, y + tallest, 0
        yield panel(each._replace(width=width, height=height), number, x, y, plugin, dashboard)
        x, tallest = x + width, max(tallest, height)


def _sources(dashboard: Dashboard, plugin: Plugin) -> Iterator[Json]:
    if dashboard.asks_prometheus():
        yield _source("prometheus", "Metrics", PROMETHEUS)
    if dashboard.asks_api():
        yield _source("api", "Jobs", plugin.type)
    if dashboard.log_source():
        yield _source("logs", "Log", dashboard.log_source())


def _source(name: str, label: str, kind: str) -> Json:
    return {"type": "datasource", "name": name, "label": label, "query": kind, "current": {},
            "hide": 0, "includeAll": False, "multi": False, "options": [], "regex": ""}  # fmt: skip


def _variables(dashboard: Dashboard, plugin: Plugin) -> Iterator[Json]:
    for each in dashboard.variables:
        head: Json = {"name": each.name, "label": each.label, "hide": 2 if each.hidden else 0}
        if each.about:
            head["description"] = each.about
        if each.words:
            yield {**head, **_fixed(each)}
        elif each.query is None:
            yield {**head, "type": "textbox", "query": "", "current": {}, "options": []}
        else:
            yield {**head, **_queried(each, each.query, plugin)}


def _choice(each: Variable) -> Json:
    chosen: Json = {"text": ["All"], "value": ["$__all"]} if each.several else (
        {"text": "All", "value": "$__all"}
    )  # fmt: skip
    return {
        "current": chosen if each.every else {},
        "includeAll": each.every,
        "allValue": each.all_value if each.every else None,
        "multi": each.several,
        "options": [],
    }


def _fixed(each: Variable) -> Json:
    return {"type": "custom", "query": ",".join(each.words), **_choice(each)}


def _queried(each: Variable, query: ApiQuery | str, plugin: Plugin) -> Json:
    if isinstance(query, str):
        source: Json = {"type": PROMETHEUS, "uid": "${prometheus}"}
        queried, definition = promql_variable(query), query
    else:
        source = {"type": plugin.type, "uid": "${api}"}
        queried, definition = plugin.variable(query), query.path
    return {
        "type": "query",
        "datasource": source,
        "query": queried,
        "definition": definition,
        "refresh": 2,  # refresh when the time range changes
        "regex": "",
        # Of hidden variables, the first value of the answer is used.
        "sort": 0 if each.hidden else 1,
        **_choice(each),
    }
