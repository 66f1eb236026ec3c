"""Asks the queries of a dashboard as Grafana and its plugins do, and reads answers as they do.

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

Frame = dict[str, list[Any]]
Json = Mapping[str, Any]
ALL = "$__all"
SCRAPE_SECONDS = 1
_VARIABLE = re.compile(r"\$\{(?P<name>[\w.]+)(?::(?P<form>[\w:]+))?\}|\$(?P<bare>\w+)")


class Chosen(NamedTuple):
    """What a viewer has chosen for a variable."""

    value: str | Sequence[str]
    all_value: str = ""  # what stands for all
    many: bool = False  # may have several values, or all

    @property
    def all(self) -> bool:
        return self.value in (ALL, [ALL])


class Refused(Exception):
    """An answer that Grafana shows as a panel's error."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"{status} {text}")
        self.status = status


class Viewer(NamedTuple):
    """Who looks, from when to when (epoch seconds), and with which choices."""

    login: str
    start: float
    end: float
    choices: dict[str, Chosen]
    scrape_seconds: float = SCRAPE_SECONDS

    def text(self, template: str, quote: Callable[[Chosen], str] | None = None) -> str:
        """The template with all variables put in."""

        def put(match: re.Match[str]) -> str:
            name = match["name"] or match["bare"]
            if name in (own := self._own()):
                return own[name]
            chosen = self.choices.get(name)
            if chosen is None:
                return match[0]
            if chosen.all and chosen.all_value:
                return chosen.all_value
            if match["form"]:
                return _FORMATS[match["form"]](chosen.value)
            return quote(chosen) if quote else _glob(chosen.value)

        return _VARIABLE.sub(put, template)

    def _own(self) -> dict[str, str]:
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


def _several(value: str | Sequence[str]) -> list[str]:
    return [value] if isinstance(value, str) else list(value)


def _glob(value: str | Sequence[str]) -> str:
    values = _several(value)
    return values[0] if len(values) == 1 else "{" + ",".join(values) + "}"


_FORMATS: dict[str, Callable[[str | Sequence[str]], str]] = {
    "csv": lambda value: ",".join(_several(value)),
    "percentencode": lambda value: urllib.parse.quote(_glob(value), safe=""),
}


def _promql_quoted(chosen: Chosen) -> str:
    values = _several(chosen.value)
    if not chosen.many:
        return values[0].replace("\\", "\\\\").replace('"', '\\"')
    escaped = [re.sub(r"[$^*{}\[\]+?.()|\\]", r"\\\\\g<0>", each) for each in values]
    return escaped[0] if len(escaped) == 1 else f"({'|'.join(escaped)})"


class Grafana(NamedTuple):
    """Grafana's way to a server: `headers(login)` are what its data sources send along."""

    url: str
    headers: Callable[[str, str], Mapping[str, str]]  # type of the data source, login

    def frames(self, target: Json, viewer: Viewer) -> list[Frame]:
        """What a panel's target gives."""
        return _ASK[target["datasource"]["type"]](self, target, viewer)

    def values(self, variable: Json, viewer: Viewer) -> list[str]:
        """What a query variable offers."""
        kind, query = variable["datasource"]["type"], variable["query"]
        if kind == "prometheus":
            return self._label_values(viewer.text(query["query"], _promql_quoted), viewer)
        target = query["infinityQuery"] if kind.endswith("infinity-datasource") else query
        (frame,) = self.frames({**target, "datasource": variable["datasource"]}, viewer)
        return list(dict.fromkeys(str(each) for each in next(iter(frame.values()), [])))

    def _label_values(self, text: str, viewer: Viewer) -> list[str]:
        match = re.fullmatch(r"label_values\((.+), (\w+)\)", text)
        assert match, text
        form = [("match[]", match[1]), ("start", viewer.start), ("end", viewer.end)]
        path = f"/api/v1/prometheus/api/v1/label/{match[2]}/values?{urllib.parse.urlencode(form)}"
        found: list[str] = self.get(path, "prometheus", viewer)["data"]
        return found

    def get(self, path: str, kind: str, viewer: Viewer, body: bytes | None = None) -> Any:
        """An answer's JSON; an error says what was asked."""
        headers = dict(self.headers(kind, viewer.login))
        request = urllib.request.Request(self.url + path, body, headers)
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            asked = f"{path} {urllib.parse.unquote((body or b'').decode())}"
            raise Refused(error.code, f"{error.read().decode()} for {asked}") from error


