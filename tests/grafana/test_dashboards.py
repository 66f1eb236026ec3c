"""The dashboards as they are committed."""

import json
import re
from pathlib import Path

import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard

from batchjob_stats_server.app import ROUTERS
from grafana.generate.__main__ import FOLDER, files
from grafana.generate.model import PAGES
from grafana.generate.plugins import PLUGINS
from grafana.generate.thresholds import (
    DOUBTED,
    FAILED,
    LITTLE_COVERED,
    LITTLE_USED,
    NEAR_LIMIT,
    POLL_AGE,
)
from tests.prometheus import families

FILES = sorted(FOLDER.rglob("*.json"))
DASHBOARDS = {path.relative_to(FOLDER).as_posix(): json.loads(path.read_text()) for path in FILES}
SCHEMA = 41
API = {plugin.type for plugin in PLUGINS}
PATHS = {route.path for router in ROUTERS for route in router.routes}


def parametrized(test):
    return pytest.mark.parametrize("name", DASHBOARDS)(test)


def panels(name):
    return [each for each in DASHBOARDS[name]["panels"] if each["type"] not in ("row", "text")]


def expressions(name):
    for panel in panels(name):
        for target in panel["targets"]:
            if "expr" in target:
                yield target["expr"]
    for variable in DASHBOARDS[name]["templating"]["list"]:
        if variable["type"] == "query" and variable["datasource"]["type"] == "prometheus":
            yield variable["query"]["query"]


def strings(value):
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for each in value:
            yield from strings(each)
    elif isinstance(value, str):
        yield value


def parameters_and_keys(target):
    """Of a question to the API: its parameters, and the keys that the panel shows of each row."""
    if "url_options" in target:
        given = {each["key"]: each["value"] for each in target["url_options"]["params"]}
        return given, [column["selector"] for column in target["columns"]]
    return dict(target["params"]), [column["name"] for column in target["fields"]]


@parametrized
def test_rows_are_asked_for_by_the_keys_that_are_shown(name):
    """A job has over a hundred; a report is an object, of which no part can be asked for."""
    for panel in panels(name):
        for target in panel["targets"]:
            if panel["datasource"]["type"] in API and "/report" not in json.dumps(target):
                given, keys = parameters_and_keys(target)
                assert given["fields"].split(",") == list(dict.fromkeys(keys))


def test_the_committed_files_are_what_the_generator_makes():
    made = dict(files())
    assert set(made) == set(DASHBOARDS)
    stale = [name for name, text in made.items() if text != (FOLDER / name).read_text()]
    assert not stale, "run python -m grafana.generate"


def test_uids_and_titles_differ():
    uids = [each["uid"] for each in DASHBOARDS.values()]
    assert len(set(uids)) == len(uids)
    assert all(re.fullmatch(r"batchjob-[a-z-]{1,30}", uid) for uid in uids)
    by_folder = {(Path(name).parent, each["title"]) for name, each in DASHBOARDS.items()}
    assert len(by_folder) == len(DASHBOARDS)


@parametrized
def test_grafana_s_own_schema_knows_every_key(name):
    """Decoded and encoded again by Grafana's SDK nothing is lost."""
    made = DASHBOARDS[name]
    again = json.loads(JSONEncoder().encode(Dashboard.from_json(made)))
    assert made["schemaVersion"] == SCHEMA
    # `definition` is what the list of variables shows; Grafana writes it, the SDK has it not.
    assert [path for path in lost(made, again) if not path.endswith("/definition")] == []


def lost(made, again, at=""):
    """Paths of what is in the first and not in the second."""
    if isinstance(made, dict):
        if not isinstance(again, dict):
            return [at]
        return [
            p for key, value in made.items() for p in lost(value, again.get(key), f"{at}/{key}")
        ]
    if isinstance(made, list):
        if made and (not isinstance(again, list) or len(again) != len(made)):
            return [at]
        return [p for i, value in enumerate(made) for p in lost(value, again[i], f"{at}/{i}")]
    return [] if made == again or made in (None, "", False) else [at]


