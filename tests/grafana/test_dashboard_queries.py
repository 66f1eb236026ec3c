"""Every query of every dashboard gives data, asked as Grafana does of all that really runs."""

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
from tests.grafana import asking, stack

pytestmark = pytest.mark.e2e

DASHBOARDS = {
    path.relative_to(FOLDER).as_posix(): json.loads(path.read_text())
    for path in sorted(FOLDER.rglob("*.json"))
    if path.parent.name != "kubernetes"  # of others' series: test_kubernetes_dashboards.py
}
# What may be empty: a piece of the query, and why.
EMPTY = {
    "batchjob_job_network_": "no job has a network namespace of its own",
    "cpu_throttled": "no job has a quota",
    "batchjob_job_open_files": "the recordings have no descriptors",
    "batchjob_job_read_errors": "all could be read",
    "batchjob_cluster_node_unavailable_info": "all nodes take jobs",
    "batchjob_cluster_job_wait_seconds": "no job begins while the collector looks",
    "similar.comparisons": "no job like it ended before",
    "/stats/idle-gpus": "no job has held GPUs for half an hour",
    "batchjob_gpu_map_disagreements": "all sources agree",
    "batchjob_ipmi_power": "no BMC",
    "batchjob_redfish_power": "no BMC",
    "[6h]": "the poller measured no job whose end it saw",
    "batchjob_stats_db_ended_jobs_total": "no job ended while the poller looked",
    "batchjob_hwmon_power": "no such sensor",
    "batchjob_cray_power": "no Cray",
    "} == 0)": "what is down or fails: nothing",
}
PERSONAL = ("my-jobs", "my-usage", "job", "job-live")


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    if why_not := prometheus.missing():
        pytest.skip(why_not)
    if os.geteuid() != 0:
        pytest.skip("owners of recorded files can be restored by root only")
    with stack.running(tmp_path_factory.mktemp("stack")) as made:
        yield made


def is_of(name, *slugs):
    return name.rpartition("/")[2].removesuffix(".json") in slugs


def views(running, name):
    """Viewers of a dashboard; what one machine or job has not, another may have."""
    logins = (stack.USER, stack.THIRD) if is_of(name, *PERSONAL) else (stack.OPERATOR,)
    jobs = {stack.USER: stack.RUNNING, stack.THIRD: stack.THIRDS}
    nodes = [each.labels["instance"] for each in running.tsdb.query("batchjob_node_cpus")]
    span = (running.began, asking.now())
    for login in logins:
        for node in nodes if is_of(name, "node") else [""]:
            given = {"cluster": stack.CLUSTER}
            given |= {"job": jobs[login]} if is_of(name, "job", "job-live") else {}
            given |= {"node": node} if node else {}
            yield asking.look(running.grafana, DASHBOARDS[name], login, span, **given)


