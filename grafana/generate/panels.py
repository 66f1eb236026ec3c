"""A panel's JSON (classic schema, as of Grafana 11.6)."""

from collections.abc import Callable, Mapping

from grafana.generate import drill_down
from grafana.generate.model import (
    ApiQuery,
    Dashboard,
    Json,
    LogQuery,
    Panel,
    PanelColumn,
    Promql,
    Query,
    Thresholds,
)
from grafana.generate.plugins import PROMETHEUS, Plugin, log_lines, promql
from grafana.generate.reasons import reason

_LAST: Json = {"calcs": ["lastNotNull"], "fields": "", "values": False}
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def panel(panel: Panel, number: int, x: int, y: int, plugin: Plugin, dashboard: Dashboard) -> Json:
    """A panel's JSON at a position of the grid; `whole` is its dashboard."""
    shape: Json = {"h": panel.height, "w": panel.width, "x": x, "y": y}
    head: Json = {"id": number, "type": panel.kind, "title": panel.title, "gridPos": shape}
    if panel.kind == "row":
        return {**head, "collapsed": False, "panels": []}
    if panel.kind == "text":
        return {**head, "options": {"mode": "markdown", "content": panel.text}}
    source = _source(panel.queries[0], plugin)
    return {
        **head,
        "description": panel.about,
        "datasource": source,
        "targets": [
            {**_target(query, _LETTERS[at], plugin), "datasource": _source(query, plugin)}
            for at, query in enumerate(panel.queries)
        ],
        "fieldConfig": {
            "defaults": _defaults(panel, dashboard),
            "overrides": _overrides(panel, dashboard),
        },
        "options": _OPTIONS[panel.kind](panel),
        "transformations": _transformations(panel),
    }


def _source(query: Query, plugin: Plugin) -> Json:
    if isinstance(query, Promql):
        return {"type": PROMETHEUS, "uid": "${prometheus}"}
    if isinstance(query, LogQuery):
        return {"type": query.source, "uid": "${logs}"}
    return {"type": plugin.type, "uid": "${api}"}


def _target(query: Query, ref: str, plugin: Plugin) -> Json:
    if isinstance(query, LogQuery):
        return log_lines(query, ref)
    return promql(query, ref) if isinstance(query, Promql) else plugin.query(query, ref)


def _defaults(panel: Panel, dashboard: Dashboard) -> Json:
    defaults: Json = {
        "unit": panel.unit,
        "color": {"mode": "palette-classic"},
        "custom": {},
        "noValue": reason(panel),
    }
    if links := drill_down.of_lines(panel, dashboard):
        defaults["links"] = links
    if panel.kind == "timeseries":
        defaults["min"] = 0
        defaults["custom"] = {
            "drawStyle": "bars" if panel.bars else "line",
            "fillOpacity": 60 if panel.bars else 20 if panel.stacked else 0,
            "lineWidth": 1,
            "showPoints": "never",
            "spanNulls": False,  # show gaps as gaps
            "stacking": {"mode": "normal" if panel.stacked else "none", "group": "A"},
            "axisSoftMin": 0,
            "thresholdsStyle": {"mode": "dashed" if panel.thresholds else "off"},
        }
    if panel.maximum is not None:
        defaults["max"] = panel.maximum
    if panel.kind == "bargauge":
        defaults["min"] = 0
    if panel.line_name:
        defaults["displayName"] = panel.line_name
    if panel.thresholds:
        # Lines keep their own colours, next to dashed threshold lines.
        if panel.kind != "timeseries":
            defaults["color"] = {"mode": "thresholds"}
        defaults["thresholds"] = _steps(panel.thresholds)
    return defaults


def _steps(of: Thresholds) -> Json:
    """Thresholds in Grafana's form: each colour from its value on, the first for all below."""
    begins = [(color, value) for color, value in (("orange", of.orange), ("red", of.red))
              if value is not None]  # fmt: skip
    colors: list[tuple[str, float | None]] = [("green", None), *begins]
    if of.low:
        names = [color for color, _ in reversed(colors)]
        values = [None, *(value for _, value in reversed(begins))]
        colors = list(zip(names, values, strict=True))
    steps: list[Json] = [{"color": color, "value": value} for color, value in colors]
    return {"mode": "absolute", "steps": steps}