def _prometheus(grafana: Grafana, target: Json, viewer: Viewer) -> list[Frame]:
    query = viewer.text(target["expr"], _promql_quoted)
    if target["instant"]:
        what, form = "query", [("query", query), ("time", str(viewer.end))]
    else:
        step = viewer.text("$__interval").removesuffix("s")
        what = "query_range"
        form = [("query", query), ("start", str(viewer.start)), ("end", str(viewer.end)),
                ("step", step)]  # fmt: skip
    body = urllib.parse.urlencode(form).encode()
    answer = grafana.get(f"/api/v1/prometheus/api/v1/{what}", "prometheus", viewer, body)
    return [_series(each) for each in answer["data"]["result"]]


def _series(result: Json) -> Frame:
    samples = result.get("values") or [result["value"]]
    labels = {name: [value] * len(samples) for name, value in result["metric"].items()}
    return {"Time": [at for at, _ in samples], **labels, "Value": [float(v) for _, v in samples]}


def _json_api(grafana: Grafana, target: Json, viewer: Viewer) -> list[Frame]:
    path = re.sub("/+", "/", "/api/v1" + viewer.text(target["urlPath"]))
    pairs = [(viewer.text(key), viewer.text(value)) for key, value in target["params"] if key]
    query = "&".join(f"{_component(key)}={_component(value)}" for key, value in pairs)
    answer = grafana.get(f"{path}?{query}", target["datasource"]["type"], viewer)
    frame = {field["name"]: _path(field["jsonPath"], answer) for field in target["fields"]}
    lengths = {name: len(values) for name, values in frame.items()}
    assert len(set(lengths.values())) <= 1, f"Fields have different lengths: {lengths}"
    for field in target["fields"]:
        _fits(field["type"], frame[field["name"]])
    return [frame]


def _component(text: str) -> str:
    return urllib.parse.quote(text, safe="-_.!~*'()")  # as encodeURIComponent does


def _path(path: str, answer: Any) -> list[Any]:
    """`$[*].key`, `$.root[*].key`; rows without the key give nothing, as with jsonpath-plus."""
    match = re.fullmatch(r"\$(?:\.([\w.]+))?\[\*\]\.(\w+)", path)
    assert match, path
    root, key = match.groups()
    rows = _at(root or "", answer)
    assert isinstance(rows, list), answer
    return [row[key] for row in rows if key in row]


def _at(root: str, answer: Any) -> Any:
    for key in filter(None, root.split(".")):
        answer = answer[key]
    return answer


def _infinity(grafana: Grafana, target: Json, viewer: Viewer) -> list[Frame]:
    options = target["url_options"]
    pairs = [(each["key"], viewer.text(each["value"])) for each in options["params"]]
    query = urllib.parse.urlencode(sorted(pairs, key=lambda pair: pair[0]))  # Go's url.Values
    path = f"/api/v1{viewer.text(target['url'])}?{query}"
    answer = grafana.get(path, target["datasource"]["type"], viewer)
    answer = _at(target["root_selector"], answer)
    assert isinstance(answer, list), answer
    frame: Frame = {}
    for column in target["columns"]:
        missing = [row for row in answer if column["selector"] not in row]
        assert not missing, column  # it would be an empty cell
        frame[column["text"]] = [row[column["selector"]] for row in answer]
        _fits(column["type"], frame[column["text"]])
    return [dict(sorted(frame.items()))]


_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "number": (int, float),
    "time": (int,),
    "timestamp_epoch": (int,),
}


def _fits(kind: str, values: Sequence[Any]) -> None:
    for value in values:
        assert value is None or isinstance(value, _TYPES[kind]), (kind, value)
        if kind in ("time", "timestamp_epoch") and value is not None:
            assert 1e12 < value < 1e13, "milliseconds; below 10^12 the plugin takes it for seconds"


_ASK: dict[str, Callable[[Grafana, Json, Viewer], list[Frame]]] = {
    "prometheus": _prometheus,
    "marcusolsson-json-datasource": _json_api,
    "yesoreyeram-infinity-datasource": _infinity,
}


def look(
    grafana: Grafana,
    dashboard: Json,
    login: str,
    span: tuple[float, float],
    scrape_seconds: float = SCRAPE_SECONDS,
    **given: str,
) -> Viewer:
    """A viewer who opens the dashboard; `given` stands in its address."""
    viewer = Viewer(login, *span, {}, scrape_seconds)
    for variable in dashboard["templating"]["list"]:
        name, kind = variable["name"], variable["type"]
        if kind == "datasource":
            continue
        many = bool(variable.get("multi") or variable.get("includeAll"))
        all_value = variable.get("allValue") or ""
        if kind == "query":
            offered = grafana.values(variable, viewer)
            if name in given:
                assert given[name] in offered, (name, offered)
        value: str | list[str] = given.get(name, "")
        if not value and kind != "textbox":
            value = ALL if variable["includeAll"] else offered[0] if offered else ""
        chosen = [value] if variable.get("multi") else value
        viewer.choices[name] = Chosen(chosen, all_value, many)
    return viewer


def now() -> float:
    """The end of a dashboard's time."""
    return time.time()