@parametrized
def test_data_sources_are_variables(name):
    for panel in panels(name):
        for source in (panel["datasource"], *(each["datasource"] for each in panel["targets"])):
            assert source["uid"] == ("${api}" if source["type"] in API else "${prometheus}")
    chosen = {each["name"] for each in DASHBOARDS[name]["templating"]["list"]}
    used = {
        each for text in strings(panels(name)) for each in re.findall(r"\$\{(api|prom\w+)\}", text)
    }
    assert used <= chosen


@parametrized
def test_variables_that_are_used_are_there(name):
    known = {each["name"] for each in DASHBOARDS[name]["templating"]["list"]}
    made = [DASHBOARDS[name]["panels"], DASHBOARDS[name]["links"], DASHBOARDS[name]["templating"]]
    for text in strings(made):
        for used in re.findall(r"\$\{?(\w+)", text):
            assert used.startswith("__") or used in known, text


@parametrized
def test_panels_have_a_unit_and_fit_the_grid(name):
    for panel in panels(name):
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        if panel["type"] != "table":
            assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        assert not re.search("#[0-9a-f]{6}", json.dumps(panel)), "colours by name, for both themes"


@parametrized
def test_promql_asks_for_what_the_programs_expose(name):
    for expr in expressions(name):
        assert families.names_in(expr) <= families.exposed_names(), expr
        # Not less than four scrapes, however far the viewer zooms in.
        assert not re.search(r"\brate\([^\[]*\[(?!\$__rate_interval|5m)", expr), expr


@parametrized
def test_links_lead_to_dashboards_of_ours(name):
    uids = {each["uid"] for each in DASHBOARDS.values()}
    for text in strings(DASHBOARDS[name]):
        for uid in re.findall(r"/d/([a-z-]+)", text):
            assert uid in uids, text
            assert "@" not in text


@parametrized
def test_links_lead_to_pages_of_ours(name):
    pages = {
        "/jobs/${job:percentencode}",
        "/clusters/${cluster:percentencode}/nodes/${node:percentencode}",
    }
    for link in DASHBOARDS[name]["links"]:
        if "localhost" in link.get("url", ""):
            address, _, query = link["url"].removeprefix(PAGES).partition("?")
            assert address in pages
            assert "cluster=" in query or "/clusters/" in address


@parametrized
def test_paths_into_answers_are_those_that_all_dialects_read_alike(name):
    for panel in panels(name):
        for target in panel["targets"]:
            for field in target.get("fields", ()):
                assert re.fullmatch(r"\$(\.[a-z_.]+)?\[\*\]\.[a-z_0-9]+", field["jsonPath"])
                assert target["cacheDurationSeconds"] == 0
            assert re.fullmatch("[a-z_.]*", target.get("root_selector", ""))
            for column in target.get("columns", ()):
                assert re.fullmatch(r"[a-z_0-9]+", column["selector"])


@parametrized
def test_api_paths_exist(name):
    for panel in panels(name):
        for target in panel["targets"]:
            path = target.get("urlPath") or target.get("url")
            if path:
                known = "/api/v1" + path.replace("${job:percentencode}", "{jobid}")
                whole = re.sub(r"\{jobid\}/(nodes|steps|gpus|emissions)$", "{jobid}/{part}", known)
                assert whole in PATHS


SERIES = re.compile(r"(?P<before>[\w ,()]*)\b(?:(?:batchjob|scrape|process)_\w+|up)\b(?=[{\[)]|$)")
FOLD = re.compile(r"\b(max|min) *(by \([\w, ]+\) )?\((\w+\()?$")


@parametrized
def test_series_are_folded_before_they_are_added_up(name):
    """Two Prometheus servers that write into one store double nothing."""
    for expr in expressions(name):
        for found in () if expr.startswith("label_values") else SERIES.finditer(expr):
            assert FOLD.search(found["before"]), expr


@parametrized
def test_a_panel_without_data_says_why(name):
    for panel in panels(name):
        assert re.fullmatch(r"No data: .+\.", panel["fieldConfig"]["defaults"]["noValue"])


@parametrized
def test_legends_have_numbers(name):
    for panel in panels(name):
        if panel["type"] == "timeseries":
            assert panel["options"]["legend"]["calcs"]


