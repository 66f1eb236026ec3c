"""What Grafana's own package `@grafana/data` makes of the answers to a dashboard's queries."""

import json
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.grafana.dashboard_client import Frame
from tests.helpers.processes import succeeds

_SCRIPT = Path(__file__).with_name("show_panels.cjs")
Json = Mapping[str, Any]


class ShownField(NamedTuple):
    """A column or line as Grafana names it, with the texts of its first values."""

    name: str
    hidden: bool
    has_known_unit: bool
    texts: Sequence[str]


class ShownPanel(NamedTuple):
    """A panel's fields, and the names that its overrides look for in vain."""

    fields: Sequence[ShownField]
    unmatched: Sequence[str]


def missing() -> str:
    """Why the package cannot be run here, or nothing."""
    if shutil.which("node") is None:
        return "node is not installed"
    found = succeeds(["node", "-e", "require.resolve('@grafana/data'), require.resolve('jsdom')"])
    return "" if found else "@grafana/data and jsdom are not in NODE_PATH"


def show(panels: Sequence[tuple[Json, Sequence[tuple[Json, Sequence[Frame]]]]]) -> list[ShownPanel]:
    """Show panels with the frames of each of their targets."""
    documents = [
        {
            "panel": panel,
            "frames": [
                _fields(frame, target, is_one_of_several=len(answers) > 1)
                for target, frames in answers
                for frame in _tables(target, frames)
            ],
        }
        for panel, answers in panels
    ]
    output = subprocess.run(
        ["node", str(_SCRIPT)], input=json.dumps(documents), text=True, capture_output=True
    )
    assert output.returncode == 0, output.stderr[-2000:]
    return [
        ShownPanel(
            [ShownField(f["name"], f["hidden"], f["unit"], f["texts"]) for f in panel["fields"]],
            panel["unmatched"],
        )
        for panel in json.loads(output.stdout)
    ]


def _tables(target: Json, frames: Sequence[Frame]) -> Sequence[Frame]:
    """Prometheus' data source makes one table of all series, whose columns are the labels."""
    if target.get("format") != "table" or target["datasource"]["type"] != "prometheus":
        return frames
    names = list(dict.fromkeys(name for frame in frames for name in frame if name != "Value"))
    rows = [frame for frame in frames if frame["Value"]]
    return [{name: [row.get(name, [""])[0] for row in rows] for name in (*names, "Value")}]


def _fields(frame: Frame, target: Json, is_one_of_several: bool) -> list[dict[str, Any]]:
    is_prometheus = target["datasource"]["type"] == "prometheus"
    if is_prometheus and target["format"] == "time_series":
        labels = {name: values[0] for name, values in frame.items() if name not in _OWN_COLUMNS}
        legend = re.sub(
            r"\{\{\s*(\w+)\s*\}\}", lambda match: labels.get(match[1], ""), target["legendFormat"]
        )
        return [
            _field("Time", frame["Time"], True),
            {
                **_field("Value", frame["Value"], False),
                "labels": labels,
                "config": {"displayNameFromDS": legend},
            },
        ]
    times = {
        column.get("text", column.get("name"))
        for column in (*target.get("columns", ()), *target.get("fields", ()))
        if column["type"] in ("time", "timestamp_epoch")
    } | {"Time"}
    value = f"Value #{target['refId']}" if is_prometheus and is_one_of_several else "Value"
    return [
        _field(value if is_prometheus and name == "Value" else name, values, name in times)
        for name, values in frame.items()
    ]


_OWN_COLUMNS = ("Time", "Value")


def _field(name: str, values: Sequence[Any], is_time: bool) -> dict[str, Any]:
    is_number = all(isinstance(value, int | float | None) for value in values)
    values = [None if value != value else value for value in values]  # NaN: a gap
    kind = "time" if is_time else "number" if is_number else "string"
    return {"name": name, "type": kind, "values": values, "config": {}}
