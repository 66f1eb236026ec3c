"""The chart, rendered by helm with several values and validated with Kubernetes' schemas."""

import copy
import json
import re
import shutil
import sys
from pathlib import Path

import jsonschema
import kubernetes_validate
import pytest
import yaml

from batchjob_exporter.options import parse_settings as exporter_settings
from batchjob_stats_db.poller.options import settings as poller_settings
from batchjob_stats_server.options import settings as server_settings
from tests.deploy import crds
from tests.helpers.processes import run

REPOSITORY = Path(__file__).parents[2]
CHART = REPOSITORY / "deploy/kubernetes"
VALUES = sorted((REPOSITORY / "tests/fixtures/chart").glob("*.yaml"))
SCRAPE_KINDS = ("ServiceMonitor", "VMServiceScrape")
VERSIONS = OLDEST, NEWEST = "1.25", "1.34"

pytestmark = pytest.mark.skipif(shutil.which("helm") is None, reason="not installed: helm")


def run_helm(*arguments):
    """Run helm, whatever its exit status."""
    argv = ["helm", *arguments]
    return run(argv)


def render_chart(*flags, release="bj"):
    done = run_helm("template", release, str(CHART), "--namespace=hpc", *flags)
    assert done.returncode == 0, done.stderr
    return [each for each in yaml.safe_load_all(done.stdout) if each]


def documented_values():
    text = (REPOSITORY / "docs/kubernetes.md").read_text()
    (block,) = re.findall(r"```yaml\n(# values.yaml\n.*?)```", text, re.DOTALL)
    return block


@pytest.fixture(scope="module", params=VERSIONS)
def version(request):
    """The Kubernetes version for which the chart is rendered."""
    return request.param


@pytest.fixture(scope="module", params=[*VALUES, "docs"], ids=lambda each: Path(each).stem)
def resources(request, version, tmp_path_factory):
    path = request.param
    if path == "docs":
        path = tmp_path_factory.mktemp("docs") / "values.yaml"
        path.write_text(documented_values())
    return render_chart("--values", str(path), "--kube-version", version)


@pytest.fixture(scope="module")
def all_resources():
    resources = render_chart("--values", str(REPOSITORY / "tests/fixtures/chart/everything.yaml"))
    return {(each["kind"], each["metadata"]["name"]): each for each in resources}


def test_every_resource_is_valid(resources, version):
    for each in resources:
        if each["kind"] == "VMAgent":
            crds.validate(each)
        elif each["kind"] not in SCRAPE_KINDS:
            kubernetes_validate.validate(each, version, strict=True)


@pytest.mark.parametrize("kind", SCRAPE_KINDS)
def test_every_scrape_resource_is_valid(resources, kind):
    if not crds.has_schema(kind):
        pytest.skip(f"no schema of {kind}: .ci/schemas.py downloads it")
    for each in resources:
        if each["kind"] == kind:
            crds.validate(each)


def test_kubernetes_schema_rejects_unknown_field(all_resources):
    daemons = copy.deepcopy(all_resources["DaemonSet", "bj-exporter"])
    daemons["spec"]["template"]["spec"]["hostPid"] = True
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(daemons, NEWEST, strict=True)


@pytest.mark.parametrize("kind", SCRAPE_KINDS)
@pytest.mark.parametrize(
    "invalid", [{"relabel_configs": [{"targetLabel": "a"}]}, {"interval": "30"}]
)
def test_scrape_schema_rejects_invalid_endpoint(all_resources, kind, invalid):
    if not crds.has_schema(kind):
        pytest.skip(f"no schema of {kind}: .ci/schemas.py downloads it")
    scrape = copy.deepcopy(all_resources[kind, "bj-cluster"])
    scrape["spec"]["endpoints"][0].update(invalid)
    with pytest.raises(jsonschema.ValidationError):
        crds.validate(scrape)


def test_resource_names_are_unique(resources):
    names = [(each["kind"], each["metadata"]["name"]) for each in resources]
    assert len(names) == len(set(names))
    assert {each["metadata"]["namespace"] for each in resources} == {"hpc"}


def test_resource_names_of_long_release_are_unique():
    flags = ("--values", str(REPOSITORY / "tests/fixtures/chart/everything.yaml"))
    names = [
        (each["kind"], each["metadata"]["name"]) for each in render_chart(*flags, release="r" * 53)
    ]
    assert len(set(names)) == len(names) == len(render_chart(*flags))
    assert max(len(name) for _, name in names) <= 63


def pod_specs(resources):
    for each in resources:
        if each["kind"] in ("DaemonSet", "Deployment"):
            template = each["spec"]["template"]
            assert each["spec"]["selector"]["matchLabels"] == template["metadata"]["labels"]
            yield each["metadata"]["name"], template["spec"]


