"""A panel's JSON (classic schema, as of Grafana 11.6)."""

from collections.abc import Callable, Mapping

from grafana.generate.model import ApiQuery, Json, Panel, PanelColumn, Promql, Query
from grafana.generate.plugins import PROMETHEUS, Plugin, promql

_LAST: Json = {"calcs": ["lastNotNull"], "fields": "", "values": False}
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def panel(made: Panel, number: int, x: int, y: int, plugin: Plugin) -> Json:
    """One panel at a place of the grid."""
    shape: Json = {"h": made.height, "w": made.width, "x": x, "y": y}
    head: Json = {"id": number, "type": made.kind, "title": made.title, "gridPos": shape}
    if made.kind == "row":
        return {**head, "collapsed": False, "panels": []}
    if made.kind == "text":
        return {**head, "options": {"mode": "markdown", "content": made.text}}
    source = _source(made.queries[0], plugin)
    return {
        **head,
        "description": made.about,
        "datasource": source,
        "targets": [
            {**_target(query, _LETTERS[at], plugin), "datasource": _source(query, plugin)}
            for at, query in enumerate(made.queries)
        ],
        "fieldConfig": {"defaults": _defaults(made), "overrides": _overrides(made)},
        "options": _OPTIONS[made.kind](made),
        "transformations": _transformations(made),
    }


def _source(query: Query, plugin: Plugin) -> Json:
    if isinstance(query, Promql):
        return {"type": PROMETHEUS, "uid": "${prometheus}"}
    return {"type": plugin.type, "uid": "${api}"}


def _target(query: Query, ref: str, plugin: Plugin) -> Json:
    return promql(query, ref) if isinstance(query, Promql) else plugin.query(query, ref)


def _defaults(made: Panel) -> Json:
    defaults: Json = {"unit": made.unit, "color": {"mode": "palette-classic"}, "custom": {}}
    if made.kind == "timeseries":
        defaults["min"] = 0
        defaults["custom"] = {
            "drawStyle": "bars" if made.bars else "line",
            "fillOpacity": 60 if made.bars else 20 if made.stacked else 0,
            "lineWidth": 1,
            "showPoints": "never",
            "spanNulls": False,  # a gap is a gap
            "stacking": {"mode": "normal" if made.stacked else "none", "group": "A"},
            "axisSoftMin": 0,
        }
    if made.most is not None:
        defaults["max"] = made.most
    if made.kind == "bargauge":
        defaults["min"] = 0
    if made.line_name:
        defaults["displayName"] = made.line_name
    if made.warn:
        steps: list[Json] = [{"color": "green", "value": None}]
        steps += [
            {"color": color, "value": value}
            for color, value in zip(("orange", "red"), made.warn, strict=False)
        ]
        defaults["color"] = {"mode": "thresholds"}
        defaults["thresholds"] = {"mode": "absolute", "steps": steps}
    return defaults


def _columns(made: Panel) -> tuple[PanelColumn, ...]:
    if made.columns or made.line_name:
        return made.columns
    seen = {
        column.key: column
        for query in made.queries
        if isinstance(query, ApiQuery)
        for column in query.columns
    }
    return tuple(seen.values())


def _overrides(made: Panel) -> list[Json]:
    return [
        {"matcher": {"id": "byName", "options": column.key}, "properties": properties}
        for column in _columns(made)
        if (properties := _properties(column))
    ]


def _properties(column: PanelColumn) -> list[Json]:
    found: list[Json] = []
    if column.title:
        found.append({"id": "displayName", "value": column.title})
    if column.unit:
        found.append({"id": "unit", "value": column.unit})
    if column.link:
        link = {"title": f"Open {column.title}", "url": column.link}
        found.append({"id": "links", "value": [link]})
    if column.hidden:
        found.append({"id": "custom.hidden", "value": True})
    return found


def _transformations(made: Panel) -> list[Json]:
    if made.line_name:
        return [{"id": "prepareTimeSeries", "options": {"format": "multi"}}]
    if made.kind != "table":
        return []
    order: Json = {
        # Infinity sorts columns by name, and series bring a time that is the moment of asking.
        "indexByName": {column.key: at for at, column in enumerate(_columns(made))},
        "excludeByName": {"Time": True} if made.columns else {},
        "renameByName": {},
    }
    merged: list[Json] = [{"id": "merge", "options": {}}] if len(made.queries) > 1 else []
    return [*merged, {"id": "organize", "options": order}]


def _timeseries(_made: Panel) -> Json:
    return {
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []},
        "tooltip": {"mode": "multi", "sort": "desc"},
    }


def _stat(made: Panel) -> Json:
    return {
        "reduceOptions": _LAST,
        "colorMode": "value" if made.warn else "none",
        "graphMode": "none",
        "justifyMode": "auto",
        "orientation": "auto",
        "textMode": "auto",
    }


def _table(made: Panel) -> Json:
    sort = [{"displayName": made.sort_by, "desc": True}] if made.sort_by else []
    return {"showHeader": True, "cellHeight": "sm", "sortBy": sort}


def _bargauge(_made: Panel) -> Json:
    return {
        "reduceOptions": _LAST,
        "displayMode": "basic",
        "orientation": "horizontal",
        "showUnfilled": True,
        "valueMode": "color",
    }


_OPTIONS: Mapping[str, Callable[[Panel], Json]] = {
    "timeseries": _timeseries,
    "stat": _stat,
    "table": _table,
    "bargauge": _bargauge,
}
