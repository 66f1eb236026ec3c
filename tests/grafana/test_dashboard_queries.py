"""Every query of every dashboard returns data of running programs, queried as Grafana does."""

import concurrent.futures
import itertools
import json
import os
import re
import urllib.parse
from pathlib import Path

import pytest

from grafana.generate.__main__ import FOLDER
from tests.e2e import prometheus
from tests.grafana import dashboard_client, grafana_data, stack

pytestmark = pytest.mark.e2e

DASHBOARDS = {
    path.relative_to(FOLDER).as_posix(): json.loads(path.read_text())
    for path in sorted(FOLDER.rglob("*.json"))
    # Other programs' series: test_kubernetes_dashboards.py. Lines of a log database: test_logs.py.
    if path.parent.name not in ("kubernetes", "logs")
}
# Queries that may return nothing: a part of the query, and the reason.
EXPECTED_EMPTY = {
    "batchjob_job_network_": "no job has a network namespace of its own",
    "cpu_throttled": "no job has a quota",
    "batchjob_job_open_files": "the recordings have no descriptors",
    "batchjob_job_read_errors": "everything could be read",
    "batchjob_cluster_node_unavailable_info": "all nodes take jobs",
    "batchjob_cluster_pending_longest_wait_seconds": "no job that could start waits",
    "batchjob_cluster_job_wait_seconds": "no job starts while the collector runs",
    "/report/comparisons": "no similar job ended before",
    "/stats/idle-gpus": "no job has held GPUs for half an hour",
    "gpu_profiled_seconds": "the stand-in for the driver has no GPM",
    "gpu_unused_seconds": "busy time is counted up to 40 s late, and the jobs are shorter",
    "batchjob_gpu_map_disagreements": "all sources agree",
    "batchjob_ipmi_power": "no BMC",
    "batchjob_redfish_power": "no BMC",
    "[6h]": "the poller measured no job that ended while it ran",
    "batchjob_stats_db_ended_jobs_total": "no job ended while the poller ran",
    "batchjob_hwmon_power": "no such sensor",
    "batchjob_cray_power": "no Cray",
    "} == 0)": "nothing is down or fails",
}
WRONG_TEXTS = {"NaN", "undefined", "Invalid date", "[object Object]"}
PERSONAL_DASHBOARDS = ("my-jobs", "my-usage", "job", "job-live")


@pytest.fixture(scope="module")
def running_stack(tmp_path_factory):
    if why_not := prometheus.missing():
        pytest.skip(why_not)
    if os.geteuid() != 0:
        pytest.skip("owners of recorded files can be restored by root only")
    with stack.running(tmp_path_factory.mktemp("stack")) as running:
        yield running


def is_one_of(name, *slugs):
    return name.rpartition("/")[2].removesuffix(".json") in slugs


def viewers(running_stack, name):
    """Viewers of a dashboard; data that one machine or job lacks, another may have."""
    logins = (
        (stack.USER, stack.THIRD_USER)
        if is_one_of(name, *PERSONAL_DASHBOARDS)
        else (stack.OPERATOR,)
    )
    jobs = {stack.USER: stack.RUNNING_JOB, stack.THIRD_USER: stack.THIRD_USERS_JOB}
    nodes = [each.labels["instance"] for each in running_stack.tsdb.query("batchjob_node_cpus")]
    span = (running_stack.started_at, dashboard_client.now())
    for login in logins:
        for node in nodes if is_one_of(name, "node") else [""]:
            variables = {"cluster": stack.CLUSTER}
            variables |= {"job": jobs[login]} if is_one_of(name, "job", "job-live") else {}
            variables |= {"node": node} if node else {}
            yield dashboard_client.open_dashboard(
                running_stack.grafana, DASHBOARDS[name], login, span, **variables
            )