CAPABILITIES = {
    ("bj-exporter", "exporter"): {"DAC_READ_SEARCH", "SYS_PTRACE"},
    ("bj-exporter", "helper"): {"BPF", "NET_ADMIN", "PERFMON", "SYS_ADMIN"},
}


def test_containers_have_no_other_privileges(resources):
    for name, pod in pod_specs(resources):
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
            assert added <= CAPABILITIES.get((name, container["name"]), set())
            root = security.get("runAsUser", pod["securityContext"].get("runAsUser")) == 0
            assert root == bool(added)
            assert container["resources"]["limits"]["memory"]
        assert pod.get("hostPID", False) == (name == "bj-exporter")


@pytest.mark.parametrize(
    ("groups", "rights"),
    [
        ("devices", ["SYS_ADMIN"]),
        ("process-io", ["BPF", "PERFMON"]),
        ("process-io,network", ["BPF", "NET_ADMIN", "PERFMON"]),
    ],
)
def test_helper_has_the_rights_for_what_it_gives_alone(groups, rights):
    flags = ("--set", f"exporter.helper.enabled=true,exporter.helper.give={{{groups}}}")
    pods = dict(pod_specs(render_chart(*flags)))
    exporter, helper = pods["bj-exporter"]["containers"]
    assert helper["securityContext"]["capabilities"]["add"] == rights
    program = [sys.executable, "-m", "batchjob_exporter.helper", *helper["args"], "--version"]
    assert run(program).returncode == 0
    (socket,) = (flag for flag in helper["args"] if flag.startswith("--listen="))
    assert Path(socket.removeprefix("--listen=")).parent == Path("/run/batchjob_helper")
    mounts = {mount["mountPath"] for mount in exporter["volumeMounts"]}
    assert "/run/batchjob_helper" in mounts  # the default of --path.helper


def test_host_paths_are_mounted_read_only(resources, version):
    for _, pod in pod_specs(resources):
        host_paths = {
            each["name"]: each["hostPath"]["path"] for each in pod["volumes"] if "hostPath" in each
        }
        assert not {"/", "/sys", "/proc", "/dev"} & set(host_paths.values())
        for container in pod["containers"]:
            mounts = {each["name"]: each for each in container["volumeMounts"]}
            for name in host_paths.keys() & mounts.keys():
                assert mounts[name]["readOnly"] is True
                expected = {"recursiveReadOnly": "IfPossible"} if version == NEWEST else {}
                assert expected.items() <= mounts[name].items()


def test_volumes_match_mounts(resources):
    for _, pod in pod_specs(resources):
        volumes = {each["name"] for each in pod["volumes"]}
        mounted = {
            mount["name"]
            for container in [*pod.get("initContainers", []), *pod["containers"]]
            for mount in container["volumeMounts"]
        }
        assert mounted == volumes


SETTINGS_READERS = {
    "exporter.yml": None,
    "stats_db.yml": poller_settings,
    "server.yml": server_settings,
}


def test_programs_accept_configuration_of_the_chart(resources, tmp_path):
    for each in resources:
        for name, text in each.get("data", {}).items() if each["kind"] == "ConfigMap" else ():
            if name not in SETTINGS_READERS:
                continue
            path = tmp_path / name
            path.write_text(text)
            if name == "exporter.yml":
                exporter_settings([f"--config.file={path}"])
            else:
                SETTINGS_READERS[name]({}, str(path))


def test_programs_accept_flags_and_listen_on_ports_of_the_chart(resources):
    ports = {"exporter": 10910, "cluster": 10910, "stats-db": 10911, "stats-server": 10912}
    for name, pod in pod_specs(resources):
        container = pod["containers"][0]
        assert container["ports"] == [
            {"name": "http", "containerPort": ports[name.removeprefix("bj-")]}
        ]
        flags = [flag for flag in container.get("args", []) if "config.file" not in flag]
        if "args" in container:
            exporter_settings([flag for flag in flags if not flag.startswith("--path")])


def test_config_maps_contain_all_grafana_dashboards(all_resources):
    found = {
        key: json.loads(text)
        for (kind, _), each in all_resources.items()
        if kind == "ConfigMap" and each["metadata"]["labels"].get("grafana_dashboard") == "1"
        for key, text in each["data"].items()
    }
    files = (REPOSITORY / "grafana/dashboards").glob("*/*.json")
    assert found == {
        f"{path.parent.name}-{path.name}": json.loads(path.read_text()) for path in files
    }


