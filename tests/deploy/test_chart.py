"""The chart, rendered by helm with several values and held against Kubernetes' own schemas."""

import copy
import json
import re
import shutil
import subprocess
from pathlib import Path

import jsonschema
import kubernetes_validate
import pytest
import yaml

from batchjob_exporter.options import parse_settings as exporter_settings
from batchjob_stats_db.poller.options import settings as poller_settings
from batchjob_stats_server.options import settings as server_settings
from tests.deploy import crds

REPOSITORY = Path(__file__).parents[2]
CHART = REPOSITORY / "deploy/kubernetes"
VALUES = sorted((REPOSITORY / "tests/fixtures/chart").glob("*.yaml"))
SCRAPES = ("ServiceMonitor", "VMServiceScrape")
VERSIONS = OLDEST, NEWEST = "1.25", "1.34"

pytestmark = pytest.mark.skipif(shutil.which("helm") is None, reason="not installed: helm")


def helm(*arguments):
    """helm's answer, whatever its status."""
    argv = ["helm", *arguments]
    return subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)


def rendered(*flags, release="bj"):
    done = helm("template", release, str(CHART), "--namespace=hpc", *flags)
    assert done.returncode == 0, done.stderr
    return [each for each in yaml.safe_load_all(done.stdout) if each]


def values_of_the_documentation():
    text = (REPOSITORY / "docs/kubernetes.md").read_text()
    (block,) = re.findall(r"```yaml\n(# values.yaml\n.*?)```", text, re.DOTALL)
    return block


@pytest.fixture(scope="module", params=VERSIONS)
def version(request):
    """Of the Kubernetes that the chart is rendered for."""
    return request.param


@pytest.fixture(scope="module", params=[*VALUES, "docs"], ids=lambda each: Path(each).stem)
def resources(request, version, tmp_path_factory):
    path = request.param
    if path == "docs":
        path = tmp_path_factory.mktemp("docs") / "values.yaml"
        path.write_text(values_of_the_documentation())
    return rendered("--values", str(path), "--kube-version", version)


@pytest.fixture(scope="module")
def everything():
    made = rendered("--values", str(REPOSITORY / "tests/fixtures/chart/everything.yaml"))
    return {(each["kind"], each["metadata"]["name"]): each for each in made}


def test_every_resource_is_valid(resources, version):
    for each in resources:
        if each["kind"] == "VMAgent":
            crds.check(each)
        elif each["kind"] not in SCRAPES:
            kubernetes_validate.validate(each, version, strict=True)


@pytest.mark.parametrize("kind", SCRAPES)
def test_every_scrape_is_valid(resources, kind):
    if not crds.there(kind):
        pytest.skip(f"no schema of {kind}: .ci/schemas.py gets it")
    for each in resources:
        if each["kind"] == kind:
            crds.check(each)


def test_the_schemas_refuse_what_they_do_not_know(everything):
    daemons = copy.deepcopy(everything["DaemonSet", "bj-exporter"])
    daemons["spec"]["template"]["spec"]["hostPid"] = True
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(daemons, NEWEST, strict=True)


@pytest.mark.parametrize("kind", SCRAPES)
@pytest.mark.parametrize("wrong", [{"relabel_configs": [{"targetLabel": "a"}]}, {"interval": "30"}])
def test_the_schemas_refuse_a_scrape_that_would_not_be(everything, kind, wrong):
    if not crds.there(kind):
        pytest.skip(f"no schema of {kind}: .ci/schemas.py gets it")
    scrape = copy.deepcopy(everything[kind, "bj-cluster"])
    scrape["spec"]["endpoints"][0].update(wrong)
    with pytest.raises(jsonschema.ValidationError):
        crds.check(scrape)


def test_no_two_have_the_same_name(resources):
    names = [(each["kind"], each["metadata"]["name"]) for each in resources]
    assert len(names) == len(set(names))
    assert {each["metadata"]["namespace"] for each in resources} == {"hpc"}


def test_no_name_of_a_long_release_is_cut_to_that_of_another():
    flags = ("--values", str(REPOSITORY / "tests/fixtures/chart/everything.yaml"))
    long = [(each["kind"], each["metadata"]["name"]) for each in rendered(*flags, release="r" * 53)]
    assert len(set(long)) == len(long) == len(rendered(*flags))
    assert max(len(name) for _, name in long) <= 63


