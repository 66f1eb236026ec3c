"""The committed dashboard files."""

import json
import re
from pathlib import Path

import pytest
import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard

from batchjob_stats_server.app import ROUTERS
from grafana.generate.__main__ import FOLDER, files
from grafana.generate.dashboards.parts import (
    CAVEATS_LIMITS,
    FAILED,
    LITTLE_COVERED,
    LITTLE_USED,
    NEAR_LIMIT,
    POLL_AGE,
)
from grafana.generate.model import PAGES
from grafana.generate.plugins import LOKI, PLUGINS, PROMETHEUS, VICTORIALOGS
from tests.prometheus import families

FILES = sorted(FOLDER.rglob("*.json"))
DASHBOARDS = {path.relative_to(FOLDER).as_posix(): json.loads(path.read_text()) for path in FILES}
SCHEMA_VERSION = 41
API_PLUGIN_TYPES = {plugin.type for plugin in PLUGINS}
LOG_TYPES = {LOKI, VICTORIALOGS}
API_PATHS = {route.path for router in ROUTERS for route in router.routes}


def for_each_dashboard(test):
    return pytest.mark.parametrize("name", DASHBOARDS)(test)


def panels(name):
    return [each for each in DASHBOARDS[name]["panels"] if each["type"] not in ("row", "text")]


def expressions(name):
    for panel in panels(name):
        for target in panel["targets"]:
            if "expr" in target and target["datasource"]["type"] == PROMETHEUS:
                yield target["expr"]
    for variable in DASHBOARDS[name]["templating"]["list"]:
        if variable["type"] == "query" and variable["datasource"]["type"] == "prometheus":
            yield variable["query"]["query"]


def all_strings(value):
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for each in value:
            yield from all_strings(each)
    elif isinstance(value, str):
        yield value


def parameters_and_keys(target):
    """The parameters of an API query, and the keys that its panel shows of each row."""
    if "url_options" in target:
        parameters = {each["key"]: each["value"] for each in target["url_options"]["params"]}
        return parameters, [column["selector"] for column in target["columns"]]
    return dict(target["params"]), [column["name"] for column in target["fields"]]


@for_each_dashboard
def test_queries_request_only_fields_that_are_shown(name):
    """A job has over a hundred fields. A report is an object and has no field selection."""
    for panel in panels(name):
        for target in panel["targets"]:
            if panel["datasource"]["type"] in API_PLUGIN_TYPES and "/report" not in json.dumps(
                target
            ):
                parameters, keys = parameters_and_keys(target)
                assert parameters["fields"].split(",") == list(dict.fromkeys(keys))


def test_committed_files_match_the_generator():
    generated = dict(files())
    assert set(generated) == set(DASHBOARDS)
    stale = [name for name, text in generated.items() if text != (FOLDER / name).read_text()]
    assert not stale, "run python -m grafana.generate"


def test_uids_and_titles_are_unique():
    uids = [each["uid"] for each in DASHBOARDS.values()]
    assert len(set(uids)) == len(uids)
    assert all(re.fullmatch(r"batchjob-[a-z-]{1,30}", uid) for uid in uids)
    by_folder = {(Path(name).parent, each["title"]) for name, each in DASHBOARDS.items()}
    assert len(by_folder) == len(DASHBOARDS)


@for_each_dashboard
def test_dashboard_conforms_to_grafana_schema(name):
    """Decoding and encoding with Grafana's SDK loses nothing."""
    dashboard = DASHBOARDS[name]
    reencoded = json.loads(JSONEncoder().encode(Dashboard.from_json(dashboard)))
    assert dashboard["schemaVersion"] == SCHEMA_VERSION
    # `definition` is shown in the list of variables; Grafana writes it, the SDK does not know it.
    assert [
        path for path in missing_paths(dashboard, reencoded) if not path.endswith("/definition")
    ] == []


def missing_paths(original, copy, path=""):
    """Paths of values in the original that the copy lacks."""
    if isinstance(original, dict):
        if not isinstance(copy, dict):
            return [path]
        return [
            p
            for key, value in original.items()
            for p in missing_paths(value, copy.get(key), f"{path}/{key}")
        ]
    if isinstance(original, list):
        if original and (not isinstance(copy, list) or len(copy) != len(original)):
            return [path]
        return [
            p
            for i, value in enumerate(original)
            for p in missing_paths(value, copy[i], f"{path}/{i}")
        ]
    return [] if original == copy or original in (None, "", False) else [path]


