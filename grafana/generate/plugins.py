"""Queries in the formats of the data source plugins.

Paths into an answer are kept so simple that all dialects agree on them: rows are the answer, and a
column is a key of a row. The formats are those of
marcusolsson-json-datasource 1.4 and yesoreyeram-infinity-datasource 3.11.
"""

from collections.abc import Callable
from typing import NamedTuple

from grafana.generate.model import ApiQuery, Json, LogQuery, Promql
from grafana.generate.promql import folded

_EPOCH = {"string": "string", "number": "number", "time": "timestamp_epoch"}


def _infinity(rows: ApiQuery, ref: str) -> Json:
    return {
        "refId": ref,
        "type": "json",
        "source": "url",
        # Run by Grafana's server, where ${__user.login} in the settings is known.
        "parser": "backend",
        "format": "table",
        "url": rows.path,
        "url_options": {
            "method": "GET",
            "data": "",
            "params": [{"key": key, "value": value} for key, value in rows.parameters()],
            "headers": [],
        },
        "root_selector": "",
        "columns": [
            {"selector": column.key, "text": column.key, "type": _EPOCH[column.kind]}
            for column in rows.columns
        ],
        "filters": [],
    }


def _infinity_variable(rows: ApiQuery) -> Json:
    query = _infinity(rows, "variable")
    (column,) = rows.columns
    query["columns"] = [
        {"selector": column.key, "text": name, "type": "string"} for name in ("__text", "__value")
    ]
    return {"queryType": "infinity", "query": "", "refId": "variable", "infinityQuery": query}


def _json_api(rows: ApiQuery, ref: str) -> Json:
    return {
        "refId": ref,
        "method": "GET",
        "urlPath": rows.path,
        "queryParams": "",
        "params": [[key, value] for key, value in rows.parameters()],
        "headers": [],
        "body": "",
        # By default, answers are cached for five minutes, under a key that does not include the
        # user.
        "cacheDurationSeconds": 0,
        "fields": [
            {
                "jsonPath": f"$[*].{column.key}",
                "language": "jsonpath",
                "name": column.key,
                "type": column.kind,
            }
            for column in rows.columns
        ],
    }


def _json_api_variable(rows: ApiQuery) -> Json:
    return _json_api(rows, "variable")


class Plugin(NamedTuple):
    """A way to read the API from Grafana."""

    folder: str
    type: str
    title: str  # of the folder of its dashboards
    suffix: str  # of uids, so that dashboards for both plugins can be installed together
    query: Callable[[ApiQuery, str], Json]
    variable: Callable[[ApiQuery], Json]


INFINITY = Plugin(
    "infinity", "yesoreyeram-infinity-datasource", "Infinity", "", _infinity, _infinity_variable
)
JSON_API = Plugin(
    "json-api", "marcusolsson-json-datasource", "JSON API", "-json", _json_api, _json_api_variable
)
PLUGINS = (INFINITY, JSON_API)

PROMETHEUS = "prometheus"
LOKI = "loki"
VICTORIALOGS = "victoriametrics-logs-datasource"
_MAX_LINES = 1000


def promql(query: Promql, ref: str) -> Json:
    """A query to Prometheus, for a range or for one moment."""
    return {
        "refId": ref,
        "expr": folded(query.expr),
        "legendFormat": query.legend or "__auto",
        "instant": query.instant,
        "range": not query.instant,
        "format": "table" if query.instant else "time_series",
        "editorMode": "code",
    }


def log_lines(query: LogQuery, ref: str) -> Json:
    """A query for lines of the dashboard's time; VictoriaLogs calls that kind instant."""
    kind = "range" if query.source == LOKI else "instant"
    return {"refId": ref, "expr": query.expr, "queryType": kind, "maxLines": _MAX_LINES,
            "editorMode": "code"}  # fmt: skip


def promql_variable(text: str) -> Json:
    """`label_values(…)` in the form that Grafana's editor writes."""
    return {"qryType": 1, "query": text, "refId": "PrometheusVariableQueryEditor-VariableQuery"}