def targets(name):
    for panel in DASHBOARDS[name]["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target


def frames_or_none(running, target, seen):
    try:
        return running.grafana.frames(target, seen)
    except asking.Refused as error:
        if error.status != 404:
            raise
        return []


@pytest.mark.parametrize("name", DASHBOARDS)
def test_every_query_returns_data(running, name):
    empty = {(title, target["refId"]): target for title, target in targets(name)}
    for seen in views(running, name):
        for place, target in list(empty.items()):
            frames = running.grafana.frames(target, seen)
            if any(values for frame in frames for values in frame.values()):
                del empty[place]
    asked = {place: json.dumps(target) for place, target in empty.items()}
    assert {p: text for p, text in asked.items() if not any(each in text for each in EMPTY)} == {}


@pytest.mark.parametrize("name", DASHBOARDS)
def test_users_see_nothing_of_others(running, name):
    """With whatever choices in the address, an operator's too."""
    others = {stack.OTHER, "chemistry", stack.ENDED}
    for seen in views(running, name):
        for title, target in targets(name):
            for frame in frames_or_none(running, target, seen._replace(login=stack.USER)):
                for key in ("user", "account", "jobid"):
                    assert not others & set(frame.get(key, ())), title


@pytest.mark.parametrize("name", DASHBOARDS)
def test_a_whole_dashboard_may_be_asked_for_at_once(running, name):
    """As browsers do; the server's limits are meant for others."""

    (seen, *_) = views(running, name)
    with concurrent.futures.ThreadPoolExecutor(50) as pool:
        asked = [target for _, target in targets(name)]
        list(pool.map(lambda target: running.grafana.frames(target, seen), asked))


def links(panel):
    """Addresses that names of a panel lead to, and the column that has them; "" for lines."""
    parts = panel["fieldConfig"]
    found = [("", each) for each in parts["defaults"].get("links", ())]
    for override in parts["overrides"]:
        listed = (each["value"] for each in override["properties"] if each["id"] == "links")
        found += [(override["matcher"]["options"], each) for each in itertools.chain(*listed)]
    return [(column, each["url"]) for column, each in found]


def address(url, column, frame, seen):
    """Where the first row of a frame leads; None for one without this name."""
    row = {key: str(values[0]) for key, values in frame.items() if values} | {"": ""}
    if column not in row:
        return None
    url = url.replace("${__value.raw}", row[column])
    names = r"\$\{__(?:field\.labels|data\.fields)\.(\w+)\}"
    return urllib.parse.urlsplit(seen.text(re.sub(names, lambda found: row[found[1]], url)))


@pytest.mark.parametrize("name", DASHBOARDS)
def test_names_lead_to_clusters_that_dashboards_offer(running, name):
    """Where all are chosen, too."""
    by_uid = {each["uid"]: each for each in DASHBOARDS.values()}
    for seen in views(running, name):
        cluster = seen.choices.get("cluster")
        if cluster and cluster.many:
            seen.choices["cluster"] = cluster._replace(value=asking.ALL)
        for panel in DASHBOARDS[name]["panels"]:
            for target in panel.get("targets", ()):
                frames = running.grafana.frames(target, seen)[:1]
                for (column, url), frame in itertools.product(links(panel), frames):
                    if there := address(url, column, frame, seen):
                        led = by_uid[there.path.removeprefix("/d/")]
                        given = clusters_chosen(there.query, led)
                        asking.look(running.grafana, led, stack.OPERATOR, seen[1:3], **given)


def clusters_chosen(query, dashboard):
    """What an address chooses of the dashboard's variable; all is no choice."""
    given = dict(urllib.parse.parse_qsl(query))
    for each in dashboard["templating"]["list"]:
        if each["name"] == "cluster" and given["var-cluster"] != each["allValue"]:
            return {"cluster": given["var-cluster"]}
    return {}


def test_the_rules_work_on_real_series(running):
    """All are evaluated without error; what jobs and clusters use is recorded."""
    groups = running.tsdb.get("rules")["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert {rule["health"] for rule in rules} == {"ok"}, rules
    found = {each.labels["__name__"] for each in running.tsdb.query('{__name__=~"batchjob:.+"}')}
    # Those of jobs.yml: the other files join metrics of programs that do not run here.
    recorded = {
        rule["name"]
        for group in groups
        for rule in group["rules"]
        if Path(group["file"]).name == "jobs.yml"
    }
    assert recorded - found == set()
    firing = running.tsdb.query('ALERTS{alertstate="firing",severity="critical"}')
    assert firing == []


def test_the_window_of_a_job_comes_from_its_number(running):
    for name in ("infinity/job.json", "json-api/job.json"):
        seen = asking.look(
            running.grafana, DASHBOARDS[name], stack.OPERATOR, (0, 1), job=stack.ENDED
        )
        (link,) = [each for each in DASHBOARDS[name]["links"] if "window_from" in str(each)]
        address = seen.text(link["url"])
        start = int(running.began) - 60
        assert f"var-job={stack.ENDED}&from={start}000&to=" in address
        assert address.rsplit("=")[-1].isdigit()
        live = asking.look(running.grafana, DASHBOARDS[name], stack.USER, (0, 1), job=stack.RUNNING)
        assert live.text(link["url"]).endswith("&to=now")