def pods(resources):
    for each in resources:
        if each["kind"] in ("DaemonSet", "Deployment"):
            template = each["spec"]["template"]
            assert each["spec"]["selector"]["matchLabels"] == template["metadata"]["labels"]
            yield each["metadata"]["name"], template["spec"]


NAMED = {"DAC_READ_SEARCH", "SYS_PTRACE"}


def test_no_container_may_more_than_is_named(resources):
    for name, pod in pods(resources):
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not pod["automountServiceAccountToken"]
        assert not {"hostNetwork", "hostIPC"} & pod.keys()
        for container in [*pod.get("initContainers", []), *pod["containers"]]:
            security = container["securityContext"]
            assert security["allowPrivilegeEscalation"] is False
            assert security["readOnlyRootFilesystem"] is True
            assert "privileged" not in security
            assert security["capabilities"]["drop"] == ["ALL"]
            added = set(security["capabilities"].get("add", []))
            assert added <= (NAMED if name == "bj-exporter" else set())
            root = security.get("runAsUser", pod["securityContext"].get("runAsUser")) == 0
            assert root == bool(added)
            assert container["resources"]["limits"]["memory"]
        assert pod.get("hostPID", False) == (name == "bj-exporter")


def test_what_is_the_nodes_is_read_only(resources, version):
    for _, pod in pods(resources):
        hosts = {
            each["name"]: each["hostPath"]["path"] for each in pod["volumes"] if "hostPath" in each
        }
        assert not {"/", "/sys", "/proc", "/dev"} & set(hosts.values())
        for container in pod["containers"]:
            mounts = {each["name"]: each for each in container["volumeMounts"]}
            for name in hosts:
                assert mounts[name]["readOnly"] is True
                known = {"recursiveReadOnly": "IfPossible"} if version == NEWEST else {}
                assert known.items() <= mounts[name].items()


def test_every_mount_has_its_volume(resources):
    for _, pod in pods(resources):
        volumes = {each["name"] for each in pod["volumes"]}
        mounted = {
            mount["name"]
            for container in [*pod.get("initContainers", []), *pod["containers"]]
            for mount in container["volumeMounts"]
        }
        assert mounted == volumes


READERS = {"exporter.yml": None, "stats_db.yml": poller_settings, "server.yml": server_settings}


def test_our_programs_accept_their_files(resources, tmp_path):
    for each in resources:
        for name, text in each.get("data", {}).items() if each["kind"] == "ConfigMap" else ():
            if name not in READERS:
                continue
            path = tmp_path / name
            path.write_text(text)
            if name == "exporter.yml":
                exporter_settings([f"--config.file={path}"])
            else:
                READERS[name]({}, str(path))


def test_our_programs_know_the_flags_and_ports(resources):
    ports = {"exporter": 10910, "cluster": 10910, "stats-db": 10911, "stats-server": 10912}
    for name, pod in pods(resources):
        (container,) = pod["containers"]
        assert container["ports"] == [
            {"name": "http", "containerPort": ports[name.removeprefix("bj-")]}
        ]
        flags = [flag for flag in container.get("args", []) if "config.file" not in flag]
        if "args" in container:
            exporter_settings([flag for flag in flags if not flag.startswith("--path")])


def test_dashboards_are_those_of_grafana(everything):
    found = {
        key: json.loads(text)
        for (kind, _), each in everything.items()
        if kind == "ConfigMap" and each["metadata"]["labels"].get("grafana_dashboard") == "1"
        for key, text in each["data"].items()
    }
    files = (REPOSITORY / "grafana/dashboards").glob("*/*.json")
    assert found == {
        f"{path.parent.name}-{path.name}": json.loads(path.read_text()) for path in files
    }


def test_scrapers_find_every_part_by_its_alerts_name(everything):
    jobs = {"exporter", "cluster", "stats-db", "stats-server"}
    for kind, key in (("ServiceMonitor", "relabelings"), ("VMServiceScrape", "relabelConfigs")):
        scraped = {name: each for (of, name), each in everything.items() if of == kind}
        assert scraped.keys() == {f"bj-{part}" for part in jobs}
        for name, each in scraped.items():
            service = everything["Service", name]
            assert each["spec"]["selector"]["matchLabels"].items() <= (
                service["metadata"]["labels"].items()
            )
            (endpoint,) = each["spec"]["endpoints"]
            assert endpoint["port"] == service["spec"]["ports"][0]["name"]
            labels = {row.get("targetLabel"): row for row in endpoint[key]}
            part = name.removeprefix("bj-")
            own = {"exporter": "batchjob_exporter", "cluster": "batchjob_cluster"}
            assert labels["job"]["replacement"] == own.get(
                part, f"batchjob_{part.replace('-', '_')}"
            )
            assert ("cluster" in labels) == (part != "stats-db")  # it tells of several clusters
            assert endpoint[key][-1]["action"] == "labeldrop"