@for_each_dashboard
def test_data_sources_are_variables(name):
    for panel in panels(name):
        for source in (panel["datasource"], *(each["datasource"] for each in panel["targets"])):
            other = "${logs}" if source["type"] in LOG_TYPES else "${prometheus}"
            assert source["uid"] == ("${api}" if source["type"] in API_PLUGIN_TYPES else other)
    defined = {each["name"] for each in DASHBOARDS[name]["templating"]["list"]}
    used = {
        each
        for text in all_strings(panels(name))
        for each in re.findall(r"\$\{(api|logs|prom\w+)\}", text)
    }
    assert used <= defined


@for_each_dashboard
def test_used_variables_are_defined(name):
    defined = {each["name"] for each in DASHBOARDS[name]["templating"]["list"]}
    parts = [DASHBOARDS[name]["panels"], DASHBOARDS[name]["links"], DASHBOARDS[name]["templating"]]
    for text in all_strings(parts):
        for used in re.findall(r"\$\{?(\w+)", text):
            assert used.startswith("__") or used in defined, text


@for_each_dashboard
def test_panels_have_units_and_fit_the_grid(name):
    for panel in panels(name):
        position = panel["gridPos"]
        assert position["x"] + position["w"] <= 24
        if panel["type"] not in ("table", "logs"):
            assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        assert not re.search("#[0-9a-f]{6}", json.dumps(panel)), "colours by name, for both themes"


@for_each_dashboard
def test_promql_queries_exposed_metrics(name):
    for expr in expressions(name):
        assert families.names_in(expr) <= families.exposed_names(), expr
        # At least four scrape intervals, however far the viewer zooms in.
        assert not re.search(r"\brate\([^\[]*\[(?!\$__rate_interval|5m)", expr), expr


@for_each_dashboard
def test_links_point_to_existing_dashboards(name):
    uids = {each["uid"] for each in DASHBOARDS.values()}
    for text in all_strings(DASHBOARDS[name]):
        for uid in re.findall(r"/d/([a-z-]+)", text):
            assert uid in uids, text
            assert "@" not in text


@for_each_dashboard
def test_links_point_to_existing_server_pages(name):
    pages = {
        "/jobs/${job:percentencode}",
        "/clusters/${cluster:percentencode}/nodes/${node:percentencode}",
    }
    for link in DASHBOARDS[name]["links"]:
        if "localhost" in link.get("url", ""):
            address, _, query = link["url"].removeprefix(PAGES).partition("?")
            assert address in pages
            assert "cluster=" in query or "/clusters/" in address


@for_each_dashboard
def test_json_paths_use_portable_syntax(name):
    for panel in panels(name):
        for target in panel["targets"]:
            for field in target.get("fields", ()):
                assert re.fullmatch(r"\$\[\*\]\.[a-z_0-9]+", field["jsonPath"])
                assert target["cacheDurationSeconds"] == 0
            assert not target.get("root_selector")
            for column in target.get("columns", ()):
                assert re.fullmatch(r"[a-z_0-9]+", column["selector"])


@for_each_dashboard
def test_api_paths_exist(name):
    for panel in panels(name):
        for target in panel["targets"]:
            path = target.get("urlPath") or target.get("url")
            if path:
                assert "$" not in path, "an empty text box would make another path"
                route_path = re.sub(
                    r"(job|report)/(?!metrics$|report/)\w+$", r"\1/{part}", f"/api/v1{path}"
                )
                assert route_path in API_PATHS


SERIES = re.compile(r"(?P<before>[\w ,()]*)\b(?:(?:batchjob|scrape|process)_\w+|up)\b(?=[{\[)]|$)")
REPLICA_MERGE = re.compile(r"\b(max|min) *(by \([\w, ]+\) )?\((\w+\()?$")


@for_each_dashboard
def test_replicated_series_are_merged_before_aggregation(name):
    """Two Prometheus servers that write into one store must not double any value."""
    for expr in expressions(name):
        for match in () if expr.startswith("label_values") else SERIES.finditer(expr):
            assert REPLICA_MERGE.search(match["before"]), expr


@for_each_dashboard
def test_tables_of_jobs_say_which_were_resized(name):
    for panel in panels(name):
        for target in panel["targets"]:
            fields = {column["selector"] for column in target.get("columns", ())}
            assert "allocated_cpus" not in fields or "resized_cpu_seconds" in fields


@for_each_dashboard
def test_tables_of_jobs_say_whether_energy_is_that_of_whole_nodes(name):
    tables = [json.dumps(panel) for panel in panels(name)]
    assert all('"Energy by"' in each for each in tables if "energy_used_joules" in each)


