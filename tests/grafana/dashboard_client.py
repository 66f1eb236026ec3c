"""Runs the queries of a dashboard and reads the responses as Grafana and its plugins do.

Variables: Grafana's documentation, "Variable syntax" and "Global variables"; for Prometheus, values
are escaped for regular expressions where a variable may have several. Requests and frames: the
plugins' sources (marcusolsson-json-datasource 1.4, src/api.ts and src/datasource.ts;
yesoreyeram-infinity-datasource 3.11, pkg/infinity; infinity-libs, lib/go/jsonframer).
"""

import json
import re
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from tests.helpers.waiting import scaled

Frame = dict[str, list[Any]]
Json = Mapping[str, Any]
ALL = "$__all"
SCRAPE_SECONDS = 1
_VARIABLE = re.compile(r"\$\{(?P<name>[\w.]+)(?::(?P<form>[\w:]+))?\}|\$(?P<bare>\w+)")


class Choice(NamedTuple):
    """The value that a viewer has chosen for a variable."""

    value: str | Sequence[str]
    all_value: str = ""  # replaces the variable if all are chosen
    multiple: bool = False  # may have several values, or all

    @property
    def is_all(self) -> bool:
        return self.value in (ALL, [ALL])


class PanelError(Exception):
    """An error response, which Grafana shows in the panel."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"{status} {text}")
        self.status = status


class Viewer(NamedTuple):
    """A user with a time range (epoch seconds) and choices for variables."""

    login: str
    start: float
    end: float
    choices: dict[str, Choice]
    scrape_seconds: float = SCRAPE_SECONDS

    def interpolate(self, template: str, escape: Callable[[Choice], str] | None = None) -> str:
        """The template with all variables replaced."""

        def replace(match: re.Match[str]) -> str:
            name = match["name"] or match["bare"]
            if name in (built_in := self._built_in_variables()):
                return built_in[name]
            choice = self.choices.get(name)
            if choice is None:
                return match[0]
            if choice.is_all and choice.all_value:
                return choice.all_value
            if match["form"]:
                return _FORMATS[match["form"]](choice.value)
            return escape(choice) if escape else _glob_pattern(choice.value)

        return _VARIABLE.sub(replace, template)

    def _built_in_variables(self) -> dict[str, str]:
        span = self.end - self.start
        interval = max(self.scrape_seconds, round(span / 500))
        return {
            "__from": str(int(self.start * 1000)),
            "__to": str(int(self.end * 1000)),
            "__interval": f"{interval}s",
            "__interval_ms": str(interval * 1000),
            "__rate_interval": f"{max(interval + self.scrape_seconds, 4 * self.scrape_seconds)}s",
            "__range": f"{int(span)}s",
            "__user.login": self.login,
        }


def _as_list(value: str | Sequence[str]) -> list[str]:
    return [value] if isinstance(value, str) else list(value)


def _glob_pattern(value: str | Sequence[str]) -> str:
    values = _as_list(value)
    return values[0] if len(values) == 1 else "{" + ",".join(values) + "}"


_FORMATS: dict[str, Callable[[str | Sequence[str]], str]] = {
    "csv": lambda value: ",".join(_as_list(value)),
    "percentencode": lambda value: urllib.parse.quote(_glob_pattern(value), safe=""),
}


def _promql_escaped(choice: Choice) -> str:
    values = _as_list(choice.value)
    if not choice.multiple:
        return values[0].replace("\\", "\\\\").replace('"', '\\"')
    escaped = [re.sub(r"[$^*{}\[\]+?.()|\\]", r"\\\\\g<0>", each) for each in values]
    return escaped[0] if len(escaped) == 1 else f"({'|'.join(escaped)})"


class GrafanaClient(NamedTuple):
    """A client of a server; `headers(type, login)` are those that Grafana's data source sends."""

    url: str
    headers: Callable[[str, str], Mapping[str, str]]  # type of the data source, login

    def frames(self, target: Json, viewer: Viewer) -> list[Frame]:
        """The frames of a panel's target."""
        return _QUERY_FUNCTIONS[target["datasource"]["type"]](self, target, viewer)

    def values(self, variable: Json, viewer: Viewer) -> list[str]:
        """The options of a query variable."""
        kind, query = variable["datasource"]["type"], variable["query"]
        if kind == "prometheus":
            return self._label_values(viewer.interpolate(query["query"], _promql_escaped), viewer)
        target = query["infinityQuery"] if kind.endswith("infinity-datasource") else query
        (frame,) = self.frames({**target, "datasource": variable["datasource"]}, viewer)
        return list(dict.fromkeys(str(each) for each in next(iter(frame.values()), [])))

    def _label_values(self, text: str, viewer: Viewer) -> list[str]:
        match = re.fullmatch(r"label_values\((.+), (\w+)\)", text)
        assert match, text
        form = [("match[]", match[1]), ("start", viewer.start), ("end", viewer.end)]
        path = f"/api/v1/prometheus/api/v1/label/{match[2]}/values?{urllib.parse.urlencode(form)}"
        values: list[str] = self.get(path, "prometheus", viewer)["data"]
        return values

    def get(self, path: str, kind: str, viewer: Viewer, body: bytes | None = None) -> Any:
        """The JSON of a response; errors contain the request."""
        headers = dict(self.headers(kind, viewer.login))
        request = urllib.request.Request(self.url + path, body, headers)
        try:
            with urllib.request.urlopen(request, timeout=scaled(30)) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            request_text = f"{path} {urllib.parse.unquote((body or b'').decode())}"
            raise PanelError(error.code, f"{error.read().decode()} for {request_text}") from error