def test_the_agent_writes_elsewhere_with_a_token_from_a_secret(everything):
    agent = everything["VMAgent", "bj-agent"]["spec"]
    near, far = agent["remoteWrite"]
    assert "bearerTokenSecret" not in near
    assert far["bearerTokenSecret"] == {"name": "metrics", "key": "token"}
    assert not [each for each in rendered() if each["kind"] == "VMAgent"]
    refused = helm("template", "bj", str(CHART), "--set-json=scrape.remoteWrite=[{}]")
    assert refused.returncode != 0
    assert "url" in refused.stderr


REMOTE = '--set-json=scrape.remoteWrite=[{"url":"http://metrics/api/v1/write"}]'


def agent_with(*flags):
    (agent,) = (each for each in rendered(REMOTE, *flags) if each["kind"] == "VMAgent")
    crds.check(agent)
    return agent["spec"]


def test_samples_not_yet_sent_outlive_the_agents_pod():
    spec = agent_with()
    assert spec["statefulMode"] is True
    assert spec["statefulStorage"]["volumeClaimTemplate"]["spec"] == {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "10Gi"}},
    }


def test_the_agents_volume_has_the_size_and_class_that_are_set():
    spec = agent_with("--set=scrape.queue.size=50Gi,scrape.queue.storageClassName=local")
    claim = spec["statefulStorage"]["volumeClaimTemplate"]["spec"]
    assert claim["storageClassName"] == "local"
    assert claim["resources"] == {"requests": {"storage": "50Gi"}}


def test_an_agent_can_do_without_a_volume():
    spec = agent_with("--set=scrape.queue.persistent=false")
    assert not {"statefulMode", "statefulStorage"} & spec.keys()


@pytest.mark.parametrize("kind", SCRAPES)
def test_scrapers_know_the_ca_of_the_servers_certificate(everything, kind):
    (endpoint,) = everything[kind, "bj-stats-server"]["spec"]["endpoints"]
    assert endpoint["tlsConfig"] == {
        "serverName": "bj-stats-server.hpc.svc",
        "ca": {"secret": {"name": "stats-tls", "key": "ca.crt"}},
    }


def test_sqlite_is_on_one_node_and_outlives_the_release(everything):
    server = everything["Deployment", "bj-stats-server"]["spec"]["template"]["spec"]
    assert "podAffinity" in server["affinity"]
    assert everything["Deployment", "bj-stats-db"]["spec"]["strategy"] == {"type": "Recreate"}
    claim = everything["PersistentVolumeClaim", "bj-jobs"]
    assert claim["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"


def test_a_changed_file_starts_new_pods():
    def annotations(*flags):
        (exporter,) = (each for each in rendered(*flags) if each["kind"] == "DaemonSet")
        return exporter["spec"]["template"]["metadata"]["annotations"]

    assert annotations() != annotations('--set-json=exporter.config={"log.level":"debug"}')


@pytest.mark.parametrize(
    "wrong",
    [
        "exporter.privileged=true",
        "exporter.capabilities={SYS_ADMIN}",
        "database.url=mysql://x",
        "database.url=postgresql://batchjob:password@postgres/batchjob",  # seen in a ConfigMap
        "database.url=postgresql://postgres/batchjob?password=password",
        "statsDb.enabled=true",  # without a source
        "scrape.interval=often",
        "scrape.queue.size=much",
        "exporter.hostPaths={etc}",
    ],
)
def test_wrong_values_are_refused(wrong):
    done = helm("template", "bj", str(CHART), "--set", wrong)
    assert done.returncode != 0
    assert wrong.split(".")[0] in done.stderr


def test_helm_finds_no_fault():
    done = helm("lint", str(CHART), "--strict")
    assert done.returncode == 0, done.stdout