def _columns(panel: Panel) -> tuple[PanelColumn, ...]:
    if panel.columns or panel.line_name:
        return panel.columns
    seen = {
        column.key: column
        for query in panel.queries
        if isinstance(query, ApiQuery)
        for column in query.columns
    }
    return tuple(seen.values())


def _overrides(panel: Panel, dashboard: Dashboard) -> list[Json]:
    beside = drill_down.keys(panel)
    columns: list[Json] = [
        {"matcher": {"id": "byName", "options": column.key}, "properties": properties}
        for column in _columns(panel)
        if (properties := _properties(column, drill_down.of_column(column, beside, dashboard)))
    ]
    if panel.kind != "table":
        return columns
    # In a table with rows, show a cell without a value as empty.
    cells: Json = {
        "matcher": {"id": "byRegexp", "options": "/.*/"},
        "properties": [{"id": "noValue", "value": " "}],
    }
    return [cells, *columns]


def _properties(column: PanelColumn, links: list[Json]) -> list[Json]:
    found: list[Json] = []
    if column.title:
        found.append({"id": "displayName", "value": column.title})
    if column.unit:
        found.append({"id": "unit", "value": column.unit})
    if links:
        found.append({"id": "links", "value": links})
    if column.hidden:
        found.append({"id": "custom.hidden", "value": True})
    if column.thresholds:
        found.append({"id": "color", "value": {"mode": "thresholds"}})
        found.append({"id": "custom.cellOptions", "value": {"type": "color-text"}})
        found.append({"id": "thresholds", "value": _steps(column.thresholds)})
    return found


def _transformations(panel: Panel) -> list[Json]:
    if panel.line_name:
        return [{"id": "prepareTimeSeries", "options": {"format": "multi"}}]
    if panel.kind != "table":
        return []
    order: Json = {
        # Infinity sorts columns by name, and series include the time of the query.
        "indexByName": {column.key: at for at, column in enumerate(_columns(panel))},
        "excludeByName": {"Time": True} if panel.columns else {},
        "renameByName": {},
    }
    merged: list[Json] = [{"id": "merge", "options": {}}] if len(panel.queries) > 1 else []
    return [*merged, {"id": "organize", "options": order}]


def _timeseries(panel: Panel) -> Json:
    return {
        "legend": {
            "displayMode": "table",
            "placement": "bottom",
            "showLegend": True,
            "calcs": ["sum", "max"] if panel.bars else ["mean", "max", "lastNotNull"],
        },
        "tooltip": {"mode": "multi", "sort": "desc"},
    }


def _stat(panel: Panel) -> Json:
    return {
        "reduceOptions": _LAST,
        "colorMode": "value" if panel.thresholds else "none",
        "graphMode": "none",
        "justifyMode": "auto",
        "orientation": "auto",
        "textMode": "auto",
    }


def _table(panel: Panel) -> Json:
    sort = [{"displayName": panel.sort_by, "desc": True}] if panel.sort_by else []
    return {"showHeader": True, "cellHeight": "sm", "sortBy": sort}


def _bargauge(_made: Panel) -> Json:
    return {
        "reduceOptions": _LAST,
        "displayMode": "basic",
        "orientation": "horizontal",
        "showUnfilled": True,
        "valueMode": "color",
    }


def _logs(_made: Panel) -> Json:
    return {
        "showTime": True,
        "showLabels": False,
        "showCommonLabels": False,
        "wrapLogMessage": True,
        "prettifyLogMessage": False,
        "enableLogDetails": True,
        "dedupStrategy": "none",
        "sortOrder": "Ascending",
    }


_OPTIONS: Mapping[str, Callable[[Panel], Json]] = {
    "timeseries": _timeseries,
    "stat": _stat,
    "table": _table,
    "bargauge": _bargauge,
    "logs": _logs,
}