def _query_prometheus(client: GrafanaClient, target: Json, viewer: Viewer) -> list[Frame]:
    query = viewer.interpolate(target["expr"], _promql_escaped)
    if target["instant"]:
        endpoint, form = "query", [("query", query), ("time", str(viewer.end))]
    else:
        step = viewer.interpolate("$__interval").removesuffix("s")
        endpoint = "query_range"
        form = [("query", query), ("start", str(viewer.start)), ("end", str(viewer.end)),
                ("step", step)]  # fmt: skip
    body = urllib.parse.urlencode(form).encode()
    answer = client.get(f"/api/v1/prometheus/api/v1/{endpoint}", "prometheus", viewer, body)
    return [_series_frame(each) for each in answer["data"]["result"]]


def _series_frame(result: Json) -> Frame:
    samples = result.get("values") or [result["value"]]
    labels = {name: [value] * len(samples) for name, value in result["metric"].items()}
    return {"Time": [at for at, _ in samples], **labels, "Value": [float(v) for _, v in samples]}


def _query_json_api(client: GrafanaClient, target: Json, viewer: Viewer) -> list[Frame]:
    path = re.sub("/+", "/", "/api/v1" + viewer.interpolate(target["urlPath"]))
    pairs = [
        (viewer.interpolate(key), viewer.interpolate(value))
        for key, value in target["params"]
        if key
    ]
    query = "&".join(f"{_encode_component(key)}={_encode_component(value)}" for key, value in pairs)
    answer = client.get(f"{path}?{query}", target["datasource"]["type"], viewer)
    frame = {
        field["name"]: _values_at_path(field["jsonPath"], answer) for field in target["fields"]
    }
    lengths = {name: len(values) for name, values in frame.items()}
    assert len(set(lengths.values())) <= 1, f"Fields have different lengths: {lengths}"
    for field in target["fields"]:
        _check_types(field["type"], frame[field["name"]])
    return [frame]


def _encode_component(text: str) -> str:
    return urllib.parse.quote(text, safe="-_.!~*'()")  # as encodeURIComponent does


def _values_at_path(path: str, answer: Any) -> list[Any]:
    """`$[*].key`, `$.root[*].key`; rows without the key give nothing, as with jsonpath-plus."""
    match = re.fullmatch(r"\$(?:\.([\w.]+))?\[\*\]\.(\w+)", path)
    assert match, path
    root, key = match.groups()
    rows = _descend(root or "", answer)
    assert isinstance(rows, list), answer
    return [row[key] for row in rows if key in row]


def _descend(root: str, answer: Any) -> Any:
    for key in filter(None, root.split(".")):
        answer = answer[key]
    return answer


def _query_infinity(client: GrafanaClient, target: Json, viewer: Viewer) -> list[Frame]:
    url_options = target["url_options"]
    pairs = [(each["key"], viewer.interpolate(each["value"])) for each in url_options["params"]]
    query = urllib.parse.urlencode(sorted(pairs, key=lambda pair: pair[0]))  # Go's url.Values
    path = f"/api/v1{viewer.interpolate(target['url'])}?{query}"
    answer = client.get(path, target["datasource"]["type"], viewer)
    answer = _descend(target["root_selector"], answer)
    assert isinstance(answer, list), answer
    frame: Frame = {}
    for column in target["columns"]:
        missing = [row for row in answer if column["selector"] not in row]
        assert not missing, column  # it would be an empty cell
        frame[column["text"]] = [row[column["selector"]] for row in answer]
        _check_types(column["type"], frame[column["text"]])
    return [dict(sorted(frame.items()))]


_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "number": (int, float),
    "time": (int,),
    "timestamp_epoch": (int,),
}


def _check_types(kind: str, values: Sequence[Any]) -> None:
    for value in values:
        assert value is None or isinstance(value, _TYPES[kind]), (kind, value)
        if kind in ("time", "timestamp_epoch") and value is not None:
            assert 1e12 < value < 1e13, "milliseconds; below 10^12 the plugin takes it for seconds"


_QUERY_FUNCTIONS: dict[str, Callable[[GrafanaClient, Json, Viewer], list[Frame]]] = {
    "prometheus": _query_prometheus,
    "marcusolsson-json-datasource": _query_json_api,
    "yesoreyeram-infinity-datasource": _query_infinity,
}


def open_dashboard(
    client: GrafanaClient,
    dashboard: Json,
    login: str,
    span: tuple[float, float],
    scrape_seconds: float = SCRAPE_SECONDS,
    **variables: str,
) -> Viewer:
    """A viewer who opens the dashboard with these variables in the URL."""
    viewer = Viewer(login, *span, {}, scrape_seconds)
    for variable in dashboard["templating"]["list"]:
        name, kind = variable["name"], variable["type"]
        if kind == "datasource":
            continue
        multiple = bool(variable.get("multi") or variable.get("includeAll"))
        all_value = variable.get("allValue") or ""
        if kind == "query":
            options = client.values(variable, viewer)
            if name in variables:
                assert variables[name] in options, (name, options)
        value: str | list[str] = variables.get(name, "")
        if not value and kind != "textbox":
            value = ALL if variable["includeAll"] else options[0] if options else ""
        selected = [value] if variable.get("multi") else value
        viewer.choices[name] = Choice(selected, all_value, multiple)
    return viewer


def now() -> float:
    """The end of a dashboard's time range."""
    return time.time()