def test_scraped_services_have_the_job_names_of_the_alerts(all_resources):
    jobs = {"exporter", "cluster", "stats-db", "stats-server"}
    for kind, key in (("ServiceMonitor", "relabelings"), ("VMServiceScrape", "relabelConfigs")):
        scrapes = {name: each for (of, name), each in all_resources.items() if of == kind}
        assert scrapes.keys() == {f"bj-{part}" for part in jobs}
        for name, each in scrapes.items():
            service = all_resources["Service", name]
            assert each["spec"]["selector"]["matchLabels"].items() <= (
                service["metadata"]["labels"].items()
            )
            (endpoint,) = each["spec"]["endpoints"]
            assert endpoint["port"] == service["spec"]["ports"][0]["name"]
            labels = {row.get("targetLabel"): row for row in endpoint[key]}
            part = name.removeprefix("bj-")
            exporter_jobs = {"exporter": "batchjob_exporter", "cluster": "batchjob_cluster"}
            assert labels["job"]["replacement"] == exporter_jobs.get(
                part, f"batchjob_{part.replace('-', '_')}"
            )
            assert ("cluster" in labels) == (part != "stats-db")  # it has several clusters
            assert endpoint[key][-1]["action"] == "labeldrop"
            kept = [row["regex"] for row in endpoint.get(f"metric{key[0].upper()}{key[1:]}", [])]
            of_node = ["batchjob_.*", "batchjob_(cluster|stats)_.*"]  # of itself and its jobs only
            assert kept == (of_node if part == "exporter" else [])
            assert ("sampleLimit" in each["spec"]) == (part == "exporter")


def test_agent_writes_to_remote_store_with_token_of_secret(all_resources):
    agent = all_resources["VMAgent", "bj-agent"]["spec"]
    local, remote = agent["remoteWrite"]
    assert "bearerTokenSecret" not in local
    assert remote["bearerTokenSecret"] == {"name": "metrics", "key": "token"}
    assert not [each for each in render_chart() if each["kind"] == "VMAgent"]
    refused = run_helm("template", "bj", str(CHART), "--set-json=scrape.remoteWrite=[{}]")
    assert refused.returncode != 0
    assert "url" in refused.stderr


REMOTE_WRITE = '--set-json=scrape.remoteWrite=[{"url":"http://metrics/api/v1/write"}]'


def agent_spec(*flags):
    (agent,) = (each for each in render_chart(REMOTE_WRITE, *flags) if each["kind"] == "VMAgent")
    crds.validate(agent)
    return agent["spec"]


def test_agent_queue_is_on_persistent_volume():
    spec = agent_spec()
    assert spec["statefulMode"] is True
    assert spec["statefulStorage"]["volumeClaimTemplate"]["spec"] == {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "10Gi"}},
    }


def test_agent_volume_size_and_class_can_be_set():
    spec = agent_spec("--set=scrape.queue.size=50Gi,scrape.queue.storageClassName=local")
    claim = spec["statefulStorage"]["volumeClaimTemplate"]["spec"]
    assert claim["storageClassName"] == "local"
    assert claim["resources"] == {"requests": {"storage": "50Gi"}}


def test_agent_without_persistent_queue_has_no_volume():
    spec = agent_spec("--set=scrape.queue.persistent=false")
    assert not {"statefulMode", "statefulStorage"} & spec.keys()


@pytest.mark.parametrize("kind", SCRAPE_KINDS)
def test_scrapes_use_ca_of_server_certificate(all_resources, kind):
    (endpoint,) = all_resources[kind, "bj-stats-server"]["spec"]["endpoints"]
    assert endpoint["tlsConfig"] == {
        "serverName": "bj-stats-server.hpc.svc",
        "ca": {"secret": {"name": "stats-tls", "key": "ca.crt"}},
    }


def test_sqlite_volume_is_on_one_node_and_kept_on_uninstall(all_resources):
    server = all_resources["Deployment", "bj-stats-server"]["spec"]["template"]["spec"]
    assert "podAffinity" in server["affinity"]
    assert all_resources["Deployment", "bj-stats-db"]["spec"]["strategy"] == {"type": "Recreate"}
    claim = all_resources["PersistentVolumeClaim", "bj-jobs"]
    assert claim["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"


def test_changed_configuration_restarts_pods():
    def annotations(*flags):
        (exporter,) = (each for each in render_chart(*flags) if each["kind"] == "DaemonSet")
        return exporter["spec"]["template"]["metadata"]["annotations"]

    assert annotations() != annotations('--set-json=exporter.config={"log.level":"debug"}')


@pytest.mark.parametrize(
    "invalid",
    [
        "exporter.privileged=true",
        "exporter.capabilities={SYS_ADMIN}",
        "database.url=mysql://x",
        "database.url=postgresql://batchjob:password@postgres/batchjob",  # in a ConfigMap
        "database.url=postgresql://postgres/batchjob?password=password",
        "statsDb.enabled=true",  # without a source
        "scrape.interval=often",
        "scrape.queue.size=much",
        "exporter.hostPaths={etc}",
        "exporter.helper.give={everything}",
    ],
)
def test_invalid_values_are_rejected(invalid):
    done = run_helm("template", "bj", str(CHART), "--set", invalid)
    assert done.returncode != 0
    assert invalid.split(".")[0] in done.stderr


def test_helm_lint_passes():
    done = run_helm("lint", str(CHART), "--strict")
    assert done.returncode == 0, done.stdout