def panel_targets(name):
    for panel in DASHBOARDS[name]["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target


@pytest.mark.parametrize("name", DASHBOARDS)
def test_every_query_returns_data(running_stack, name):
    empty = {(title, target["refId"]): target for title, target in panel_targets(name)}
    for viewer in viewers(running_stack, name):
        for key, target in list(empty.items()):
            frames = running_stack.grafana.frames(target, viewer)
            if any(values for frame in frames for values in frame.values()):
                del empty[key]
    queries = {key: json.dumps(target) for key, target in empty.items()}
    assert {
        p: text for p, text in queries.items() if not any(each in text for each in EXPECTED_EMPTY)
    } == {}


@pytest.mark.parametrize("name", DASHBOARDS)
def test_grafana_names_and_formats_every_column(running_stack, name):
    """With Grafana's own code: transformations, overrides, units and names of columns."""
    if why_not := grafana_data.missing():
        pytest.skip(why_not)
    panels = [panel for panel in DASHBOARDS[name]["panels"] if panel.get("targets")]
    unmatched = {panel["title"]: None for panel in panels}
    for viewer in viewers(running_stack, name):
        answers = [
            [(target, running_stack.grafana.frames(target, viewer)) for target in panel["targets"]]
            for panel in panels
        ]
        shown = grafana_data.show(list(zip(panels, answers, strict=True)))
        for panel, result in zip(panels, shown, strict=True):
            names = [field.name for field in result.fields if not field.hidden]
            assert all(field.has_known_unit for field in result.fields), panel["title"]
            if panel["type"] == "table":
                assert len(set(names)) == len(names), panel["title"]
                assert not [each for each in names if "_" in each or "#" in each], panel["title"]
            texts = {text for field in result.fields for text in field.texts}
            assert not {"NaN", "undefined", "Invalid date", "[object Object]"} & texts, panel[
                "title"
            ]
            if result.fields and any(field.texts for field in result.fields):
                before = unmatched[panel["title"]]
                now = set(result.unmatched)
                unmatched[panel["title"]] = now if before is None else before & now
    for title, columns in unmatched.items():
        assert (columns or set()) <= {"gpu_instance"}, title  # no GPU here has instances


@pytest.mark.parametrize("name", DASHBOARDS)
def test_users_see_no_data_of_others(running_stack, name):
    """Whatever the choices in the URL, also those of an operator."""
    others = {stack.OTHER_USER, "chemistry", stack.ENDED_JOB}
    for viewer in viewers(running_stack, name):
        for title, target in panel_targets(name):
            for frame in running_stack.grafana.frames(target, viewer._replace(login=stack.USER)):
                for key in ("user", "account", "jobid"):
                    assert not others & set(frame.get(key, ())), title


@pytest.mark.parametrize("name", DASHBOARDS)
def test_rate_limits_allow_parallel_queries_of_a_dashboard(running_stack, name):
    """Browsers request all panels at once."""

    (viewer, *_) = viewers(running_stack, name)
    with concurrent.futures.ThreadPoolExecutor(50) as pool:
        requests = [target for _, target in panel_targets(name)]
        list(pool.map(lambda target: running_stack.grafana.frames(target, viewer), requests))


def column_links(panel):
    """Pairs of the column that has a link ("" for lines) and its URL."""
    parts = panel["fieldConfig"]
    links = [("", each) for each in parts["defaults"].get("links", ())]
    for override in parts["overrides"]:
        listed = (each["value"] for each in override["properties"] if each["id"] == "links")
        links += [(override["matcher"]["options"], each) for each in itertools.chain(*listed)]
    return [(column, each["url"]) for column, each in links]


def link_target(url, column, frame, viewer):
    """The URL of the link in the first row of a frame; None without this column."""
    row = {key: str(values[0]) for key, values in frame.items() if values} | {"": ""}
    if column not in row:
        return None
    url = url.replace("${__value.raw}", row[column])
    names = r"\$\{__(?:field\.labels|data\.fields)\.(\w+)(?::raw)?\}"
    return urllib.parse.urlsplit(
        viewer.interpolate(re.sub(names, lambda match: row[match[1]], url))
    )


@pytest.mark.parametrize("name", DASHBOARDS)
def test_links_point_to_clusters_known_to_the_dashboard(running_stack, name):
    """Also if all clusters are chosen."""
    by_uid = {each["uid"]: each for each in DASHBOARDS.values()}
    for viewer in viewers(running_stack, name):
        cluster = viewer.choices.get("cluster")
        if cluster and cluster.multiple:
            viewer.choices["cluster"] = cluster._replace(value=dashboard_client.ALL)
        for panel in DASHBOARDS[name]["panels"]:
            for target in panel.get("targets", ()):
                frames = running_stack.grafana.frames(target, viewer)[:1]
                for (column, url), frame in itertools.product(column_links(panel), frames):
                    target_url = link_target(url, column, frame, viewer)
                    if target_url and not target_url.netloc:
                        dashboard = by_uid[target_url.path.removeprefix("/d/")]
                        variables = cluster_variable(target_url.query, dashboard)
                        dashboard_client.open_dashboard(
                            running_stack.grafana,
                            dashboard,
                            stack.OPERATOR,
                            viewer[1:3],
                            **variables,
                        )


def cluster_variable(query, dashboard):
    """The cluster that a URL passes to the dashboard; nothing if it passes all."""
    variables = dict(urllib.parse.parse_qsl(query))
    for each in dashboard["templating"]["list"]:
        if each["name"] == "cluster" and variables["var-cluster"] != each["allValue"]:
            return {"cluster": variables["var-cluster"]}
    return {}


def test_recording_rules_evaluate_on_real_series(running_stack):
    """All are evaluated without error; usage of jobs and clusters is recorded."""
    groups = running_stack.tsdb.get("rules")["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert {rule["health"] for rule in rules} == {"ok"}, rules
    series_names = {
        each.labels["__name__"] for each in running_stack.tsdb.query('{__name__=~"batchjob:.+"}')
    }
    # Only those of jobs.yml: the other files join metrics of programs that do not run here.
    expected = {
        rule["name"]
        for group in groups
        for rule in group["rules"]
        if Path(group["file"]).name == "jobs.yml"
    }
    # Of jobs with GPUs that were idle for half an hour (tests/prometheus/test_rules.py).
    occasional = {"batchjob:job:gpus_idle", "batchjob:job:gpus_unidentified"}
    assert expected - series_names - occasional == set()
    firing = running_stack.tsdb.query('ALERTS{alertstate="firing",severity="critical"}')
    assert firing == []


def test_job_has_a_link_to_the_lines_of_its_nodes(running_stack):
    dashboard = DASHBOARDS["infinity/job.json"]
    (panel,) = [each for each in dashboard["panels"] if each["title"] == "Log of its nodes"]
    (viewer, *_) = viewers(running_stack, "infinity/job.json")
    (frame,) = running_stack.grafana.frames(panel["targets"][0], viewer)
    ((column, url),) = column_links(panel)
    link = link_target(url, column, frame, viewer)
    assert link.netloc == "logs.example.org"
    assert urllib.parse.parse_qs(link.query)["n"] == frame["nodes"]


@pytest.mark.parametrize("job", ["", "404404"])
def test_dashboard_of_a_job_that_is_not_there_is_empty_and_not_red(running_stack, job):
    """So it is when it is opened from Grafana's list; an error would be raised here."""
    for name in ("infinity/job.json", "json-api/job.json"):
        viewer = dashboard_client.open_dashboard(
            running_stack.grafana, DASHBOARDS[name], stack.OPERATOR, (0, 1), job=job
        )
        for title, target in panel_targets(name):
            for frame in running_stack.grafana.frames(target, viewer):
                assert not any(frame.values()), title


def test_job_link_sets_time_range_of_the_job(running_stack):
    for name in ("infinity/job.json", "json-api/job.json"):
        viewer = dashboard_client.open_dashboard(
            running_stack.grafana, DASHBOARDS[name], stack.OPERATOR, (0, 1), job=stack.ENDED_JOB
        )
        (link,) = [each for each in DASHBOARDS[name]["links"] if "window_from" in str(each)]
        url = viewer.interpolate(link["url"])
        start = int(running_stack.started_at) - 60
        assert f"var-job={stack.ENDED_JOB}&from={start}000&to=" in url
        assert url.rsplit("=")[-1].isdigit()
        live = dashboard_client.open_dashboard(
            running_stack.grafana, DASHBOARDS[name], stack.USER, (0, 1), job=stack.RUNNING_JOB
        )
        assert live.interpolate(link["url"]).endswith("&to=now")