@for_each_dashboard
def test_panels_explain_missing_data(name):
    for panel in panels(name):
        assert re.fullmatch(r"No data: .+\.", panel["fieldConfig"]["defaults"]["noValue"])


@for_each_dashboard
def test_time_series_legends_show_values(name):
    for panel in panels(name):
        if panel["type"] == "timeseries":
            assert panel["options"]["legend"]["calcs"]


@for_each_dashboard
def test_table_links_keep_cluster_and_time_range(name):
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
            variables = {each["name"] for each in DASHBOARDS[name]["templating"]["list"]}
            assert "var-cluster=" in link["url"] or "cluster" not in variables | set(overrides)
            assert "${__url_time_range}" in link["url"] or "var-job=" in link["url"]


def requires_one_cluster(dashboard):
    """Whether the dashboard shows one cluster at a time."""
    cluster_variables = [
        each for each in dashboard["templating"]["list"] if each["name"] == "cluster"
    ]
    return any(not each["includeAll"] for each in cluster_variables)


@for_each_dashboard
def test_links_never_pass_all_clusters_to_single_cluster_dashboard(name):
    """`${cluster}` is `.*` if all are chosen, which is not the name of a cluster."""
    by_uid = {each["uid"]: each for each in DASHBOARDS.values()}
    for url in all_strings([DASHBOARDS[name]["panels"], DASHBOARDS[name]["links"]]):
        target = re.match(r"/d/([a-z-]+)\?", url)
        if (
            target
            and requires_one_cluster(by_uid[target[1]])
            and not requires_one_cluster(DASHBOARDS[name])
        ):
            (cluster,) = re.findall(r"var-cluster=([^&]+)", url)
            assert cluster != "${cluster}", url


def threshold_steps(part):
    """All lists of threshold steps in a part of a dashboard."""
    if isinstance(part, dict):
        if "steps" in part:
            yield part["steps"]
        part = list(part.values())
    if isinstance(part, list):
        for each in part:
            yield from threshold_steps(each)


@for_each_dashboard
def test_threshold_colours_are_ordered(name):
    for steps in threshold_steps(DASHBOARDS[name]):
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
        ("BatchjobUsageHasCaveats", f"> {CAVEATS_LIMITS.red}"),
        ("BatchjobTrackedWorkFails", f"> {FAILED.red}"),
        ("BatchjobPollerBehind", f"> {POLL_AGE.orange} +"),
    ],
)
def test_colour_thresholds_match_alerts(alert, bound):
    rules = "".join(path.read_text() for path in ALERTS.glob("*_alerts.yml"))
    rule = rules.partition(f"- alert: {alert}\n")[2].partition("- alert:")[0]
    assert bound in rule.partition("for:")[0]


COLOURED_PANELS = {
    "prometheus/exporters.json": ["Last successful poll", "Coverage", "With a caveat", "Down"],
    "prometheus/job-live.json": ["CPU use", "Memory", "OOM kills"],
    "infinity/cluster.json": ["Failed jobs", "Nodes that accept no jobs"],
    "infinity/gpus.json": ["Utilisation of allocated GPUs", "Allocated but idle"],
}


@pytest.mark.parametrize("name", COLOURED_PANELS)
def test_panels_with_thresholds_are_coloured(name):
    coloured = {
        panel["title"]
        for panel in panels(name)
        if panel["type"] == "stat" and panel["options"]["colorMode"] == "value"
    }
    assert set(COLOURED_PANELS[name]) <= coloured


def test_documented_panels_of_open_ondemand_are_those_of_the_dashboard():
    """docs/tools.md; sites write the numbers into their files, so they must not move."""
    page = (Path(__file__).parents[2] / "docs/tools.md").read_text()
    (block,) = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    settings = yaml.safe_load(block)["v2"]["custom"]["grafana"]
    dashboard = DASHBOARDS["prometheus/job-live.json"]
    assert settings["dashboard"]["uid"] == dashboard["uid"]
    titles = {panel["id"]: panel["title"] for panel in dashboard["panels"]}
    assert {key: titles[number] for key, number in settings["dashboard"]["panels"].items()} == {
        "cpu": "CPUs in use",
        "memory": "Memory by node",
        "gpu-util": "GPU use",
        "gpu-memory": "GPU memory",
    }
    variables = {each["name"] for each in dashboard["templating"]["list"]}
    assert set(settings["labels"].values()) <= variables