@parametrized
def test_names_lead_on_with_their_cluster_and_the_time(name):
    for panel in panels(name):
        if panel["type"] != "table":
            continue
        overrides = {
            each["matcher"]["options"]: {p["id"]: p["value"] for p in each["properties"]}
            for each in panel["fieldConfig"]["overrides"]
        }
        for key in {"user", "account", "node", "instance", "jobid"} & set(overrides):
            if overrides[key].get("custom.hidden"):
                continue
            (link,) = overrides[key]["links"]
            asks = {each["name"] for each in DASHBOARDS[name]["templating"]["list"]}
            assert "var-cluster=" in link["url"] or "cluster" not in asks | set(overrides)
            assert "${__url_time_range}" in link["url"] or "var-job=" in link["url"]


def one_cluster(dashboard):
    """Whether one has to be chosen there."""
    chosen = [each for each in dashboard["templating"]["list"] if each["name"] == "cluster"]
    return any(not each["includeAll"] for each in chosen)


@parametrized
def test_no_name_leads_with_all_clusters_to_where_one_must_be_chosen(name):
    """`${cluster}` of All is `.*`, which is the name of none."""
    by_uid = {each["uid"]: each for each in DASHBOARDS.values()}
    for url in strings([DASHBOARDS[name]["panels"], DASHBOARDS[name]["links"]]):
        target = re.match(r"/d/([a-z-]+)\?", url)
        if target and one_cluster(by_uid[target[1]]) and not one_cluster(DASHBOARDS[name]):
            (cluster,) = re.findall(r"var-cluster=([^&]+)", url)
            assert cluster != "${cluster}", url


def thresholds(part):
    """All lists of steps in a part of a dashboard."""
    if isinstance(part, dict):
        if "steps" in part:
            yield part["steps"]
        part = list(part.values())
    if isinstance(part, list):
        for each in part:
            yield from thresholds(each)


@parametrized
def test_colours_change_in_the_order_of_their_values(name):
    for steps in thresholds(DASHBOARDS[name]):
        first, *others = (each["value"] for each in steps)
        assert first is None
        assert others == sorted(set(others))
        assert [each["color"] for each in steps] in (
            ["green", "orange"], ["green", "orange", "red"], ["red", "orange", "green"],
        )  # fmt: skip


ALERTS = Path(__file__).parents[2] / "prometheus/rules"


@pytest.mark.parametrize(
    ("alert", "bound"),
    [
        ("BatchjobMemoryNearLimit", f"> {NEAR_LIMIT.red}"),
        ("BatchjobLowCpu", f"< {LITTLE_USED.red}"),
        ("BatchjobCoverageLow", f"< {LITTLE_COVERED.red}"),
        ("BatchjobUsageDoubtful", f"> {DOUBTED.red}"),
        ("BatchjobTrackedWorkFails", f"> {FAILED.red}"),
        ("BatchjobPollerBehind", f"> {POLL_AGE.orange} +"),
    ],
)
def test_colours_begin_where_alerts_do(alert, bound):
    rules = "".join(path.read_text() for path in ALERTS.glob("*_alerts.yml"))
    rule = rules.partition(f"- alert: {alert}\n")[2].partition("- alert:")[0]
    assert bound in rule.partition("for:")[0]


SHOWN_BY_COLOUR = {
    "prometheus/exporters.json": ["Last successful poll", "Coverage", "With a caveat", "Down"],
    "prometheus/job-live.json": ["CPU use", "Memory", "OOM kills"],
    "infinity/cluster.json": ["Failed jobs", "Nodes that accept no jobs"],
    "infinity/gpus.json": ["Utilization of allocated GPUs", "Allocated but idle"],
}


@pytest.mark.parametrize("name", SHOWN_BY_COLOUR)
def test_figures_that_may_be_bad_say_so(name):
    coloured = {
        panel["title"]
        for panel in panels(name)
        if panel["type"] == "stat" and panel["options"]["colorMode"] == "value"
    }
    assert set(SHOWN_BY_COLOUR[name]) <= coloured
